"""Learned null sinks have a place on every page where there are any, and none elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from views_data.dataset import make_dataset

from tl_geometry import views
from tl_geometry.views import attention, null_sinks
from tl_geometry.views.report import report
from tl_geometry.views.sentences import summary_sentences
from tl_geometry.views.summary import headline_tables
from tl_geometry.views.switch_section import switch_section

WORDS = "a learned null sink, which is no token and has value 0"


@pytest.fixture
def ds():
    found = make_dataset()
    rates = np.linspace(0.1, 0.4, found.sink_rate.size).reshape(found.sink_rate.shape)
    found["null_sink_rate"] = (("layer", "head"), rates)
    dims, shape = found.off_rate.dims, found.off_rate.shape
    found["null_sink_rate_off"] = (dims, np.full(shape, 0.75))
    found["null_sink_rate_on"] = (dims, np.full(shape, 0.25))
    return found


def test_the_summary_names_the_strongest(ds):
    (sentence,) = [text for text in summary_sentences(ds) if WORDS in text]
    rates = ds.null_sink_rate.values
    layer, head = (int(ds[name][-1]) for name in ("layer", "head"))
    assert sentence.startswith(f"The median head gives {np.median(rates):.2f} of its attention")
    assert f"most in L{layer}H{head} (0.40)" in sentence
    assert "nothing is renormalised" in sentence


def test_tables_have_its_column(ds):
    for key, heading in (("sinks", "null sink"), ("contributions", "to the null sink")):
        (table,) = [t for t in headline_tables(ds) if t.key == key]
        place = table.columns.index(heading)
        names = {
            f"L{layer}H{head}": ds.null_sink_rate.values[i, j]
            for i, layer in enumerate(ds.layer.values)
            for j, head in enumerate(ds["head"].values)
        }
        for row in table.rows:
            assert row[place] == f"{names[row[0]]:.2f}"


def test_switches_say_what_it_takes_from_rows_that_are_off(ds):
    (note,) = [text for text in switch_section(ds).notes if WORDS in text]
    assert "give 0.75 of their attention" in note
    assert "the others 0.25" in note


def test_the_report_shows_it_and_lists_nothing_as_missing(ds, tmp_path):
    page = report(ds, tmp_path / "report.html").read_text()
    for text in (WORDS, "Attention to the null sink", "null sink included"):
        assert text in page
    old = make_dataset().drop_vars("null_sink_rate")
    assert "null sink" not in report(old, tmp_path / "old.html").read_text()


def test_matrices_say_what_no_column_shows():
    matrix = np.tril(np.full((2, 4, 4), 0.2))
    matrix[1] /= matrix[1].sum(-1, keepdims=True)
    figure = attention.heads_figure("x", list("abcd"), ["L0H0", "L0H1"], matrix, matrix)
    (note,) = figure.notes
    assert WORDS in note
    assert note.endswith("It takes on average: L0H0 0.50, L0H1 0.00.")
    figure = attention.heads_figure("x", list("abcd"), ["L0H1"], matrix[1:], matrix[1:])
    assert figure.notes == []
    cropped = attention.heads_figure(
        "x", list("abcd"), ["L0H1"], np.full((1, 4, 4), 0.25), matrix[1:], max_tokens=2
    )
    assert len(cropped.notes) == 1  # what is cropped is no null sink
    assert WORDS not in cropped.notes[0]


def test_the_distance_counts_what_the_null_sink_takes():
    """(0.1, null 0.9) against (1, null 0): half of 0.9 + 0.9."""
    given = np.array([[[0.1]]])
    assert attention.mean_distance(given, np.ones_like(given)).item() == pytest.approx(0.9)


def test_rounding_is_no_null_sink(ds):
    ds["null_sink_rate"][:] = 4e-3
    assert not null_sinks.has_null_sink(ds)
    assert null_sinks.null_sentence(ds) == null_sinks.switch_note(ds) == ""
    assert views.null_sinks.shown(ds, "sink_rate")
    assert not null_sinks.shown(ds, "null_sink_rate")
