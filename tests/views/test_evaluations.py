import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import xarray as xr
from views_data.costs import make_head_costs, make_token_costs
from views_data.dataset import make_dataset
from views_data.evaluations import (
    FRACTIONS,
    IMPORTANCES,
    make_downstream,
    make_faithfulness,
    make_interventions,
    make_mixing,
    make_sensitivity,
    make_sparsify,
)

from tl_geometry import load, report, save, views
from tl_geometry.evaluation.sparsify import sparsity_table
from tl_geometry.views import order
from tl_geometry.views.estimates import EVALUATIONS, evaluation_of
from tl_geometry.views.report import report_html
from tl_geometry.views.verdicts import FAILS, HOLDS, OPEN

MAKERS: dict[str, Callable[[], xr.Dataset]] = {
    "faithfulness": lambda: make_faithfulness(noise=0.1),
    "sparsify": make_sparsify,
    "head_sensitivity": lambda: make_sensitivity(peaks={(0, 1): 3.0, (2, 2): -0.5}, blank=[(1, 1)]),
    "sink_interventions": make_interventions,
    "pattern_mixing": make_mixing,
    "token_costs": make_token_costs,
    "head_costs": make_head_costs,
    "downstream": make_downstream,
}
FIGURES: dict[str, Callable[[xr.Dataset], go.Figure]] = {
    "faithfulness": views.faithfulness_curves,
    "sparsify": views.sparsification_curves,
    "head_sensitivity": views.sensitivity_map,
    "sink_interventions": views.sink_intervention_map,
    "pattern_mixing": views.mixing_curves,
    "token_costs": views.cost_curves,
    "downstream": views.downstream_accuracies,
}
EVIL = "</script><script>window.pwned=1</script><b>"


def lines(figure: go.Figure, panel: str = "") -> dict[str, go.Scatter]:
    """The lines of one panel by name."""
    wanted = [
        t for t in figure.data if t.mode == "lines+markers" and (t.xaxis or "x") == f"x{panel}"
    ]
    return {trace.name: trace for trace in wanted}


def table(ds: xr.Dataset, key: str) -> Any:
    (found,) = [found for found in views.evaluation_tables(ds) if found.key == key]
    return found


def numbers(cell: str) -> list[float]:
    return [float(x.replace(",", "")) for x in re.findall(r"-?[\d,]*\.?\d+", cell)]


def interval(ds: xr.Dataset, name: str, **where: Any) -> list[float]:
    return [float(ds[name + end].sel(where)) for end in ("", "_low", "_high")]


# All six.


