"""Rows taken from a pattern block by block, against the same rows taken one by one."""

from __future__ import annotations

import pytest
import torch
from literal.masks import causal, windowed
from literal.problems import problem
from literal.separability import ranked

from tl_geometry.measures.clusters import Scorer
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.row_blocks import at_sizes, hide_selected, row_blocks, take_vectors

ROWS = torch.tensor([[7, 2, 5, 2, 0], [8, 8, 1, 3, 6]])
REAL = torch.tensor([[1, 1, 1, 0, 1], [1, 1, 1, 1, 1]]).bool()


def geometry(budget=None, mask=None, **options):
    made = problem(queries=9, available=(causal(9) if mask is None else mask)[None], seed=5)
    return AttentionGeometry(
        *made.tensors, available=made.available, memory_budget=budget, **options
    )


@pytest.mark.parametrize("budget", [1, 4000, None])
@pytest.mark.parametrize("mask", [None, windowed(9, 3), torch.ones(9, 9).bool()])
def test_blocks_hold_the_chosen_rows(budget, mask):
    layer = geometry(budget, mask)
    seen = []
    for block in row_blocks(layer, ROWS, REAL, (8, 1, 4)):
        n_key = block.alpha.shape[-1]
        assert block.keys == slice(0, n_key)
        assert block.order.shape[-1] == block.order_size == min(8, n_key)
        for place, row in enumerate(range(block.part.start, block.part.stop)):
            for document in range(2):
                query = int(ROWS[document, row])
                assert block.rows[document, place] == query
                keep = layer.available[document, 0, query] & REAL[document, row]
                assert torch.equal(block.keep[document, 0, place], keep[:n_key])
                assert not keep[n_key:].any()
                for head in range(4):
                    alpha = torch.where(keep, layer.pattern[document, head, query], 0)
                    assert torch.equal(block.alpha[document, head, place], alpha[:n_key])
                    best = ranked(alpha.tolist(), keep.nonzero()[:, 0].tolist())[:8]
                    assert block.order[document, head, place, : len(best)].tolist() == best
            seen.append(row)
    assert seen == list(range(5))


@pytest.mark.parametrize("exclude_sink", [False, True])
@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
def test_scores_of_a_row_at_a_time(distance, exclude_sink):
    found = []
    for budget in (1, None):
        layer = geometry(budget)
        blocks = list(row_blocks(layer, ROWS, REAL, (8, 1, 4, 4)))
        assert len(blocks) == (5 if budget else 1)
        kept = [block.alpha.clone() for block in blocks]
        scorer = Scorer(layer, (8, 1, 4, 4), distance=distance)
        found.append(scorer.score_rows(blocks, exclude_sink=exclude_sink))
        assert all(torch.equal(block.alpha, x) for block, x in zip(blocks, kept, strict=True))
    one, whole = (vars(x) for x in found)
    for name in ("precision", "recall", "f_score", "margin", "inversions", "query"):
        torch.testing.assert_close(one[name], whole[name], equal_nan=True)


def test_without_margins_everything_else_is_the_same():
    layer = geometry()
    scores = [
        Scorer(layer, (1, 2), margins=margins).score_rows(row_blocks(layer, ROWS, REAL, (1, 2)))
        for margins in (True, False)
    ]
    exact, signs = (vars(x) for x in scores)
    for name in ("precision", "recall", "f_score", "inversions"):
        torch.testing.assert_close(exact[name], signs[name], equal_nan=True)
    known = ~exact["margin"].isnan()
    assert torch.equal(exact["margin"][known] > 0, signs["margin"][known] == 1)
    assert set(signs["margin"][known].tolist()) <= {1.0, -1.0}


def test_vectors_sizes_and_places():
    vectors = torch.arange(2 * 3 * 4 * 2.0).view(2, 3, 4, 2)
    keys = torch.randint(4, (2, 3, 5, 2), generator=torch.Generator().manual_seed(0))
    taken = take_vectors(vectors.transpose(0, 1).contiguous().transpose(0, 1), keys)
    for place in torch.cartesian_prod(*(torch.arange(n) for n in keys.shape)).tolist():
        b, h, r, n = place
        assert torch.equal(taken[b, h, r, n], vectors[b, h, keys[b, h, r, n]])
    running = torch.tensor([[[[1.0, 3.0, 6.0]]]])
    assert at_sizes(running, (8, 1, 2)).flatten().tolist() == [6.0, 1.0, 3.0]
    x = torch.zeros(1, 1, 1, 2, 4)
    hide_selected(x, torch.tensor([[[[2, 0, 1]]]]), (1, 8))
    assert x.isinf()[0, 0, 0].tolist() == [[False, False, True, False], [True, True, True, False]]
