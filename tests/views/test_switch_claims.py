from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy.stats import spearmanr
from views_data.dataset import make_dataset

from tl_geometry.views import switch_findings
from tl_geometry.views.findings import Finding
from tl_geometry.views.switch_claims import rank_correlation
from tl_geometry.views.verdicts import FAILS, HOLDS, OPEN, PARTLY


def dataset(error: float = 0.01, **variables: Any) -> xr.Dataset:
    """Two layers by two heads; what has a third axis has f = 0.2, 0.1 on it."""
    held: dict[str, Any] = {}
    for name, values in variables.items():
        grid = np.array(values, dtype=float)
        dims = ("layer", "head", "fraction")[: max(2, grid.ndim)]
        held[name] = (dims, np.broadcast_to(grid, (2, 2, 2)[: len(dims)]).copy())
        held[f"{name}_se"] = (dims, np.where(np.isnan(held[name][1]), np.nan, error))
    return xr.Dataset(held, coords={"layer": [0, 1], "head": [0, 1], "fraction": [0.2, 0.1]})


def only(ds: xr.Dataset) -> Finding:
    (finding,) = switch_findings(ds)
    return finding


@pytest.mark.parametrize(
    ("off", "verdict"),
    [
        ([0.9, 0.8], HOLDS),
        ([0.9, 0.53], PARTLY),
        ([0.53, 0.47], OPEN),
        ([0.2, 0.3], FAILS),
        ([0.9, np.nan], HOLDS),
    ],
)
def test_rows_that_are_off_attend_to_the_sink(off: list[float], verdict: str) -> None:
    ds = dataset(sink_rate_off=[[off] * 2] * 2, sink_rate_on=np.full((2, 2, 2), 0.5))
    assert only(ds).verdict == verdict


def test_heads_that_are_never_off_are_left_out() -> None:
    ds = dataset(sink_rate_off=np.full((2, 2, 2), 0.9), sink_rate_on=np.full((2, 2, 2), 0.5))
    ds["sink_rate_off"].values[0, 0] = np.nan
    ds["sink_rate_off"].values[0, 1, 1] = 0.0
    ds["sink_rate_off_se"].values[0, 1, 1] = np.nan  # off in a single document
    finding = only(ds)
    assert finding.verdict == HOLDS
    assert (
        "other rows: 0.900 (0.880 to 0.920) and 0.500 (0.480 to 0.520) at f = 0.1, a difference of "
        "0.400 (0.360 to 0.440) (more in 2, less in 0 of 2 heads); 0.900 (0.880 to 0.920) and 0.500 "
        "(0.480 to 0.520) at f = 0.2, a difference of 0.400 (0.360 to 0.440) (more in 3, less in 0 "
        "of 3 heads). Means over the heads that have both"
    ) in finding.evidence
    ds["sink_rate_off"].values[..., 0] = np.nan
    assert only(ds).evidence.endswith("Nothing to compare at f = 0.2.")
    ds["sink_rate_off"].values[:] = np.nan
    assert switch_findings(ds) == []


@pytest.mark.parametrize(("exceptions", "verdict"), [(0, HOLDS), (1, HOLDS), (2, PARTLY)])
def test_heads_that_are_off_without_the_sink_are_not_averaged_away(
    exceptions: int, verdict: str
) -> None:
    off = np.full((5, 6, 1), 0.9)
    off[0, :exceptions] = 0.1
    dims = ("layer", "head", "fraction")
    ds = xr.Dataset({"sink_rate_off": (dims, off), "sink_rate_on": (dims, np.full(off.shape, 0.5))})
    for name in ("sink_rate_off", "sink_rate_on"):
        ds[f"{name}_se"] = (dims, np.full(off.shape, 0.01))
    finding = only(ds.assign_coords(fraction=[0.1]))
    assert finding.verdict == verdict
    assert f"more in {30 - exceptions}, less in {exceptions} of 30 heads" in finding.evidence
    where = "at f = 0.1" if exceptions == 2 else "nowhere"
    assert "Where more than 5 % of the heads do the opposite" in finding.evidence
    assert f"reversed part of the claim: here {where}." in finding.evidence


