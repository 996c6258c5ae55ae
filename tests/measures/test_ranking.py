"""The N best keys of a row against a sort with the tie rule in its key; sorted rows against Python's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from literal.rows import profile
from literal.separability import ranked

from tl_geometry.measures.ranking import (
    masked_median,
    running_max,
    sort_rows,
    sort_with_order,
    top_keys,
)
from tl_geometry.measures.ranks import average_ranks

DTYPES = (torch.float32, torch.float64)
dtype_of = pytest.mark.parametrize("dtype", DTYPES, ids=str)
TINY = 2.0**-149


@st.composite
def scored(draw):
    """Scores with few different values, of which some may not be chosen, and a number to choose."""
    length = draw(st.integers(1, 40))
    level = st.sampled_from([0.0, TINY, 2 * TINY, 1e-30, 0.1, 0.1 + 2**-27, 0.5, 1.0, 3e38])
    scores = draw(st.lists(level, min_size=length, max_size=length))
    keep = draw(st.lists(st.booleans(), min_size=length, max_size=length))
    return scores, keep, draw(st.integers(1, length))


@dtype_of
def test_order_and_ties(dtype):
    @profile
    @given(scored())
    def run(row):
        scores, keep, n = row
        tensor = torch.tensor(scores, dtype=dtype)
        found = top_keys(tensor, torch.tensor(keep), n).tolist()
        kept = [j for j, k in enumerate(keep) if k]
        expected = ranked(tensor.tolist(), kept)[:n]
        assert len(found) == n
        assert len(set(found)) == n
        assert found[: len(expected)] == expected
        assert not any(keep[j] for j in found[len(expected) :])

    run()


@dtype_of
def test_many_ties_in_long_rows(dtype):
    generator = torch.Generator().manual_seed(0)
    scores = (torch.randint(5, (2, 3, 1000), generator=generator) / 8).to(dtype)
    keep = torch.rand(2, 3, 1000, generator=generator) < 0.8
    found = top_keys(scores, keep, 300)
    for b in range(2):
        for h in range(3):
            kept = keep[b, h].nonzero()[:, 0].tolist()
            assert found[b, h].tolist() == ranked(scores[b, h].tolist(), kept)[:300]


@dtype_of
def test_a_strided_view_and_the_sign_of_zero(dtype):
    scores = torch.tensor([[0.0, 0.3], [-0.0, 0.3], [0.2, 0.0], [0.0, 0.7]], dtype=dtype).T
    keep = torch.tensor([True, True, True, False]).expand(2, 4)
    assert top_keys(scores, keep, 3).tolist() == [[2, 0, 1], [0, 1, 2]]


# -- sorting ------------------------------------------------------------------------------------------

ROUGH = [0.0, -0.0, 1.0, -1.0, 2.5, TINY, -TINY, 3e38, -3e38, 1e-30, torch.inf, -torch.inf]


def rough(dtype, *shape):
    place = torch.randint(len(ROUGH), shape, generator=torch.Generator().manual_seed(1))
    return torch.tensor(ROUGH, dtype=dtype)[place]


@dtype_of
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("needs_grad", [False, True])
def test_sorted_rows(dtype, strided, needs_grad):
    x = rough(dtype, 40, 7).T if strided else rough(dtype, 7, 40)
    x = x.clone(memory_format=torch.preserve_format).requires_grad_(needs_grad)
    expected = [sorted(row) for row in x.tolist()]
    assert sort_rows(x * 1).tolist() == expected
    values, order = sort_with_order(x)
    assert values.tolist() == expected
    stable = [sorted(range(40), key=row.__getitem__) for row in x.tolist()]
    assert order.tolist() == stable


@dtype_of
def test_no_number_comes_last(dtype):
    x = torch.tensor([[torch.nan, 1.0, torch.inf, 0.0]], dtype=dtype)
    assert sort_rows(x)[0, :3].tolist() == [0.0, 1.0, torch.inf]


def test_the_order_leaves_its_rows_alone():
    x = rough(torch.float32, 3, 9)
    before = x.clone()
    sort_with_order(x)
    assert torch.equal(x, before)


@pytest.mark.parametrize("n", [1, 2, 30])
def test_running_largest(n):
    x = torch.randint(-9, 9, (4, n), generator=torch.Generator().manual_seed(2))
    expected = [[max(row[: k + 1]) for k in range(n)] for row in x.tolist()]
    before = x.clone()
    assert running_max(x).tolist() == expected
    assert running_max(x.T.contiguous().T).tolist() == expected
    assert torch.equal(x, before)


@dtype_of
@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_medians_of_what_is_kept(dtype, n):
    generator = torch.Generator().manual_seed(n)
    x = torch.rand(50, n, generator=generator, dtype=dtype)
    x[::7, 0] = torch.nan
    keep = torch.rand(50, n, generator=generator) < 0.6
    before = x.clone()
    found = masked_median(x, keep)
    expected = [
        np.nanmedian(row[kept & ~np.isnan(row)]) if (kept & ~np.isnan(row)).any() else np.nan
        for row, kept in zip(x.numpy(), keep.numpy(), strict=True)
    ]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    assert torch.equal(x.nan_to_num(7), before.nan_to_num(7))


def test_derivatives_go_to_the_entries_they_belong_to():
    """Sorting in place behind autograd's back would send them to the places where entries were before."""
    x = torch.tensor([[5.0, 1.0, 3.0, 9.0]], dtype=torch.float64)
    keep = torch.tensor([[True, True, True, False]])
    expected = [[0.0, 0.0, 1.0, 0.0]]
    leaf = x.clone().requires_grad_()
    masked_median(leaf, keep).sum().backward()
    assert leaf.grad.tolist() == expected
    assert torch.func.grad(lambda x: masked_median(x, keep).sum())(x).tolist() == expected
    weights = torch.arange(4.0, dtype=torch.float64)
    for sort in (sort_rows, lambda x: sort_with_order(x)[0]):
        leaf = x.clone().requires_grad_()
        (sort(leaf * 1) * weights).sum().backward()
        assert leaf.grad.tolist() == [[2.0, 0.0, 1.0, 3.0]]


def test_ranks_under_a_function_transform():
    x = torch.tensor([[3.0, 1.0, 3.0, 2.0], [1.0, 2.0, 0.0, 0.0]])
    keep = torch.ones(4, dtype=torch.bool)
    expected = [[2.5, 0.0, 2.5, 1.0], [2.0, 3.0, 0.5, 0.5]]
    assert average_ranks(x, keep.expand(2, 4)).tolist() == expected
    assert torch.func.vmap(lambda row: average_ranks(row, keep))(x).tolist() == expected
