"""The pages in headless Chromium, with the network off."""

from pathlib import Path
from typing import Any

import pytest
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

from tl_geometry import views
from tl_geometry.views.report import report

__all__ = ["browser"]  # the fixture

pytestmark = [pytest.mark.browser, pytest.mark.slow]
COUNT = """() => {
  const start = performance.now();
  let sum = 0;
  for (let k = 0; k < 1e8; k++) sum = (sum * 31 + k) | 0;
  return sum === 0.5 || (performance.now() - start) / 1000;
}"""
INK = """() => [...document.querySelectorAll('.drawing canvas')].map(canvas => {
  const {width, height} = canvas;
  const data = canvas.getContext('2d').getImageData(0, 0, width, height).data;
  return new Set(data.filter((_, k) => k % 4 === 0)).size;
})"""


def test_the_report_opens_in_three_seconds(browser: Any, tmp_path: Path) -> None:
    """On a machine whose browser counts to a hundred million in one second; slower ones get more."""
    path = report(make_dataset(30, 9, n_tokens=48), tmp_path / "report.html")
    visits = [Visit(browser, path) for _ in range(3)]
    second = min(visit.page.evaluate(COUNT) for visit in visits)
    assert min(visit.seconds for visit in visits) < 3 * max(1, second)


def test_the_report_draws_everything(browser: Any, tmp_path: Path) -> None:
    ds = make_dataset(30, 9, n_tokens=48)
    visit = Visit(browser, report(ds, tmp_path / "report.html"))
    assert visit.page.locator(".drawing .main-svg").count() >= 6
    assert visit.page.locator(".heatmaplayer image").count() == 10
    assert visit.page.locator("#separability-curves .scatterlayer .js-line").count() >= 5
    visit.page.locator(".circuits canvas").last.scroll_into_view_if_needed()
    visit.page.wait_for_timeout(1000)
    inks = visit.page.evaluate(INK)
    assert len(inks) == 2 * (6 + 1)
    assert min(inks) > 3
    visit.check()


def test_hover_tells_the_head_and_its_shares(browser: Any, tmp_path: Path) -> None:
    ds = make_dataset(1, 1, n_examples=0)
    visit = Visit(browser, report(ds, tmp_path / "report.html"))
    visit.page.locator("#map-regime .nsewdrag").hover()
    hover = visit.page.locator("#map-regime .hovertext")
    hover.wait_for()
    assert "L0H0" in str(hover.text_content())
    assert f"sink {ds['sink_share'].values[0, 0]:.2f}" in str(hover.text_content())
    visit.check()


def test_choosing_a_head_chooses_it_in_both_panels(browser: Any, tmp_path: Path) -> None:
    visit = Visit(browser, report(make_dataset(4, 3), tmp_path / "report.html"))
    panels = visit.page.locator(".circuits")
    name = panels.nth(1).locator("h4").nth(2).inner_text()
    panels.nth(1).locator("h4").nth(2).click()
    visit.page.mouse.move(0, 0)
    visit.page.wait_for_timeout(300)
    assert [panels.nth(k).locator("h2").inner_text() for k in (0, 1)] == [name, name]
    visit.check()


def test_a_layer_and_a_size_can_be_chosen(browser: Any, tmp_path: Path) -> None:
    ds = make_dataset(4, 3)
    visit = Visit(browser, report(ds, tmp_path / "report.html"))
    for figure, option, words in (
        ("separability-curves", "layer 2", "mean over 3 heads"),
        ("separability-layers", "16", "at N = 16"),
        ("sinks-norm", "layer 1", "mean over 3 heads"),
        ("sinks-cosine", "model space", "model space"),
    ):
        node = visit.page.locator(f"#{figure}")
        before = node.locator(".js-line").first.get_attribute("d")
        visit.page.locator(f"#{figure}-choice").select_option(label=option)
        visit.page.wait_for_timeout(200)
        assert node.locator(".js-line").first.get_attribute("d") != before
        assert words in str(node.get_attribute("aria-label"))
    shown = visit.page.evaluate("document.getElementById('separability-layers').data[1].y")
    assert shown == pytest.approx(ds["f_score"].sel(top_n=16).mean("head").values, abs=1e-4)
    visit.check()


@pytest.mark.parametrize(
    "shape", [{"n_layers": 64, "n_heads": 40, "n_examples": 0}, {"blank_layers": (0, 1, 2, 3)}]
)
def test_extreme_results_open(browser: Any, tmp_path: Path, shape: dict[str, Any]) -> None:
    visit = Visit(browser, report(make_dataset(**shape), tmp_path / "report.html"))
    visit.check()


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_sticks_out_sideways(browser: Any, tmp_path: Path, width: int) -> None:
    visit = Visit(browser, report(make_dataset(30, 9), tmp_path / "report.html"))
    visit.page.set_viewport_size({"width": width, "height": 800})
    visit.page.wait_for_timeout(500)
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width


EVALUATIONS = [
    make_faithfulness,
    make_sparsify,
    make_sensitivity,
    make_interventions,
    make_mixing,
    make_token_costs,
    make_head_costs,
    make_downstream,
]


@pytest.mark.parametrize("make", EVALUATIONS)
def test_the_page_of_an_evaluation_draws_and_fits(browser: Any, tmp_path: Path, make: Any) -> None:
    visit = Visit(browser, report(make(), tmp_path / "report.html"))
    assert visit.page.locator(".drawing .main-svg").count() > 0
    visit.page.set_viewport_size({"width": 360, "height": 800})
    visit.page.wait_for_timeout(500)
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 360
    visit.check()


def test_an_intervention_can_be_chosen(browser: Any, tmp_path: Path) -> None:
    ds = make_interventions()
    visit = Visit(browser, report(ds, tmp_path / "report.html"))
    visit.page.locator("#interventions-heads-choice").select_option(label="mean")
    visit.page.wait_for_timeout(300)
    traces = "document.getElementById('interventions-heads').data.filter(t => t.mode == 'markers')"
    shown = visit.page.evaluate(f"{traces}.filter(t => t.xaxis == 'x2').flatMap(t => t.y)")
    expected = ds["cone_alignment"].sel(intervention="mean").values.ravel()
    assert sorted(shown) == pytest.approx(sorted(expected), abs=1e-5)
    visit.check()


def test_a_view_shows_itself_inside_a_notebook_page_twice(browser: Any, tmp_path: Path) -> None:
    frame = views.regimes(make_dataset(3, 2))._repr_html_()
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><title>n</title>{frame}{frame}", encoding="utf-8")
    visit = Visit(browser, path)
    frames = visit.page.frames[1:]
    assert len(frames) == 2
    for inner in frames:
        inner.wait_for_function(DRAWN, timeout=30_000)
        assert inner.locator(".heatmaplayer image").count() == 1
    assert [text for text in visit.logged if "about:srcdoc" not in text] == []
