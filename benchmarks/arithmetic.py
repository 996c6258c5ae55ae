"""Operations that are done over operations that have to be done."""

from __future__ import annotations

from collections.abc import Iterator

import tl_geometry as tlg
from benchmarks.counting import flops_of_hooks, least_contribution_flops
from benchmarks.harness import Row, at_most
from benchmarks.setting import smollm2, windows
from tl_geometry.hooks import attention_sites


def arithmetic(rounds: int) -> Iterator[Row]:
    """Matrix products inside the contributions' hooks, checks included, over the minimum.

    The minimum lets every query see every key; a causal layer needs less, so that the ratio may be below 1.
    """
    model, n_ctx = smollm2(), 512
    tokens, sites = windows(n_ctx).tokens, attention_sites(model)
    probe = tlg.Probe(model, [tlg.Contributions()])
    # The factored weights of a new probe stay, so they are counted once, here, and not below.
    flops_of_hooks(model, tokens, probe.hooks())
    done = flops_of_hooks(model, tokens, probe.hooks())
    heads, d_head, d_model = sites[0].W_O.shape
    least = least_contribution_flops(len(sites), heads, d_head, d_model, n_ctx)
    name = f"arithmetic of contributions, T={n_ctx}: operations of matrix products / the minimum"
    yield at_most(name, done / least, 1.2, f"{done / 1e9:.2f} / {least / 1e9:.2f} GFLOP")
