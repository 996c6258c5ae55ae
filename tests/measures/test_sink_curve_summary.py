"""Bins and fitted parabolas over the rows of a document, against numpy and where they are exact."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from literal import sink_curve as literal
from literal.masks import causal, padded, token_mask
from literal.problems import problem

from tl_geometry.measures.sink_curve import (
    bin_means,
    fit_quadratic,
    sink_curve_summary,
    sink_norm_curve,
)


def test_the_summary_against_numpy():
    mask = padded(causal(40), token_mask("left", 2, 40))
    made = problem(queries=40, available=mask, dtype=torch.float64, seed=24)
    pattern = made.pattern.clone()
    pattern[..., 2] += torch.arange(40) / 20
    pattern /= pattern.sum(-1, keepdim=True)
    curve = sink_norm_curve(pattern, made.v, made.W_O, available=mask, sink=1)
    summary = sink_curve_summary(curve)
    for b, h in np.ndindex(2, 4):
        rows = ~curve.norm[b, h].isnan()
        a, norm, optimum = (
            x[b, h][rows].numpy() for x in (curve.attention, curve.norm, curve.optimum)
        )
        coefficients = np.polyfit(a, norm**2, 2)[::-1]
        np.testing.assert_allclose(summary.quadratic[b, h], coefficients, rtol=1e-8)
        assert summary.curvature[b, h].item() == pytest.approx(2 * coefficients[2], rel=1e-8)
        means, shares = literal.binned(norm, a, [k / 10 for k in range(11)])
        np.testing.assert_allclose(summary.norm_by_attention[b, h], means, rtol=1e-12)
        np.testing.assert_allclose(summary.share_by_attention[b, h], shares, rtol=1e-12)
        _, gaps = literal.binned(a - optimum, a - optimum, [k / 10 - 1 for k in range(21)])
        np.testing.assert_allclose(summary.gap_histogram[b, h], gaps, rtol=1e-12)
        assert sum(share > 0 for share in shares) > 2
        assert sum(share > 0 for share in gaps) > 2


@pytest.mark.parametrize(
    "shares", [(0.2, 0.5, 0.9), (0.97, 0.98, 0.985, 0.99), (0.1, 0.1, 0.2, 0.7)]
)
def test_rows_of_one_curve_are_fitted_exactly(shares):
    """One sink and one other token: all rows lie on the curve of s and m."""
    rows = torch.tensor([[share, 1 - share] for share in shares], dtype=torch.float64)
    v = torch.randn(1, 2, 1, 4, generator=torch.Generator().manual_seed(25)).double()
    W_O = torch.randn(1, 4, 9, generator=torch.Generator().manual_seed(26)).double()
    seen = torch.ones(1, len(shares), 2, dtype=torch.bool)
    summary = sink_curve_summary(sink_norm_curve(rows[None, None], v, W_O, available=seen))
    s, m = v[0, :, 0] @ W_O[0]
    expected = torch.stack([m @ m, 2 * (s - m) @ m, (s - m) @ (s - m)])
    torch.testing.assert_close(summary.quadratic[0, 0], expected, rtol=1e-6, atol=0)


def test_fits_need_three_different_places():
    y = torch.tensor([1.0, 2.0, 5.0, 4.0], dtype=torch.float64)
    keep = torch.ones(4, dtype=torch.bool)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in ([0.5] * 4, [0.25, 0.75, 0.25, 0.75], [1 / 3, 0.1, 0.1, 1 / 3]):
            assert fit_quadratic(torch.tensor(x, dtype=torch.float64), y, keep).isnan().all()
        x = torch.tensor([0.1, 0.2, 0.4, 9.0], dtype=torch.float64)
        assert fit_quadratic(x, y, keep & (x < 0.3)).isnan().all()
        assert fit_quadratic(x, y, ~keep).isnan().all()
        fitted = fit_quadratic(x, y, keep & (x < 1))
    np.testing.assert_allclose(fitted, np.polyfit(x[:3], y[:3], 2)[::-1], rtol=1e-10)


def test_bins_are_closed_below():
    by = torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, torch.nan])
    keep = torch.tensor([True] * 6 + [False])
    means, shares = bin_means(by, by, keep, (-1, 1), 4)
    assert means.tolist() == [-1, -0.5, 0, 1]
    torch.testing.assert_close(shares, torch.tensor([1, 1, 1, 3]) / 6)
    means, shares = bin_means(by, by, ~keep & (by > 0), (-1, 1), 4)
    assert means.isnan().all()
    assert shares.isnan().all()
