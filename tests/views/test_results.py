import numpy as np
import pytest
import xarray as xr
from views_data.dataset import make_dataset

from tl_geometry.views import results


def test_head_names_are_short_for_numbered_layers_only() -> None:
    names = results.head_names(make_dataset(2, 2, layers=["enc.0.attn", "7"]))
    assert names == [["enc.0.attn H0", "enc.0.attn H1"], ["L7H0", "L7H1"]]


def test_strongest_ignores_missing_values_and_breaks_ties_in_reading_order() -> None:
    grid = np.array([[0.2, np.nan, 0.9], [0.9, 0.1, np.inf]])
    assert results.strongest(grid, 3) == [(0, 2), (1, 0), (0, 0)]
    assert results.strongest(grid, 99)[-1] == (1, 1)


def test_values_follow_layer_by_head_whatever_the_order_of_the_axes() -> None:
    ds = make_dataset(2, 3)
    turned = ds.transpose("head", ...)
    np.testing.assert_array_equal(results.values(turned, "sink_rate"), ds["sink_rate"].values)
    np.testing.assert_array_equal(results.regimes(turned), ds["regime"].values.astype(str))


def test_an_unheard_of_regime_is_unknown() -> None:
    ds = make_dataset(1, 2)
    ds["regime"].values[:] = [["mixer", "something"]]
    assert results.regimes(ds).tolist() == [["mixer", ""]]


@pytest.mark.parametrize(
    ("x", "digits", "text"),
    [(0.125, 2, "0.12"), (-0.004, 2, "0.00"), (-0.006, 2, "-0.01"), (np.inf, 2, "–")],
)
def test_number(x: float, digits: int, text: str) -> None:
    assert results.number(x, digits) == text


@pytest.mark.parametrize(
    ("x", "text"),
    [(0.0, "0"), (0.099951, "0.1000"), (2.0, "2.00"), (1234.5, "1,230"), (1e-12, "1.00e-12")],
)
def test_significant(x: float, text: str) -> None:
    assert float(results.significant(x).replace(",", "")) == pytest.approx(x, rel=5e-3)
    assert results.significant(x) == text


def test_refuses_what_is_no_result() -> None:
    with pytest.raises(TypeError):
        results.check_result({"layer": 1})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no values along 'head'"):
        results.check_result(xr.Dataset({"x": ("layer", [1.0])}))
    with pytest.raises(ValueError, match="no values along 'layer'"):
        results.check_result(make_dataset().isel(layer=slice(0, 0)))


@pytest.mark.parametrize(
    ("n", "middle"), [(3, [1]), (4, [1, 2]), (5, [1, 2, 3]), (6, [2, 3]), (8, [2, 3, 4, 5])]
)
def test_the_middle_third_of_the_layers(n: int, middle: list[int]) -> None:
    found = results.middle_layers(make_dataset(n, 1, n_examples=0))
    assert found is not None
    assert np.flatnonzero(found).tolist() == middle


def test_few_layers_and_named_ones_have_no_middle() -> None:
    assert results.middle_layers(make_dataset(2, 1)) is None
    assert results.middle_layers(make_dataset(3, 1, layers=["0", "1", "cross"])) is None
