"""``python -m benchmarks``: print one row per line, write ``bench.json``, exit with 1 on a miss.

SmolLM2-135M as an unprocessed HookedTransformer, float32, two threads. Times are ratios to a plain
forward of the same model on the same tokens, medians over interleaved rounds of one process; memory
is that of a fresh process per scenario.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import tl_geometry as tlg
from benchmarks.harness import (
    Row,
    at_most,
    interleaved,
    own_peak_memory,
    peak_memory,
    ratio,
    write_json,
)
from tl_geometry.ablations.entries import EntryMasker
from tl_geometry.analysis.defaults import default_measures
from tl_geometry.data import demo_corpora, token_batches
from tl_geometry.evaluation.sensitivity import head_sensitivity
from tl_geometry.hooks import attention_sites
from tl_geometry.hooks.capture import capture_hooks
from tl_geometry.models import load_model

THREADS = 2
LONG = 2048


def model_and_tokens(n_ctx: int) -> tuple[Any, torch.Tensor]:
    model = load_model("smollm2", backend="hooked", processing=False)
    texts = ["\n\n".join(text for corpus in demo_corpora().values() for text in corpus)]
    batch = next(iter(token_batches(texts, model, n_ctx=n_ctx, batch_size=1, max_documents=1)))
    return model, batch.tokens


def separability_hooks(model: Any, queries: Any) -> list[Any]:
    """Hooks that score six N in every layer and keep nothing."""

    def consume(site: Any, pattern: torch.Tensor, v: torch.Tensor, z: torch.Tensor) -> None:
        tlg.separability(pattern, v, queries=queries)

    return capture_hooks(model, attention_sites(model), consume)


def timings() -> Iterator[Row]:
    model, tokens = model_and_tokens(512)
    contributions = tlg.Probe(model, [tlg.Contributions()])
    everything = tlg.Probe(model, default_measures(stream=True))

    def hooked(hooks: Callable[[], list[Any]]) -> Callable[[], object]:
        return lambda: model.run_with_hooks(tokens, fwd_hooks=hooks())

    with torch.no_grad():
        seconds = interleaved(
            {
                "plain": lambda: model(tokens),
                "contributions": hooked(contributions.hooks),
                "default": hooked(everything.hooks),
                "separability 64": hooked(lambda: separability_hooks(model, 64)),
                "separability all": hooked(lambda: separability_hooks(model, "all")),
            }
        )
    value, spread = ratio(seconds, "contributions", "plain")
    yield at_most(
        "contributions (intra, inter, per head), T=512: time / plain forward", value, 1.5, spread
    )
    value, spread = ratio(seconds, "default", "plain")
    yield at_most("all default measures, T=512: time / plain forward", value, 4.0, spread)
    value, spread = ratio(seconds, "separability 64", "plain")
    yield at_most(
        "separability, six N, 64 queries, T=512: added time / plain forward", value - 1, 0.6, spread
    )
    value, spread = ratio(seconds, "separability all", "plain")
    yield at_most(
        "separability, six N, 512 queries, T=512: added time / plain forward",
        value - 1,
        4.0,
        spread,
    )


def interventions() -> Iterator[Row]:
    """What masking entries and removing single heads cost, on two windows of 256 tokens."""
    model, _ = model_and_tokens(256)
    texts = demo_corpora()["demo-prose"]
    batch = next(iter(token_batches(texts, model, n_ctx=256, batch_size=2, max_documents=2)))
    maskers = {
        f"{kind} {share:g}": EntryMasker(model, kind, share)
        for kind in ("contribution", "attention")
        for share in (0.01, 0.1)
    }

    def masked(masker: EntryMasker) -> Callable[[], object]:
        return lambda: model.run_with_hooks(
            batch.tokens,
            fwd_hooks=masker.hooks(batch.attention_mask, documents=batch.documents),
        )

    heads = [(site.layer, 0) for site in attention_sites(model)]
    runs: dict[str, Callable[[], object]] = {"plain": lambda: model(batch.tokens)}
    runs |= {name: masked(masker) for name, masker in maskers.items()}
    with torch.no_grad():
        seconds = interleaved(runs)
        for name in maskers:
            value, spread = ratio(seconds, name, "plain")
            yield at_most(
                f"masked forward, {name} of the entries of a query, T=256: / plain forward",
                value,
                1.6,
                spread,
            )
        seconds = interleaved(
            {
                "plain": lambda: [model(batch.tokens) for _ in heads],
                "alone": lambda: head_sensitivity(
                    model, batch.tokens, n_ctx=256, batch_size=2, heads=heads, progress=False
                ),
            },
            rounds=3,
        )
    value, spread = ratio(seconds, "alone", "plain")
    yield at_most("head_sensitivity, T=256: / a plain forward per head", value, 0.7, spread)


def memory() -> Iterator[Row]:
    plain = peak_memory("hooked forward")
    scored = peak_memory("separability")
    yield at_most(
        f"separability, 64 queries, T={LONG}: peak memory / plain hooked forward",
        scored / plain,
        1.3,
        f"{scored:.0f} / {plain:.0f} MiB",
    )


def run_scenario(name: str) -> None:
    """One run at full length, for its peak memory."""
    model, tokens = model_and_tokens(LONG)
    if name == "separability":
        hooks = separability_hooks(model, 64)
    else:
        hooks = capture_hooks(model, attention_sites(model), lambda site, pattern, v, z: None)
    with torch.no_grad():
        model.run_with_hooks(tokens, fwd_hooks=hooks)
    print(own_peak_memory())


def main() -> int:
    torch.set_num_threads(THREADS)
    if sys.argv[1:2] == ["--scenario"]:
        run_scenario(sys.argv[2])
        return 0
    print(
        f"SmolLM2-135M, HookedTransformer, float32, {THREADS} threads; medians of interleaved runs"
    )
    rows = []
    for part in (timings, interventions, memory):
        for row in part():
            print(row, flush=True)
            rows.append(row)
    write_json(rows, Path("bench.json"))
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
