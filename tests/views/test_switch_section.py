import numpy as np
import pytest
from views_data.dataset import make_dataset

from tl_geometry.views.report import report_html
from tl_geometry.views.switch_section import smoothing_section, switch_section


def test_all_figures_with_their_words() -> None:
    ds = make_dataset(6, 4)
    switches, smoothing = switch_section(ds), smoothing_section(ds)
    assert [figure.id for figure in switches.figures] == [
        "switches-off",
        "switches-attention",
        "map-diagonal_attention",
        "map-mixing_ratio_no_sink",
    ]
    assert [figure.id for figure in smoothing.figures] == [
        "smoothing-similarity",
        "smoothing-first",
        "smoothing-halfspaces",
    ]
    for section in (switches, smoothing):
        assert all(figure.label and figure.reading for figure in section.figures)
        assert all("2605.08453" in figure.source for figure in section.figures)
        assert section.findings
        assert section.notes


def test_every_fraction_can_be_chosen_the_preferred_one_first() -> None:
    ds = make_dataset(6, 4)
    off, on, *_ = switch_section(ds).figures
    for figure, name, trace in ((off, "off_rate", 0), (on, "sink_rate_off", 1)):
        assert [choice.name for choice in figure.choices] == ["0.1", "0.05", "0.2", "0.3"]
        for choice in figure.choices:
            expected = ds[name].sel(fraction=float(choice.name)).values.ravel()
            np.testing.assert_allclose(choice.traces[trace]["y"], expected, atol=6e-4)
        assert figure.choices[0].traces[trace]["y"] == figure.data["data"][trace]["y"]
    values = ds["off_rate"].sel(fraction=0.3).values
    words = f"from {values.min():.2f} to {values.max():.2f}, median {np.median(values):.2f}"
    assert off.choices[3].label.endswith(words)


def test_with_many_heads_one_fraction_is_shown() -> None:
    off, *_ = switch_section(make_dataset(50, 41, n_examples=0, top_n=())).figures
    assert [choice.name for choice in off.choices] == ["0.1"]


def test_values_without_a_single_number_are_drawn_without_a_verdict() -> None:
    ds = make_dataset(2, 2, blank_layers=(0, 1))
    switches, smoothing = switch_section(ds), smoothing_section(ds)
    assert switches.findings == smoothing.findings == ()
    assert switches.figures[0].label.endswith(": no head")
    assert smoothing.figures[0].label == "Lines over the layers: likeness of the tokens"


@pytest.mark.parametrize(
    ("held", "switches", "smoothing"),
    [
        (["sink_rate"], [], []),
        (["off_rate"], [], []),
        (["off_rate", "sink_rate"], ["switches-off"], []),
        (["sink_rate_off", "sink_rate_on"], ["switches-attention"], []),
        (["diagonal_attention"], ["map-diagonal_attention"], []),
        (["similarity_in", "similarity_out"], [], ["smoothing-similarity"]),
        (["bos_cosine"], [], ["smoothing-first"]),
        (["halfspace_origin_margin"], [], ["smoothing-halfspaces"]),
    ],
)
def test_what_was_not_measured_is_left_out(
    held: list[str], switches: list[str], smoothing: list[str]
) -> None:
    ds = make_dataset()[held].assign_coords(head=[0, 1, 2])
    assert [figure.id for figure in switch_section(ds).figures] == switches
    assert [figure.id for figure in smoothing_section(ds).figures] == smoothing


def test_the_report_has_both_sections_where_they_were_measured() -> None:
    html = report_html(make_dataset(6, 5))
    for text in (
        '<h2 id="switches">Attention switches</h2>',
        '<h2 id="smoothing">Oversmoothing</h2>',
        "<strong>Holds.</strong> A head that is off attends to its sink",
        "<strong>Holds.</strong> In most layers of the middle third",
        "The median head is off",
        "The mean cosine between tokens goes from",
    ):
        assert text in html
    assert "Not measured" not in html
    ds = make_dataset()
    ds = ds.drop_vars([n for n in ds.data_vars if str(n).startswith("halfspace")])
    html = report_html(ds)
    assert "Half-space conditions (halfspace_feasible: analyze with" in html
    assert "Oversmoothing (" not in html
    html = report_html(make_dataset()[["regime"]])
    for text in ("Attention switches (off_rate)", "Oversmoothing (similarity_out)"):
        assert text in html
    assert 'id="switches"' not in html
    assert 'id="smoothing"' not in html


def test_layers_with_names_are_drawn() -> None:
    names = ["encoder.0.attn", "decoder.0.attn", "decoder.0.cross_attn"]
    ds = make_dataset(3, 2, layers=names, blank_layers=(2,))
    first = smoothing_section(ds).figures[0]
    assert "in layer encoder.0.attn" in first.label
    assert "in layer decoder.0.attn" in first.label
    html = report_html(ds)
    assert "layers of the middle third" not in html
    assert "decoder.0.cross_attn" in html
