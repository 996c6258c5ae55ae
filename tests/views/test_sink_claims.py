from typing import Any

import numpy as np
import pytest
import xarray as xr
from views_data.dataset import make_dataset

from tl_geometry.views import suppression_findings
from tl_geometry.views.estimates import Estimates
from tl_geometry.views.findings import Finding
from tl_geometry.views.verdicts import FAILS, HOLDS, OPEN, PARTLY


def dataset(error: float = 0.01, **variables: Any) -> xr.Dataset:
    """Two layers by two heads; all standard errors alike."""
    held: dict[str, Any] = {}
    for name, values in variables.items():
        grid = np.broadcast_to(np.array(values, dtype=float), (2, 2)).copy()
        held[name] = (("layer", "head"), grid)
        held[f"{name}_se"] = (("layer", "head"), np.where(np.isnan(grid), np.nan, error))
    return xr.Dataset(held, coords={"layer": [0, 1], "head": [0, 1]})


def only(ds: xr.Dataset) -> Finding:
    (finding,) = suppression_findings(ds)
    return finding


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([[0.2, 0.25], [0.4, 1.5]], HOLDS),
        ([[0.2, 0.25], [0.485, 0.485]], PARTLY),  # intervals reach over one half in two heads
        ([[0.7, 0.8], [0.9, 1.5]], PARTLY),
        ([[0.99, 0.99], [0.5, 1.5]], FAILS),  # not shown to be shorter, nor twice so in most
        ([[1.2, 1.3], [0.2, 0.2]], FAILS),  # one half is not most
        ([[1.2, 0.2], [0.505, 0.4]], PARTLY),
        ([[0.2, np.nan], [np.nan, np.nan]], HOLDS),
    ],
)
def test_several_times_shorter(ratios: list[list[float]], verdict: str) -> None:
    finding = only(dataset(sink_norm_ratio_model=ratios))
    assert finding.verdict == verdict
    grid = np.array(ratios)
    count = int((grid < 0.48).sum())
    assert finding.evidence.endswith(f"By the same measure it is 2 times shorter in {count}.")
    assert f"median head it has {np.nanmedian(grid):.3g}"[:30] in finding.evidence


@pytest.mark.parametrize(
    ("cosines", "verdict"),
    [
        ([[-0.2, -0.2], [0.1, -0.3]], HOLDS),
        ([[0.2, 0.2], [-0.1, 0.3]], FAILS),
        ([[0.2, -0.2], [-0.1, 0.105]], FAILS),  # one half is not most
        ([[0.2, -0.2], [-0.1, 0.01]], OPEN),
    ],
)
def test_anti_aligned_in_model_space(cosines: list[list[float]], verdict: str) -> None:
    finding = only(dataset(sink_cosine_model=cosines))
    assert finding.verdict == verdict
    assert "anti-aligned" in finding.claim
    negative, positive = ((sign * np.array(cosines) > 0.02).sum() for sign in (-1, 1))
    assert f"negative in {negative} of 4 heads, positive in {positive}." in finding.evidence


@pytest.mark.parametrize(
    ("without", "verdict"),
    [
        ([[2.0, 2.0], [2.0, 0.5]], HOLDS),
        ([[2.0, 2.0], [0.5, 0.5]], FAILS),
        ([[1.03, 1.03], [2.0, 2.0]], OPEN),  # the errors of both sides add up
        ([[0.0, 0.0], [2.0, 2.0]], HOLDS),  # heads that write nothing else say nothing
    ],
)
def test_a_sink_that_shortens(without: list[list[float]], verdict: str) -> None:
    finding = only(dataset(output_norm_with_sink=1.0, output_norm_no_sink=without))
    assert finding.verdict == verdict
    assert "times as long as with the sink's value set to zero" in finding.evidence


INSIDE = {"c0": 1.0, "c1": -2.0, "c2": 2.0}  # lowest at a = 0.5
END = {"c0": 4.0, "c1": -3.5, "c2": 1.0}  # convex, lowest above all bins


def curves(ds: xr.Dataset, error: float = 0.01, **c: float) -> xr.Dataset:
    """The dataset with the same curve over five bins of the sink rate in every head."""
    a = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
    lengths = np.sqrt(c["c0"] + c["c1"] * a + c["c2"] * a**2)
    dims = ("layer", "head", "sink_rate_bin")
    ds["norm_by_sink_rate"] = (dims, np.broadcast_to(lengths, (2, 2, 5)).copy())
    ds["norm_by_sink_rate_se"] = (dims, np.full((2, 2, 5), error))
    return ds.assign_coords(sink_rate_bin=a)


