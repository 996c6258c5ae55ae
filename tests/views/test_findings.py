from typing import Any

import numpy as np
import pytest
import xarray as xr
from views_data.dataset import make_dataset

from tl_geometry.views.averages import Quantity
from tl_geometry.views.findings import Finding, counted, most_below, separability_findings
from tl_geometry.views.verdicts import FAILS, HOLDS, OPEN, PARTLY, REVERSED, SHOWN, UNSETTLED


def dataset(error: float = 0.01, **variables: Any) -> xr.Dataset:
    """Two layers by two heads; F-like variables are given for N = 1, 2, 8, the same in all heads."""
    held: dict[str, Any] = {}
    for name, values in variables.items():
        grid = np.array(values)
        by_size = grid.ndim == 1
        grid = np.broadcast_to(grid, (2, 2, 3)).copy() if by_size else grid
        dims = ("layer", "head", "top_n") if by_size else ("layer", "head")
        held[name] = (dims, grid)
        if grid.dtype.kind == "f":
            held[f"{name}_se"] = (dims, np.full(grid.shape, error))
    return xr.Dataset(held, coords={"layer": [0, 1], "head": [0, 1], "top_n": [1, 2, 8]})


def only(ds: xr.Dataset, start: str) -> Finding:
    (finding,) = [f for f in separability_findings(ds) if f.claim.startswith(start)]
    return finding


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([0.1, 0.1, 0.9], SHOWN),
        ([0.1, 0.45, 0.9], UNSETTLED),  # the interval of 0.45 reaches the limit
        ([0.1, 0.9, 0.1, 0.9], REVERSED),  # one half is not most
        ([np.nan, 0.1, 0.1], SHOWN),
    ],
)
def test_most_heads_below_a_limit(value: list[float], expected: str) -> None:
    found = Quantity(np.array(value), np.full(len(value), 0.03))
    assert most_below(found, 0.5) == expected


def test_counts_in_words() -> None:
    assert [counted(n) for n in (0, 1, 2)] == ["0 heads", "1 head", "2 heads"]
    assert counted(1, "layer") == "1 layer"


def test_above_random_at_every_size() -> None:
    ds = dataset(f_score=[1.0, 0.7, 0.5], f_score_random=[1.0, 0.3, 0.2])
    finding = only(ds, "The most attended")
    assert finding.verdict == HOLDS
    assert finding.evidence == (
        "F is higher than the control by 0.40 (0.36 to 0.44) at N = 2, 0.30 (0.26 to 0.34) at "
        "N = 8."
    )
    assert str(finding).startswith("Holds: The most attended tokens are more separable")


def test_a_size_that_fails_is_named() -> None:
    ds = dataset(f_score=[1.0, 0.7, 0.2], f_score_random=[1.0, 0.3, 0.3])
    finding = only(ds, "The most attended")
    assert finding.verdict == PARTLY
    assert "-0.10 (-0.14 to -0.06) at N = 8. It is not shown at N = 8." in finding.evidence
    ds = dataset(f_score=[1.0, 0.2, 0.2], f_score_random=[1.0, 0.3, 0.3])
    assert only(ds, "The most attended").verdict == FAILS
    ds = dataset(0.0, f_score=[1.0, 0.3, 0.3], f_score_random=[1.0, 0.3, 0.3])
    assert only(ds, "The most attended").verdict == OPEN  # not higher, but not lower either


def test_n_1_decides_nothing() -> None:
    ds = dataset(f_score=[0.0, 0.7, 0.5], f_score_random=[1.0, 0.3, 0.2])
    assert only(ds, "The most attended").verdict == HOLDS


def test_one_document_settles_nothing() -> None:
    ds = dataset(np.nan, f_score=[1.0, 0.7, 0.5], f_score_random=[1.0, 0.3, 0.2])
    finding = only(ds, "The most attended")
    assert finding.verdict == OPEN
    assert finding.evidence.endswith("no interval can be given.")


def test_only_mixers_count_for_the_sink() -> None:
    ds = dataset(f_score=[1.0, 0.4, 0.3], f_score_no_sink=[1.0, 0.2, 0.1])
    ds["f_score_no_sink"].values[0, 1] = [1.0, 0.8, 0.6]
    labels = np.array([["reset", "mixer"], ["reset", "retriever"]], dtype=object)
    ds["regime"] = (("layer", "head"), labels)
    finding = only(ds, "In mixer heads")
    assert finding.verdict == HOLDS
    assert finding.evidence == (
        "Over 1 head, F without the sink is higher by 0.40 (0.36 to 0.44) at N = 2, 0.30 (0.26 to "
        "0.34) at N = 8. At N = 8 it is 2.00 times as large (the paper: often about twice)."
    )
    ds["regime"].values[0, 1] = "reset"
    assert [f for f in separability_findings(ds) if f.claim.startswith("In mixer")] == []


def test_a_sink_that_is_not_in_the_way() -> None:
    ds = dataset(f_score=[1.0, 0.4, 0.3], f_score_no_sink=[1.0, 0.2, 0.1])
    ds["regime"] = (("layer", "head"), np.full((2, 2), "mixer", dtype=object))
    assert only(ds, "In mixer heads").verdict == FAILS


@pytest.mark.parametrize(
    ("ratios", "verdict", "words"),
    [
        ([[0.2, 0.25], [0.25, 1.5]], HOLDS, "0.250 of the others' median length (4.00 times"),
        ([[0.2, 0.99], [1.01, 1.5]], OPEN, "in 1 of 4 heads, longer in 1."),
        ([[1.5, 2.0], [2.0, 0.1]], FAILS, "(not shorter, outside the paper's range"),
        ([[0.5, 0.5], [0.5, 0.5]], HOLDS, "(2.00 times shorter, outside the paper's range"),
        ([[0.05, 0.05], [np.nan, 0.05]], HOLDS, "in 3 of 3 heads"),
    ],
)
def test_the_length_of_the_sink(ratios: list[list[float]], verdict: str, words: str) -> None:
    finding = only(dataset(sink_norm_ratio=ratios), "In most heads the sink's")
    assert finding.verdict == verdict
    assert words in finding.evidence


@pytest.mark.parametrize(
    ("cosines", "verdict"),
    [
        ([[-0.2, -0.2], [0.1, -0.3]], HOLDS),
        ([[0.2, 0.2], [-0.1, 0.3]], FAILS),
        ([[0.2, -0.2], [-0.1, 0.105]], OPEN),
    ],
)
def test_the_direction_of_the_sink(cosines: list[list[float]], verdict: str) -> None:
    finding = only(dataset(sink_cosine=cosines), "The sink's value vector points away")
    assert finding.verdict == verdict
    negative = int((np.array(cosines) < 0).sum())
    assert f"negative in {negative} of 4 heads, positive in {4 - negative}." in finding.evidence


def test_retrievers_counted_by_hand() -> None:
    labels = np.array([["mixer", "mixer"], ["retriever", ""]], dtype=object)
    finding = only(dataset(regime=labels), "Retrievers")
    assert finding.verdict == HOLDS
    assert finding.evidence == (
        "1 of 3 heads (33.3 %) are retrievers, not the rarest of the three regimes; outside the "
        "paper's range of 5.8 to 17.2 %."
    )
    labels[:, 0] = "retriever"
    assert only(dataset(regime=labels), "Retrievers").verdict == FAILS


def test_silent_about_what_was_not_measured() -> None:
    ds = make_dataset(2, 2, blank_layers=(0, 1))
    assert separability_findings(ds) == []
    assert separability_findings(ds[["undefined_rows"]]) == []
    assert len(separability_findings(make_dataset(6, 4))) == 5
