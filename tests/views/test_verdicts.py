import inspect
import itertools

import numpy as np
import pytest
from views_data.dataset import make_dataset
from views_data.evaluations import make_faithfulness, make_interventions, make_mixing

from tl_geometry.views.averages import Quantity
from tl_geometry.views.findings import positive
from tl_geometry.views.report import report_html
from tl_geometry.views.verdicts import (
    ALIKE,
    FAILS,
    HOLDS,
    OPEN,
    ORDER_RULE,
    PARTLY,
    REVERSED,
    RULE,
    SHOWN,
    UNSETTLED,
    majority,
    order_verdict,
    status,
    verdict,
)


@pytest.mark.parametrize(
    ("parts", "claim", "order"),
    [
        ([SHOWN, SHOWN, SHOWN], HOLDS, HOLDS),
        ([SHOWN, UNSETTLED, SHOWN], PARTLY, PARTLY),
        ([SHOWN, ALIKE, SHOWN], PARTLY, PARTLY),
        ([SHOWN, SHOWN, REVERSED], PARTLY, FAILS),
        ([UNSETTLED, REVERSED], FAILS, FAILS),
        ([ALIKE, REVERSED], FAILS, FAILS),
        ([UNSETTLED, ALIKE], OPEN, OPEN),
        ([ALIKE], OPEN, OPEN),
        ([], OPEN, OPEN),
    ],
)
def test_what_the_parts_make_of_a_claim_and_of_an_order(
    parts: list[str], claim: str, order: str
) -> None:
    for mixed in itertools.permutations(parts):
        assert verdict(mixed) == claim
        assert order_verdict(mixed) == order


@pytest.mark.parametrize(
    ("value", "error", "expected"),
    [
        ([0.1, 0.2], [0.04, 0.04], HOLDS),
        ([0.1, 0.2], [0.04, 0.11], PARTLY),
        ([0.1, -0.2], [0.04, 0.01], PARTLY),
        ([0.1, 0.2], [0.06, 0.11], OPEN),
        ([-0.1, 0.2], [0.06, 0.11], OPEN),
        ([-0.1, 0.2], [0.04, 0.11], FAILS),
        ([0.0, 0.0], [0.0, 0.0], OPEN),  # an interval that touches 0 tells nothing
        ([0.1, 0.2], [np.nan, np.nan], OPEN),
    ],
)
def test_verdicts_follow_the_intervals(
    value: list[float], error: list[float], expected: str
) -> None:
    assert verdict(positive(Quantity(np.array(value), np.array(error)))) == expected


@pytest.mark.parametrize(
    ("shown", "denied", "rest", "expected"),
    [
        (3, 2, 0, SHOWN),
        (3, 0, 2, SHOWN),
        (2, 2, 0, REVERSED),  # one half is not most
        (2, 1, 1, UNSETTLED),
        (1, 2, 1, REVERSED),
        (0, 1, 2, UNSETTLED),
        (0, 0, 0, UNSETTLED),
    ],
)
def test_most_of_them(shown: int, denied: int, rest: int, expected: str) -> None:
    marks = np.array(["shown"] * shown + ["denied"] * denied + [""] * rest)
    assert majority(marks == "shown", marks == "denied") == expected


def test_signs() -> None:
    assert [status(-0.2, -0.1, sign=sign) for sign in (-1, 1)] == [SHOWN, REVERSED]
    assert [status(-0.2, 0.0, sign=sign) for sign in (-1, 1)] == [UNSETTLED, UNSETTLED]


def test_no_view_has_a_rule_of_its_own() -> None:
    """Only what counts without an interval names a verdict; all else asks `verdict`."""
    from tl_geometry.views import (
        cost_findings,
        mixing_tables,
        order,
        sink_claims,
        sink_tables,
        smoothing_claims,
        switch_claims,
    )

    for module in (
        cost_findings, mixing_tables, sink_claims, sink_tables, smoothing_claims, switch_claims,
    ):  # fmt: skip
        held = set(vars(module)) & {"HOLDS", "PARTLY", "FAILS", "OPEN"}
        assert not held
        assert "verdict(" in inspect.getsource(module)
    assert "order_verdict(" in inspect.getsource(order)


def test_the_page_states_the_rule_where_it_judges() -> None:
    page = report_html(make_faithfulness())
    assert page.count(RULE) == page.count(ORDER_RULE) == 1
    assert report_html(make_mixing()).count(RULE) == 1
    assert ORDER_RULE not in report_html(make_mixing())
    assert report_html(make_interventions()).count(RULE) == 1
    assert RULE not in report_html(make_mixing(["sink"]))  # nothing is claimed
    assert report_html(make_dataset(6, 4)).count(RULE) == 4
