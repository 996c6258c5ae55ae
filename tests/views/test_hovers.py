from typing import Any

import pytest
from views_data.dataset import make_dataset

from tl_geometry.views import drawings, figures
from tl_geometry.views.hovers import factored


def together(parts: dict[str, Any]) -> list[list[str]]:
    """What the page makes of the parts."""
    found = []
    for start, row in zip(parts["rows"], parts["rest"], strict=True):
        texts = []
        for end, text in zip(parts["columns"], row, strict=True):
            words = parts["blank"] if text is None else parts["words"] + text
            texts.append(start + end + words.replace("\n", "<br>"))
        found.append(texts)
    return found


@pytest.mark.parametrize(
    "texts",
    [
        [["L0H0: F 0.1", "L0H1: not available"], ["L1H0: not available", "L1H1: F 0.12 ± 0.1"]],
        [["L0H10: a<br>b 1", "L0H11: c<br>d"], ["L10H10: a<br>e", "L10H11: c"]],
        [["L0H0: x"]],
        [["L0H0: not available"], ["L1H0: not available"]],
        [["enc: a H0: F 1", "enc: a H1: F 2"], ["b H0: F 3", "b H1: F 4"]],
        [["&lt;b&gt; H0: F 1", "&lt;b&gt; H1: F 2"]],
    ],
)
def test_nothing_is_lost(texts: list[list[str]]) -> None:
    parts = factored(texts)
    assert parts is None or together(parts) == texts
    assert (parts is None) == texts[0][0].startswith("enc: a")


def test_what_has_no_common_names_is_left_alone() -> None:
    assert factored([["a0: 1", "a1: 2"], ["b0: 3", "b2: 4"]]) is None
    assert factored([["a0: 1\n2"]]) is None
    assert factored([]) is None
    assert factored([[]]) is None


@pytest.mark.parametrize("variable", ["regime", "sink_rate"])
def test_the_maps_of_a_page_hold_their_hover_texts_in_parts(variable: str) -> None:
    ds = make_dataset(12, 11, blank_layers=(3,), layers=[*map(str, range(11)), "a & b"])
    if variable == "regime":
        figure, part = figures.regime_map(ds), drawings.regime_drawing(ds)
    else:
        figure, part = figures.head_map(ds, variable), drawings.map_drawing(ds, variable)
    trace = part.data["data"][0]
    assert "hovertext" not in trace
    assert together(trace["hover"]) == [list(row) for row in figure.data[0].hovertext]
