import numpy as np
import pytest
import xarray as xr
from views_data.evaluations import FRACTIONS, IMPORTANCES, make_faithfulness

from tl_geometry.evaluation.faithfulness_plan import plan_runs
from tl_geometry.views import evaluation_findings, order
from tl_geometry.views.estimates import Estimates, listed, percent
from tl_geometry.views.findings import Finding
from tl_geometry.views.verdicts import FAILS, HOLDS, OPEN, PARTLY, REVERSED, SHOWN, UNSETTLED

RISING = {"attention": 0.1, "value_weighted": 0.2, "value_weighted_normalized": 0.3}
# The mean over the fractions of what the builder multiplies a value with.
MEAN = float(np.mean(np.sqrt(np.array(FRACTIONS) / 0.5)))


def only(ds: xr.Dataset, *words: str) -> Finding:
    (finding,) = [f for f in order.order_findings(ds) if all(word in f.claim for word in words)]
    return finding


@pytest.mark.parametrize(
    ("low", "high", "sign", "expected"),
    [
        (0.01, 0.3, 1, SHOWN),
        (0.01, 0.3, -1, REVERSED),
        (-0.3, -0.01, 1, REVERSED),
        (-0.3, -0.01, -1, SHOWN),
        (-0.1, 0.2, 1, UNSETTLED),
        (0.0, 0.2, 1, UNSETTLED),
        (0.0, 0.0, -1, UNSETTLED),
        (np.nan, np.nan, 1, UNSETTLED),
    ],
)
def test_a_difference_is_shown_when_its_interval_excludes_0(
    low: float, high: float, sign: int, expected: str
) -> None:
    found = Estimates(np.array([(low + high) / 2]), np.array([low]), np.array([high]))
    assert found.shows(0, sign=sign) == expected


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (0.12345, 0.1012, 0.1457, "0.123 (0.101 to 0.146)"),
        (2.4996, 2.4967, 2.5016, "2.500 (2.497 to 2.502)"),
        (0.3, 0.3, 0.3, "0.3000 (0.3000 to 0.3000)"),
        (2.3456, 2.1, 2.6, "2.35 (2.10 to 2.60)"),
        (-0.00034, -0.00041, 0.00003, "-0.00034 (-0.00041 to 0.00003)"),
        (12345.6, 8000.2, 20000.0, "12,346 (8,000 to 20,000)"),
        (0.5, np.nan, np.nan, "0.500"),
        (0.0, 0.0, 0.0, "0 (0 to 0)"),
        (np.nan, np.nan, np.nan, "–"),
    ],
)
def test_an_estimate_in_decimals_that_its_interval_bears(
    value: float, low: float, high: float, text: str
) -> None:
    assert Estimates(*(np.array(part) for part in (value, low, high))).text() == text


def test_words() -> None:
    assert [percent(x) for x in (0.01, 0.5, 1.0, 0.125)] == ["1 %", "50 %", "100 %", "12.5 %"]
    assert [listed(list(x)) for x in ("", "a", "ab", "abc")] == ["", "a", "a and b", "a, b and c"]


@pytest.mark.parametrize(
    ("contribution", "expected", "step"),
    [(0.4, HOLDS, SHOWN), (0.25, FAILS, REVERSED), (0.3, PARTLY, UNSETTLED)],
)
def test_the_order_of_comprehensiveness(contribution: float, expected: str, step: str) -> None:
    ds = make_faithfulness(RISING | {"contribution": contribution}, scope="head")
    finding = only(ds, "By comprehensiveness (higher is better), mode intra, signed")
    assert finding.verdict == expected
    gap = MEAN * (contribution - 0.3)
    assert f"value-weighted − attention {MEAN * 0.1:.4g} (" in finding.evidence
    assert finding.claim.endswith(": attention < value-weighted < normalised < contribution.")
    found = order.difference(
        ds, order.Ranking("contribution", "intra", "signed"), "value_weighted_normalized",
        "comprehensiveness",
    )  # fmt: skip
    np.testing.assert_allclose([found.value[0], found.low[0], found.high[0]], gap, atol=1e-9)
    assert f", {step}" in finding.evidence
    assert finding.evidence.split("contribution − normalised ")[1].split(", ")[1].startswith(step)
    assert ("Best first: " in finding.evidence) == (expected != HOLDS)


def test_sufficiency_is_better_when_lower() -> None:
    falling = {"attention": 0.4, "value_weighted": 0.3, "value_weighted_normalized": 0.2}
    ds = make_faithfulness(None, falling | {"contribution": 0.1}, scope="head")
    finding = only(ds, "By sufficiency (lower is better), mode inter, absolute")
    assert finding.verdict == HOLDS
    assert finding.evidence.endswith("At every single fraction the same.")
    turned = make_faithfulness(
        None, falling | {"contribution": 0.1, "contribution signed": 0.9}, scope="head"
    )
    finding = only(turned, "By sufficiency", "mode inter, signed")
    assert finding.verdict == FAILS
    ends = [finding.evidence.index(word) for word in ("Best first: normalised", "contribution 0.")]
    assert ends == sorted(ends)
    assert only(turned, "By sufficiency", "mode inter, absolute").verdict == HOLDS