def test_levels_are_means_over_the_heads_that_have_both_kinds_of_rows() -> None:
    ds = dataset(sink_rate_off=np.full((2, 2, 2), 0.2), sink_rate_on=np.full((2, 2, 2), 0.6))
    ds["sink_rate_off"].values[0, 0] = np.nan
    ds["sink_rate_on"].values[0, 0] = 0.1  # has no rows that are off
    finding = only(ds)
    assert finding.verdict == FAILS
    shown = "0.200 (0.180 to 0.220) and 0.600 (0.580 to 0.620) at f = 0.1, a difference of -0.400 "
    assert shown in finding.evidence
    assert "more in 0, less in 3 of 3 heads" in finding.evidence
    assert "more attention than" not in finding.evidence


def test_exceptions_without_a_shown_mean_refute() -> None:
    off = np.full((2, 2, 2), 0.5)
    off[0, 0], off[0, 1] = 0.9, 0.1  # the mean is not settled, a quarter does the opposite
    ds = dataset(sink_rate_off=off, sink_rate_on=np.full((2, 2, 2), 0.5))
    assert only(ds).verdict == FAILS


def many(seed: int, slope: float, n: int = 40) -> xr.Dataset:
    rng = np.random.default_rng(seed)
    rate = rng.uniform(size=(n // 4, 4))
    off = slope * rate[..., None] + rng.uniform(0, 0.3, (n // 4, 4, 2))
    held = {
        "sink_rate": (("layer", "head"), rate),
        "off_rate": (("layer", "head", "fraction"), off),
    }
    return xr.Dataset(held, coords={"fraction": [0.1, 0.3]})


@pytest.mark.parametrize(
    ("slope", "n", "verdict"), [(1, 40, HOLDS), (-1, 40, FAILS), (0, 40, OPEN), (1, 8, OPEN)]
)
def test_heads_that_are_off_more_have_more_sink(slope: float, n: int, verdict: str) -> None:
    ds = many(3, slope, n)
    finding = only(ds)
    assert finding.verdict == verdict
    assert finding.claim.startswith("Conversely, heads that give their sink more attention are off")
    for k, f in enumerate((0.1, 0.3)):
        rho = spearmanr(ds["off_rate"].values[..., k].ravel(), ds["sink_rate"].values.ravel())[0]
        assert f"{rho:.2f}" in finding.evidence or f"{rho:.3f}" in finding.evidence
        assert f"at f = {f:g}" in finding.evidence
    assert f"over {n} heads" in finding.evidence


def test_a_correlation_that_only_one_fraction_shows() -> None:
    ds = many(0, 1)
    ds["off_rate"].values[..., 1] = np.random.default_rng(1).uniform(size=(10, 4))
    assert only(ds).verdict == PARTLY
    ds["off_rate"].values[:] = 0.0  # no head is ever off: nothing to rank
    assert switch_findings(ds) == []


def test_rank_correlation_with_its_interval() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=60)
    y = np.round(x + rng.normal(size=60))  # ties
    x[3] = np.nan
    found = rank_correlation(x, y)
    known = ~np.isnan(x)
    assert found.value == pytest.approx(spearmanr(x[known], y[known])[0])
    reach = 2 * np.sqrt(1.06 / 56)
    ends = np.tanh(np.arctanh(float(found.value)) + np.array([-reach, reach]))
    np.testing.assert_allclose([found.low, found.high], ends)
    assert np.isnan(rank_correlation(np.ones(9), np.arange(9.0)).value)
    few = rank_correlation(np.arange(9.0), np.arange(9.0))
    assert few.value == pytest.approx(1)
    assert np.isnan(few.low)
    assert rank_correlation(np.arange(10.0), np.arange(10.0)).low > 0.99
    assert np.isnan(rank_correlation(np.full(5, np.nan), np.arange(5.0)).value)


def test_the_interval_covers_as_often_as_two_standard_errors_should() -> None:
    rng = np.random.default_rng(0)
    true = 6 / np.pi * np.arcsin(0.5 / 2)  # Spearman's of a normal pair with correlation 0.5
    covered = 0
    for _ in range(400):
        x = rng.normal(size=50)
        found = rank_correlation(x, 0.5 * x + np.sqrt(0.75) * rng.normal(size=50))
        covered += bool(found.low <= true <= found.high)
    assert 0.92 < covered / 400 < 0.985


@pytest.mark.parametrize(
    ("own", "sink", "verdict"),
    [
        ([[0.7, 0.1], [0.1, 0.1]], [[0.1, 0.9], [0.9, 0.9]], HOLDS),
        ([[0.1, 0.1], [0.1, 0.1]], [[0.9, 0.9], [0.9, 0.9]], FAILS),  # none exists
        ([[0.7, 0.7], [0.7, 0.1]], [[0.1, 0.1], [0.1, 0.9]], PARTLY),  # they are more
        ([[0.7, 0.1], [0.1, 0.1]], [[0.1, 0.1], [0.9, 0.1]], PARTLY),  # as many
        ([[0.51, 0.1], [0.1, 0.1]], [[0.9, 0.9], [0.9, 0.9]], OPEN),  # may exist
        ([[0.7, 0.1], [0.1, 0.1]], [[0.51, 0.1], [0.9, 0.1]], PARTLY),  # one sink or two
        ([[0.51, 0.1], [0.1, 0.1]], [[0.51, 0.1], [0.1, 0.1]], OPEN),
        ([[0.7, np.nan], [0.1, 0.1]], [[0.9, np.nan], [0.9, 0.1]], HOLDS),
    ],
)
def test_heads_that_keep_to_themselves(
    own: list[list[float]], sink: list[list[float]], verdict: str
) -> None:
    finding = only(dataset(diagonal_attention=own, sink_rate=sink))
    assert finding.verdict == verdict
    counts = [int((np.array(x) > 0.52).sum()) for x in (own, sink)]
    assert f"to the token itself in {counts[0]} of " in finding.evidence
    assert f"to the sink in {counts[1]} of " in finding.evidence
    assert "Most keeps L0H0" in finding.evidence


def test_without_intervals_no_head_keeps_to_itself_for_certain() -> None:
    ds = dataset(np.nan, diagonal_attention=0.9, sink_rate=0.1, mixing_ratio_no_sink=0.05)
    finding = only(ds)
    assert finding.verdict == OPEN
    assert finding.evidence.endswith("no interval can be given.")
    assert "act 0 of 4 heads." in finding.evidence


def test_all_claims_hold_in_a_dataset_made_for_them_and_none_is_judged_without_values() -> None:
    found = switch_findings(make_dataset(6, 5))
    assert [finding.verdict for finding in found] == [HOLDS] * 3
    blank = make_dataset(2, 2, blank_layers=(0, 1))
    assert switch_findings(blank) == []
    assert switch_findings(blank[["undefined_rows"]]) == []
    with pytest.raises(ValueError, match="no values along 'layer'"):
        switch_findings(xr.Dataset())


@pytest.mark.parametrize(
    ("feasible", "margin", "verdict"),
    [
        (1.0, 0.3, HOLDS),
        (1.0, 0.1, PARTLY),
        (1.0, 0.05, PARTLY),
        (0.2, 0.05, FAILS),
        ([[1.0, 1.0], [1.0, 0.0]], 0.3, HOLDS),
        ([[1.0, 1.0], [0.0, 0.0]], 0.3, PARTLY),
        ([[np.nan, np.nan], [np.nan, 1.0]], 0.3, HOLDS),
    ],
)
def test_values_to_one_side_of_the_origin(feasible: Any, margin: float, verdict: str) -> None:
    ds = dataset(
        value_halfspace_feasible=feasible,
        value_halfspace_margin=margin,
        value_halfspace_margin_random=0.1,
    )
    assert only(ds).verdict == verdict
    assert switch_findings(ds.drop_vars("value_halfspace_margin_random")) == []
