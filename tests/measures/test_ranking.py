"""The N best keys of a row against a sort with the tie rule in its key."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st
from literal.rows import profile
from literal.separability import ranked

from tl_geometry.measures.ranking import top_keys

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
