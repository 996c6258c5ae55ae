import json

import numpy as np
import plotly.graph_objects as go
import pytest
import xarray as xr
from views_data.dataset import make_dataset

from tl_geometry import views
from tl_geometry.views.report import report_html
from tl_geometry.views.switch_section import smoothing_section


def lines(figure: go.Figure) -> dict[str, go.Scatter]:
    return {trace.name: trace for trace in figure.data if trace.name}


SIMILARITY = {
    "mean cosine, input": "similarity_in",
    "mean cosine, output": "similarity_out",
    "part that is not the mean, input": "residual_in",
    "part that is not the mean, output": "residual_out",
}
MARGINS = {
    "(a) origin, tokens": "halfspace_origin_margin",
    "(a) random": "halfspace_origin_margin_random",
    "(b) first token": "halfspace_sink_margin",
    "(b) random": "halfspace_sink_margin_random",
}


def test_lines_are_the_values_of_the_layers() -> None:
    ds = make_dataset(6, 2, blank_layers=(4,))
    for figure, names in (
        (views.token_similarity_profile(ds), SIMILARITY),
        (views.halfspace_profile(ds), MARGINS),
    ):
        assert list(lines(figure)) == list(names)
        for name, trace in lines(figure).items():
            values = ds[names[name]].values
            np.testing.assert_allclose(np.array(trace.y, float), values, atol=1e-4)
            assert trace.y[4] is None
            assert trace.hovertext[1].startswith(f"layer 1<br>{name}: {values[1]:.2f} (")
        bands = [trace for trace in figure.data if trace.fill == "toself"]
        first = next(iter(names.values()))
        assert bands[0].y[0] == pytest.approx(ds[first].values[0] - 0.02, abs=1e-4)
        assert None in bands[0].x
        looks = {(trace.line.color, trace.line.dash) for trace in lines(figure).values()}
        assert len(looks) == 4


def test_a_layer_alone_or_unknown_can_be_drawn() -> None:
    for ds in (make_dataset(1, 1), make_dataset(2, 1, blank_layers=(0, 1))):
        for draw in (views.token_similarity_profile, views.halfspace_profile):
            json.loads(draw(ds).to_json(), parse_constant=pytest.fail)


def test_what_was_not_measured_is_named() -> None:
    ds = make_dataset()
    with pytest.raises(ValueError, match="ds holds no 'similarity_in' per layer; it holds"):
        views.token_similarity_profile(ds.drop_vars("similarity_in"))
    with pytest.raises(ValueError, match="ds holds no 'halfspace_origin_margin' per layer"):
        views.halfspace_profile(ds.drop_vars("halfspace_origin_margin"))


def with_costs(ds: xr.Dataset) -> xr.Dataset:
    """Costs that differ in every layer, target and norm; none in layer 2."""
    cost = 1 + np.arange(ds.sizes["layer"] * 4.0).reshape(-1, 2, 2)
    cost[2] = np.nan
    dims = ("layer", "target", "norm")
    coords = {"target": ["sink", "diagonal"], "norm": ["frobenius", "nuclear"]}
    held = {"representation_cost": (dims, cost), "representation_cost_se": (dims, cost / 10)}
    return ds.assign_coords(coords).assign(held)


def test_costs_are_drawn_by_target_and_norm() -> None:
    ds = with_costs(make_dataset(5, 2))
    drawn = lines(views.representation_cost_profile(ds))
    assert list(drawn) == [
        "sink, nuclear", "sink, Frobenius", "diagonal, nuclear", "diagonal, Frobenius",
    ]  # fmt: skip
    for name, trace in drawn.items():
        target, norm = name.lower().split(", ")
        values = ds.representation_cost.sel(target=target, norm=norm).values
        np.testing.assert_allclose(np.array(trace.y, float), values, atol=1e-3)
        assert trace.y[2] is None
    section = smoothing_section(ds)
    (figure,) = [each for each in section.figures if each.id == "smoothing-costs"]
    ratio = ds.representation_cost.sel(target="diagonal") / ds.representation_cost.sel(
        target="sink"
    )
    assert f"from {float(ratio.min()):.2f} to {float(ratio.max()):.2f}" in figure.label
    assert "smoothing-costs" in report_html(ds)
    with pytest.raises(ValueError, match="ds holds no 'representation_cost' per"):
        views.representation_cost_profile(make_dataset())


def test_part_of_the_costs_will_do() -> None:
    ds = with_costs(make_dataset(5, 2))
    alone = ds.sel(norm=["nuclear"])
    assert list(lines(views.representation_cost_profile(alone))) == [
        "sink, nuclear",
        "diagonal, nuclear",
    ]
    sinks = ds.sel(target=["sink"])
    assert list(lines(views.representation_cost_profile(sinks))) == [
        "sink, nuclear",
        "sink, Frobenius",
    ]
    for part in (alone, sinks):
        assert "smoothing-costs" in report_html(part)