@pytest.mark.parametrize(
    ("convex", "curve", "error", "verdict"),
    [
        (0.8, INSIDE, 0.01, HOLDS),
        (0.8, END, 0.01, PARTLY),
        (0.8, None, 0.01, PARTLY),
        (0.51, INSIDE, 0.01, PARTLY),
        (0.3, INSIDE, 0.01, PARTLY),
        (0.3, END, 0.01, FAILS),
        (0.51, END, 0.01, FAILS),
        (0.51, None, 0.01, OPEN),
        (0.5, None, 0.0, OPEN),  # what noise would do
        ([[0.9, 0.9], [0.9, 0.1]], INSIDE, 0.01, HOLDS),
        ([[0.9, 0.9], [0.51, 0.1]], None, 0.01, OPEN),
        ([[0.9, 0.9], [0.1, 0.1]], None, 0.01, FAILS),  # one half is not most
        ([[0.9, np.nan], [np.nan, np.nan]], INSIDE, 0.01, HOLDS),
        (0.8, INSIDE, np.nan, OPEN),
    ],
)
def test_convex_with_a_minimum_inside(
    convex: Any, curve: dict[str, float] | None, error: float, verdict: str
) -> None:
    ds = dataset(error, sink_fit_convex=convex)
    finding = only(curves(ds, error, **curve) if curve else ds)
    assert finding.verdict == verdict
    assert finding.evidence.endswith("no interval can be given.") == np.isnan(error)
    assert ("No curve over sink rates was measured" in finding.evidence) == (curve is None)


def test_a_row_whose_curve_is_convex_by_construction_decides_nothing() -> None:
    ds = dataset(
        sink_fit_convex=0.51,
        sink_optimum_inside=0.99,
        sink_below_optimum=0.25,
        sink_optimum_gap=0.2,
    )
    assert only(ds).verdict == OPEN


def test_the_evidence_for_convexity_in_figures() -> None:
    ds = dataset(
        sink_fit_convex=[[0.9, 0.8], [0.3, np.nan]],
        sink_optimum_inside=[[0.6, 0.8], [0.7, 0.7]],
        sink_below_optimum=0.25,
        sink_optimum_gap=0.2,
    )
    ds = curves(ds, 0.0, **INSIDE)
    ds["norm_by_sink_rate"].values[0, 0] = np.sqrt(
        4 - 3.5 * ds["sink_rate_bin"].values + ds["sink_rate_bin"].values ** 2
    )
    ds["norm_by_sink_rate"].values[1, 0] = np.nan
    a = ds["sink_rate_bin"].values
    mean = np.nanmean(ds["norm_by_sink_rate"].values.reshape(4, 5), axis=0)
    curve = np.polynomial.Polynomial.fit(a, mean**2, 2).convert()
    slopes = [np.array(curve.deriv()(x)) for x in (0.1, 0.9)]
    assert slopes[0] < 0 < slopes[1]
    first, last = (Estimates(slope, slope, slope).text() for slope in slopes)
    heads = [row for row in ds["norm_by_sink_rate"].values.reshape(4, 5) if np.isfinite(row).all()]
    median = np.median([2 * np.polyfit(a, row**2, 2)[0] for row in heads])
    assert only(ds).evidence == (
        "By more than two standard errors, a parabola fitted to |o|² over the sink rates of a "
        "document's rows is convex in more than half of the documents (noise would do in half) in 2 "
        "of 3 heads, in less than half in 1; the mean over heads is 0.667 (0.647 to 0.687) of the "
        "documents. The parabola through the squared mean |o| of all heads in bins of the sink rate, "
        f"from 0.10 to 0.90, has the curvature {2 * curve.coef[2]:.2f} (in squares of a head's mean "
        f"length; {median:.2f} in the median head) and is lowest at a = "
        f"{-curve.coef[1] / 2 / curve.coef[2]:.2f}: its slope is "
        f"{first} in the first bin, where it should be negative, and "
        f"{last} in the last, where it should be positive (shown). That "
        "of a single head is lowest strictly inside in 2 of 3 heads, in 2 of them by more than two "
        "standard errors of both slopes, at an end by as much in 1. The curve of a single row, convex "
        "by construction, is lowest strictly inside 0 < a* < 1 in 0.700 (0.680 to 0.720) of the rows. "
        "The sink gets less attention than a* in 0.250 (0.230 to 0.270) of the rows; a − a* is 0.200 "
        "(0.180 to 0.220) in the mean."
    )


