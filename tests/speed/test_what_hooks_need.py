"""What measuring computes and allocates, counted: limits that hold on every machine."""

from __future__ import annotations

import math

import pytest
import torch

import tl_geometry as tlg
from benchmarks.counting import (
    LiveBytes,
    around,
    flops_of_hooks,
    least_contribution_flops,
    peak_of_hooks,
)
from tl_geometry.analysis.defaults import default_measures

pytestmark = pytest.mark.hooked

HEADS, D_HEAD, D_MODEL = 4, 32, 64


@pytest.fixture(scope="module")
def models(tiny_hooked):
    """Models by their number of layers."""
    sizes = {"d_head": D_HEAD, "d_model": D_MODEL, "n_ctx": 1024, "rotary_dim": D_HEAD}
    return {n: tiny_hooked(n_layers=n, **sizes) for n in (1, 2, 4)}


def ids(length, rows=1):
    generator = torch.Generator().manual_seed(length)
    return torch.randint(4, 50, (rows, length), generator=generator)


def peak(model, length, measures, rows=1):
    """Peak of the second forward: the first one keeps the factored weights."""
    probe = tlg.Probe(model, measures)
    return [peak_of_hooks(model, ids(length, rows), probe.hooks()) for _ in range(2)][1]


def pattern_bytes(length, rows=1):
    return rows * HEADS * length * length * 4


def contribution_flops(model, length):
    probe = tlg.Probe(model, [tlg.Contributions()])
    return [flops_of_hooks(model, ids(length), probe.hooks()) for _ in range(2)][1]


@pytest.mark.parametrize("rows", [1, 2])
def test_default_measures_hold_less_than_four_patterns_at_once(models, rows):
    found = peak(models[1], 768, default_measures(stream=True), rows)
    assert 0 < found <= 4 * pattern_bytes(768, rows)


def test_the_peak_grows_as_one_pattern_does(models):
    peaks = [peak(models[1], length, default_measures(stream=True)) for length in (512, 1024)]
    assert math.log2(peaks[1] / peaks[0]) <= 2.05


def test_layers_share_their_memory(models):
    peaks = {n: peak(models[n], 256, default_measures(stream=True)) for n in (2, 4)}
    assert peaks[2] == peaks[4]


def test_documents_leave_nothing_behind(models):
    probe, live = tlg.Probe(models[2], default_measures(stream=True)), LiveBytes()
    kept = []
    for batch in range(3):
        hooks = around(probe.hooks(documents=[2 * batch, 2 * batch + 1]), live)
        models[2].run_with_hooks(ids(32, 2), fwd_hooks=hooks, return_type=None)
        del hooks
        kept.append(live.now)
    assert len(set(kept[1:])) == 1


@pytest.mark.parametrize("length", [512, 1024])
def test_contributions_compute_little_more_than_they_must(models, length):
    done = contribution_flops(models[2], length)
    least = least_contribution_flops(2, HEADS, D_HEAD, D_MODEL, length)
    assert least / 4 < done <= 1.2 * least


def test_the_operations_grow_as_one_pattern_does(models):
    done = [contribution_flops(models[1], length) for length in (512, 1024)]
    assert math.log2(done[1] / done[0]) <= 2.05
