"""Against the ways in which the same, or the like, is computed elsewhere.

Each comparison asserts first that both ways give the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import tl_geometry as tlg
from benchmarks.harness import Row, at_least, ratios
from benchmarks.resident import peak_of
from benchmarks.setting import probed, smollm2, windows
from benchmarks.slow_ways import cached_contributions, norm_analysis, value_zeroing
from tl_geometry.hooks import attention_sites
from tl_geometry.hooks.capture import capture_hooks

TOLERANCE = 1e-4


def cached(rounds: int) -> Iterator[Row]:
    """Contributions of both modes and their factors, reduced per head, against a cache and einsum.

    Whole runs, the model's forward included. The cache holds all that ``run_with_cache`` keeps. Memory is
    what a run adds to the loaded model, without logits.
    """
    n_ctx = 1024
    model, tokens = smollm2(), windows(n_ctx).tokens
    probe = tlg.Probe(model, [tlg.Contributions()])
    with torch.no_grad():
        model.run_with_hooks(tokens, fwd_hooks=probe.hooks())
    ours = probe.result()
    for key, values in cached_contributions(model, tokens).items():
        _assert_same(torch.from_numpy(ours[key].values), values, key)
    runs = {"cached": lambda: cached_contributions(model, tokens)}
    found = ratios(probed([tlg.Contributions()], n_ctx), runs, rounds)["cached"]
    name = f"contributions, T={n_ctx}: run_with_cache and einsum over d_model / ours, time"
    yield at_least(name, found.median, 2.0, str(found))
    slow, fast = peak_of("cached", n_ctx), peak_of("contributions", n_ctx)
    name = (
        f"contributions, T={n_ctx}: run_with_cache and einsum over d_model / ours, own peak memory"
    )
    yield at_least(name, slow.own / fast.own, 4.0, f"{slow.own:.0f} / {fast.own:.0f} MiB")


def norms(rounds: int) -> Iterator[Row]:
    """The norms |alpha f(x)| of one layer from its pattern and values, mean over three layers."""
    model, tokens = smollm2(), windows(256).tokens
    sites = attention_sites(model)
    sites = [sites[len(sites) * place // 6] for place in (1, 3, 5)]
    wanted = {name for site in sites for name in (site.pattern_hook, site.v_hook)}
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, names_filter=lambda name: name in wanted)
    layers = [(cache[s.pattern_hook], cache[s.v_hook], s.W_O.detach()) for s in sites]
    for layer in layers:
        _assert_same(tlg.value_weighted_attention(*layer), norm_analysis(*layer), "norms")

    def ours() -> None:
        for layer in layers:
            tlg.value_weighted_attention(*layer)

    def written_out() -> None:
        for layer in layers:
            norm_analysis(*layer)

    found = ratios(ours, {"written out": written_out}, rounds)["written out"]
    name = "|alpha f(x)|, T=256: norm analysis (head query key d_model) / ours, time"
    yield at_least(name, found.median, 50.0, str(found))


def zeroing(rounds: int) -> Iterator[Row]:
    """One number for each token: what the others' output owes to its value.

    Value zeroing: a forward per token, without that token's value in any layer. Ours: one forward, the sum of
    |contribution| (inter) over heads, queries and layers; in one layer, the sum of contributions over heads is the
    share of the layer's output that zeroing takes away. Both measure the influence of a token's value, but they are
    not the same number: the detail tells how alike they rank the tokens. What is asserted is that zeroing by a plain
    hook does what ``mask_tokens`` does. Of the 128 forwards 16 are timed, since all cost the same; eight in one batch
    would take about half the time.
    """
    n_ctx, timed = 128, 16
    model, tokens = smollm2(), windows(n_ctx).tokens
    positions = list(range(n_ctx // timed - 1, n_ctx, n_ctx // timed))
    sample = value_zeroing(model, tokens, positions[:1])[0]
    _assert_same(_zeroed(positions[0]), sample, "value zeroing")

    distances: list[Tensor] = []

    def zeroed() -> None:
        distances[:] = [value_zeroing(model, tokens, positions)]

    found = ratios(token_importance, {"zeroed": zeroed}, rounds)["zeroed"]
    slow, fast = distances[0].sum(-1), token_importance()[positions]
    ranks = torch.stack([x.argsort().argsort().double() for x in (slow, fast)])
    alike = f"rank correlation {torch.corrcoef(ranks)[0, 1]:.2f} over {timed} tokens"
    found = found * (n_ctx / timed)
    name = f"importance of each token, T={n_ctx}: value zeroing (a forward per token) / ours, time"
    yield at_least(name, found.median, 50.0, f"{found}; {alike}")


@torch.no_grad()
def token_importance(n_ctx: int = 128) -> Tensor:
    """Sum over heads, queries and layers of each key's |contribution| to the layer's output."""
    model, total = smollm2(), torch.zeros(n_ctx)

    def consume(site: Any, pattern: Tensor, v: Tensor, z: Tensor) -> None:
        c = tlg.contribution_weights(pattern, v, site.W_O, mode="inter")
        total.add_(c[0].abs().sum((0, 1)))

    hooks = capture_hooks(model, attention_sites(model), consume)
    model.run_with_hooks(windows(n_ctx).tokens, fwd_hooks=hooks, return_type=None)
    return total


@torch.no_grad()
def _zeroed(position: int) -> Tensor:
    """Value zeroing of one token by this package's own ablation."""
    model, tokens = smollm2(), windows(128).tokens
    last = f"{attention_sites(model)[-1].name.rpartition('.')[0]}.hook_resid_post"
    seen = []
    for hooks in ([], tlg.mask_tokens(model, [position])):
        keep = (last, lambda x, hook: seen.append(x))
        model.run_with_hooks(tokens, fwd_hooks=[*hooks, keep], return_type=None)
    return 1 - torch.cosine_similarity(seen[1], seen[0], dim=-1)[0]


def _assert_same(ours: Tensor, theirs: Tensor, what: str) -> None:
    difference = (ours.double() - theirs.double()).abs() / (1 + theirs.double().abs())
    assert bool((difference < TOLERANCE).all()), f"{what} differ by up to {difference.max():.1e}"
