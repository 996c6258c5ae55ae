import json

import numpy as np
import plotly.graph_objects as go
import pytest
import xarray as xr
from views_data.dataset import make_dataset

from tl_geometry import views
from tl_geometry.views import parabolas
from tl_geometry.views.curves import heads_of


def named(figure: go.Figure) -> dict[str, go.Scatter]:
    return {trace.name: trace for trace in figure.data if trace.name}


def known_mean(grid: np.ndarray) -> np.ndarray:
    """Mean over the first axis of what is known, in a loop."""
    columns = [column[~np.isnan(column)] for column in grid.T]
    return np.array([column.mean() if column.size else np.nan for column in columns])


def parabola(a: list[float], error: float = 0.01, **coefficients: float) -> xr.Dataset:
    """One head whose mean |o| in each bin is the root of a parabola."""
    x = np.array(a)
    square = sum(c * x ** int(name[1:]) for name, c in coefficients.items())
    lengths = np.sqrt(square)[None, None]
    dims = ("layer", "head", "sink_rate_bin")
    held = {
        "norm_by_sink_rate": (dims, lengths),
        "norm_by_sink_rate_se": (dims, np.where(np.isnan(lengths), np.nan, error)),
    }
    return xr.Dataset(held, coords={"layer": [0], "head": [0], "sink_rate_bin": a})


def test_marks_are_the_means_over_the_heads_that_have_rows() -> None:
    ds = make_dataset(5, 4)
    trace = named(views.norm_against_sink_rate(ds))["rows with this sink rate"]
    grid = ds["norm_by_sink_rate"].values.reshape(20, 10)
    np.testing.assert_allclose(np.array(trace.y, float), known_mean(grid), atol=1e-4)
    np.testing.assert_allclose(trace.x, ds["sink_rate_bin"])
    heads = (~np.isnan(grid)).sum(0)
    assert trace.hovertext[7].startswith(f"sink rate 0.70 to 0.80, heads: {heads[7]}<br>")
    ds = make_dataset(5, 4, layers=[f"block.{i}.attn" for i in range(5)])
    figure = views.norm_against_sink_rate(ds, layer="block.3.attn")
    expected = known_mean(ds["norm_by_sink_rate"].values[3])
    trace = named(figure)["rows with this sink rate"]
    np.testing.assert_allclose(np.array(trace.y, float), expected, atol=1e-4)
    assert figure.layout.title.text == "Output length against sink rate, layer block.3.attn"


def test_the_parabola_is_a_weighted_least_squares_fit() -> None:
    ds = make_dataset(5, 4)
    found = parabolas.fitted(ds, heads_of(ds))
    assert found is not None
    grid = ds["norm_by_sink_rate"].values.reshape(20, 10)
    weights = np.sqrt((~np.isnan(grid)).sum(0))
    used = weights > 0
    a = ds["sink_rate_bin"].values[used]
    expected = np.polyfit(a, known_mean(grid)[used] ** 2, 2, w=weights[used])[::-1]
    np.testing.assert_allclose(found.coefficients, expected, atol=1e-9)
    curve = named(views.norm_against_sink_rate(ds))["parabola fitted to |o|²"]
    x = np.array(curve.x)
    np.testing.assert_allclose(np.array(curve.y) ** 2, np.polyval(expected[::-1], x), atol=1e-3)
    assert (x.min(), x.max()) == (a.min(), a.max())


def test_the_minimum_of_an_exact_parabola_is_marked() -> None:
    ds = parabola([0.05, 0.25, 0.5, 0.75], c0=1.0, c1=-2.0, c2=2.0)  # lowest at a = 0.5
    figure = views.norm_against_sink_rate(ds)
    mark = named(figure)["its minimum"]
    assert mark.x == pytest.approx([0.5])
    assert mark.y == pytest.approx([np.sqrt(0.5)], abs=1e-4)
    assert mark.hovertext == "the parabola is lowest at a = 0.50"
    assert "c₂ = 2.00" in named(figure)["parabola fitted to |o|²"].hovertext


