"""Which releases of TransformerLens the package was tested with, and what happens on others."""

from __future__ import annotations

import re
import warnings
from functools import cache
from importlib.metadata import PackageNotFoundError, version

TESTED: tuple[str, ...] = ("2.18", "3.9", "4.3")
"""Minor versions on which the tests have run."""

_OLDEST, _TOO_NEW = (2, 16), 5
_REQUIREMENT = "transformer-lens>=2.16,<5"


@cache
def check_transformer_lens() -> None:
    """Look at the installed TransformerLens, once: warn of a minor version without tests, refuse what can't work.

    >>> check_transformer_lens()  # TransformerLens 3.9.0

    A checkout without a release number (0.0.0) counts as untested. Nothing happens where no
    TransformerLens is installed.

    Raises:
        ImportError: it is older than 2.16, or 5 and later.
    """
    try:
        installed = version("transformer-lens")
    except PackageNotFoundError:
        return
    numbers = re.match(r"(\d+)\.(\d+)", installed)
    release = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if release != (0, 0) and (release < _OLDEST or release[0] >= _TOO_NEW):
        raise ImportError(
            f"tl_geometry does not work with TransformerLens {installed}: "
            f"pip install '{_REQUIREMENT}'"
        )
    if f"{release[0]}.{release[1]}" not in TESTED:
        warnings.warn(
            f"TransformerLens {installed} was never tested with tl_geometry, only {', '.join(TESTED)} "
            "were: look at tlg.doctor(model) before you rely on numbers",
            UserWarning,
            stacklevel=3,
        )
