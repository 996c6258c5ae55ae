import html
import inspect
import json
import re
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import xarray as xr
from views_data.costs import make_head_costs, make_token_costs
from views_data.dataset import make_dataset
from views_data.evaluations import make_sparsify

from tl_geometry.views import cost_findings, cost_tables, cost_views, head_cost_views
from tl_geometry.views.cost_tables import KINDS, TARGETS
from tl_geometry.views.report import report_html

EVIL = "</script><script>window.pwned=1</script><b>"


def table(ds: xr.Dataset, key: str) -> Any:
    (found,) = [found for found in cost_tables.token_costs_tables(ds) if found.key == key]
    return found


def numbers(cell: str) -> list[float]:
    return [float(x.replace(",", "")) for x in re.findall(r"-?[\d,]*\.?\d+", cell)]


def ends(ds: xr.Dataset, name: str, **where: Any) -> list[float]:
    return [float(ds[name + end].sel(where)) for end in ("", "_low", "_high")]


# Figures.


def lines(figure: go.Figure, axis: str) -> list[go.Scatter]:
    return [t for t in figure.data if t.mode == "lines+markers" and (t.xaxis or "x") == axis]


def test_curves_are_the_samples_geometric_means_with_exponents_in_the_legend() -> None:
    ds = make_token_costs(noise=0.2)
    figure = cost_views.cost_curves(ds)
    for axis, legend, norm in (("x", "legend", "frobenius"), ("x2", "legend2", "nuclear")):
        found = lines(figure, axis)
        assert [trace.legend for trace in found] == [legend] * 6
        pairs = [(kind, target) for kind in KINDS for target in TARGETS]
        for trace, (kind, target) in zip(found, pairs, strict=True):
            samples = ds[f"{target}_cost"].sel(tokens=kind, norm=norm)
            expected = np.exp(np.log(samples).mean("sample"))
            np.testing.assert_allclose(trace.y, expected, rtol=1e-5)
            assert trace.x == (8, 16, 32, 64)
            short = {"model": "the model's"}.get(kind, kind)
            assert trace.name.startswith(f"{short}, {target}: exponent ")
            exponent = ends(ds, f"{target}_exponent", tokens=kind, norm=norm)
            assert numbers(trace.name) == pytest.approx(exponent, abs=6e-3)
    assert figure.layout.xaxis.tickvals == (8, 16, 32, 64)
    assert figure.layout.yaxis2.ticktext == ("2", "5", "10", "20", "50", "100", "200", "500")
    assert {figure.layout[name].type for name in ("xaxis", "xaxis2", "yaxis", "yaxis2")} == {"log"}
    assert [note.text for note in figure.layout.annotations] == ["Frobenius norm", "Nuclear norm"]


def test_bands_reach_from_the_least_to_the_greatest_sample() -> None:
    ds = make_token_costs(noise=0.2, norms=("nuclear",))
    bands = [t for t in cost_views.cost_curves(ds).data if t.fill == "toself"]
    samples = ds.sink_cost.sel(tokens="random", norm="nuclear").values
    (band,) = [t for t in bands if t.y and t.y[0] == pytest.approx(samples.min(0)[0], rel=1e-5)]
    expected = [*samples.min(0), *samples.max(0)[::-1]]
    np.testing.assert_allclose(band.y, expected, rtol=1e-5)


def test_lines_end_where_nothing_is_feasible() -> None:
    ds = make_token_costs(infeasible={("sink", "random"): [0, 0, 0.5, 1]}, norms=("nuclear",))
    (trace,) = [
        t for t in lines(cost_views.cost_curves(ds), "x") if t.name.startswith("random, sink")
    ]
    assert trace.y[-1] is None
    assert None not in trace.y[:3]
    json.loads(cost_views.cost_curves(ds).to_json(), parse_constant=pytest.fail)


