import re
from typing import Any

import numpy as np
import pytest
import xarray as xr
from views_data.evaluations import make_interventions, make_mixing

from tl_geometry import views
from tl_geometry.views.mixing_tables import mixing_findings
from tl_geometry.views.mixing_views import section
from tl_geometry.views.report import report_html
from tl_geometry.views.verdicts import FAILS, HOLDS, OPEN, PARTLY


def numbers(cell: str) -> list[float]:
    return [float(x.replace(",", "")) for x in re.findall(r"-?[\d,]*\.?\d+", cell)]


def interval(ds: xr.Dataset, name: str, **where: Any) -> list[float]:
    return [float(ds[name + end].sel(where)) for end in ("", "_low", "_high")]


def assert_cell(cell: str, ds: xr.Dataset, name: str, **where: Any) -> None:
    expected = interval(ds, name, **where)
    np.testing.assert_allclose(
        numbers(cell), expected, atol=(expected[2] - expected[1]) / 10 + 1e-9
    )


def test_a_line_for_each_share_in_a_panel_for_each_target() -> None:
    ds = make_mixing(layers=["a", "b", "c"])
    figure = views.mixing_curves(ds)
    titles = [note.text for note in figure.layout.annotations]
    assert titles == ["towards identity (sparser)", "towards uniform (denser)"]
    for panel, target in (("x", "identity"), ("x2", "uniform")):
        here = [trace for trace in figure.data if (trace.xaxis or "x") == panel]
        drawn = {trace.name: trace for trace in here if trace.mode == "lines+markers"}
        assert list(drawn) == ["as the model is", "t = 0.25", "t = 0.5", "t = 1"]
        looks = {(t.line.color, t.line.dash, t.marker.symbol) for t in drawn.values()}
        assert len(looks) == 4
        bands = [trace for trace in here if trace.fill == "toself"]
        for trace, area, t in zip(drawn.values(), bands, ds["t"].values, strict=True):
            expected = ds.sel(target=target, t=t)
            np.testing.assert_allclose(trace.y, expected["similarity_out"], atol=1e-4)
            assert trace.x == area.x[:3] == (0, 1, 2)
            np.testing.assert_allclose(area.y[:3], expected["similarity_out_low"], atol=1e-4)
            np.testing.assert_allclose(
                area.y[3:6], expected["similarity_out_high"][::-1], atol=1e-4
            )
            assert trace.hovertext[1].startswith(f"layer b<br>{trace.name}: ")
            assert_cell(
                trace.hovertext[1].partition(": ")[2],
                ds,
                "similarity_out",
                target=target,
                t=t,
                layer="b",
            )
    assert [trace.name for trace in figure.data if trace.showlegend] == list(drawn)
    assert list(figure.layout.xaxis.ticktext) == ["a", "b", "c"]
    many = views.mixing_curves(make_mixing(ts=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6)))
    assert len([trace for trace in many.data if trace.mode == "lines+markers"]) == 2 * 7


