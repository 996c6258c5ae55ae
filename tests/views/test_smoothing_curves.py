import json

import numpy as np
import plotly.graph_objects as go
import pytest
from views_data.dataset import make_dataset

from tl_geometry import views


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
