"""How many examples a test draws: few and always the same, or many from a seed in ``make fuzz``."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

LONGER = "FUZZ_LONGER" in os.environ
"""Whether ``make fuzz`` runs the tests: more examples, drawn anew by the seed of the round."""


def examples(count: int) -> settings:
    """Settings of a test that draws so many examples in the ordinary run."""
    return settings(
        deadline=None,
        derandomize=not LONGER,
        max_examples=count * (3 if LONGER else 1),
        print_blob=LONGER,
        phases=[phase for phase in Phase if phase != Phase.explain],
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.function_scoped_fixture,
        ],
    )
