"""Which entries are chosen, against a sort of every group: ties, NaN, odd fractions, all scopes, both ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from literal import selection as literal
from literal.problems import without_shape_checks

from tl_geometry.measures import selection
from tl_geometry.measures.selection import check_fraction, select_entries

SCOPES = ("row", "query", "head", "layer", "token")
FRACTIONS = (0, 1, 0.01, 0.05, 0.1, 0.2, 0.5, 1 / 3, 0.29, 0.57, 0.58, 0.9999, 5e-324)
every_scope = pytest.mark.parametrize("scope", SCOPES)
both_ends = pytest.mark.parametrize("largest", [True, False])


@st.composite
def rankings(draw):
    """Scores of few different levels, NaN and infinity among them, and the entries that may go."""
    shape = tuple(draw(st.integers(1, n)) for n in (2, 3, 5, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    levels = draw(st.sampled_from([1, 2, 3, 50]))
    scores = torch.randint(-levels, levels, shape, generator=generator).to(dtype) / 4
    if draw(st.booleans()):
        scores[torch.rand(shape, generator=generator) < 0.3] = torch.nan
    if draw(st.booleans()):
        scores[torch.rand(shape, generator=generator) < 0.2] = torch.inf
    candidates = torch.rand(shape, generator=generator) < draw(st.sampled_from([0.2, 0.7, 1.0]))
    return scores, candidates


@every_scope
@both_ends
@settings(deadline=None, derandomize=True, max_examples=60)
@given(made=rankings(), fraction=st.sampled_from(FRACTIONS) | st.floats(0, 1))
def test_every_group_sorted(scope, largest, made, fraction):
    scores, candidates = made
    kept = scores.clone(), candidates.clone()
    chosen = select_entries(scores, candidates, fraction, scope=scope, largest=largest)
    expected = literal.select_entries(scores, candidates, fraction, scope=scope, largest=largest)
    np.testing.assert_array_equal(chosen.numpy(), expected)
    assert torch.equal(candidates, kept[1])
    assert torch.equal(scores.nan_to_num(7), kept[0].nan_to_num(7))


@every_scope
@both_ends
def test_scores_without_ties_in_blocks_of_rows(scope, largest, monkeypatch):
    monkeypatch.setattr(selection, "_ROWS", 5)
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 4, 12, 12, generator=generator)
    candidates = torch.ones(2, 4, 12, 12, dtype=torch.bool).tril()
    for fraction in FRACTIONS:
        chosen = select_entries(scores, candidates, fraction, scope=scope, largest=largest)
        expected = literal.select_entries(
            scores, candidates, fraction, scope=scope, largest=largest
        )
        np.testing.assert_array_equal(chosen.numpy(), expected)


@every_scope
def test_the_first_and_the_last_of_one_order_meet_without_overlap(scope):
    scores = torch.randint(3, (2, 3, 4, 8), generator=torch.Generator().manual_seed(1)).float()
    every = torch.ones_like(scores, dtype=torch.bool)
    first, last = (
        select_entries(scores, every, 0.5, scope=scope, largest=e) for e in (True, False)
    )
    assert torch.equal(first, ~last)  # all groups are of even size


@every_scope
@both_ends
def test_nothing_and_everything(scope, largest):
    scores = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(2))
    candidates = torch.rand(scores.shape, generator=torch.Generator().manual_seed(3)) < 0.5
    nothing, everything = (
        select_entries(scores, candidates, f, scope=scope, largest=largest) for f in (0, 1)
    )
    assert not nothing.any()
    assert torch.equal(everything, candidates)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 3e38])
@every_scope
@both_ends
def test_equal_scores_never_choose_what_may_not_go(value, scope, largest):
    scores = torch.full((1, 2, 3, 4), value)
    candidates = torch.zeros(1, 2, 3, 4, dtype=torch.bool)
    candidates[0, 1, :, 2] = True
    everything = select_entries(scores, candidates, 1.0, scope=scope, largest=largest)
    assert torch.equal(everything, candidates)


def test_nan_comes_after_minus_infinity():
    scores = torch.tensor([[[[torch.nan, -torch.inf, 1.0, torch.nan]]]])
    every = torch.ones_like(scores, dtype=torch.bool)
    assert select_entries(scores, every, 0.5)[0, 0, 0].tolist() == [False, True, True, False]
    last = select_entries(scores, every, 0.5, largest=False)
    assert last[0, 0, 0].tolist() == [True, False, False, True]


def test_documents_are_ranked_by_themselves():
    scores = torch.randn(3, 2, 5, 5, generator=torch.Generator().manual_seed(4))
    every = torch.ones_like(scores, dtype=torch.bool)
    for scope in SCOPES:
        whole = select_entries(scores, every, 0.3, scope=scope)
        for row in range(3):
            alone = select_entries(scores[[row]], every[[row]], 0.3, scope=scope)
            assert torch.equal(whole[[row]], alone)


@pytest.mark.parametrize(
    ("fraction", "count"),
    [(0.29, 29), (0.57, 57), (0.58, 58), (0.07, 7), (1 / 3, 33), (0.289999, 28), (0.995, 99)],
)
@every_scope
@both_ends
def test_shares_of_a_hundred_are_those_of_a_reader(fraction, count, scope, largest):
    """In floating point 0.29, 0.57 and 0.58 of 100 would be 28, 56 and 57."""
    one_group = {
        "row": (1, 1, 1, 100),
        "query": (1, 4, 1, 25),
        "head": (1, 1, 4, 25),
        "layer": (1, 2, 2, 25),
        "token": (1, 1, 1, 100),
    }[scope]
    scores = torch.randn(one_group, generator=torch.Generator().manual_seed(5))
    every = torch.ones(one_group, dtype=torch.bool)
    chosen = select_entries(scores, every, fraction, scope=scope, largest=largest)
    assert int(chosen.sum()) == count
    expected = literal.select_entries(scores, every, fraction, scope=scope, largest=largest)
    np.testing.assert_array_equal(chosen.numpy(), expected)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, torch.nan, torch.inf, True])
def test_what_is_no_fraction(fraction):
    with pytest.raises(ValueError, match=rf"fraction must be .* in \[0, 1\], got {fraction}"):
        check_fraction(fraction)


def test_a_scope_that_does_not_exist():
    with without_shape_checks("tl_geometry.measures.selection") as plain:
        scores = torch.ones(1, 1, 2, 2)
        with pytest.raises(ValueError, match=r"scope must be one of 'row'.* got 'column'"):
            plain.select_entries(scores, scores.bool(), 0.5, scope="column")