@pytest.mark.parametrize(
    ("norm", "cosine", "verdict"),
    [
        (-0.6, 0.9, HOLDS),  # size counts, not sign
        (0.1, 0.9, PARTLY),
        (0.3, 0.3, OPEN),
        (0.1, 0.2, FAILS),
        (0.1, 0.3, FAILS),
    ],
)
def test_what_the_sink_follows(norm: float, cosine: float, verdict: str) -> None:
    ds = dataset(
        sink_spearman_attention=-0.3,
        sink_spearman_relative_norm=norm,
        sink_spearman_cosine=cosine,
    )
    finding = only(ds)
    assert finding.verdict == verdict
    difference = abs(norm) - 0.3
    assert f"relative length exceeds attention by {difference:.3f} (" in finding.evidence
    assert "mean over 4 heads" in finding.evidence
    assert only(dataset(np.nan, **{n: 0.3 for n in ds if not n.endswith("_se")})).verdict == OPEN


@pytest.mark.parametrize(
    ("attention", "verdict"), [(0.6, HOLDS), (0.1, PARTLY), (0.22, PARTLY), (-0.6, HOLDS)]
)
def test_what_other_tokens_follow(attention: float, verdict: str) -> None:
    ds = dataset(
        tail_spearman_attention=attention,
        tail_spearman_relative_norm=0.2,
        tail_spearman_cosine=0.9,
    )
    finding = only(ds)
    assert finding.verdict == verdict
    assert finding.claim.startswith("The contributions of all other tokens")


def test_only_heads_with_all_three_correlations_are_compared() -> None:
    ds = dataset(
        sink_spearman_attention=[[0.3, np.nan], [0.3, 0.3]],
        sink_spearman_relative_norm=[[0.6, 0.0], [0.6, np.nan]],
        sink_spearman_cosine=0.9,
    )
    finding = only(ds)
    assert finding.verdict == HOLDS
    assert "0.300 (0.280 to 0.320) with attention, 0.600 " in finding.evidence
    assert "mean over 2 heads" in finding.evidence


@pytest.mark.parametrize(
    ("without", "verdict"), [(0.5, HOLDS), (0.1, FAILS), (0.33, OPEN), (np.nan, None)]
)
def test_only_heads_of_low_norm_count_for_the_cone(without: float, verdict: str | None) -> None:
    ds = dataset(
        cone_alignment=0.3,
        cone_alignment_no_sink=[[without, 0.9], [without, 0.0]],
        low_norm=[[1, 0], [1, np.nan]],
    )
    found = suppression_findings(ds)
    assert [finding.verdict for finding in found] == ([verdict] if verdict else [])
    if verdict:
        assert "mean over 2 heads" in found[0].evidence
        assert found[0].evidence.endswith(
            "In the other heads it goes from 0.300 (0.280 to 0.320) to 0.900 (0.880 to 0.920)."
        )


def test_all_claims_hold_in_a_dataset_made_for_them_and_none_is_judged_without_values() -> None:
    found = suppression_findings(make_dataset(6, 4))
    assert [finding.verdict for finding in found] == [HOLDS] * 7
    assert all(any(c.isdigit() for c in finding.evidence) for finding in found)
    blank = make_dataset(2, 2, blank_layers=(0, 1))
    assert suppression_findings(blank) == []
    assert suppression_findings(blank[["undefined_rows"]]) == []
    with pytest.raises(TypeError):
        suppression_findings({})  # type: ignore[arg-type]


def test_a_single_document_settles_nothing() -> None:
    ds = make_dataset(6, 4)
    for name in list(ds.data_vars):
        if str(name).endswith("_se"):
            ds[name].values[:] = np.nan
    found = suppression_findings(ds)
    assert [finding.verdict for finding in found] == [OPEN] * 7
    assert all("no interval can be given" in finding.evidence for finding in found)
