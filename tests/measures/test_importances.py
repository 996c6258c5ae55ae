"""The importances of a layer that is at hand against the literal ones; random ones in other batches and paddings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from literal import contributions as literal
from literal.masks import all_masks, causal, padded
from literal.problems import assert_same, problem, row_tolerance, without_shape_checks

from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.importances import (
    IMPORTANCES,
    document_noise,
    layer_importance,
    random_importance,
    value_weighted,
)

MASKS = all_masks(batch=2, heads=4, length=6)


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("mode", ["intra", "inter"])
@pytest.mark.parametrize("kind", IMPORTANCES[:-1])
@pytest.mark.parametrize("mask", ["causal: q k", "causal, gaps: b q k", "heads: b h q k"])
def test_each_kind(mask, kind, mode, absolute):
    made = problem(available=MASKS[mask], seed=3)
    geometry = AttentionGeometry(*made.tensors, available=made.available)
    same = {"mode": mode, "available": made.available}
    expected = literal.importance(*made.tensors, kind=kind, absolute=False, **same)
    if absolute and kind == "contribution":
        expected = abs(expected)
    weights = literal.contribution_weights(*made.tensors, **same)
    found = layer_importance(geometry, kind, mode, absolute=absolute)
    assert_same(found, expected, row_tolerance(weights, mode))


@pytest.mark.parametrize("exponent", [-66, 66])
def test_lengths_at_extreme_scales(exponent):
    made = problem(seed=1)
    geometry = AttentionGeometry(made.pattern, made.v * 2.0**exponent, made.W_O)
    plain = AttentionGeometry(*made.tensors)
    assert torch.allclose(value_weighted(geometry) * 2.0**-exponent, value_weighted(plain))
    for kind in ("value_weighted_normalized", "contribution"):
        found, expected = (layer_importance(g, kind, "inter") for g in (geometry, plain))
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_unknown_kinds_and_modes():
    with without_shape_checks("tl_geometry.measures.importances") as plain:
        geometry = AttentionGeometry(*problem().tensors)
        for kind, mode, word in (("random", "intra", "kind"), ("attention", "outer", "mode")):
            with pytest.raises(ValueError, match=f"{word} must be one of"):
                plain.layer_importance(geometry, kind, mode)


def geometry_of(tokens, documents, *, layer=0, full=False, length=None):
    """A layer over a padded batch; ``tokens`` marks the real ones."""
    length = tokens.shape[1]
    base = torch.ones(length, length, dtype=torch.bool) if full else causal(length)
    available = padded(base, tokens)
    made = problem(available=available, batch=len(tokens), queries=length)
    return AttentionGeometry(*made.tensors, available=available, layer=layer, documents=documents)


@pytest.mark.parametrize("full", [False, True])
def test_random_numbers_of_a_document_do_not_depend_on_its_batch_or_padding(full):
    """Five tokens of document 7: alone, after others, padded on the left, on the right, and inside."""
    alone = torch.ones(1, 5, dtype=torch.bool)
    expected = random_importance(geometry_of(alone, [7], full=full), 3)[0]
    assert 0 < float(expected.min()) < float(expected.max()) < 1
    for places in ([0, 1, 2, 3, 4], [3, 4, 5, 6, 7], [0, 2, 3, 6, 7]):
        tokens = torch.zeros(2, 8, dtype=torch.bool)
        tokens[0], tokens[1, places] = True, True
        found = random_importance(geometry_of(tokens, [4, 7], full=full), 3)
        inner = found[1][:, places][:, :, places]
        assert torch.equal(inner, expected)
        rest = found[1].clone()
        rest[:, torch.tensor(places)[:, None], places] = 0
        assert float(rest.abs().max()) == 0


def test_random_numbers_differ_between_documents_layers_heads_and_seeds():
    tokens = torch.ones(2, 6, dtype=torch.bool)
    first = random_importance(geometry_of(tokens, [0, 1]), 0)
    others = [
        random_importance(geometry_of(tokens, [2, 3]), 0),
        random_importance(geometry_of(tokens, [0, 1], layer=1), 0),
        random_importance(geometry_of(tokens, [0, 1]), 1),
    ]
    flat = torch.stack([x.flatten(2) for x in (first, *others)]).flatten(0, 2)
    assert len(flat.unique(dim=0)) == 4 * 2 * 4
    assert not torch.equal(first[0], first[1])


def test_random_numbers_are_uniform():
    tokens = torch.ones(8, 64, dtype=torch.bool)
    numbers = document_noise(4, tokens, tokens, seed=5, layer=2, documents=range(8)).flatten()
    share = torch.histc(numbers, 10, 0, 1) / numbers.numel()
    assert float((share - 0.1).abs().max()) < 0.003


def test_any_seed_and_numbers_of_numpy():
    tokens = torch.ones(2, 3, dtype=torch.bool)
    with without_shape_checks("tl_geometry.measures.importances") as plain:
        for seed in (0, -1, 2**62, 2**70):
            first, second = (
                plain.document_noise(1, tokens, tokens, seed=seed, layer=0, documents=documents)
                for documents in ([3, 4], np.arange(3, 5))
            )
            assert torch.equal(first, second)


def test_as_many_documents_as_rows():
    tokens = torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="documents names 1 rows, but the batch has 2"):
        document_noise(1, tokens, tokens, seed=0, layer=0, documents=[0])
