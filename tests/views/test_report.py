import itertools
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from plotly.offline import get_plotlyjs
from views_data.dataset import make_dataset

from tl_geometry.views import provenance
from tl_geometry.views.report import report, report_html

EVIL = "</title></script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>\u202e"


class Outline(HTMLParser):
    """Elements, ids, headings and visible text, as a browser's parser would find them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[str] = []
        self.text = ""
        self._hidden = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(tag)
        if tag in ("script", "style"):
            self._hidden = tag

    def handle_endtag(self, tag: str) -> None:
        self._hidden = "" if tag == self._hidden else self._hidden

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


def all_nan() -> xr.Dataset:
    return make_dataset(3, 2, blank_layers=(0, 1, 2))


CASES: dict[str, Any] = {
    "one head": lambda: make_dataset(1, 1, n_tokens=3),
    "usual": lambda: make_dataset(30, 9, n_tokens=48),
    "large": lambda: make_dataset(48, 40, n_examples=0),
    "string labels": lambda: make_dataset(2, 2, layers=["encoder.0.attn", "decoder.0.cross"]),
    "all missing": all_nan,
    "one variable": lambda: make_dataset()[["sink_rate"]],
    "nothing known": lambda: xr.Dataset({"undefined_rows": make_dataset().undefined_rows.variable}),
    "no coordinates": lambda: make_dataset(2, 2).drop_vars(["layer", "head"]),
}


@pytest.mark.parametrize("case", CASES)
def test_every_result_gives_a_sound_page(case: str, tmp_path: Path) -> None:
    path = report(CASES[case](), tmp_path / "report.html")
    assert path.stat().st_size < 8_000_000
    page = Outline(path.read_text(encoding="utf-8"))
    assert page.headings.count("h1") == 1
    levels = [int(tag[1]) for tag in page.headings]
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    targets = [str(attrs["href"])[1:] for attrs in page.all("a")]
    assert set(targets) <= set(ids)
    assert page.all("html")[0]["lang"] == "en"
    drawings = [attrs for attrs in page.all("div") if attrs.get("class") == "drawing"]
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in drawings)
    assert not any("src" in attrs for attrs in page.all("script"))
    assert [attrs["href"] for attrs in page.all("link")] == ["data:,"]


def test_libraries_are_embedded_once_and_only_when_needed() -> None:
    def scripts(ds: xr.Dataset) -> list[int]:
        bodies = re.findall(r"<script>(.*?)</script>", report_html(ds), flags=re.DOTALL)
        return [round(len(body) / 1e6) for body in bodies]

    plotly = round(len(get_plotlyjs()) / 1e6)
    assert plotly >= 3
    assert scripts(make_dataset()) == [plotly, 1, 0]
    assert scripts(make_dataset(n_examples=0)) == [plotly, 0]
    assert scripts(make_dataset()[["undefined_rows"]]) == [0]


def test_hostile_text_stays_text() -> None:
    ds = make_dataset(
        2,
        2,
        tokens=[EVIL, '"><b>', "\x00\x1b", "{{ 7 * 7 }}", "x"],
        layers=[EVIL, "'\"`"],
        model_name=EVIL,
        warnings=[EVIL],
        skipped_layers={EVIL: EVIL},
        corpus=[{"name": EVIL, "documents": 1}],
        something_new={EVIL: [EVIL, None, {"deep": EVIL}]},
    )
    page = Outline(report_html(ds, title=EVIL))
    usual = Outline(report_html(make_dataset(2, 2)))
    assert len(page.all("script")) == len(usual.all("script"))
    assert not page.all("img")
    assert not page.all("b")
    assert "{{ 7 * 7 }}" in page.text
    assert "\u202e" not in page.text
    assert "\x00" not in page.text
    assert page.text.count("window.pwned=1") > 10


def test_summary_tables_and_provenance_are_there() -> None:
    ds = make_dataset(6, 4, warnings=["n_ctx clamped to 128"], a_new_attribute=["x", 3])
    text = " ".join(Outline(report_html(ds)).text.split())
    count = int((ds["regime"].values == "retriever").sum())
    assert f"{count} of 24 heads" in text
    assert "Ten strongest sinks" in text
    assert "Ten heads whose contribution weights differ most from attention" in text
    assert text.index("n_ctx clamped to 128") < text.rindex("In words")
    for value in ("synthetic-135M", "a bos token before every window", "3.9.0", "12,288", "x 3"):
        assert value in text
    for name in ds.attrs:
        assert name in PROVENANCE or name in text
    for paper in ("2606.07604", "2602.01893", "2410.10781"):
        assert paper in text
    assert "Not measured in this run" not in text


PROVENANCE = {  # shown under other words
    "tokens", "rows", "documents", "corpus", "measures", "model_name", "model_class",
    "model_dtype", "weight_processing", "n_ctx", "prepend_bos", "bos_rule", "value_bias",
    "skipped_layers", "skipped_rows", "transformer_lens", "warnings", "created", "python", "torch",
    "sink", "output", "seed",
}  # fmt: skip


def test_what_was_not_measured_is_listed() -> None:
    text = Outline(report_html(make_dataset()[["sink_rate"]])).text
    missing = text[text.rindex("Not measured in this run") :]
    assert "Head regimes (regime)" in missing
    assert "Share of the layer's output (contribution_inter)" in missing
    assert "keep_examples=1" in missing
    assert "sink_rate" not in missing


def test_skipped_layers_are_announced_and_explained() -> None:
    ds = make_dataset(4, 3, blank_layers=(2,), skipped_layers={"2": "gated output"})
    text = Outline(report_html(ds)).text
    assert "Skipped layers: 2." in text[: text.rindex("In words")]
    assert "gated output" in text


def test_numbers_in_the_page_are_short() -> None:
    html = report_html(make_dataset(4, 3))
    (heads,) = re.findall(r'id="example-0-data">(.*?)</script>', html)
    assert re.search(r"-?0\.\d{2,3}[,\]]", heads)
    assert not re.search(r"\d\.\d{4}", heads)


def test_the_same_result_gives_the_same_page() -> None:
    assert report_html(make_dataset()) == report_html(make_dataset())


def test_refuses_what_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        report({}, tmp_path / "x.html")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no values along 'layer'"):
        report(xr.Dataset({"x": ("other", np.ones(2))}), tmp_path / "x.html")
    with pytest.raises(IsADirectoryError):
        report(make_dataset(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_provenance_knows_every_attribute_of_a_run() -> None:
    measures = {"Separability": {"top_n": (1, 2, 4), "share": [0.5, 2]}, "Regimes": {}}
    ds = make_dataset(device="cuda:0", skipped_documents={"empty text": 3}, measures=measures)
    found = {group: dict(rows) for group, rows in provenance.groups(ds)}
    assert "Other" not in found
    assert found["Model"]["Device"] == "cuda:0"
    assert found["Skipped"]["Documents"] == {"empty text": "3"}
    stated = found["Method"]["Measures"]
    assert stated == {"Separability": {"top_n": "1, 2, 4", "share": "0.5, 2"}, "Regimes": {}}
