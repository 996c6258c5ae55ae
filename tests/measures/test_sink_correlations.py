"""Rank correlations of the sink geometry against scipy, with ties and on a long document."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from literal import sinks as literal
from literal.contributions import contribution_factors, contribution_weights
from literal.masks import causal, padded, sink_mask, token_mask
from literal.problems import problem
from scipy.stats import ConstantInputWarning, spearmanr

from tl_geometry.measures.sinks import sink_geometry

FACTORS = ("attention", "relative_norm", "cosine")


def exact_rows(length: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A causal pattern and values on a line for which no step of the weights needs rounding.

    All outputs are powers of two, so equal contributions are equal to the last bit.
    """
    generator = torch.Generator().manual_seed(seed)
    v = torch.tensor([-2.0, -1.0, 1.0, 2.0])[torch.randint(0, 4, (length,), generator=generator)]
    pattern = torch.zeros(length, length)
    for i in range(length):
        output = torch.tensor(0.0)
        while output.abs() not in (0.25, 0.5, 1.0, 2.0):
            chosen = torch.randint(0, i + 1, (4,), generator=generator)
            pattern[i] = torch.bincount(chosen, minlength=length) / 4
            output = pattern[i] @ v
    return pattern, v


@pytest.mark.filterwarnings(f"ignore::{ConstantInputWarning.__module__}.ConstantInputWarning")
@pytest.mark.parametrize("sink", ["first", 3], ids=str)
def test_tied_ranks_against_scipy(sink):
    mask = padded(causal(16), token_mask("left", 2, 16))
    pattern, v = torch.zeros(2, 2, 16, 16), torch.zeros(2, 16, 2, 2)
    for b, h in np.ndindex(2, 2):
        start = 1 + b % 2
        rows, values = exact_rows(16 - start, seed=2 * b + h)
        pattern[b, h, start:, start:] = rows
        v[b, start:, h, 0] = values
    tensors = (pattern, v, 2 * torch.eye(2).repeat(2, 1, 1))
    geometry = sink_geometry(*tensors, available=mask, sink=sink)
    weights = contribution_weights(*tensors, available=mask)
    factors = contribution_factors(*tensors, available=mask)
    sinks = sink_mask(sink, pattern, mask)
    for b, h in np.ndindex(2, 2):
        seen = mask[b].numpy() & ~np.isnan(weights[b, h])
        at_sink = seen & sinks[b, h][None] & ~sinks[b, h][:, None]
        tail = seen & ~sinks[b, h][None]
        for group, entries in (("sink", at_sink), ("tail", tail)):
            chosen = weights[b, h][entries]
            assert len(set(chosen)) < len(chosen)  # ties, and to the last bit
            for name, factor in zip(FACTORS, factors, strict=True):
                expected = spearmanr(chosen, factor[b, h][entries]).statistic
                found = getattr(geometry, f"{group}_spearman_{name}")[b, h].item()
                assert found == pytest.approx(expected, abs=1e-5, nan_ok=True), (group, name)


def test_rank_correlations_of_a_long_document():
    made = problem(
        batch=1, heads=1, kv_heads=1, queries=256, available=causal(256)[None], sharpness=1, seed=17
    )
    geometry = sink_geometry(*made.tensors, available=made.available)
    pattern, v, W_O = (tensor.double().numpy() for tensor in made.tensors)
    values = v[0, :, 0] @ W_O[0]
    outputs = pattern[0, 0] @ values
    norms, lengths = np.linalg.norm(values, axis=1), np.linalg.norm(outputs, axis=1)
    scores = outputs @ values.T
    factors = [pattern[0, 0], norms / lengths[:, None], scores / (norms * lengths[:, None])]
    places = np.tril_indices(255)
    for name, factor in zip(FACTORS, factors, strict=True):
        weights = factors[0] * factors[1] * factors[2]
        tail = spearmanr(weights[1:, 1:][places], factor[1:, 1:][places]).statistic
        found = getattr(geometry, f"tail_spearman_{name}").item()
        assert found == pytest.approx(tail, abs=1e-5), name
        sink = spearmanr(weights[1:, 0], factor[1:, 0]).statistic
        assert getattr(geometry, f"sink_spearman_{name}").item() == pytest.approx(sink, abs=1e-5)


def test_ranks_of_the_literal_form():
    generator = np.random.default_rng(0)
    for size in (2, 5, 30):
        left, right = generator.integers(0, 4, (2, size))
        if len(set(left)) > 1 and len(set(right)) > 1:
            expected = spearmanr(left, right).statistic
            assert literal.spearman(left, right) == pytest.approx(expected, abs=1e-12)
    assert literal.average_ranks([5, 1, 5, 7], [0] * 4) == [2.5, 1, 2.5, 4]