@pytest.mark.parametrize(
    "coefficients",
    [
        {"c0": 1.0, "c1": 1.0, "c2": -0.5},  # concave
        {"c0": 1.0, "c1": 0.5, "c2": 1.0},  # lowest below the bins
        {"c0": 4.0, "c1": -3.5, "c2": 1.0},  # lowest above them
    ],
)
def test_no_minimum_is_marked_outside_the_bins(coefficients: dict[str, float]) -> None:
    ds = parabola([0.05, 0.25, 0.5, 0.75], **coefficients)
    drawn = named(views.norm_against_sink_rate(ds))
    assert not drawn["its minimum"].x
    assert drawn["parabola fitted to |o|²"].x


def test_two_bins_make_no_parabola() -> None:
    ds = parabola([0.05, 0.25, 0.5, 0.75], c0=1.0, c1=0.0, c2=0.0)
    ds["norm_by_sink_rate"].values[0, 0, 2:] = np.nan
    assert parabolas.fitted(ds, heads_of(ds)) is None
    drawn = named(views.norm_against_sink_rate(ds))
    assert not drawn["parabola fitted to |o|²"].x
    assert [y for y in drawn["rows with this sink rate"].y if y is not None] == [1, 1]


def test_bins_of_a_single_document_are_left_out_where_there_are_others() -> None:
    ds = make_dataset(2, 2)
    ds["norm_by_sink_rate"].values[0, 0, 0] = 100.0
    ds["norm_by_sink_rate_se"].values[0, 0, 0] = np.nan
    trace = named(views.norm_against_sink_rate(ds))["rows with this sink rate"]
    rest = ds["norm_by_sink_rate"].values.reshape(4, 10)[1:, 0]
    assert trace.y[0] == pytest.approx(rest.mean(), abs=1e-4)
    ds["norm_by_sink_rate_se"].values[:] = np.nan  # one document in all: nothing is left out
    trace = named(views.norm_against_sink_rate(ds))["rows with this sink rate"]
    assert trace.y[0] > 25


def test_the_mean_optimum_is_a_line_over_the_whole_height() -> None:
    ds = make_dataset(4, 3)
    drawn = named(views.norm_against_sink_rate(ds, layer=2))
    optimum = drawn["mean optimum a*"]
    assert optimum.x == pytest.approx([ds["sink_optimum"].values[2].mean()] * 2, abs=1e-4)
    highest = max(y for y in drawn["rows with this sink rate"].y if y is not None)
    assert optimum.y == pytest.approx([0, highest])
    assert not named(views.norm_against_sink_rate(ds.drop_vars("sink_optimum")))[
        "mean optimum a*"
    ].x


def test_bars_are_the_mean_histogram_with_two_standard_errors() -> None:
    ds = make_dataset(4, 3, blank_layers=(1,))
    (bars,) = views.optimum_gaps(ds).data
    expected = ds["optimum_gap_histogram"].values[[0, 2, 3]].reshape(9, 20).mean(0)
    np.testing.assert_allclose(bars.y, expected, atol=1e-4)
    np.testing.assert_allclose(bars.x, ds["gap_bin"])
    np.testing.assert_allclose(bars.error_y.array, 0.02, atol=1e-6)
    assert bars.hovertemplate.startswith("a − a* within 0.05 of %{x:.2f}<br>share of rows %{y")
    (bars,) = views.optimum_gaps(ds, layer=3).data
    expected = ds["optimum_gap_histogram"].values[3].mean(0)
    np.testing.assert_allclose(bars.y, expected, atol=1e-4)


@pytest.mark.parametrize("blank", [(0, 1), ()])
def test_figures_without_any_value_or_any_interval_can_be_drawn(blank: tuple[int, ...]) -> None:
    ds = make_dataset(2, 2, blank_layers=blank)
    for name in list(ds.data_vars):
        if str(name).endswith("_se"):
            ds[name].values[:] = np.nan
    for draw in (views.norm_against_sink_rate, views.optimum_gaps):
        json.loads(draw(ds).to_json(), parse_constant=pytest.fail)


def test_wrong_requests_say_what_there_is() -> None:
    ds = make_dataset()
    with pytest.raises(
        ValueError, match="no 'norm_by_sink_rate' per layer, head and sink_rate_bin"
    ):
        views.norm_against_sink_rate(ds.drop_vars("norm_by_sink_rate"))
    with pytest.raises(ValueError, match="no 'optimum_gap_histogram' per layer, head and gap_bin"):
        views.optimum_gaps(ds[["sink_rate"]])
    with pytest.raises(ValueError, match=r"layer=7 is not among the layers \['0', '1', '2', '3'\]"):
        views.norm_against_sink_rate(ds, layer=7)