@pytest.mark.parametrize("name", MAKERS)
def test_a_page_with_everything_survives_saving(name: str, tmp_path: Path) -> None:
    ds = load(save(MAKERS[name](), tmp_path / "run.nc"))
    assert evaluation_of(ds) == name
    html = report_html(ds)
    assert html == report_html(MAKERS[name]())
    text = " ".join(re.sub(r"<(script|style)>.*?</\1>|<[^>]*>", " ", html, flags=re.DOTALL).split())
    assert "synthetic-135M" in text
    for found in views.evaluation_tables(ds):
        assert len(found.numeric) == len(found.columns)
        assert all(len(row) == len(found.columns) for row in found.rows)
        assert found.title.replace("<", "&lt;").replace("'", "&#39;") in html
    for finding in views.evaluation_findings(ds):
        assert finding.verdict in text
    levels = [int(level) for level in re.findall(r"<h([1-6])", html)]
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    ids = re.findall(r'\sid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert report(ds, tmp_path / "page.html").is_file()


@pytest.mark.parametrize("name", MAKERS)
def test_provenance_knows_every_setting(name: str) -> None:
    from tl_geometry.views import provenance

    ds = MAKERS[name]()
    found = dict(provenance.groups(ds))
    assert "Other" not in found
    assert dict(found["Method"])["Experiment"] == name


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_json_and_refuse_other_results(name: str) -> None:
    json.loads(FIGURES[name](MAKERS[name]()).to_json(), parse_constant=pytest.fail)
    other = next(key for key in MAKERS if key != name)
    with pytest.raises(ValueError, match=f"ds is a result of {other}, but this view needs one of"):
        FIGURES[name](MAKERS[other]())
    with pytest.raises(ValueError, match="ds is a result of no evaluation"):
        FIGURES[name](make_dataset())
    with pytest.raises(TypeError):
        FIGURES[name]({})  # type: ignore[arg-type]


def test_what_is_no_evaluation_is_told_so() -> None:
    assert evaluation_of(make_dataset()) == evaluation_of(None) == ""
    assert evaluation_of(make_dataset(settings={"evaluation": "mine"})) == ""
    with pytest.raises(ValueError, match="ds is no result of an evaluation"):
        views.evaluation_tables(make_dataset())
    assert sorted(MAKERS) == sorted(EVALUATIONS)


@pytest.mark.parametrize(
    "ds",
    [
        make_faithfulness(importances=(*IMPORTANCES, EVIL)),
        make_sensitivity(layers=[EVIL, "b"], peaks={(0, 1): 3.0}),
        make_interventions(layers=[EVIL, "b"]),
        make_mixing((EVIL, "uniform"), layers=[EVIL, "b"]),
        make_downstream(tasks=(EVIL, "b"), variants=("full", f"{EVIL} top")),
    ],
    ids=["importance", "layer", "layer of a sink", "target", "task"],
)
def test_hostile_names_stay_text(ds: xr.Dataset) -> None:
    ds.attrs |= {"model_name": EVIL, "warnings": [EVIL]}
    html = report_html(ds)
    assert html.count("window.pwned=1") > 3
    assert "<script>window.pwned" not in html
    assert "<b>" not in html.replace("<bdi>", "")
    for figure in FIGURES.values():
        if evaluation_of(ds) in FIGURES and figure is FIGURES[evaluation_of(ds)]:
            assert "<b>" not in str(figure(ds).to_json())


@pytest.mark.parametrize(
    "name", ["faithfulness", "sparsify", "head_sensitivity", "sink_interventions", "pattern_mixing"]
)
def test_one_document_has_no_intervals_and_says_so(name: str) -> None:
    makers: dict[str, Callable[..., xr.Dataset]] = {
        "faithfulness": make_faithfulness,
        "sparsify": make_sparsify,
        "head_sensitivity": make_sensitivity,
        "sink_interventions": make_interventions,
        "pattern_mixing": make_mixing,
    }
    ds = makers[name](documents=1)
    assert "A single document gives no intervals" in report_html(ds)
    assert all("nan" not in cell for t in views.evaluation_tables(ds) for r in t.rows for cell in r)


# Faithfulness.


def test_faithfulness_curves_show_what_the_run_holds() -> None:
    ds = make_faithfulness(fractions=(0.2, 0.01, 0.1), noise=0.1)
    figure = views.faithfulness_curves(ds)
    titles = [note.text for note in figure.layout.annotations]
    assert titles == ["intra, signed", "intra, absolute", "inter, signed", "inter, absolute"]
    names = {"attention": "attention", "contribution": "contribution", "random": "random"}
    names |= {"value-weighted": "value_weighted", "normalised": "value_weighted_normalized"}
    for row, direction in enumerate(("comprehensiveness", "sufficiency")):
        for column, mode in enumerate(("intra", "inter")):
            panel = 4 * row + 2 * column + 2
            drawn = lines(figure, str(panel))
            assert set(drawn) == set(names)
            for name, trace in drawn.items():
                where = {"importance": names[name], "mode": mode, "ranking": "absolute"}
                expected = ds[direction].sel(where).sortby("fraction").values
                np.testing.assert_allclose(trace.y, expected, atol=1e-6)
                np.testing.assert_allclose(trace.x, np.log10([0.01, 0.1, 0.2]))
                text = interval(ds, f"{direction}_perplexity", fraction=0.01, **where)
                shown = re.findall(r"perplexity (\S+) \((\S+) to (\S+)\)", trace.hovertext[0])[0]
                np.testing.assert_allclose([float(x) for x in shown], text, rtol=0.1, atol=1e-2)
    legend = [trace.name for trace in figure.data if trace.showlegend]
    assert sorted(legend) == sorted(names)
    styles = {(t.line.color, t.line.dash, t.marker.symbol) for t in lines(figure).values()}
    assert len(styles) == 5
    bands = [trace for trace in figure.data if trace.fill == "toself"]
    assert len(bands) == 2 * 4 * 5
    low = ds["comprehensiveness_low"].sel(importance="attention", mode="intra", ranking="signed")
    np.testing.assert_allclose(bands[0].y[:3], low.sortby("fraction"), atol=1e-6)


def test_faithfulness_of_one_mode_and_ranking_and_of_fraction_0() -> None:
    ds = make_faithfulness(modes=("inter",), rankings=("signed",), fractions=(0.0, 0.5))
    figure = views.faithfulness_curves(ds)
    assert [note.text for note in figure.layout.annotations] == ["inter, signed"]
    assert lines(figure)["random"].x == (0.0, 0.5)
    assert [row[0] for row in table(ds, "faithfulness").rows[::5]] == ["mean", "0 %", "50 %"]


def test_every_cell_of_the_faithfulness_table() -> None:
    ds = make_faithfulness(noise=0.2)
    rows = table(ds, "faithfulness").rows
    assert len(rows) == (1 + len(FRACTIONS)) * (1 + 1 + 2 + 4 + 1)
    words = {order.word(name): name for name in IMPORTANCES}
    for removed, importance, mode, ranking, *cells in rows:
        where = {"importance": words[importance], "mode": mode or "intra"}
        where |= {"ranking": ranking or "absolute"}
        for direction, cell in zip(("comprehensiveness", "sufficiency"), cells, strict=True):
            if removed == "mean":
                expected = interval(ds, f"aopc_{direction}", **where)
            else:
                share = float(removed.removesuffix(" %")) / 100
                expected = interval(ds, direction, fraction=share, **where)
            width = expected[2] - expected[1]
            np.testing.assert_allclose(numbers(cell), expected, atol=max(width, 1e-6) / 10)


def test_differences_of_neighbours_with_their_status() -> None:
    ds = make_faithfulness(noise=0.2, scope="head")
    rows = table(ds, "differences").rows
    assert len(rows) == (1 + len(FRACTIONS)) * (1 + 2 + 4)
    chain = dict(itertools.pairwise(IMPORTANCES[:4]))
    words = {f"{order.word(up)} − {order.word(low)}": (up, low) for low, up in chain.items()}
    seen = set()
    for removed, name, mode, ranking, *cells in rows:
        upper, lower = words[name]
        where = {"importance": upper, "other": lower, "mode": mode or "inter"}
        where |= {"ranking": ranking or "signed"}
        for k, (direction, sign) in enumerate((("comprehensiveness", 1), ("sufficiency", -1))):
            variable = f"{direction}_difference"
            if removed == "mean":
                expected = interval(ds, f"aopc_{variable}", **where)
            else:
                share = float(removed.removesuffix(" %")) / 100
                expected = interval(ds, variable, fraction=share, **where)
            cell, status = cells[2 * k : 2 * k + 2]
            np.testing.assert_allclose(
                numbers(cell), expected, atol=(expected[2] - expected[1]) / 10 + 1e-9
            )
            low, high = sorted(sign * x for x in expected[1:])
            assert status == ("shown" if low > 0 else "reversed" if high < 0 else "not settled")
            seen.add(status)
    assert {"shown", "not settled"} <= seen


def test_differences_to_random_name_the_fractions() -> None:
    ds = make_faithfulness({"random": 0.1, "attention": 0.1, "contribution": 0.5})
    rows = {row[:3]: row[3:] for row in table(ds, "random").rows}
    assert len(rows) == 1 + 1 + 2 + 4
    assert rows["attention", "", ""][1] == "none"
    assert rows["contribution", "inter", "signed"][1] == "1, 5, 10, 20, 50 %"


def test_the_order_in_the_table_and_in_words_is_that_of_the_findings() -> None:
    ds = make_faithfulness(None, {"contribution signed": 2.0})
    rows = table(ds, "order").rows
    found = [finding.verdict for finding in views.evaluation_findings(ds)][:8]
    assert [row[3] for row in rows] == found
    assert [row[3] for row in rows if row[:3] == ("sufficiency", "inter", "signed")] == [FAILS]
    html = report_html(ds)
    assert "does not hold here for intra/signed and inter/signed contributions" in html
    assert "Alike by construction: value-weighted and normalised" in html
    assert "Alike by construction" not in report_html(make_faithfulness(scope="head"))


# Sparsification.


def test_sparsification_curves() -> None:
    ds = make_sparsify(retention=(0.5, 1.0, 0.25))
    figure = views.sparsification_curves(ds)
    assert [n.text for n in figure.layout.annotations] == [
        "Removed by regime",
        "Removed by a score",
    ]
    regimes, scores = lines(figure), lines(figure, "2")
    assert len(regimes) == 6 + 1
    assert set(scores) == {"random", "output norm", "contribution", "entropy", "weight norm"}
    for name, trace in {**regimes, **scores}.items():
        key = name.replace(", ", ">") if ", " in name else name.replace(" ", "_")
        np.testing.assert_allclose(trace.x, [1.0, 0.5, 0.25])
        expected = ds["delta_nll"].sel(order=key, retention=[1.0, 0.5, 0.25])
        np.testing.assert_allclose(trace.y, expected, atol=1e-6)
    thin = [t for t in figure.data if t.mode == "lines" and t.line.width == 1]
    assert len(thin) == 2 * 3
    full = (ds["nll"] - ds["delta_nll"]).isel(order=0, retention=1)
    repeats = ds["random_nll"].values - float(full)
    np.testing.assert_allclose([t.y for t in thin[:3]], repeats[:, [1, 0, 2]], atol=1e-6)
    looks = {(t.line.color, t.line.dash, t.marker.symbol) for t in regimes.values()}
    assert len(looks) == 7
    assert [t.name for t in figure.data if t.showlegend].count("random") == 1
    assert figure.layout.xaxis.autorange == "reversed"


@pytest.mark.parametrize(
    ("orders", "titles"),
    [
        (("entropy",), ["Removed by a score"]),
        (("mixer>reset>retriever", "random"), ["Removed by regime"]),
        (("random",), ["Removed at random"]),
    ],
)
def test_panels_of_the_orders_that_were_run(orders: tuple[str, ...], titles: list[str]) -> None:
    ds = make_sparsify(orders)
    figure = views.sparsification_curves(ds)
    assert [note.text for note in figure.layout.annotations] == titles
    assert len(lines(figure)) == len(orders)
    assert "Up to 18 heads of 20 were removed" in report_html(ds)


def test_sparsity_tables_are_sorted_by_area() -> None:
    ds = make_sparsify()
    areas, cells = table(ds, "areas"), table(ds, "retention")
    ranked = ds["auc"].to_series().sort_values().index.tolist()
    named = ["random (mean of 3 orders)" if name == "random" else name for name in ranked]
    assert [row[0] for row in areas.rows] == named
    assert [row[0] for row in cells.rows] == [*named, "spread of the random orders"]
    assert cells.columns == ("order", "90 %", "75 %", "50 %", "25 %")
    frame = sparsity_table(ds)
    for name, row in zip(ranked, cells.rows, strict=False):
        found = [numbers(cell)[0] for cell in row[1:]]
        np.testing.assert_allclose(found, frame.loc[name], rtol=0.02)
    for name, row in zip(ranked, areas.rows, strict=True):
        np.testing.assert_allclose(numbers(row[1])[0], ds["auc"].sel(order=name), rtol=0.02)
        assert bool(row[2]) == (name == "random")
    spread = ds["nll_spread"].sel(order="random", retention=[0.9, 0.75, 0.5, 0.25])
    np.testing.assert_allclose([numbers(cell)[0] for cell in cells.rows[-1][1:]], spread, rtol=0.01)
    other = make_sparsify(retention=(1.0, 0.6), repeats=1)
    assert table(other, "retention").columns == ("order", "60 %")
    assert "random" in [row[0] for row in table(other, "retention").rows]


# Sensitivity.


def test_the_sensitivity_map_marks_and_names_outliers() -> None:
    ds = make_sensitivity(6, 5, peaks={(0, 1): 3.0, (4, 4): -0.5}, blank=[(1, 1)])
    figure = views.sensitivity_map(ds)
    heat = figure.data[0]
    np.testing.assert_allclose(np.array(heat.z, dtype=float), ds["delta_nll"], atol=1e-8)
    assert heat.zmin == -heat.zmax
    frames = [(shape.x0 + 0.5, shape.y0 + 0.5) for shape in figure.layout.shapes]
    assert frames == [(1, 0), (4, 4)]
    assert [note.text for note in figure.layout.annotations] == ["L0H1", "L4H4"]
    assert [note.xanchor for note in figure.layout.annotations] == ["left", "right"]
    assert heat.hovertext[0][1].endswith(", outlier")
    assert heat.hovertext[1][1] == "L1H1: not available"
    expected = interval(ds, "delta_nll", layer=3, head=2)
    found = numbers(heat.hovertext[3][2].removeprefix("L3H2: "))
    np.testing.assert_allclose(found, expected, atol=(expected[2] - expected[1]) / 10)


def test_outliers_in_the_tables() -> None:
    ds = make_sensitivity(6, 5, peaks={(0, 1): 3.0, (4, 4): -0.5})
    outliers = table(ds, "outliers")
    assert [row[0] for row in outliers.rows] == ds.attrs["outliers"] == ["L0H1", "L4H4"]
    delta = ds["delta_nll"].values
    distance = np.abs(delta - np.median(delta))
    robust = distance[0, 1] / (1.4826 * np.median(distance))
    assert outliers.rows[0][2] == f"{robust:,.1f}"
    raised = [row[0] for row in table(ds, "raised").rows]
    frame = ds["delta_nll"].to_series().sort_values()
    assert raised == [f"L{i}H{j}" for i, j in frame[frame > 0].index[::-1][:10]]
    lowered = [row[0] for row in table(ds, "lowered").rows]
    assert lowered == [f"L{i}H{j}" for i, j in frame[frame < 0].index[:10]]
    html = report_html(ds)
    assert "2 heads are outliers: L0H1 and L4H4." in html
    assert "3 heads lie beyond" not in html


def test_many_outliers_and_none() -> None:
    peaks = {(i, i % 3): 2.0 + i for i in range(12)}
    ds = make_sensitivity(30, 9, peaks=peaks)
    assert len(views.sensitivity_map(ds).layout.annotations) == 10
    assert len(views.sensitivity_map(ds).layout.shapes) == 12
    assert "and 2 more (see the table)" in report_html(ds)
    assert len(table(ds, "outliers").rows) == 12
    calm = make_sensitivity()
    calm["outlier"][:] = False
    calm.attrs["outliers"] = []
    assert "No head is an outlier." in report_html(calm)
    assert "outliers" not in [found.key for found in views.evaluation_tables(calm)]


# Interventions on sinks.


def test_every_head_before_and_after() -> None:
    ds = make_interventions()
    figure = views.sink_intervention_map(ds, "rescale")
    low = ds["low_norm"].values == 1
    for panel, name in (("x", "output_norm"), ("x2", "cone_alignment")):
        drawn = {t.legendgroup: t for t in figure.data if t.mode == "markers" and t.xaxis == panel}
        assert [drawn[g].name for g in ("low norm", "other")] == [
            f"heads of low norm ({low.sum()})",
            f"other heads ({(~low).sum()})",
        ]
        for group, heads in (("low norm", low), ("other", ~low)):
            for axis, which in (("x", "none"), ("y", "rescale")):
                expected = ds[name].sel(intervention=which).values[heads]
                np.testing.assert_allclose(drawn[group][axis], expected, atol=1e-5)
        assert drawn["low norm"].marker.symbol != drawn["other"].marker.symbol
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    assert figure.layout.xaxis.range == figure.layout.yaxis.range
    assert figure.layout.title.text == "Heads with the sink’s value times 2"
    assert views.sink_intervention_map(ds).layout.title.text.endswith("value set to zero")
    with pytest.raises(ValueError, match="intervention='none' is not among those of ds"):
        views.sink_intervention_map(ds, "none")


def test_all_interventions_can_be_chosen_on_the_page() -> None:
    from tl_geometry.views.sink_views import section

    ds = make_interventions()
    (figure,) = section(ds).figures
    assert [choice.name for choice in figure.choices] == [
        "zero_value",
        "renormalize",
        "rescale",
        "mean",
    ]
    for choice in figure.choices:
        assert len(choice.traces) == len(figure.data["data"])
        drawn = views.sink_intervention_map(ds, choice.name).data
        for state, trace in zip(choice.traces, drawn, strict=True):
            np.testing.assert_allclose(state["y"], trace.y)


def test_tables_of_the_interventions() -> None:
    ds = make_interventions()
    loss = table(ds, "loss")
    assert [row[0] for row in loss.rows] == ds["intervention"].values.tolist()
    names = ("nll", "delta_nll", "perplexity", "delta_perplexity")
    for row in loss.rows[1:]:
        for name, cell in zip(names, row[1:], strict=True):
            expected = interval(ds, name, intervention=row[0])
            np.testing.assert_allclose(numbers(cell), expected, rtol=0.02)
    assert loss.rows[0][2] == loss.rows[0][4] == "–"
    groups = table(ds, "groups")
    assert len(groups.rows) == 5 * 2
    expected = interval(ds, "group_cone_alignment", intervention="mean", group="other")
    (row,) = [row for row in groups.rows if row[:2] == ("mean", "other heads")]
    np.testing.assert_allclose(numbers(row[3]), expected, atol=0.005)
    heads = table(ds, "heads_low_norm")
    low = ds["low_norm"].values == 1
    assert {row[0] for row in heads.rows} == {
        f"L{i}H{j}" for i, j in zip(*low.nonzero(), strict=True)
    }
    for row in heads.rows:
        i, j = (int(x) for x in re.findall(r"\d+", row[0]))
        before = float(ds["cone_alignment"].sel(intervention="none")[i, j])
        assert numbers(row[3]) == pytest.approx([before], abs=0.006)
        assert numbers(row[5]) == pytest.approx([0.5])


@pytest.mark.parametrize(
    ("turn", "loss", "expected"),
    [
        (0.5, 0.3, [HOLDS, HOLDS]),
        (-0.5, -0.3, [FAILS, FAILS]),
        (0.0, 0.0, [OPEN, OPEN]),
    ],
)
def test_the_cone_and_the_loss_are_judged(turn: float, loss: float, expected: list[str]) -> None:
    found = views.evaluation_findings(make_interventions(turn=turn, loss=loss))
    assert [finding.verdict for finding in found] == expected
    assert found[0].claim.startswith("Without the sink's value, heads of low norm turn into")
    ds = make_interventions(turn=turn, loss=loss)
    where = {"intervention": "zero_value", "group": "low norm"}
    change = interval(ds, "delta_group_cone_alignment", **where)
    told = found[0].evidence.partition("on the same documents it changes by ")[2].partition(";")[0]
    np.testing.assert_allclose(numbers(told)[:3], change, atol=6e-3)
    unpaired = views.evaluation_findings(_without_pairs(ds))
    assert [finding.verdict for finding in unpaired] == expected
    assert ("the intervals overlap" in unpaired[0].evidence) == (turn == 0)
    assert "this result holds no differences by document" in unpaired[0].evidence


def _without_pairs(ds: xr.Dataset) -> xr.Dataset:
    return ds.drop_vars([name for name in ds if str(name).startswith("delta_group_")])


@pytest.mark.parametrize(
    ("before", "after", "change", "paired", "unpaired"),
    [
        ((0.2, 0.4), (0.3, 0.5), (0.05, 0.15), HOLDS, OPEN),  # the documents differ, not the change
        ((0.2, 0.4), (0.3, 0.5), (-0.05, 0.15), OPEN, OPEN),
        ((0.3, 0.5), (0.2, 0.4), (-0.15, -0.05), FAILS, OPEN),
        ((0.1, 0.2), (0.2, 0.3), (0.05, 0.15), HOLDS, OPEN),  # ends that touch overlap
        ((0.1, 0.2), (0.3, 0.4), (0.1, 0.3), HOLDS, HOLDS),
    ],
)
def test_the_cone_is_judged_on_the_same_documents(
    before: tuple[float, float],
    after: tuple[float, float],
    change: tuple[float, float],
    paired: str,
    unpaired: str,
) -> None:
    ds = make_interventions()
    cells = (
        ("group_cone_alignment", "none", before),
        ("group_cone_alignment", "zero_value", after),
        ("delta_group_cone_alignment", "zero_value", change),
    )
    for name, which, ends in cells:
        for end, value in zip(("_low", "_high"), ends, strict=True):
            ds[name + end].loc[{"intervention": which, "group": "low norm"}] = value
    assert views.evaluation_findings(ds)[0].verdict == paired
    assert views.evaluation_findings(_without_pairs(ds))[0].verdict == unpaired


def test_without_the_intervention_nothing_is_claimed() -> None:
    assert views.evaluation_findings(make_interventions(("mean",))) == []
    blank = make_interventions()
    blank["group_cone_alignment"][:] = np.nan
    assert [f.claim for f in views.evaluation_findings(blank)] == [
        "Without the sink's value, perplexity rises."
    ]


# Downstream tasks.


def test_downstream_accuracies() -> None:
    ds = make_downstream()
    figure = views.downstream_accuracies(ds, "winogrande")
    full, marks = figure.data
    np.testing.assert_allclose(marks.y, ds["accuracy"].sel(task="winogrande"), atol=1e-4)
    np.testing.assert_allclose(marks.error_y.array, ds["accuracy_se"].sel(task="winogrande"))
    assert full.y == pytest.approx(
        [float(ds["accuracy"].sel(task="winogrande", variant="full"))] * 2, abs=1e-4
    )
    assert list(figure.layout.xaxis.ticktext)[:2] == ["full", "contribution, top"]
    assert len(set(marks.marker.symbol)) == 3
    with pytest.raises(ValueError, match=r"task='x' is not among the tasks of ds: \['boolq'"):
        views.downstream_accuracies(ds, "x")


def test_the_downstream_table() -> None:
    ds = make_downstream()
    rows = table(ds, "downstream").rows
    assert len(rows) == 2 * 5
    accuracy = ds["accuracy"].sel(task="boolq")
    change = float(accuracy.sel(variant="random top") - accuracy.sel(variant="full"))
    (row,) = [row for row in rows if row[:2] == ("boolq", "random, top")]
    assert row[2] == f"{float(accuracy.sel(variant='random top')):.3f} ± 0.020"
    assert row[3] == f"{change:.3f}"
    assert row[4] == "100"
    assert rows[0][3] == "–"
    hooked = make_downstream(variants=("full", "hooks"))
    hooked.attrs["settings"]["importances"] = []
    html = report_html(hooked)
    assert "with and without the given hooks" in html
    unknown = make_downstream(variants=("full",))
    unknown["accuracy_se"][:] = np.nan
    assert table(unknown, "downstream").rows[0][2].count("±") == 0
