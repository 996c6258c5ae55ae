"""Hostile text in headless Chromium: it is shown as text, obeyed nowhere, and moves nothing."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import xarray as xr
from views_data.browser import DRAWN, Visit, browser
from views_data.costs import make_head_costs, make_token_costs
from views_data.dataset import make_dataset
from views_data.evaluations import (
    make_downstream,
    make_faithfulness,
    make_interventions,
    make_mixing,
    make_sensitivity,
    make_sparsify,
)
from views_data.hostile import NAME, TEXTS, Tokenizer

import tl_geometry as tlg
from tl_geometry import views
from tl_geometry.texts import visible

__all__ = ["browser"]  # the fixture

pytestmark = [pytest.mark.browser, pytest.mark.slow]
COUNTS = """() => Object.fromEntries(['.drawing', '.main-svg', 'canvas', 'table', 'h2', 'section', 'script', 'b', 'img']
  .map(s => [s, document.querySelectorAll(s).length]))"""

TOKENS = ".tokens bdi"


def examine(browser: Any, path: Path, width: int = 1280) -> tuple[Visit, dict[str, int]]:
    """Open a page, draw all of it, and count what stands on it."""
    path.read_bytes().decode("utf-8", "strict")
    visit = Visit(browser, path)
    for size in (360, width):
        visit.page.set_viewport_size({"width": size, "height": 900})
        fits = f"document.documentElement.scrollWidth <= {size}"
        visit.page.wait_for_function(fits, timeout=10_000)  # drawings follow a little later
    visit.check()
    return visit, visit.page.evaluate(COUNTS)


def in_reading_order(visit: Visit, selector: str) -> bool:
    """Whether elements of one line stand from left to right as they do in the file."""
    boxes = [b for b in (e.bounding_box() for e in visit.page.locator(selector).all()) if b]
    return all(b["x"] > a["x"] for a, b in itertools.pairwise(boxes) if abs(a["y"] - b["y"]) < 2)


def test_the_report_of_hostile_tokens_and_names(browser: Any, tmp_path: Path) -> None:
    """The same page as with plain words, also after a file; every text is on it, spelt out."""
    names = {
        "layers": [NAME, "\u05d0" + "y" * 1_000],
        "model_name": NAME,
        "warnings": [NAME, *TEXTS],
    }
    hostile = make_dataset(2, 2, tokens=list(TEXTS), **names)
    names["warnings"] = ["one"] * len(names["warnings"])
    loaded = tlg.load(tlg.save(hostile, tmp_path / "run.nc"))
    same = make_dataset(
        2, 2, tokens=[f"w{k}" for k in range(len(TEXTS))], warnings=names["warnings"]
    )
    reports = {}
    for name, ds in (("plain", same), ("hostile", loaded)):
        title = NAME if ds is not same else "Report"
        reports[name] = examine(browser, tlg.report(ds, tmp_path / f"{name}.html", title=title))
    counts = {name: count for name, (_, count) in reports.items()}
    assert counts["hostile"] == counts["plain"]
    page, same_page = (
        tlg.report(ds, tmp_path / f"{k}.html") for k, ds in enumerate((hostile, loaded))
    )
    assert page.read_bytes() == same_page.read_bytes()
    visit = reports["hostile"][0]
    shown = visit.page.locator(TOKENS).all_text_contents()
    assert shown == [visible(text) for text in hostile["example_tokens"].values[0, : len(shown)]]
    assert len(shown) >= len(TEXTS) - 1
    assert in_reading_order(visit, TOKENS)
    assert in_reading_order(visit, ".facts bdi")
    assert visit.page.locator("h1").text_content() == visible(NAME)


EVALUATIONS = (
    make_faithfulness, make_sparsify, make_sensitivity, make_interventions, make_mixing,
    make_token_costs, make_head_costs, make_downstream,
)  # fmt: skip


def test_all_evaluations_on_one_page(browser: Any, tmp_path: Path) -> None:
    """Names of runs stand beside each other in facts, headings, tables and settings."""
    pages = {}
    for kind, name, warnings in (("plain", "name", ["one"] * len(TEXTS)), ("hostile", NAME, TEXTS)):
        runs = []
        for make in EVALUATIONS:
            ds = make()
            ds.attrs |= {"model_name": name, "warnings": list(warnings)}
            ds.attrs["corpus"] = [{**entry, "name": name} for entry in ds.attrs.get("corpus", [])]
            ds.attrs["settings"] = {**ds.attrs.get("settings", {}), name: list(warnings)}
            runs.append(tlg.load(tlg.save(ds, tmp_path / "run.nc")))
        pages[kind] = examine(browser, tlg.report(runs, tmp_path / f"{kind}.html", title=name))
    assert pages["plain"][1] == pages["hostile"][1]


def test_names_from_right_to_left_stay_in_their_place(browser: Any, tmp_path: Path) -> None:
    """Neither what stands beside such a name nor the numbers behind it change places."""
    runs = [make() for make in (make_sparsify, make_mixing, make_head_costs)]
    for ds in runs:
        ds.attrs["model_name"] = "שלום 1 مرحبا"
    visit = Visit(browser, tlg.report(runs, tmp_path / "names.html"))
    assert visit.page.locator(".facts bdi").count() > 1
    assert in_reading_order(visit, ".facts bdi")


@pytest.fixture
def model(tiny_bridge: Any) -> Any:
    made = tiny_bridge()
    made.tokenizer = Tokenizer()
    return made


def test_notebook_views_and_kept_examples(browser: Any, tmp_path: Path, model: Any) -> None:
    """From a model whose tokenizer decodes to these texts, through a saved run."""
    ids = torch.arange(len(TEXTS))
    view = views.contributions(model, ids, layer=1)
    visit, counts = examine(browser, view.save_html(tmp_path / "view.html"))
    assert counts["b"] == counts["img"] == 0
    frame = f"<!doctype html><meta charset=utf-8><title>n</title>{view._repr_html_()}"
    notebook = tmp_path / "notebook.html"
    notebook.write_text(frame, encoding="utf-8")
    page = Visit(browser, notebook)
    inner = page.page.frames[1]
    inner.wait_for_function(DRAWN, timeout=30_000)
    assert [text for text in page.logged if "about:srcdoc" not in text] == []
    assert inner.locator("h4").count() == 2 * 4
    ds = tlg.analyze(model, [ids], n_ctx=40, prepend_bos=False, keep_examples=1, progress=False)
    kept = ["\u2400" if text == "\0" else text for text in TEXTS]  # numpy drops it at the end
    assert ds["example_tokens"].values[0].tolist() == kept
    loaded = tlg.load(tlg.save(ds, tmp_path / "run.nc"))
    assert loaded["example_tokens"].values[0].tolist() == kept
    visit, _ = examine(browser, tlg.report(loaded, tmp_path / "run.html", title=NAME))
    assert visit.page.locator(TOKENS).all_text_contents() == [visible(text) for text in kept]
    found = tlg.prompt_contributions(model, ids)
    assert found["key_token"].values.tolist() == kept
    table = tmp_path / "table.html"
    text = found.isel(head=0, layer=0)._repr_html_()
    table.write_text(
        f"<!doctype html><meta charset=utf-8><title>t</title>{visible(text)}", encoding="utf-8"
    )
    Visit(browser, table).check()


def test_the_doctor(browser: Any, tmp_path: Path, model: Any) -> None:
    report = tlg.doctor(model, edits=False)
    plain = report._repr_html_()
    layers = [
        tlg.hooks.capabilities.LayerReport(NAME, NAME, "unsupported", text, note=NAME)
        for text in TEXTS
    ]
    hostile = tlg.hooks.capabilities.Doctor(tuple(layers), {NAME: NAME}, TEXTS)
    path = tmp_path / "doctor.html"
    page = "<!doctype html><meta charset=utf-8><link rel=icon href=data:,><title>d</title>"
    path.write_text(page + plain + hostile._repr_html_(), encoding="utf-8")
    visit = Visit(browser, path)
    visit.check()
    assert visit.page.locator("table").count() == 2
    assert visit.page.locator("table").nth(1).locator("tr").count() == 1 + len(TEXTS)
    shown = str(visit.page.locator("body").inner_text())
    assert "<script>alert(1)</script>" in shown
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", shown)


def test_two_runs_compared(browser: Any, tmp_path: Path) -> None:
    """A comparison prints and shows itself as text."""
    names = [NAME, "\u05d0" * 300]
    runs = [make_dataset(2, 2, layers=names, model_name=NAME, seed=seed) for seed in (0, 1)]
    found = tlg.compare(*runs)
    path = tmp_path / "compare.html"
    shown = [x for x in vars(found).values() if isinstance(x, (xr.Dataset, xr.DataArray))]
    text = "".join(x._repr_html_() for x in shown)
    path.write_text(
        f"<!doctype html><meta charset=utf-8><link rel=icon href=data:,><title>c</title>{visible(text)}",
        encoding="utf-8",
    )
    Visit(browser, path).check()
    assert repr(found)
