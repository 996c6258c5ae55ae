import numpy as np
import pytest
from views_data.dataset import make_dataset

from tl_geometry import views
from tl_geometry.views.report import report_html
from tl_geometry.views.separable import section, separability_tables


def test_all_figures_with_their_words() -> None:
    found = section(make_dataset(6, 4))
    assert [figure.id for figure in found.figures] == [
        "separability-curves",
        "separability-sink",
        "separability-retriever",
        "separability-mixer",
        "separability-reset",
        "separability-layers",
        "map-f_score",
        "map-f_gain",
    ]
    assert all(figure.label and figure.reading for figure in found.figures)
    assert all("2602.01893" in figure.source for figure in found.figures)
    assert len(found.findings) == 5
    assert found.notes[0].startswith("How tight the bounds are")


def test_every_layer_and_every_size_can_be_chosen() -> None:
    ds = make_dataset(6, 4)
    by_id = {figure.id: figure for figure in section(ds).figures}
    curves, layers = by_id["separability-curves"], by_id["separability-layers"]
    assert [c.name for c in curves.choices] == ["all heads", *(f"layer {i}" for i in range(6))]
    assert [c.name for c in layers.choices] == ["8", "2", "4", "16", "32"]
    for figure in (curves, layers):
        drawn = figure.data["data"]
        for choice in figure.choices:
            assert len(choice.traces) == len(drawn)
        for first, trace in zip(figure.choices[0].traces, drawn, strict=True):
            assert first == {key: trace[key] for key in ("x", "y", "hovertext") if key in trace}
        assert len({choice.label for choice in figure.choices}) == len(figure.choices)
    line = [t["mode"] == "lines+markers" for t in curves.data["data"]].index(True)
    second = curves.choices[2].traces[line]
    expected = ds["f_score"].values[1].mean(0)[1:]
    np.testing.assert_allclose(second["y"], expected, atol=1e-4)
    line = [t["mode"] == "lines+markers" for t in layers.data["data"]].index(True)
    fourth = layers.choices[3].traces[line]
    np.testing.assert_allclose(fourth["y"], ds["f_score"].sel(top_n=16).mean("head"), atol=1e-4)


def test_tables_rank_by_the_distance_to_the_control() -> None:
    ds = make_dataset(8, 5)
    most, least = separability_tables(ds)
    assert most.columns == (
        "head", "F − control", "F", "control", "without the sink", "separated rows", "sink rate",
        "regime",
    )  # fmt: skip
    frame = (ds["f_score"] - ds["f_score_random"]).sel(top_n=8).to_dataframe(name="gain")
    names = [f"L{i}H{j}" for i, j in frame.sort_values("gain").index]
    assert [row[0] for row in least.rows] == names[:10]
    assert [row[0] for row in most.rows] == names[::-1][:10]
    largest = frame["gain"].max()
    assert most.rows[0][1] == f"{largest:.2f} ± 0.020"
    assert "at N = 8" in most.note
    assert all(len(row) == len(most.columns) == len(most.numeric) for row in most.rows)


@pytest.mark.parametrize(("heads", "lengths"), [(4, [8]), (6, [10, 2]), (12, [10, 10])])
def test_no_head_stands_in_both_tables(heads: int, lengths: list[int]) -> None:
    tables = separability_tables(make_dataset(2, heads))
    assert [len(table.rows) for table in tables] == lengths
    names = [row[0] for table in tables for row in table.rows]
    assert len(names) == len(set(names))


def test_one_alone_is_reported_and_not_compared() -> None:
    found = section(make_dataset(top_n=(1,)))
    assert found.figures == found.tables == ()
    assert found.notes[-1].startswith("Only N = 1 was measured, where F is 1 for any rule")


@pytest.mark.parametrize(
    "held", [["f_score"], ["f_score", "f_score_random"], ["f_score", "regime"]]
)
def test_what_was_not_measured_is_left_out(held: list[str]) -> None:
    ds = make_dataset()[held]
    ids = {figure.id for figure in section(ds).figures}
    assert ("separability-mixer" in ids) == ("regime" in held)
    assert ("map-f_gain" in ids) == ("f_score_random" in held)
    assert bool(separability_tables(ds)) == ("f_score_random" in held)
    assert "Separability</h2>" in report_html(ds)


def test_the_report_has_verdicts_tables_and_intervals() -> None:
    html = report_html(make_dataset(8, 5))
    for text in (
        '<h2 id="separability">Separability</h2>',
        "<strong>Holds.</strong> The most attended tokens",
        "Ten most separable heads",
        "Ten least separable heads",
        "two standard errors over documents",
        "The 8 most attended tokens form a cluster of their own",
    ):
        assert text in html
    missing = report_html(make_dataset(top_n=()))
    assert "Separability (f_score)" in missing
    assert 'id="separability"' not in missing


def test_the_view_is_a_page_of_its_own() -> None:
    view = views.separability(make_dataset(6, 4))
    assert view.html.startswith("<!doctype html>")
    assert view.html.count("<h1>") == 1
    assert 'id="map-f_gain"' in view.html
    with pytest.raises(ValueError, match="ds holds no 'f_score'"):
        views.separability(make_dataset(top_n=()))
