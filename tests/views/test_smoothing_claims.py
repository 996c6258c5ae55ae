from typing import Any

import numpy as np
import pytest
import xarray as xr
from views_data.dataset import make_dataset

from tl_geometry.views import smoothing_findings
from tl_geometry.views.findings import Finding
from tl_geometry.views.verdicts import FAILS, HOLDS, OPEN, PARTLY

MARGINS = ("origin_margin", "origin_margin_random", "sink_margin", "sink_margin_random")


def dataset(error: float = 0.01, layers: Any = None, **variables: Any) -> xr.Dataset:
    held: dict[str, Any] = {}
    for name, values in variables.items():
        grid = np.array(values, dtype=float)
        held[name] = ("layer", grid)
        held[f"{name}_se"] = ("layer", np.where(np.isnan(grid), np.nan, error))
    ds = xr.Dataset(held, coords={"head": [0]})
    return ds.assign_coords(layer=layers if layers else np.arange(ds.sizes["layer"]))


def halfspaces(error: float = 0.01, **changed: Any) -> xr.Dataset:
    """Two layers in which both conditions hold by more than at random."""
    usual = dict(zip(MARGINS, ([0.3, 0.4], [0.1, 0.1], [0.5, 0.6], [0.2, 0.2]), strict=True))
    values = {"feasible": [1.0, 1.0]} | usual | changed
    return dataset(error, **{f"halfspace_{name}": x for name, x in values.items()})


def only(ds: xr.Dataset) -> Finding:
    (finding,) = smoothing_findings(ds)
    return finding


@pytest.mark.parametrize(
    ("middle", "error", "verdict"),
    [
        ([-0.1, -0.2], 0.01, HOLDS),
        ([-0.1, 0.2], 0.01, FAILS),  # one half is not most
        ([-0.1, 0.01], 0.01, OPEN),
        ([0.1, 0.01], 0.01, FAILS),
        ([-0.01, 0.01], 0.01, OPEN),
        ([0.0, 0.0], 0.0, HOLDS),  # not positive
        ([-0.1, np.nan], 0.01, HOLDS),
        ([-0.1, -0.2], np.nan, OPEN),
    ],
)
def test_the_middle_layers_decide(middle: list[float], error: float, verdict: str) -> None:
    assert only(dataset(error, bos_cosine=[0.5, 0.5, *middle, 0.5, 0.5])).verdict == verdict


def test_the_evidence_tells_the_middle_from_the_rest() -> None:
    ds = dataset(
        bos_cosine=[0.4, 0.6, -0.1, -0.3, 0.5, 0.5], bos_cosine_max=[0.9, 0.9, 0.1, 0.3, 0.9, 0.9]
    )
    assert only(ds).evidence == (
        "In layers 2 to 3 the mean cosine of the first token with the others, as attention reads "
        "them, is -0.200 (-0.220 to -0.180); by the intervals it is not positive in 2 of 2 layers, "
        "positive in 0. The largest with any token is 0.200 (0.180 to 0.220). In the other layers "
        "the mean is 0.500 (0.480 to 0.520)."
    )


@pytest.mark.parametrize(
    ("n", "labels"), [(1, "layer 0"), (3, "layer 1"), (4, "layers 1 to 2"), (30, "layers 10 to 19")]
)
def test_the_middle_third(n: int, labels: str) -> None:
    found = smoothing_findings(dataset(bos_cosine=[-0.1] * n))
    assert bool(found) == (n >= 3)
    assert all(f"In {labels} the mean" in finding.evidence for finding in found)


def test_named_layers_have_no_middle() -> None:
    names = ["encoder.0.attn", "decoder.0.attn", "decoder.0.cross_attn"]
    assert smoothing_findings(dataset(layers=names, bos_cosine=[-0.1, -0.1, np.nan])) == []


@pytest.mark.parametrize(
    ("middle", "verdict"),
    [
        ([-0.1, -0.1, 0.2], HOLDS),
        ([-0.1, 0.01, 0.2], OPEN),
        ([-0.1, 0.2, 0.2], FAILS),
    ],
)
def test_most_of_the_middle_layers_decide(middle: list[float], verdict: str) -> None:
    assert only(dataset(bos_cosine=[0.5] * 3 + middle + [0.5] * 3)).verdict == verdict


def test_one_wider_margin_in_one_layer_is_no_part_of_the_claim() -> None:
    none = {"feasible": [0.0] * 4, "origin_margin_random": [0.1] * 4, "sink_margin": [0.0] * 4}
    ds = halfspaces(**none, origin_margin=[0.3, 0.1, 0.1, 0.1], sink_margin_random=[0.2] * 4)
    finding = only(ds)
    assert finding.verdict == FAILS
    assert "(nearer in 1 of 4 layers, farther in 0)" in finding.evidence
    ds["halfspace_origin_margin"].values[:3] = 0.3
    assert only(ds).verdict == PARTLY  # now one of the three parts is shown
    ds["halfspace_origin_margin"].values[2] = 0.1
    assert only(ds).verdict == FAILS


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, HOLDS),
        ({"feasible": [1.0, 0.51]}, PARTLY),
        ({"feasible": [0.0, 0.0]}, PARTLY),
        ({"origin_margin": [0.05, 0.4]}, PARTLY),
        ({"sink_margin": [0.24, 0.24]}, PARTLY),  # the errors of both sides add up
        ({"feasible": [0.2, 0.2], "origin_margin": [0.1, 0.0], "sink_margin": [0.2, 0.1]}, FAILS),
        ({"feasible": [0.5, 0.5], "origin_margin": [0.12] * 2, "sink_margin": [0.22] * 2}, OPEN),
        ({"sink_margin": [0.6, np.nan]}, HOLDS),
    ],
)
def test_both_conditions_and_both_margins_count(changed: dict[str, Any], verdict: str) -> None:
    assert only(halfspaces(**changed)).verdict == verdict


def test_the_evidence_for_half_spaces_in_figures() -> None:
    ds = halfspaces(sink_margin=[0.1, 0.6], feasible=[1.0, 0.4], tokens=[512, 512], rank=[511, 509])
    assert only(ds).evidence == (
        "Both hold in 0.700 (0.680 to 0.720) of the documents, in more than half of them in 1 of 2 "
        "layers. The tokens' hull is 0.350 (0.330 to 0.370) of the longest token away from the "
        "origin, that of random vectors 0.100 (0.080 to 0.120) (nearer in 2 of 2 layers, farther in 0); the first "
        "token is 0.350 (0.330 to 0.370) away from the others' hull, a random one 0.200 (0.180 to "
        "0.220) (nearer in 1, farther in 1). 512 tokens a document were looked at; without the first they span "
        "510 dimensions."
    )


def test_a_single_document_settles_nothing() -> None:
    finding = only(halfspaces(np.nan))
    assert finding.verdict == OPEN
    assert finding.evidence.endswith("no interval can be given.")


def test_all_claims_hold_in_a_dataset_made_for_them_and_none_is_judged_without_values() -> None:
    found = smoothing_findings(make_dataset(6, 2))
    assert [finding.verdict for finding in found] == [HOLDS] * 2
    assert smoothing_findings(make_dataset(3, 2, blank_layers=(0, 1, 2))) == []
    assert smoothing_findings(make_dataset()[["sink_rate"]]) == []
    ds = make_dataset(6, 2)
    assert len(smoothing_findings(ds.drop_vars("halfspace_sink_margin_random"))) == 1