def test_the_scatter_shows_every_head_and_the_correlation() -> None:
    ds = make_token_costs(heads=True)
    ds.qk_nuclear.values[1, 2] = np.nan
    figure = head_cost_views.head_cost_scatter(ds)
    for trace, name in zip(figure.data, ("qk_nuclear", "vo_nuclear"), strict=True):
        norm, rate = (ds[key].values.ravel() for key in (name, "sink_rate"))
        known = ~np.isnan(norm)
        np.testing.assert_allclose(trace.x, norm[known], rtol=1e-5)
        np.testing.assert_allclose(trace.y, rate[known], atol=1e-6)
        assert len(trace.hovertext) == known.sum()
    assert figure.data[0].hovertext[-1].startswith("L2H2: norm ")
    for note, name in zip(figure.layout.annotations, ("qk_nuclear", "vo_nuclear"), strict=True):
        expected = ends(ds, "spearman", cost=name, attention="sink_rate")
        shown = numbers(note.text.replace("W_Q W_K^T", "").replace("−", "-"))
        assert shown == pytest.approx(expected, abs=6e-3)


def test_figures_refuse_other_results() -> None:
    with pytest.raises(ValueError, match="ds is a result of sparsify, but this view needs one of"):
        cost_views.cost_curves(make_sparsify())
    with pytest.raises(ValueError, match="ds is a result of no evaluation"):
        cost_tables.token_costs_tables(make_dataset())
    with pytest.raises(TypeError, match=r"ds must be an xarray\.Dataset"):
        inspect.unwrap(cost_findings.token_costs_findings)({})
    with pytest.raises(ValueError, match=r"ds lacks one of .* head_costs"):
        head_cost_views.head_cost_scatter(make_dataset())


# Tables and words.


def test_tables_hold_the_numbers_of_the_run() -> None:
    ds = make_token_costs(noise=0.1, infeasible={("sink", "random"): [0, 0, 0.5, 1]}, heads=True)
    rows = {row[:2]: row[2:] for row in table(ds, "exponents").rows}
    assert len(rows) == 6
    for (words, norm), cells in rows.items():
        kind = next(kind for kind in KINDS if KINDS[kind] == words)
        names = ("sink_exponent", "diagonal_exponent", "exponent_gap")
        for cell, name in zip(cells[:3], names, strict=True):
            expected = ends(ds, name, tokens=kind, norm=norm)
            assert numbers(cell) == pytest.approx(expected, abs=6e-3)
        turn = float(ds.turns_round.sel(tokens=kind, norm=norm))
        assert cells[-1] == ("–" if np.isnan(turn) else f"{turn:.0f}")
    assert rows["random tokens", "nuclear"][-1] == "64"
    by_length = {row[:3]: row[3:] for row in table(ds, "costs").rows}
    assert len(by_length) == 24
    sink, _, ratio, infeasible = by_length["random tokens", "nuclear", "32"]
    assert infeasible == "sink in 50 %"
    samples = ds.sink_cost.sel(tokens="random", norm="nuclear", length=32).values
    known = samples[~np.isnan(samples)]
    mean = np.exp(np.log(known).mean())
    assert numbers(sink) == pytest.approx([mean, known.min(), known.max()], rel=0.02)
    expected = ends(ds, "cost_ratio", tokens="random", norm="nuclear", length=32)
    assert numbers(ratio)[0] == pytest.approx(expected[0], rel=0.1)
    (single,) = ds.sink_cost.sel(tokens="orthonormal", norm="nuclear", length=8).values[:1]
    assert numbers(by_length["orthonormal tokens", "nuclear", "8"][0]) == [
        pytest.approx(single, rel=1e-2)
    ]
    last = by_length["random tokens", "nuclear", "64"]
    assert (last[0], last[2], last[3]) == ("–", "–", "sink in 100 %")
    assert by_length["orthonormal tokens", "frobenius", "8"][3] == "–"
    heads = table(ds, "head_costs").rows
    assert len(heads) == 8
    assert [row[3] for row in heads] == ["9"] * 4 + ["8"] * 4
    wanted = ends(ds, "spearman", cost="vo_nuclear", attention="diagonal_attention")
    assert heads[-1][:2] == ("W_V W_O, nuclear", "attention to itself")
    assert numbers(heads[-1][2]) == pytest.approx(wanted, abs=6e-3)