def test_every_cell_of_the_tables() -> None:
    ds = make_mixing(ts=(0.5, 1.0))
    loss, alike = views.evaluation_tables(ds)
    assert (loss.key, alike.key) == ("loss", "similarity")
    places = [("identity", 0.5), ("identity", 1.0), ("uniform", 0.5), ("uniform", 1.0)]
    names = ("nll", "delta_nll", "perplexity", "delta_perplexity")
    for table in (loss, alike):
        assert [row[:2] for row in table.rows] == [
            ("as the model is", "0"),
            *((target, f"{t:g}") for target, t in places),
        ]
    for row, (target, t) in zip(loss.rows[1:], places, strict=True):
        for name, cell in zip(names, row[2:], strict=True):
            assert_cell(cell, ds, name, target=target, t=t)
    assert loss.rows[0][3] == loss.rows[0][5] == "–"
    assert_cell(loss.rows[0][2], ds, "nll", target="uniform", t=0.0)
    for row, (target, t) in zip(alike.rows[1:], places, strict=True):
        assert_cell(row[2], ds, "similarity_mean", target=target, t=t)
        assert_cell(row[3], ds, "delta_similarity_mean", target=target, t=t)
        here = ds.sel(target=target, t=t)
        assert int(row[4]) == int((here["delta_similarity_out_low"] > 0).sum()) == 2
        assert int(row[5]) == int((here["delta_similarity_out_high"] < 0).sum()) == 2
        assert_cell(row[6], ds, "residual_mean", target=target, t=t)
    assert alike.rows[0][3:6] == ("–", "–", "–")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((0.05, 0.1, 0.2), HOLDS),
        ((0.0, 0.1, 0.2), PARTLY),
        ((0.0, 0.0, 0.0), OPEN),
        ((-0.05, -0.1, -0.2), FAILS),
        ((0.0, -0.1, 0.0), FAILS),
        ((0.05, 0.1, -0.2), PARTLY),
    ],
)
def test_both_claims_are_judged_at_every_share(steps: tuple[float, ...], expected: str) -> None:
    sparser = [-step for step in steps]
    ds = make_mixing(moves={"uniform": steps, "identity": sparser})
    denser, less_dense = views.evaluation_findings(ds)
    assert denser.claim == "Denser attention (towards uniform) makes tokens more alike, at every t."
    assert (
        less_dense.claim
        == "Sparser attention (towards identity) makes tokens less alike, at every t."
    )
    assert [denser.verdict, less_dense.verdict] == [expected, expected]
    for finding, target in ((denser, "uniform"), (less_dense, "identity")):
        before, changes = finding.evidence.split("; it changes by ")
        assert_cell(before.partition("layers, is ")[2], ds, "similarity_mean", target=target, t=0.0)
        for part, t in zip(changes.split("; "), (0.25, 0.5, 1.0), strict=True):
            change, place = part.split(" at t = ")
            assert_cell(change, ds, "delta_similarity_mean", target=target, t=t)
            here = ds.sel(target=target, t=t)
            up = int((here["delta_similarity_out_low"] > 0).sum())
            down = int((here["delta_similarity_out_high"] < 0).sum())
            assert place.rstrip(".") == f"{t:g} (up in {up} of 4 layers, down in {down})"


def test_claims_about_what_was_not_run_are_left_out() -> None:
    assert mixing_findings(make_mixing(["sink", "permuted"])) == []
    (finding,) = mixing_findings(make_mixing(["sink", "uniform"], layers=["only"]))
    assert "of 1 layer, down" in finding.evidence
    assert "towards the sink" in report_html(make_mixing(["sink"]))
    with pytest.raises(ValueError, match="ds is a result of sink_interventions"):
        mixing_findings(make_interventions())


def test_one_document_settles_nothing() -> None:
    ds = make_mixing(documents=1)
    for finding in views.evaluation_findings(ds):
        assert finding.verdict == OPEN
        assert "up in" not in finding.evidence
    assert {row[4:6] for row in views.evaluation_tables(ds)[1].rows} == {("–", "–")}


def test_sentences_and_words_of_the_page() -> None:
    ds = make_mixing(ts=(0.5, 1.0))
    plain, sparser, denser = views.evaluations.evaluation_sentences(ds)
    perplexity, similarity = re.findall(r"-?[\d.]+ \([-\d.]+ to [-\d.]+\)", plain)
    assert_cell(perplexity, ds, "perplexity", target="uniform", t=0.0)
    assert_cell(similarity, ds, "similarity_mean", target="uniform", t=0.0)
    assert "over 6 documents (290 tokens)" in plain
    for sentence, target in ((sparser, "identity"), (denser, "uniform")):
        found = re.findall(r"-?[\d.]+ \([-\d.]+ to [-\d.]+\)", sentence)
        for k, name in enumerate(("delta_perplexity", "delta_similarity_mean")):
            for j, t in enumerate((0.5, 1.0)):
                assert_cell(found[2 * k + j], ds, name, target=target, t=t)
    assert sparser.startswith(
        "With attention moved towards identity (sparser), perplexity changes by"
    )
    found = section(ds)
    (figure,) = found.figures
    assert "uniform" in figure.label
    assert "2605.08453" in found.source
    assert "the input of a layer has changed already" in found.introduction
    assert "every token sees itself alone" in found.notes[-1]
    for other in (make_mixing(["uniform"]), make_mixing(ts=(0.25, 0.5))):
        (note,) = section(other).notes
        assert "bootstrap" in note
