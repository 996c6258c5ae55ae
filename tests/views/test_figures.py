import json

import numpy as np
import pytest
from views_data.dataset import make_dataset

from tl_geometry.views import drawings, figures, results, style
from tl_geometry.views.maps import MAPS, coloured, nice_limit

SHAPES = [(1, 1), (4, 3), (80, 64)]


@pytest.mark.parametrize(("n_layers", "n_heads"), SHAPES)
def test_regime_map_has_a_cell_for_every_head(n_layers: int, n_heads: int) -> None:
    ds = make_dataset(n_layers, n_heads, n_examples=0)
    heat = figures.regime_map(ds).data[0]
    codes = np.array(heat.z, dtype=float)
    assert codes.shape == (n_layers, n_heads)
    for code, regime in enumerate(results.REGIMES):
        np.testing.assert_array_equal(codes == code, ds["regime"].values == regime)


def test_a_cell_takes_the_colour_of_its_regime() -> None:
    heat = figures.regime_map(make_dataset()).data[0]
    for code, colour in enumerate(style.REGIME_COLOURS.values()):
        position = (code - heat.zmin) / (heat.zmax - heat.zmin)
        left = [step for step in heat.colorscale if step[0] < position][-1]
        right = next(step for step in heat.colorscale if step[0] > position)
        assert left[1] == right[1] == colour


def test_regime_hover_shows_the_evidence() -> None:
    ds = make_dataset()
    text = figures.regime_map(ds).data[0].hovertext[2][1]
    assert text.startswith(f"L2H1: {ds['regime'].values[2, 1]}")
    for name in ("self", "sink", "other"):
        assert f"{name} {ds[f'{name}_share'].values[2, 1]:.2f}" in text
    assert f"margin {ds['regime_margin'].values[2, 1]:.2f}" in text
    assert "4,096 rows" in text


def test_the_three_colours_differ_in_lightness() -> None:
    def lightness(colour: str) -> float:
        r, g, b = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        return 0.2126 * r**2.2 + 0.7152 * g**2.2 + 0.0722 * b**2.2

    shades = sorted(lightness(colour) for colour in style.REGIME_COLOURS.values())
    assert (shades[1] + 0.05) / (shades[0] + 0.05) > 3
    assert (shades[2] + 0.05) / (shades[1] + 0.05) > 1.4


@pytest.mark.parametrize("variable", MAPS)
def test_missing_values_stay_blank(variable: str) -> None:
    ds = make_dataset(4, 3, blank_layers=(1,))
    heat = figures.head_map(ds, variable).data[0]
    assert list(heat.z[1]) == [None] * 3
    assert heat.hovertext[1][0] == "L1H0: not available"
    assert all(x is not None for i in (0, 2, 3) for x in heat.z[i])
    drawing = drawings.map_drawing(ds, variable)
    assert "3 heads are blank: no value in this run." in drawing.notes


@pytest.mark.parametrize("variable", MAPS)
def test_a_map_without_any_value_can_still_be_drawn(variable: str) -> None:
    ds = make_dataset(2, 2, blank_layers=(0, 1))
    json.dumps(drawings.map_drawing(ds, variable).data, allow_nan=False)


def test_shares_are_on_the_scale_from_0_to_1_whatever_the_data() -> None:
    heat = figures.head_map(make_dataset(), "sink_rate").data[0]
    assert (heat.zmin, heat.zmax) == (0, 1)


def test_signed_maps_are_symmetric_and_ratios_logarithmic() -> None:
    ds = make_dataset(10, 8)
    signed = figures.head_map(ds, "contribution_inter").data[0]
    assert signed.zmin == -signed.zmax
    ratio = figures.head_map(ds, "sink_norm_ratio").data[0]
    assert ratio.zmin == -ratio.zmax
    np.testing.assert_allclose(
        np.array(ratio.z, float), np.log10(ds["sink_norm_ratio"].values), atol=1e-4
    )


def test_capped_colours_are_announced() -> None:
    ds = make_dataset(20, 20)
    ds["contribution_attention_distance"].values[3, 4] = 1e6
    drawing = drawings.map_drawing(ds, "contribution_attention_distance")
    assert any("beyond the ends of the colour scale" in note for note in drawing.notes)
    heat = figures.head_map(ds, "contribution_attention_distance").data[0]
    assert heat.zmax < 10
    assert heat.colorbar.ticktext[-1].startswith("≥")
    assert "1,000,000.00" in heat.hovertext[3][4]


def test_a_sink_of_length_zero_is_darkest_not_blank() -> None:
    grid = np.array([[0.0, 1.0, 0.5]])
    colours = coloured(MAPS["sink_norm_ratio"], grid)
    assert colours.z[0, 0] == colours.low
    assert colours.tick_labels[0].startswith("≤")


@pytest.mark.parametrize(
    ("top", "limit"), [(0.0, 1), (0.93, 1), (1.2, 1.5), (21.0, 30), (0.006, 0.008)]
)
def test_nice_limit(top: float, limit: float) -> None:
    assert nice_limit(top) == pytest.approx(limit)


def test_labels_are_text_for_plotly() -> None:
    ds = make_dataset(2, 1, layers=["<a href='x'>b</a>", "\u202eabc"])
    figure = figures.head_map(ds, "sink_rate")
    assert figure.layout.yaxis.ticktext[0].startswith("&lt;a href=")
    assert figure.layout.yaxis.ticktext[1] == "\\u202eabc"
    assert "<a" not in figure.data[0].hovertext[0][0]


def test_wrong_requests_say_what_there_is() -> None:
    ds = make_dataset()
    with pytest.raises(ValueError, match="'regime_rows' has no map; there are maps of"):
        figures.head_map(ds, "regime_rows")
    with pytest.raises(ValueError, match="ds holds no 'regime' per layer and head; it holds"):
        figures.regime_map(ds[["sink_rate"]])
