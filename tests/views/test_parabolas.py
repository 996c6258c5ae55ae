import itertools

import numpy as np
import pytest
import xarray as xr
from views_data.dataset import make_dataset

from tl_geometry.views import parabolas
from tl_geometry.views.verdicts import REVERSED, SHOWN, UNSETTLED

A = np.array([0.05, 0.25, 0.5, 0.75])


def one_head(error: float, *coefficients: float) -> xr.Dataset:
    """One head whose mean |o| in each bin is the root of a parabola."""
    lengths = np.sqrt(np.polynomial.polynomial.polyval(A, coefficients))[None, None]
    dims = ("layer", "head", "sink_rate_bin")
    held = {
        "norm_by_sink_rate": (dims, lengths),
        "norm_by_sink_rate_se": (dims, np.full(lengths.shape, error)),
    }
    return xr.Dataset(held, coords={"layer": [0], "head": [0], "sink_rate_bin": A})


def fit(ds: xr.Dataset) -> parabolas.Parabola:
    found = parabolas.fitted(ds, np.ones((ds.sizes["layer"], ds.sizes["head"]), dtype=bool))
    assert found is not None
    return found


def test_slopes_are_those_of_the_fit_and_err_by_the_worst_combination_of_the_bins() -> None:
    ds = make_dataset(5, 4)
    error = 1e-5
    ds["norm_by_sink_rate_se"] = ds["norm_by_sink_rate"] * 0 + error
    grid = ds["norm_by_sink_rate"].values.reshape(20, 10)
    heads = (~np.isnan(grid)).sum(0)
    assert heads.min() > 0
    mean = np.array([column[~np.isnan(column)].mean() for column in grid.T])
    a = ds["sink_rate_bin"].values

    def slopes(lengths: np.ndarray) -> np.ndarray:
        c = np.polyfit(a, lengths**2, 2, w=np.sqrt(heads))
        return np.polyval(np.polyder(c), [a[0], a[-1]])

    found = fit(ds).slopes
    np.testing.assert_allclose(found.value, slopes(mean), atol=1e-9)
    worst = max(
        (np.abs(slopes(mean + error * np.array(signs)) - slopes(mean)) for signs in
         itertools.product((-1, 1), repeat=10)),
        key=lambda change: change[0],
    )  # fmt: skip
    np.testing.assert_allclose(found.error[0], worst[0], rtol=1e-3)


@pytest.mark.parametrize(
    ("coefficients", "error", "expected"),
    [
        ((1.0, -2.0, 2.0), 0.001, SHOWN),  # lowest at 0.5
        ((1.0, -2.0, 2.0), 0.3, UNSETTLED),
        ((1.0, -2.0, 2.0), np.nan, UNSETTLED),
        ((1.0, 1.0, -0.5), 0.001, REVERSED),  # concave
        ((1.0, 0.5, 1.0), 0.001, REVERSED),  # lowest below the bins
        ((4.0, -3.5, 1.0), 0.001, REVERSED),  # lowest above them
        ((1.0, -0.2, 2.0), 0.05, UNSETTLED),  # lowest at the first bin
        ((1.0, 0.0, 0.0), 0.001, UNSETTLED),  # flat
    ],
)
def test_lowest_inside_is_falling_at_first_and_rising_at_last(
    coefficients: tuple[float, ...], error: float, expected: str
) -> None:
    found = fit(one_head(error, *coefficients))
    assert found.inside == expected
    if expected == SHOWN:
        assert found.lowest == pytest.approx(0.5)
    if expected == REVERSED:
        assert np.isnan(found.lowest)


def test_every_head_with_three_bins_has_a_parabola_of_its_own() -> None:
    ds = make_dataset(2, 3)
    ds["norm_by_sink_rate"].values[0, 1, 2:] = np.nan
    found = parabolas.head_parabolas(ds)
    assert len(found) == 5
    grid = ds["norm_by_sink_rate"].values[0, 2]
    known = ~np.isnan(grid)
    expected = np.polyfit(ds["sink_rate_bin"].values[known], grid[known] ** 2, 2)[::-1]
    np.testing.assert_allclose(found[1].coefficients, expected, atol=1e-9)
    assert parabolas.measured(ds)
    assert not parabolas.measured(ds.drop_vars("norm_by_sink_rate"))
