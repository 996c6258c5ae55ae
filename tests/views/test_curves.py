import json
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import torch
from views_data.dataset import make_dataset

from tl_geometry import sink_aware_certificate, views
from tl_geometry.views import curves

NAMES = {
    "N most attended": "f_score",
    "sink left out": "f_score_no_sink",
    "N random (control)": "f_score_random",
    "bound: inversions": "inversion_bound",
    "bound: certificate": "certificate",
}


def lines(figure: go.Figure) -> dict[str, go.Scatter]:
    return {trace.name: trace for trace in figure.data if trace.mode == "lines+markers"}


def bands(figure: go.Figure) -> list[go.Scatter]:
    return [trace for trace in figure.data if trace.fill == "toself"]


def test_lines_are_the_means_over_heads_and_n_1_is_not_joined() -> None:
    ds = make_dataset(6, 4)
    figure = curves.f_curves(ds)
    assert list(lines(figure)) == list(NAMES)
    for name, trace in lines(figure).items():
        expected = ds[NAMES[name]].mean(("layer", "head")).values
        np.testing.assert_allclose(trace.y, expected[1:], atol=1e-4)
        np.testing.assert_allclose(trace.x, [1, 2, 3, 4, 5])
        assert f"N = 8<br>{name}: {expected[3]:.2f} (" in trace.hovertext[2]
    alone = [trace for trace in figure.data if trace.mode == "markers"]
    assert [trace.x for trace in alone] == [(0,)] * 5
    assert all(trace.marker.symbol.endswith("-open") for trace in alone)
    assert list(figure.layout.xaxis.ticktext) == ["1", "2", "4", "8", "16", "32"]
    assert figure.layout.annotations[0].text == "N = 1: not compared"


def test_bands_are_two_mean_standard_errors_to_each_side() -> None:
    ds = make_dataset(6, 4)
    ds["f_score_se"].values[:] = np.random.default_rng(0).uniform(0, 0.1, ds["f_score"].shape)
    band = bands(curves.f_curves(ds))[0]
    mean = ds["f_score"].mean(("layer", "head")).values[1:]
    half = 2 * ds["f_score_se"].mean(("layer", "head")).values[1:]
    np.testing.assert_allclose(band.y[:5], mean - half, atol=1e-4)
    np.testing.assert_allclose(band.y[5:], (mean + half)[::-1], atol=1e-4)


def test_heads_of_a_regime_and_of_a_layer() -> None:
    ds = make_dataset(6, 4, layers=[f"block.{i}" for i in range(6)])
    mixers = ds["regime"].values == "mixer"
    trace = lines(curves.f_curves(ds, regime="mixer"))["N most attended"]
    np.testing.assert_allclose(trace.y, ds["f_score"].values[mixers].mean(0)[1:], atol=1e-4)
    trace = lines(curves.f_curves(ds, layer="block.2"))["N most attended"]
    np.testing.assert_allclose(trace.y, ds["f_score"].values[2].mean(0)[1:], atol=1e-4)


def test_sizes_are_drawn_in_ascending_order() -> None:
    trace = lines(curves.f_curves(make_dataset(top_n=(8, 1, 2))))["N most attended"]
    assert list(trace.x) == [1, 3]


def test_layers_at_a_chosen_size_with_gaps_in_the_bands() -> None:
    ds = make_dataset(7, 3, blank_layers=(2, 3))
    figure = curves.layer_profile(ds, top_n=5)
    assert figure.layout.title.text == "Separability by layer, N = 4"
    trace = lines(figure)["sink left out"]
    expected = ds["f_score_no_sink"].sel(top_n=4).mean("head").values
    np.testing.assert_allclose(np.array(trace.y, dtype=float), expected, atol=1e-4)
    band = bands(figure)[0]
    assert list(band.x) == [0, 1, 1, 0, None, 4, 5, 6, 6, 5, 4]
    assert band.y[4] is None


def test_the_effect_of_the_sink_by_regime() -> None:
    ds = make_dataset(6, 4)
    figure = curves.sink_effect_curves(ds)
    effect = (ds["f_score_no_sink"] - ds["f_score"]).values
    for name, trace in lines(figure).items():
        heads = ds["regime"].values == name.split()[0]
        assert name.endswith(f"({heads.sum()})")
        np.testing.assert_allclose(trace.y, effect[heads].mean(0)[1:], atol=1e-4)
    half = bands(figure)[0].y[-1] - bands(figure)[0].y[0]
    assert half == pytest.approx(2 * 2 * (0.01 + 0.01), abs=1e-3)
    without_regimes = lines(curves.sink_effect_curves(ds.drop_vars("regime")))
    np.testing.assert_allclose(without_regimes["all heads"].y, effect.mean((0, 1))[1:], atol=1e-4)


def test_maps_at_a_size() -> None:
    ds = make_dataset(5, 4, blank_layers=(1,))
    heat = curves.f_map(ds, top_n=16).data[0]
    np.testing.assert_allclose(
        np.array(heat.z, dtype=float), ds["f_score"].sel(top_n=16), atol=1e-4
    )
    assert (heat.zmin, heat.zmax) == (0, 1)
    gain = curves.f_gain_map(ds)
    expected = (ds["f_score"] - ds["f_score_random"]).sel(top_n=8).values
    np.testing.assert_allclose(np.array(gain.data[0].z, dtype=float), expected, atol=1e-4)
    assert gain.data[0].hovertext[0][0] == (f"L0H0: F − control {expected[0, 0]:.2f} ± 0.020")
    assert gain.data[0].hovertext[1][0] == "L1H0: not available"


