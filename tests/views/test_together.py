import re
from pathlib import Path

import pytest
import xarray as xr
from views_data.dataset import make_dataset
from views_data.evaluations import (
    make_faithfulness,
    make_interventions,
    make_mixing,
    make_sensitivity,
)

from tl_geometry import report
from tl_geometry.views import evaluations, provenance
from tl_geometry.views.report import report_html
from tl_geometry.views.sentences import summary_sentences


def visible(html: str) -> str:
    bare = re.sub(r"<(script|style)>.*?</\1>|<[^>]*>", " ", html, flags=re.DOTALL)
    return " ".join(bare.replace("&#39;", "'").replace("&#34;", '"').split())


def headings(html: str) -> list[str]:
    return re.findall(r"<h2 [^>]*>(.*?)</h2>", html)


def ids(html: str) -> list[str]:
    return re.findall(r'\sid="([^"]+)"', html)


def test_one_result_in_a_list_is_that_result() -> None:
    for ds in (make_dataset(), make_mixing()):
        assert report_html([ds]) == report_html(ds)
        assert report_html((ds,), "T") == report_html(ds, "T")


def test_a_run_and_its_evaluations_on_one_page(tmp_path: Path) -> None:
    run, others = make_dataset(), [make_interventions(), make_mixing()]
    run.attrs["warnings"], others[1].attrs["warnings"] = ["of both", "of one"], ["of both"]
    others[0].attrs["warnings"] = ["of both"]
    html = report_html([others[0], run, others[1]])
    text = visible(html)
    assert "<h1><bdi>Geometry of attention in synthetic-135M</bdi></h1>" in html
    assert "Analysis · Interventions on attention sinks · Mixed attention patterns" in text
    alone = [headings(report_html(ds)) for ds in (run, *others)]
    ends = ("In words", "Method and provenance", "Not measured in this run")
    wanted = [[title for title in found if title not in ends] for found in alone]
    example = wanted[0].pop()
    assert example == "One text, token by token"
    titles = [title for found in wanted for title in found]
    assert headings(html)[: len(titles) + 3] == ["In words", *titles, example, ends[1]]
    for sentence in summary_sentences(run):
        assert sentence in text
    for ds, name in zip(
        others, ("Interventions on attention sinks", "Mixed attention patterns"), strict=True
    ):
        first, *rest = evaluations.evaluation_sentences(ds)
        assert f"{name}: {first}" in text
        for sentence in rest:
            assert sentence in text
            assert f"{name}: {sentence}" not in text
        for finding in evaluations.evaluation_findings(ds):
            assert f"{finding.verdict}. {finding.claim}" in text
        for group, _ in provenance.groups(ds):
            assert f"<h3>{name}: {group}</h3>" in html
    for group, _ in provenance.groups(run):
        assert f"<h3>Analysis: {group}</h3>" in html
    warned = html[html.index('<aside class="warnings"') : html.index("</aside>")]
    assert re.findall("<li>(.*?)</li>", warned) == ["of both", "Analysis: of one"]
    found = ids(html)
    assert len(found) == len(set(found))
    assert {"map-regime", "interventions-heads", "mixing-curves"} <= set(found)
    assert html.count("<script>") == report_html(run).count("<script>")
    assert report([run, *others], tmp_path / "page.html").read_text(encoding="utf-8") == html


def test_evaluations_without_a_run() -> None:
    html = report_html([make_sensitivity(), make_mixing()], "Two of them")
    assert "<h1><bdi>Two of them</bdi></h1>" in html
    assert headings(html)[-2:] == ["Denser and sparser attention", "Method and provenance"]
    assert "Geometry of attention in synthetic-135M" in report_html(
        [make_sensitivity(), make_mixing()]
    )


def test_two_results_of_one_evaluation_are_told_apart() -> None:
    html = report_html([make_faithfulness(scope=scope) for scope in ("query", "head", "row")])
    assert [title for title in headings(html) if "Faithfulness" in title] == [
        "Faithfulness of importances",
        "Faithfulness of importances (2)",
        "Faithfulness of importances (3)",
    ]
    found = ids(html)
    assert len(found) == len(set(found))
    for name in ("faithfulness-2", "faithfulness-curves-3", "faithfulness-curves-2-data"):
        assert name in found
    for link in re.findall(r'href="#([^"]+)"', html):
        assert link in found
    assert "<h3>Faithfulness of importances (3): Method</h3>" in html
    sentence = evaluations.evaluation_sentences(make_faithfulness(scope="head"))[0]
    assert f"Faithfulness of importances (2): {sentence}" in visible(html)


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    with pytest.raises(ValueError, match=r"2 results of analyze: a report takes one.*compare"):
        report([make_dataset(), make_mixing(), make_dataset()], path)
    other = make_mixing()
    other.attrs["model_name"] = "gpt2"
    with pytest.raises(ValueError, match=r"several models.*\['synthetic-135M', 'gpt2'\]"):
        report([other, make_dataset()], path)
    nameless = make_mixing()
    del nameless.attrs["model_name"]
    with pytest.raises(ValueError, match="'an unnamed model'"):
        report([make_dataset(), nameless], path)
    with pytest.raises(ValueError, match="ds is empty"):
        report([], path)
    for wrong in ([make_dataset(), {}], "run.nc", {"run": make_dataset()}):
        with pytest.raises(TypeError):
            report(wrong, path)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no values along 'layer'"):
        report([make_mixing(), xr.Dataset(attrs={"model_name": "synthetic-135M"})], path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (
            "weight_processing",
            {"folded_value_biases": True},
            "the weight processing is not that of Analysis",
        ),
        ("model_class", "TransformerBridge", "the class of the model is not that of Analysis"),
        ("model_dtype", "torch.bfloat16", "the number type of the weights is not that of Analysis"),
    ],
)
def test_results_of_other_weights_are_warned_of(key: str, value: object, words: str) -> None:
    run, other = make_dataset(), make_mixing()
    for ds in (run, other):
        ds.attrs |= {"weight_processing": {"folded_value_biases": False}}
        ds.attrs |= {"model_class": "HookedTransformer", "model_dtype": "torch.float32"}
    assert words not in visible(report_html([run, other]))
    other.attrs[key] = value
    assert f"Mixed attention patterns: {words}" in visible(report_html([other, run]))
