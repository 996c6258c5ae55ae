"""The one rule by which claims are judged: what each part of a claim says, and what that makes of the claim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy.typing as npt

HOLDS, PARTLY = "Holds", "Holds in part"
FAILS, OPEN = "Does not hold here", "Is not settled here"

SHOWN, REVERSED, UNSETTLED, ALIKE = "shown", "reversed", "not settled", "alike"
"""What the numbers say of one part of a claim; alike: equal by construction, so it can't be shown."""

RULE = (
    "Verdicts: a claim holds if all its parts are shown, holds in part if some are, does not hold if none is "
    "shown and at least one is reversed, and is not settled otherwise; a part is shown (reversed) if its "
    "interval lies wholly on the claimed (the other) side, or, where it speaks of most heads or layers, if "
    "more than half (at least half) of them lie there by their own intervals."
)
ORDER_RULE = (
    "Only a claimed order is stricter: it does not hold as soon as one of its steps is reversed, whatever the "
    "others show."
)


def verdict(parts: Sequence[str]) -> str:
    """The verdict on a claim from what is known of each of its parts; `RULE` says it in words.

    Example:
        >>> verdict([SHOWN, SHOWN]), verdict([SHOWN, REVERSED]), verdict([UNSETTLED, REVERSED])
        ('Holds', 'Holds in part', 'Does not hold here')
        >>> verdict([UNSETTLED, ALIKE]), verdict([])
        ('Is not settled here', 'Is not settled here')
    """
    shown = sum(part == SHOWN for part in parts)
    if shown:
        return HOLDS if shown == len(parts) else PARTLY
    return FAILS if REVERSED in parts else OPEN


def order_verdict(steps: Sequence[str]) -> str:
    """The verdict on a claimed order from its steps: one reversed step refutes it (`ORDER_RULE`).

    Example:
        >>> order_verdict([SHOWN, REVERSED]), order_verdict([SHOWN, ALIKE])
        ('Does not hold here', 'Holds in part')
    """
    return FAILS if REVERSED in steps else verdict(steps)


def status(low: Any, high: Any, *, sign: Literal[-1, 1] = 1) -> str:
    """What the interval of a difference says that should be positive, or negative with a sign of -1.

    Example:
        >>> status(0.1, 0.2), status(0.1, 0.2, sign=-1), status(0.0, 0.2), status(float("nan"), 0.2)
        ('shown', 'reversed', 'not settled', 'not settled')
    """
    ends = sorted((sign * float(low), sign * float(high)))
    if ends[0] > 0:
        return SHOWN
    return REVERSED if ends[1] < 0 else UNSETTLED


def statuses(low: npt.NDArray[Any], high: npt.NDArray[Any]) -> list[str]:
    """What each of several intervals says; see `status`."""
    return [status(*ends) for ends in zip(low.ravel(), high.ravel(), strict=True)]


def majority(shown: npt.NDArray[Any], denied: npt.NDArray[Any]) -> str:
    """What "in most of them" comes to, from what is known of each head, layer or sample.

    Shown if more than half show it; reversed if at least half deny it, for one half is not most.

    Example:
        >>> import numpy as np
        >>> majority(np.array([True, True, False]), np.array([False, False, True]))
        'shown'
        >>> majority(np.array([True, False]), np.array([False, True]))
        'reversed'
    """
    count = shown.size
    if 2 * int(shown.sum()) > count:
        return SHOWN
    return REVERSED if count and 2 * int(denied.sum()) >= count else UNSETTLED
