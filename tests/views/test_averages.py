import numpy as np
import pytest
from views_data.dataset import make_dataset

from tl_geometry.views import averages
from tl_geometry.views.averages import Quantity


def standard_error(x: np.ndarray, axis: int = 0) -> np.ndarray:
    return x.std(axis=axis, ddof=1) / np.sqrt(x.shape[axis])


@pytest.mark.parametrize("shared", [0.0, 0.5, 1.0])
def test_no_correlation_between_heads_makes_an_interval_too_narrow(shared: float) -> None:
    """Per-document values of 3 x 4 heads at 2 sizes; the truth needs the documents, ours does not."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=(15, 1, 1, 1))
    a, b = (shared * common + rng.normal(size=(15, 3, 4, 2)) * (1 - shared) for _ in range(2))
    held = [Quantity(x.mean(0), standard_error(x)) for x in (a, b)]
    true_error = standard_error(a.mean((1, 2)))
    limit = held[0].mean()
    np.testing.assert_allclose(limit.value, a.mean((0, 1, 2)))
    assert (limit.error >= true_error * (1 - 1e-12)).all()
    assert (held[0].mean_by_layer().error >= standard_error(a.mean(2)) * (1 - 1e-12)).all()
    difference = (held[0] - held[1]).mean()
    assert (difference.error >= standard_error((a - b).mean((1, 2))) * (1 - 1e-12)).all()
    if shared == 1:
        np.testing.assert_allclose(limit.error, true_error)


def test_the_limit_of_a_difference_is_reached_by_opposite_errors() -> None:
    x = np.random.default_rng(0).normal(size=(9, 1, 2, 1))
    a, b = (Quantity(y.mean(0), standard_error(y)) for y in (x, -x))
    np.testing.assert_allclose((a - b).error, standard_error(x - -x))


def test_heads_without_a_value_are_left_out_and_without_an_error_spoil_it() -> None:
    value = np.array([[[1.0], [np.nan], [3.0]]])
    error = np.array([[[0.1], [np.nan], [0.3]]])
    mean = Quantity(value, error).mean()
    assert mean.value.tolist() == [2.0]
    assert mean.error.tolist() == pytest.approx([0.2])
    assert (mean.low[0], mean.high[0]) == pytest.approx((1.6, 2.4))
    error[0, 2] = np.nan
    assert np.isnan(Quantity(value, error).mean().error).all()
    only_first = np.array([[True, True, False]])
    assert Quantity(value, error).mean(only_first).error.tolist() == pytest.approx([0.1])


def test_nothing_known_is_nan_without_a_warning() -> None:
    nothing = Quantity(np.full((2, 2, 3), np.nan), np.full((2, 2, 3), np.nan))
    assert np.isnan(nothing.mean().value).all()
    assert np.isnan(nothing.mean(np.zeros((2, 2), bool)).value).all()


def test_a_value_in_words() -> None:
    pair = Quantity(np.array([0.414, 0.2, np.nan]), np.array([0.02, np.nan, np.nan]))
    assert [pair.text(k) for k in range(3)] == ["0.41 (0.37 to 0.45)", "0.20", "–"]


@pytest.mark.parametrize(
    ("top_n", "wanted", "n"),
    [
        ((1, 2, 4, 8, 16, 32), 8, 8),
        ((1, 2, 4), 8, 4),
        ((10, 3, 5), 8, 10),
        ((1, 2, 3), 1, 2),
        ((64, 1), 8, 64),
    ],
)
def test_the_nearest_size_is_never_one(top_n: tuple[int, ...], wanted: int, n: int) -> None:
    ds = make_dataset(top_n=top_n)
    assert averages.sizes(ds)[averages.nearest_size(ds, wanted)] == n


def test_one_alone_cannot_be_compared() -> None:
    ds = make_dataset(top_n=(1,))
    assert averages.compared(ds) == []
    with pytest.raises(ValueError, match=r"ds holds top_n=\[1\]; a comparison needs an N above 1"):
        averages.nearest_size(ds)
    with pytest.raises(ValueError, match="top_n=0 must be at least 1"):
        averages.nearest_size(make_dataset(), 0)


def test_places_go_by_ascending_n() -> None:
    ds = make_dataset(top_n=(8, 1, 2))
    assert averages.compared(ds) == [2, 0]


def test_axes_may_be_in_any_order_and_errors_may_lack() -> None:
    ds = make_dataset()
    turned = ds.transpose("top_n", "head", "layer", ...)
    expected = averages.quantity(ds, "f_score")
    found = averages.quantity(turned, "f_score")
    np.testing.assert_array_equal(found.value, expected.value)
    np.testing.assert_array_equal(found.error, expected.error)
    assert np.isnan(averages.quantity(ds.drop_vars("f_score_se"), "f_score").error).all()


def test_any_variable_with_its_error_over_its_axes() -> None:
    ds = make_dataset(3, 2).transpose("head", "layer", ...)
    found = averages.estimate(ds, "sink_rate_off", "layer", "head", "fraction")
    assert found.value.shape == (3, 2, 4)
    np.testing.assert_array_equal(
        found.value, ds["sink_rate_off"].transpose("layer", "head", "fraction")
    )
    np.testing.assert_array_equal(found.error, 0.01)
    alone = averages.estimate(ds.drop_vars("bos_cosine_se"), "bos_cosine", "layer")
    assert np.isnan(alone.error).all()
    assert averages.held(ds, "bos_cosine", "layer")
    assert not averages.held(ds, "bos_cosine", "layer", "head")
    assert not averages.held(ds, "no_such_variable", "layer")
    with pytest.raises(ValueError, match="ds holds no 'bos_cosine' per layer and head; it holds"):
        averages.estimate(ds, "bos_cosine", "layer", "head")


def test_the_mean_over_layers_alone() -> None:
    found = Quantity(np.array([1.0, np.nan, 3.0]), np.array([0.1, np.nan, 0.3]))
    assert float(found.mean().value) == 2
    assert found.mean().text() == "2.00 (1.60 to 2.40)"
    assert float((found - found).mean().high) == pytest.approx(2 * 0.4)
    assert float(found.mean(np.array([True, True, False])).value) == 1


def test_values_of_a_single_document_count_only_where_there_is_nothing_else() -> None:
    error = np.array([[0.1, np.nan], [0.3, 0.2]])
    kept = averages.settled(Quantity(np.array([[1.0, 2.0], [3.0, np.nan]]), error))
    np.testing.assert_array_equal(kept.value, [[1.0, np.nan], [3.0, np.nan]])
    alone = Quantity(np.array([1.0, 2.0]), np.full(2, np.nan))
    assert averages.settled(alone) is alone
