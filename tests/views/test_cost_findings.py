import re
from typing import Any

import numpy as np
import pytest
import xarray as xr
from views_data.costs import make_token_costs

from tl_geometry.views import cost_findings
from tl_geometry.views.cost_tables import KINDS, TARGETS
from tl_geometry.views.verdicts import FAILS, HOLDS, OPEN, PARTLY


def numbers(cell: str) -> list[float]:
    return [float(x.replace(",", "")) for x in re.findall(r"-?[\d,]*\.?\d+", cell)]


def ends(ds: xr.Dataset, name: str, **where: Any) -> list[float]:
    return [float(ds[name + end].sel(where)) for end in ("", "_low", "_high")]


def findings(ds: xr.Dataset) -> dict[str, Any]:
    """By a few words of the claim."""
    words = ("orthonormal", "grows faster (nuclear", "(Frobenius", "less than", "dearer")
    found = cost_findings.token_costs_findings(ds)
    return {word: next((f for f in found if word in f.claim), None) for word in words}


@pytest.mark.parametrize(
    ("exponents", "expected"),
    [((0.5, 1.0), HOLDS), ((0.5, 1.4), PARTLY), ((1.0, 0.6), FAILS)],  # 1.4: faster, but by far
)
def test_the_gap_of_one_half(exponents: tuple[float, float], expected: str) -> None:
    ds = make_token_costs({"orthonormal": exponents}, noise=0.005)
    found = findings(ds)["orthonormal"]
    assert found.verdict == expected
    gap = ends(ds, "exponent_gap", tokens="orthonormal", norm="nuclear")
    told, _, fit = found.evidence.rpartition("the gap is")[2].partition(". Orthonormal")
    assert numbers(told) == pytest.approx(gap, abs=6e-3)
    assert "(a gap of the exponents of 0.4 to 0.6)" in found.claim
    assert "residuals of a straight line through 4 lengths" in fit


@pytest.mark.parametrize(
    ("gap", "expected"),
    [
        ((0.5, 0.4, 0.6), HOLDS),
        ((0.5, 0.39, 0.6), PARTLY),  # the interval leaves the range
        ((0.5, 0.4, 0.61), PARTLY),
        ((0.7, 0.61, 0.8), PARTLY),
        ((0.2, 0.1, 0.39), PARTLY),  # faster, but not by so much
        ((0.3, -0.1, 0.7), OPEN),
        ((0.1, -0.1, 0.3), FAILS),
        ((-0.5, -0.6, -0.4), FAILS),
        ((0.5, np.nan, np.nan), OPEN),
    ],
)
def test_what_is_about_one_half(gap: tuple[float, ...], expected: str) -> None:
    ds = make_token_costs()
    for end, value in zip(("", "_low", "_high"), gap, strict=True):
        ds[f"exponent_gap{end}"].loc[{"tokens": "orthonormal", "norm": "nuclear"}] = value
    assert findings(ds)["orthonormal"].verdict == expected


@pytest.mark.parametrize(
    ("exponents", "noise", "expected"),
    [((0.6, 1.2), 0.01, HOLDS), ((1.2, 0.6), 0.01, FAILS), ((0.9, 0.9), 0.3, OPEN)],
)
def test_growth_on_the_models_own_tokens(
    exponents: tuple[float, float], noise: float, expected: str
) -> None:
    ds = make_token_costs({"model": exponents}, noise=noise)
    assert findings(ds)["grows faster (nuclear"].verdict == expected


