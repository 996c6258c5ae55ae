from typing import Any

import numpy as np
import pytest
import xarray as xr
from views_data.dataset import make_dataset

from tl_geometry.views.findings import separability_findings
from tl_geometry.views.notes import ties_note, tightness


def dataset(**variables: Any) -> xr.Dataset:
    """Two layers by two heads with F-like variables for N = 1, 2, 8, the same in all heads."""
    held = {
        name: (("layer", "head", "top_n"), np.broadcast_to(values, (2, 2, 3)).copy())
        for name, values in variables.items()
    }
    return xr.Dataset(held, coords={"layer": [0, 1], "head": [0, 1], "top_n": [1, 2, 8]})


@pytest.mark.parametrize(
    ("certificate", "words"),
    [
        ([1.0, 0.4, 0.3], ("alone, 0.30.", "F at every N.", "N = 2, the certificate at N = 2 (")),
        ([1.0, 0.4, 0.1], ("guarantee 0.20, the certificate", "alone, 0.10.", "F at N = 2. ")),
        ([1.0, 0.1, 0.001], ("alone, less than 0.01.", "F at no N.")),
        ([1.0, 0.0, 0.0], ("F is largest at N = 2 (N = 1 left out).",)),
    ],
)
def test_how_tight_the_bounds_are(certificate: list[float], words: tuple[str, ...]) -> None:
    ds = dataset(f_score=[1.0, 0.7, 0.5], inversion_bound=[1.0, 0.5, 0.2], certificate=certificate)
    text = tightness(ds)
    assert text.startswith("How tight the bounds are: at N = 8, F is 0.50; the inversions")
    for word in words:
        assert word in text
    assert tightness(ds.drop_vars("certificate")) == ""
    assert "inversions" not in tightness(ds.drop_vars("inversion_bound"))
    # It is a question of this package, not a claim of the paper.
    assert not any("certificate" in str(finding) for finding in separability_findings(ds))


def test_ties_in_the_control_are_announced() -> None:
    ds = dataset(f_score=[1.0, 0.7, 0.5], f_score_random=[0.645, 0.3, 0.2])
    assert ties_note(ds).startswith("At N = 1 the control has F = 0.65, not 1")
    assert ties_note(make_dataset()) == ""
    assert ties_note(make_dataset(top_n=(2, 4))) == ""
    assert ties_note(make_dataset(top_n=())) == ""
