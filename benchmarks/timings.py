"""What measuring costs: times over that of a plain forward of the same model on the same tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import tl_geometry as tlg
from benchmarks.counting import Stopwatch, around
from benchmarks.harness import Row, Sample, at_most, ratios
from benchmarks.setting import plain, probed, smollm2, windows
from tl_geometry.ablations.entries import EntryMasker
from tl_geometry.analysis.defaults import default_measures
from tl_geometry.evaluation.sensitivity import head_sensitivity
from tl_geometry.hooks import attention_sites
from tl_geometry.hooks.capture import capture_hooks

_TIMED_LAYERS = 6


def contributions(rounds: int) -> Iterator[Row]:
    """Both modes and the factors, reduced per head and document: the accumulator of contributions alone."""
    found = ratios(plain(512), {"own": probed([tlg.Contributions()], 512)}, rounds)["own"]
    name = "contributions (intra, inter, factors, per head), T=512: time / plain forward"
    yield at_most(name, found.median, 1.35, str(found))


def default(rounds: int) -> Iterator[Row]:
    """All that ``analyze`` measures when nobody says otherwise."""
    measures = default_measures(stream=True)
    settings = next(m for m in measures if isinstance(m, tlg.Separability)).settings
    control = f"control: {settings['repeats']} ranking(s) of {settings['control_queries']} queries"
    found = ratios(plain(512, 2), {"all": probed(measures, 512, 2)}, rounds)["all"]
    name = "default measures, random control included, T=512, batch 2: time / plain forward"
    yield at_most(name, found.median, 2.0, f"{found}; {control}")


def growth(rounds: int) -> Iterator[Row]:
    """How the time spent inside the contributions' hooks grows with the length of the text.

    It is taken inside the hooks of the first layers, since the difference of two forwards is mostly the noise of
    both, and the model stops behind these layers.
    """
    short, long = 512, 2048
    at_short, at_long = _own_seconds(short), _own_seconds(long)
    at_short(), at_long()
    exponents = []
    for _ in range(rounds):
        before, measured, after = at_short(), at_long(), at_short()
        exponents.append(math.log(2 * measured / (before + after), long / short))
    found = Sample(tuple(exponents))
    name = f"contributions' own time, from T={short} to {long}: exponent"
    yield at_most(name, found.median, 2.1, str(found))


def _own_seconds(n_ctx: int) -> Callable[[], float]:
    model, tokens = smollm2(), windows(n_ctx).tokens
    probe = tlg.Probe(model, [tlg.Contributions()], layers=range(_TIMED_LAYERS))

    @torch.no_grad()
    def run() -> float:
        watch = Stopwatch()
        hooks = around(probe.hooks(), watch)
        model.run_with_hooks(tokens, fwd_hooks=hooks, return_type=None, stop_at_layer=_TIMED_LAYERS)
        return watch.seconds

    return run


def separability(rounds: int) -> Iterator[Row]:
    """The pure function on every layer; its control is not part of it."""
    model, tokens = smollm2(), windows(512).tokens

    def scored(queries: Any) -> Callable[[], object]:
        def consume(site: Any, pattern: Tensor, v: Tensor, z: Tensor) -> None:
            tlg.separability(pattern, v, queries=queries)

        hooks = capture_hooks(model, attention_sites(model), consume)
        return torch.no_grad()(lambda: model.run_with_hooks(tokens, fwd_hooks=hooks))

    runs = {"64": scored(64), "all 512": scored("all")}
    found = ratios(plain(512), runs, rounds)
    for queries, bar in (("64", 0.5), ("all 512", 3.5)):
        added = found[queries] - 1
        name = f"separability, six N, {queries} queries, T=512: added time / plain forward"
        yield at_most(name, added.median, bar, str(added))


def masked(rounds: int) -> Iterator[Row]:
    """One masked forward of ``faithfulness``, in its default scope and mode."""
    model, batch = smollm2(), windows(256, 2)

    def forward(masker: EntryMasker) -> Callable[[], object]:
        def run() -> object:
            hooks = masker.hooks(batch.attention_mask, documents=batch.documents)
            return model.run_with_hooks(batch.tokens, fwd_hooks=hooks)

        return torch.no_grad()(run)

    kinds = [("contribution", 0.01), ("contribution", 0.1), ("attention", 0.1)]
    runs = {
        f"{share:.0%} by {kind}": forward(EntryMasker(model, kind, share)) for kind, share in kinds
    }
    for what, found in ratios(plain(256, 2), runs, rounds).items():
        name = f"masked forward, {what}, T=256, batch 2: time / plain forward"
        yield at_most(name, found.median, 1.5, str(found))


def sensitivity(rounds: int) -> Iterator[Row]:
    """Heads removed one at a time, one in every layer; the whole model's own forward counts as one more."""
    model, tokens = smollm2(), windows(256, 2).tokens
    heads = [(site.layer, 0) for site in attention_sites(model)]

    def alone() -> object:
        return head_sensitivity(model, tokens, n_ctx=256, batch_size=2, heads=heads, progress=False)

    found = ratios(plain(256, 2), {"alone": torch.no_grad()(alone)}, min(rounds, 3))["alone"]
    each = found / (len(heads) + 1)
    name = "head_sensitivity, T=256, batch 2: time of one head / plain forward"
    yield at_most(name, each.median, 0.7, str(each))
