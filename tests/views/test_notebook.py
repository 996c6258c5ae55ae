import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr
from views_data.dataset import make_dataset

from tl_geometry import views


def matrices(n_heads: int, n_tokens: int, seed: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    values = np.tril(rng.normal(1, 0.5, (1, n_heads, n_tokens, n_tokens)))
    return values / values.sum(-1, keepdims=True)


@pytest.fixture
def prompt(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands in for the analysis room; its matrices and the calls it got."""
    seen: dict[str, Any] = {"heads": 3, "tokens": [" a", "b", "<i>"], "calls": []}

    def prompt_contributions(model: Any, text: str, *, layers: Any, mode: str) -> xr.DataArray:
        seen["calls"].append((text, layers, mode))
        words = seen["tokens"]
        values = matrices(seen["heads"], len(words), seed=int(mode == "attention"))
        coords = {
            "layer": layers,
            "head": np.arange(seen["heads"]),
            "query_token": ("query", words),
            "key_token": ("key", seen.get("keys", words)),
        }
        return xr.DataArray(values, dims=("layer", "head", "query", "key"), coords=coords)

    room = SimpleNamespace(prompt_contributions=prompt_contributions)
    monkeypatch.setitem(sys.modules, "tl_geometry.analysis", room)
    return seen


def test_regimes_is_a_page_of_its_own() -> None:
    view = views.regimes(make_dataset())
    assert view.html.startswith("<!doctype html>")
    assert 'id="map-regime"' in view.html
    assert "CircuitsVis.render" not in view.html.split("<script>")[1]
    assert "<iframe" in view._repr_html_()


def test_contributions_shows_both_matrices(prompt: dict[str, Any]) -> None:
    view = views.contributions(None, "a b", layer=7, mode="inter")
    assert prompt["calls"] == [("a b", [7], "inter"), ("a b", [7], "attention")]
    for text in ("L7H0", "L7H2", "Contribution to the layer&#39;s output", "\\u003ci\\u003e"):
        assert text.replace("&#39;", "'") in view.html or text in view.html


def test_heads_can_be_chosen_and_ordered(prompt: dict[str, Any]) -> None:
    html = views.contributions(None, "a b", 7, heads=[2, 0]).html
    assert '"names":["L7H2","L7H0"]' in html


@pytest.mark.parametrize("heads", [[3], []])
def test_unknown_heads_are_refused(prompt: dict[str, Any], heads: list[int]) -> None:
    with pytest.raises(ValueError, match=r"must name heads among \[0, 1, 2\]"):
        views.contributions(None, "a b", 7, heads=heads)


def test_many_heads_are_thinned_by_the_stated_rule(prompt: dict[str, Any]) -> None:
    prompt["heads"] = 20
    html = views.contributions(None, "a b", 1).html
    assert "12 of 20 heads: those whose contribution weights differ most" in html
    distance = np.abs(matrices(20, 3, 0) - matrices(20, 3, 1)).sum(-1).mean(-1)[0]
    expected = sorted(np.argsort(-distance)[:12].tolist())
    names = ",".join(f'"L1H{head}"' for head in expected)
    assert f'"names":[{names}]' in html


def test_cross_attention_cannot_be_drawn(prompt: dict[str, Any]) -> None:
    prompt["keys"] = ["x", "y", "z"]
    with pytest.raises(ValueError, match="attends to other tokens than its own"):
        views.contributions(None, "a b", "decoder.0.cross")