@pytest.mark.parametrize(
    ("factor", "infeasible", "expected"),
    [
        (2.0, {}, HOLDS),
        (0.01, {}, FAILS),
        (2.0, {("sink", "model"): [0, 0, 0, 1]}, PARTLY),
        (2.0, {("sink", "model"): [0.25] * 4}, HOLDS),  # cheaper in three of four samples
        (2.0, {("sink", "model"): [0.5] * 4}, OPEN),
        (2.0, {("sink", "model"): [0.75] * 4}, FAILS),
        (0.01, {("diagonal", "model"): [1, 1, 1, 1]}, HOLDS),
        (2.0, {(t, "model"): [0, 0, 0, 1] for t in TARGETS}, PARTLY),
    ],
)
def test_which_is_the_cheaper_one(factor: float, infeasible: Any, expected: str) -> None:
    ds = make_token_costs(factor={"model": factor}, infeasible=infeasible)
    found = cost_findings.token_costs_findings(ds)
    about = [f for f in found if "a sink costs less" in f.claim]
    assert [f.verdict for f in about] == [expected, expected]
    assert ["(Frobenius norm)" in f.claim for f in about] == [True, False]
    ratio = float(ds.cost_ratio.sel(tokens="model", norm="nuclear", length=8))
    if np.isfinite(ratio):
        assert numbers(about[1].evidence)[0] == pytest.approx(ratio, rel=0.02)
    assert "in how many of the 4 samples" in about[1].evidence


@pytest.mark.parametrize("share", [0, 0.25, 0.5, 0.75, 1])
def test_cheaper_and_turned_round_are_one_majority(share: float) -> None:
    """With the same samples at every length the sink turns round just where it counts as the dearer one."""
    ds = make_token_costs(infeasible={("sink", "model"): [share] * 4})
    turned = np.isfinite(float(ds.turns_round.sel(tokens="model", norm="nuclear")))
    assert turned == (share > 0.5) == (findings(ds)["less than"].verdict == FAILS)
    missing = round(4 * share)
    assert f"at T = 64 ({4 - missing}, {missing})" in findings(ds)["less than"].evidence


def test_a_majority_whose_ratio_is_not_settled_does_not_count() -> None:
    ds = make_token_costs(norms=("nuclear",))
    at = {"tokens": "model", "norm": "nuclear"}
    ds.cost_ratio_low.loc[{**at, "length": 16}] = 0.9
    found = findings(ds)["less than"]
    assert found.verdict == PARTLY
    assert "at T = 16 (4, 0)" in found.evidence
    ds.cost_ratio_low.loc[at] = 1.0
    assert findings(ds)["less than"].verdict == OPEN


def test_what_the_solver_did_not_finish_is_neither_cheaper_nor_dearer() -> None:
    ds = make_token_costs(norms=("nuclear",))
    ds.sink_cost.loc[{"tokens": "model", "length": 64, "sample": [0, 1]}] = np.nan
    found = findings(ds)["less than"]
    assert "at T = 64 (2, 0)" in found.evidence
    assert found.verdict == PARTLY


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        ({}, HOLDS),
        ({"random": 0.01}, PARTLY),
        ({"random": 0.01, "model": 0.01}, PARTLY),
        ({"random": 0.01, "model": 0.01, "orthonormal": 0.01}, FAILS),
    ],
)
def test_where_it_turns_round(factor: dict[str, float], expected: str) -> None:
    found = findings(make_token_costs(factor=factor))["dearer"]
    assert found.verdict == expected
    for kind, words in KINDS.items():
        turned = f"{words} from T = 8 on" if kind in factor else f"{words} nowhere"
        assert turned in found.evidence


def test_without_any_cost_nothing_is_settled() -> None:
    nothing = {(target, kind): [1, 1, 1, 1] for target in TARGETS for kind in KINDS}
    verdicts = {
        f.verdict for f in cost_findings.token_costs_findings(make_token_costs(infeasible=nothing))
    }
    assert verdicts == {OPEN}
    nothing |= {("diagonal", "random"): [0, 0, 0, 0]}  # one kind turns round, the rest is unknown
    assert findings(make_token_costs(infeasible=nothing))["dearer"].verdict == FAILS


def test_one_norm_will_do() -> None:
    ds = make_token_costs(norms=("frobenius",))
    assert {f.claim.count("nuclear") for f in cost_findings.token_costs_findings(ds)} == {0}
