import json
from typing import Literal

import numpy as np
import pytest
from views_data.dataset import make_dataset

from tl_geometry import views

LAYERS = ["encoder.0.attn", "decoder.0.attn", "decoder.0.cross_attn"]


@pytest.mark.parametrize(
    ("space", "variable"), [("value", "sink_cosine"), ("model", "sink_cosine_model")]
)
def test_a_mark_for_every_head_and_a_line_of_means(
    space: Literal["value", "model"], variable: str
) -> None:
    ds = make_dataset(5, 4, blank_layers=(2,))
    ds[variable].values[3, 1] = np.nan
    marks, band, line = views.sink_cosines(ds, space=space).data
    values = ds[variable].values
    np.testing.assert_allclose(np.array(marks.y, float), values.ravel(), atol=1e-4)
    np.testing.assert_array_equal(np.round(marks.x), np.repeat(np.arange(5), 4))
    assert len(set(marks.x)) == 20
    assert marks.text[5] == "L1H1"
    assert "%{text}" in marks.hovertemplate
    expected = [row[~np.isnan(row)].mean() if i != 2 else np.nan for i, row in enumerate(values)]
    np.testing.assert_allclose(np.array(line.y, float), expected, atol=1e-4)
    assert line.y[2] is None
    assert None in band.x or space == "value"  # the synthetic value space has no intervals
    assert line.hovertext[0].startswith("layer 0<br>")


def test_an_unknown_space_is_refused() -> None:
    draw = getattr(views.sink_cosines, "__wrapped__", views.sink_cosines)
    with pytest.raises(ValueError, match=r"space='key' must be one of \['value', 'model'\]"):
        draw(make_dataset(), space="key")


def test_the_first_token_by_layer_with_the_middle_shaded() -> None:
    ds = make_dataset(9, 2)
    figure = views.bos_cosines(ds)
    lines = {trace.name: trace for trace in figure.data if trace.name}
    np.testing.assert_allclose(lines["mean over the others"].y, ds["bos_cosine"], atol=1e-4)
    np.testing.assert_allclose(lines["largest"].y, ds["bos_cosine_max"], atol=1e-4)
    (strip,) = figure.layout.shapes
    assert (strip.x0, strip.x1) == (2.5, 5.5)  # layers 3, 4, 5
    assert figure.layout.annotations[0].text == "middle third"
    alone = views.bos_cosines(ds.drop_vars("bos_cosine_max"))
    assert [trace.name for trace in alone.data if trace.name] == ["mean over the others"]


def test_named_layers_have_no_middle_and_unknown_ones_leave_a_gap() -> None:
    figure = views.bos_cosines(make_dataset(3, 2, layers=LAYERS, blank_layers=(2,)))
    assert not figure.layout.shapes
    assert list(figure.layout.xaxis.ticktext) == LAYERS
    line = next(trace for trace in figure.data if trace.name == "largest")
    assert line.y[2] is None
    json.loads(figure.to_json(), parse_constant=pytest.fail)


def test_labels_are_text_for_plotly() -> None:
    ds = make_dataset(2, 1, layers=["<a href='x'>b</a>", "\u202eabc"])
    marks, _, line = views.sink_cosines(ds).data
    assert "<a" not in marks.text[0]
    assert "<a" not in line.hovertext[0]


def test_what_was_not_measured_is_named() -> None:
    ds = make_dataset()
    with pytest.raises(ValueError, match="ds holds no 'bos_cosine' per layer; it holds"):
        views.bos_cosines(ds.drop_vars("bos_cosine"))
    with pytest.raises(ValueError, match="ds holds no 'sink_cosine_model' per layer and head"):
        views.sink_cosines(ds.drop_vars("sink_cosine_model"), space="model")
