"""The counters of the benchmarks against tensors and products whose size is known."""

from __future__ import annotations

import time

import pytest
import torch

from benchmarks.counting import (
    LiveBytes,
    Stopwatch,
    around,
    flops_of_hooks,
    least_contribution_flops,
    peak_of_hooks,
)

KIB = 1024


def test_storages_count_once_and_until_they_are_free():
    live, given = LiveBytes(), torch.ones(KIB)
    with live:
        x = torch.zeros(256)
        assert live.now == KIB
        view, part = x.reshape(16, 16), given[:512]
        given.add_(1)
        x.mul_(2)
        assert live.now == KIB  # views, given tensors and edits in place are not new
        y = x + part[:256]
        assert (live.now, live.peak) == (2 * KIB, 2 * KIB)
        del x, y
        assert live.now == KIB  # the view still holds its storage
    more = torch.ones(KIB)  # outside
    assert (live.now, live.peak) == (KIB, 2 * KIB)
    del view
    assert (live.now, live.peak) == (0, 2 * KIB)
    assert more.sum() == KIB


def test_temporaries_inside_an_expression_count():
    live, x = LiveBytes(), torch.ones(256)
    with live:
        y = ((x + 1) * 2).sum()
    assert live.peak == 2 * KIB
    assert live.now == y.untyped_storage().nbytes() == 4


def test_several_results_and_what_a_list_holds():
    live, x = LiveBytes(), torch.rand(256)
    with live:
        values, indices = x.sort()
        parts = torch.stack([values, values]).unbind(0)
    assert live.now == KIB + 2 * KIB + 2 * KIB
    del values, indices, parts
    assert live.now == 0


@pytest.mark.hooked
def test_hooks_and_nothing_but_hooks_are_counted(tiny_hooked):
    model, ids = tiny_hooked(), torch.arange(4, 20)[None]
    held = []

    def hook(tensor, hook):
        held.append(tensor @ tensor.transpose(-1, -2))

    hooks = [("blocks.0.hook_resid_pre", hook), ("blocks.1.hook_resid_pre", hook)]
    assert peak_of_hooks(model, ids, hooks) == 2 * (16 * 16 * 4)
    assert flops_of_hooks(model, ids, hooks) == 2 * (2 * 16 * 16 * 32)
    assert flops_of_hooks(model, ids, []) == 0


def test_around_keeps_names_and_results_and_adds_up_time():
    watch = Stopwatch()

    def hook(tensor, hook):
        until = time.perf_counter() + 0.001
        while time.perf_counter() < until:
            pass
        return tensor + 1

    [(name, wrapped)] = around([("a", hook)], watch)
    assert name == "a"
    assert wrapped(torch.ones(2), None).tolist() == [2, 2]
    first = watch.seconds
    wrapped(torch.ones(2), None)
    assert first >= 0.001
    assert watch.seconds >= 0.002


def test_least_operations_are_those_of_the_products_written_out():
    from torch.utils.flop_counter import FlopCounterMode

    batch, heads, d_head, d_model, length = 2, 3, 5, 7, 11
    z, v = torch.ones(2, batch, heads, length, d_head)
    W = torch.ones(heads * d_head, d_model)
    with FlopCounterMode(display=False) as counter:
        output = z.transpose(1, 2).flatten(2) @ W  # inter: the layer's output, and back
        _ = output @ W.T
        for _mode in ("intra", "inter"):
            _ = z @ v.transpose(-1, -2)
    least = least_contribution_flops(4, heads, d_head, d_model, length, batch)
    assert least == 4 * counter.get_total_flops()