@pytest.mark.parametrize("blank", [(0, 1), ()])
def test_figures_without_any_value_or_any_interval_can_be_drawn(blank: tuple[int, ...]) -> None:
    ds = make_dataset(2, 2, blank_layers=blank)
    for name in list(ds.data_vars):
        if str(name).endswith("_se"):
            ds[name].values[:] = np.nan
    figures: list[Any] = [curves.f_curves, curves.layer_profile, curves.f_map, curves.f_gain_map]
    for draw in (*figures, curves.sink_effect_curves):
        json.loads(draw(ds).to_json(), parse_constant=pytest.fail)
    assert all(not band.x for band in bands(curves.f_curves(ds)))


def test_a_part_of_the_variables_is_enough() -> None:
    figure = curves.f_curves(make_dataset()[["f_score"]])
    assert list(lines(figure)) == ["N most attended"]


def test_labels_are_text_for_plotly() -> None:
    ds = make_dataset(2, 1, layers=["<a href='x'>b</a>", "\u202eabc"])
    figure = curves.layer_profile(ds)
    assert "<a" not in lines(figure)["N most attended"].hovertext[0]
    assert figure.layout.xaxis.ticktext[1] == "\\u202eabc"
    assert "<a" not in curves.f_curves(ds, layer="<a href='x'>b</a>").layout.title.text


def test_wrong_requests_say_what_there_is() -> None:
    ds = make_dataset()
    with pytest.raises(ValueError, match="ds holds no 'f_score' per layer, head and top_n"):
        curves.f_curves(ds.drop_vars("f_score"))
    with pytest.raises(ValueError, match="no 'f_score' and 'f_score_random'"):
        curves.f_gain_map(ds.drop_vars("f_score_random"))
    with pytest.raises(ValueError, match=r"layer=7 is not among the layers \['0', '1', '2', '3'\]"):
        curves.f_curves(ds, layer=7)
    with pytest.raises(ValueError, match="regime='odd', but the regimes of ds are"):
        curves.f_curves(ds, regime="odd")
    with pytest.raises(ValueError, match="regime='mixer', but the regimes of ds are none"):
        curves.f_curves(ds.drop_vars("regime"), regime="mixer")
    with pytest.raises(ValueError, match="needs an N above 1"):
        curves.layer_profile(make_dataset(top_n=(1,)))


def certificate(ratio: float, top_n: tuple[int, ...]) -> Any:
    """A certificate of random attention, lengths and cosines assumed."""
    generator = torch.Generator().manual_seed(0)
    pattern = torch.randn(2, 3, 12, 12, generator=generator).exp().tril()
    pattern = pattern / pattern.sum(-1, keepdim=True)
    v = torch.randn(2, 12, 3, 4, generator=generator)
    return sink_aware_certificate(
        pattern, v, top_n=top_n, cosine=(-0.1, 0.3), sink_cosine=(-0.6, 0), sink_norm_ratio=ratio
    )


def test_the_envelope_of_one_certificate() -> None:
    top_n = (1, 2, 4, 8)
    found = certificate(0.2, top_n)
    figure = views.certificate_envelope(found, top_n)
    drawn = lines(figure)
    assert list(drawn) == ["F", "precision", "recall"]
    for name, field in (("F", "f_score"), ("precision", "precision"), ("recall", "recall")):
        rows = getattr(found, field).numpy().reshape(-1, 4)
        expected = [np.mean(column[~np.isnan(column)]) for column in rows.T]
        np.testing.assert_allclose(drawn[name].y, expected[1:], atol=1e-4)
        np.testing.assert_allclose(drawn[name].x, [1, 2, 3])
        assert f"N = 4<br>{name}: {expected[2]:.2f}" in drawn[name].hovertext[1]
    assert len([trace for trace in figure.data if trace.mode == "markers"]) == 3
    assert list(figure.layout.xaxis.ticktext) == ["1", "2", "4", "8"]
    assert figure.layout.yaxis.title.text == "guaranteed, mean over rows"
    assert figure.layout.yaxis.range == (-0.03, 1.03)


def test_the_envelope_of_several_certificates() -> None:
    top_n = (2, 4, 16)
    named = {f"<b> {ratio}": certificate(ratio, top_n) for ratio in (0.1, 1.0)}
    drawn = lines(views.certificate_envelope(named, top_n))
    assert [name.split(": ")[1] for name in drawn] == ["F", "precision", "recall"] * 2
    assert all(name.startswith("&lt;b&gt; ") for name in drawn)
    assert len({trace.line.color for trace in drawn.values()}) == 2
    assert len({(trace.line.color, trace.line.dash) for trace in drawn.values()}) == 6
    assert all(trace.y[2] is None for trace in drawn.values())  # no row has more than 16 keys
    json.loads(views.certificate_envelope(named, top_n).to_json(), parse_constant=pytest.fail)


def test_an_envelope_that_does_not_fit_is_refused() -> None:
    found = certificate(1.0, (2, 4))
    with pytest.raises(ValueError, match=r"top_n=\(2,\) has 1 sizes, but the certificate 'a' .* 2"):
        views.certificate_envelope({"a": found}, (2,))
    with pytest.raises(ValueError, match="between 1 and 5, got 0"):
        views.certificate_envelope({}, (2, 4))
    with pytest.raises(ValueError, match="between 1 and 5, got 6"):
        views.certificate_envelope({str(i): found for i in range(6)}, (2, 4))


def test_no_other_name_comes_into_being() -> None:
    with pytest.raises(AttributeError, match="no attribute 'no_such_view'"):
        _ = views.no_such_view