def test_sentences_count_what_was_left_out_and_what_is_infeasible() -> None:
    ds = make_token_costs(infeasible={("sink", "random"): [0, 0, 0.5, 1]}, heads=True)
    text = " ".join(cost_tables.sentences(ds))
    assert (
        "181 distinct tokens that layer 0 reads (103 that repeat an earlier one were left out)"
        in text
    )
    assert (
        "On random tokens no W represents the sink in 50 % of the samples at T = 32 and 100 % of "
        "the samples at T = 64." in text
    )
    assert "Over 9 heads, the rank correlation of the sink rate" in text
    shown = numbers(text.partition("With 64 of them")[2])
    for place, norm in ((0, "frobenius"), (3, "nuclear")):
        expected = ends(ds, "cost_ratio", tokens="model", norm=norm, length=64)
        assert shown[place : place + 3] == pytest.approx(expected, rel=0.01)
    for norm in ("Frobenius", "nuclear"):
        assert (
            f"In the {norm} norm the sink is the dearer one on random tokens from T = 64 on."
            in text
        )
    plain = " ".join(cost_tables.sentences(make_token_costs()))
    assert "no W represents" not in plain
    assert "dearer" not in plain
    assert "heads" not in plain


def test_one_norm_will_do() -> None:
    ds = make_token_costs(norms=("frobenius",))
    assert len(lines(cost_views.cost_curves(ds), "x")) == 6


# The page.


def test_the_page_holds_figures_tables_and_verdicts() -> None:
    ds = make_token_costs(heads=True)
    section = cost_views.section(ds)
    assert [figure.id for figure in section.figures] == ["costs-curves", "costs-heads"]
    assert len(cost_views.section(make_token_costs()).figures) == 1
    words = re.sub(r"<(script|style)>.*?</\1>|<[^>]*>", " ", report_html(ds), flags=re.DOTALL)
    text = " ".join(html.unescape(words).split())
    for finding in section.findings:
        assert finding.verdict in text
    for found in section.tables:
        assert found.title in text


def test_hostile_names_stay_text() -> None:
    ds = make_token_costs(heads=True, layers=(EVIL, "b"))
    ds.attrs["settings"]["layer"] = EVIL
    page = report_html(ds)
    assert "window.pwned=1" in page
    assert "<script>window.pwned" not in page
    assert "<b>" not in str(head_cost_views.head_cost_scatter(ds).to_json())


# The weights of heads alone.


def test_the_weights_of_heads_in_a_table_and_words() -> None:
    ds = make_head_costs()
    ds.vo_nuclear.values[1, 2] = np.nan
    weights, ranks = head_cost_views.head_costs_tables(ds)
    assert len(weights.rows) == 4
    words, least, median, greatest, count = weights.rows[-1]
    values = ds.vo_nuclear.values
    assert (words, count) == ("W_V W_O, nuclear", "8")
    for cell, place, expected in (
        (least, np.nanargmin(values), np.nanmin(values)),
        (greatest, np.nanargmax(values), np.nanmax(values)),
    ):
        layer, head = divmod(int(place), 3)
        number, _, name = cell.partition(" ")
        assert name == f"(L{layer}H{head})"
        assert float(number) == pytest.approx(float(expected), rel=0.01)
    assert float(median) == pytest.approx(float(np.nanmedian(values)), rel=0.01)
    assert len(ranks.rows) == 8
    text = " ".join(head_cost_views.sentences(ds))
    assert f"The nuclear norm of W_V W_O goes from {least} to {greatest}" in text
    assert "Over 9 heads, the rank correlation of the sink rate" in text
    assert [figure.id for figure in head_cost_views.section(ds).figures] == ["costs-heads"]


def test_without_a_run_there_are_norms_alone() -> None:
    ds = make_head_costs(attention=False)
    section = head_cost_views.section(ds)
    assert section.figures == ()
    assert [found.key for found in section.tables] == ["weights"]
    assert "rank correlation" not in " ".join(head_cost_views.sentences(ds))
    assert "Norms of the heads" in report_html(ds)
    with pytest.raises(ValueError, match="ds is a result of token_costs, but this view needs"):
        head_cost_views.head_costs_tables(make_token_costs())


def test_a_page_of_a_run_with_the_costs_of_its_heads() -> None:
    html = report_html([make_dataset(3, 3), make_head_costs()])
    assert '<h2 id="head-costs">' in html
    assert '<h2 id="regimes">' in html


def test_the_coverage_of_the_intervals_is_that_of_the_run() -> None:
    ds = make_head_costs()
    assert "with 95 % of a bootstrap" in head_cost_views.head_costs_tables(ds)[1].note
    ds.attrs["settings"]["confidence"] = 0.5
    assert "with 50 % of a bootstrap" in head_cost_views.head_costs_tables(ds)[1].note
    assert "with 95 % of a bootstrap" in table(make_token_costs(heads=True), "head_costs").note
