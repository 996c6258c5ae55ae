import numpy as np
import pytest
from views_data.dataset import make_dataset

from tl_geometry.views.parts import Section
from tl_geometry.views.report import report_html
from tl_geometry.views.sink_section import dormant_table, extended

PLAIN = Section("sinks", "Attention sinks", "In short.")


def test_all_figures_with_their_words() -> None:
    found = extended(PLAIN, make_dataset(6, 4))
    assert [figure.id for figure in found.figures] == ["sinks-norm", "sinks-gaps", "sinks-cosine"]
    assert all(figure.label and figure.reading for figure in found.figures)
    assert len(found.findings) == 7
    assert "2606.07604" in found.source
    assert "two standard errors over documents" in found.notes[0]
    assert (found.id, found.title) == ("sinks", "Attention sinks")


def test_every_layer_and_both_spaces_can_be_chosen() -> None:
    ds = make_dataset(5, 4, blank_layers=(3,))
    norm, gaps, cosine = extended(PLAIN, ds).figures
    for figure in (norm, gaps):
        names = [choice.name for choice in figure.choices]
        assert names == ["all heads", *(f"layer {i}" for i in range(5))]
    assert [choice.name for choice in cosine.choices] == ["value space", "model space"]
    for figure in (norm, gaps, cosine):
        drawn = figure.data["data"]
        for choice in figure.choices:
            assert len(choice.traces) == len(drawn)
        keys = ("x", "y", "hovertext", "error_y")
        for first, trace in zip(figure.choices[0].traces, drawn, strict=True):
            assert first == {key: trace[key] for key in keys if key in trace}
        assert len({choice.label for choice in figure.choices}) == len(figure.choices)
    grid = ds["norm_by_sink_rate"].values[1]
    expected = [column[~np.isnan(column)].mean() for column in grid.T[:4]]
    np.testing.assert_allclose(norm.choices[2].traces[1]["y"][:4], expected, atol=1e-4)
    np.testing.assert_allclose(
        gaps.choices[3].traces[0]["y"], ds["optimum_gap_histogram"].values[2].mean(0), atol=1e-4
    )
    marks = np.array(cosine.choices[1].traces[0]["y"], float)
    np.testing.assert_allclose(marks, ds["sink_cosine_model"].values.ravel(), atol=1e-4)


def test_the_parabola_is_told_to_those_who_cannot_see_it() -> None:
    ds = make_dataset(3, 2)
    norm = extended(PLAIN, ds).figures[0]
    assert "mean over 6 heads; fitted parabola convex, lowest at a = 0." in norm.label
    ds["norm_by_sink_rate"].values[..., 2:] = np.nan
    assert "too few bins for a parabola" in extended(PLAIN, ds).figures[0].label


def test_a_single_layer_leaves_nothing_to_choose() -> None:
    norm, *_ = extended(PLAIN, make_dataset(1, 1)).figures
    assert len(norm.choices) == 1


@pytest.mark.parametrize(
    ("held", "ids"),
    [
        (["sink_rate"], []),
        (["norm_by_sink_rate"], ["sinks-norm"]),
        (["optimum_gap_histogram"], ["sinks-gaps"]),
        (["sink_cosine_model"], ["sinks-cosine"]),
    ],
)
def test_what_was_not_measured_is_left_out(held: list[str], ids: list[str]) -> None:
    found = extended(PLAIN, make_dataset()[held])
    assert [figure.id for figure in found.figures] == ids
    assert (found.introduction == "In short.") == (not ids)
    assert bool(found.notes) == bool(ids)


def test_dormant_heads_counted_by_hand() -> None:
    ds = make_dataset(2, 2)
    ds["dormant_by_rate"].values[:] = [[1, 1], [0, np.nan]]
    norms = np.zeros((2, 2, 8))
    norms[0, 0, 1:] = 1
    norms[1, :, 3:] = 1
    norms[0, 1] = np.nan
    ds["dormant_by_norm"].values[:] = norms
    (table,) = dormant_table(ds)
    assert table.columns == ("criterion", "heads", "share", "of these, by sink rate")
    assert table.rows[0] == ("sink rate above 0.8", "2", "66.7 %", "–")
    assert table.rows[1] == ("output norm below 0.1 of the mean", "0", "0.0 %", "0")
    assert table.rows[2] == ("output norm below 0.2 of the mean", "1", "33.3 %", "1")
    assert table.rows[8] == ("output norm below 0.8 of the mean", "3", "100.0 %", "1")
    assert len(table.rows) == 9


def test_one_criterion_is_enough_and_none_makes_no_table() -> None:
    ds = make_dataset()
    (table,) = dormant_table(ds.drop_vars("dormant_by_norm"))
    assert len(table.rows) == 1
    (table,) = dormant_table(ds.drop_vars("dormant_by_rate"))
    assert {row[3] for row in table.rows} == {"–"}
    assert dormant_table(ds[["sink_rate"]]) == []
    assert dormant_table(make_dataset(2, 2, blank_layers=(0, 1))) == []


def test_the_report_has_verdicts_figures_and_the_table() -> None:
    html = report_html(make_dataset(6, 4))
    for text in (
        '<h2 id="sinks">Attention sinks</h2>',
        "<strong>Holds.</strong> Output length is convex in the sink rate",
        'id="sinks-norm"',
        'id="sinks-gaps"',
        'id="sinks-cosine"',
        "Dormant heads",
        "Outputs would be shortest with",
    ):
        assert text in html
    missing = report_html(make_dataset()[["sink_rate"]])
    assert "How sinks act on outputs (sink_optimum)" in missing
    assert 'id="sinks-norm"' not in missing