@pytest.mark.parametrize(
    ("scope", "alike"),
    [
        ("row", {"intra", "inter"}),
        ("query", {"inter"}),
        ("head", set()),
        ("layer", set()),
        ("token", set()),
    ],
)
def test_where_two_importances_rank_alike(scope: str, alike: set[str]) -> None:
    ds = make_faithfulness(scope=scope)
    for mode in ("intra", "inter"):
        finding = only(ds, "By comprehensiveness", f"mode {mode}", "signed")
        assert ("alike by construction" in finding.evidence) == (mode in alike)
        assert finding.verdict == (PARTLY if mode in alike else HOLDS)


def test_fractions_that_differ_from_the_mean_are_named() -> None:
    ds = make_faithfulness(scope="head")
    upper = "value_weighted"
    where = {"importance": upper, "other": "attention"}
    for name, value in (("", -0.1), ("_low", -0.2), ("_high", -0.05)):
        ds[f"comprehensiveness_difference{name}"].loc[{**where, "fraction": 0.01}] = value
    for name, value in (("", 0.1), ("_low", -0.2), ("_high", 0.3)):
        ds[f"comprehensiveness_difference{name}"].loc[{**where, "fraction": [0.1, 0.2]}] = value
    finding = only(ds, "By comprehensiveness", "mode intra", "signed")
    assert (
        "At single fractions the same but for value-weighted − attention reversed at 1 %; "
        "value-weighted − attention not settled at 10 and 20 %." in finding.evidence
    )


def test_every_direction_mode_and_ranking_is_judged_once() -> None:
    ds = make_faithfulness()
    claims = [finding.claim for finding in evaluation_findings(ds)]
    assert len(claims) == 2 * 2 * 2 + 2
    assert len(set(claims)) == len(claims)
    few = make_faithfulness(importances=IMPORTANCES[:2] + IMPORTANCES[4:])
    claims = [finding.claim for finding in order.order_findings(few)]
    assert claims[0] == "By comprehensiveness (higher is better): attention < value-weighted."
    assert len(claims) == 2 + 2
    one = make_faithfulness(importances=("attention", "random"))
    assert len(order.order_findings(one)) == 2


def test_a_function_under_a_name_of_the_paper_is_not_judged_as_the_papers() -> None:
    ds = make_faithfulness()
    ds.attrs["settings"]["importances"]["contribution"] = "my_function"
    assert order.paper_importances(ds) == list(IMPORTANCES[:3])
    assert all("< contribution" not in finding.claim for finding in order.order_findings(ds))
    assert len(order.order_findings(ds)) == 2 * 2 + 2


def test_against_random() -> None:
    ds = make_faithfulness(RISING | {"contribution": 0.4, "random": 0.05})
    finding = only(ds, "Removing what an importance ranks highest")
    assert finding.verdict == HOLDS
    assert f"contribution, inter, absolute {MEAN * 0.35:.4g} (" in finding.evidence
    worse = make_faithfulness(RISING | {"contribution": 0.4, "random": 0.15})
    finding = only(worse, "Removing what an importance ranks highest")
    assert finding.verdict == PARTLY  # no order: one reversal does not refute what others show
    worst = make_faithfulness(RISING | {"contribution": 0.4, "random": 0.5})
    assert only(worst, "Removing what an importance ranks highest").verdict == FAILS
    assert "Reversed: attention -" in finding.evidence
    finding = only(worse, "Removing what an importance ranks lowest")
    assert finding.verdict == HOLDS


def test_one_document_settles_nothing() -> None:
    ds = make_faithfulness(documents=1)
    found = order.order_findings(ds)
    assert {finding.verdict for finding in found} == {OPEN}
    assert "not settled" in found[0].evidence


def test_noise_makes_a_step_unsettled() -> None:
    ds = make_faithfulness(RISING | {"contribution": 0.31}, scope="head", noise=0.1)
    assert only(ds, "By comprehensiveness", "mode intra", "signed").verdict != HOLDS


def test_rankings_are_those_that_the_evaluation_runs() -> None:
    """What differs in the table is what differed in the runs: none is shown twice, none is missing."""
    names = (*IMPORTANCES[:4], "mine", "random")
    modes, signs = ("intra", "inter"), ("signed", "absolute")
    ds = make_faithfulness(importances=names, modes=modes, rankings=signs)
    scorers = {name: name for name in names}
    plan = plan_runs(scorers, modes, signs, 1, "head")  # type: ignore[arg-type]
    run = {tuple(part.replace("-", "") for part in r[:3]) for runs in plan.values() for r in runs}
    shown = [(r.importance, r.mode, r.ranking) for r in order.rankings(ds)]
    assert len(shown) == len(set(shown))
    assert set(shown) == run
    assert [name for name, *_ in shown][-2:] == ["mine", "random"]
