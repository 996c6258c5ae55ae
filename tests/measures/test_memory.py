"""Memory budgets: what they may be, how many rows they allow, and that no number depends on them."""

from __future__ import annotations

import pytest
import torch
from literal.masks import causal
from literal.problems import problem

from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.memory import SHARE, checked_budget, default_budget
from tl_geometry.measures.regimes import winner_positions


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        (1, 1),
        ("1", 1),
        ("12 B", 12),
        ("500MB", 500_000_000),
        (" 1.5 kib ", 1536),
        ("2GiB", 2 * 1024**3),
        ("1TB", 10**12),
    ],
)
def test_budgets(given, expected):
    assert checked_budget(given) == expected


@pytest.mark.parametrize(
    "given", ["", "MB", "-1", "0", "0.4", "1e9", "5 apples", "1 PB", "nan", "inf", "9" * 400]
)
def test_texts_that_are_no_amount_of_memory(given):
    with pytest.raises(ValueError, match="memory_budget must be bytes or a text"):
        checked_budget(given)


@pytest.mark.parametrize(
    ("given", "error"),
    [(0, ValueError), (-5, ValueError), (True, TypeError), (1.5, TypeError), ([1], TypeError)],
)
def test_numbers_that_are_no_amount_of_memory(given, error):
    with pytest.raises(error, match="memory_budget"):
        checked_budget(given)


def test_a_share_of_what_is_free(monkeypatch):
    import psutil

    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Free", (), {"available": 4000}))
    assert default_budget(torch.device("cpu")) == 4000 // SHARE


def geometry(budget):
    made = problem(queries=9, available=causal(9)[None], seed=3)
    return AttentionGeometry(*made.tensors, available=made.available, memory_budget=budget)


@pytest.mark.parametrize(
    ("budget", "step"),
    # 2 documents, 4 heads, 9 keys and 3 copies are 216 numbers of 4 bytes for a row.
    [(1, 1), (863, 1), (864, 1), (1727, 1), (1728, 2), (10**9, 9)],
)
def test_rows_that_fit_a_budget(budget, step):
    parts = list(geometry(budget).blocks(9, copies=3))
    assert [part.stop - part.start for part in parts[:-1]] == [step] * (len(parts) - 1)
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(9))
    assert parts[0] == slice(0, step)


def test_spans_reach_every_key_that_a_row_may_use():
    for rows, keys in geometry(1).spans():
        assert keys == slice(0, rows.stop)


def test_a_row_at_a_time_gives_the_same_numbers():
    one, whole = geometry(1), geometry(None)
    for name in ("attention", "hidden", "along", "largest", "gross"):
        torch.testing.assert_close(getattr(one.totals, name), getattr(whole.totals, name))
    assert torch.equal(winner_positions(one), winner_positions(whole))
    for mode in ("intra", "inter"):
        found = torch.cat([one.contributions(mode, rows) for rows, _ in one.spans()], 2)
        torch.testing.assert_close(found, whole.contributions(mode))
