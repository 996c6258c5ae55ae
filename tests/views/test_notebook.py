import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from views_data.dataset import make_dataset

import tl_geometry.analysis.prompt
import tl_geometry.hooks
from tl_geometry import views
from tl_geometry.hooks import Doctor, LayerReport


def matrices(n_heads: int, n_tokens: int, seed: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    values = np.tril(rng.normal(1, 0.5, (1, n_heads, n_tokens, n_tokens)))
    return values / values.sum(-1, keepdims=True)


class Prompt:
    """Stands in for the rooms that know models; notes how it was asked."""

    heads, tokens, cross, reason = 3, (" a", "b", "<i>"), False, ""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.forwards: list[Any] = []

    def prompt_tokens(self, model: Any, text: Any, prepend_bos: Any) -> Any:
        self.asked.append((text, prepend_bos))
        return "the ids", list(self.tokens)

    def prompt_matrices(
        self, model: Any, ids: Any, sites: Any, diagnosis: Any, modes: Any, **options: Any
    ) -> Any:
        assert ids == "the ids"
        self.forwards.append(([site.layer for site in sites], modes, options))
        shape = (self.heads, len(self.tokens))
        return SimpleNamespace(
            by_mode={mode: matrices(*shape, seed=int(mode == "attention")) for mode in modes}
        )

    def select_sites(self, sites: Any, layer: Any) -> list[Any]:
        return [SimpleNamespace(layer=layer, n_heads=self.heads, cross=self.cross)]

    def doctor(self, model: Any, *, edits: bool, layers: Any) -> Any:
        assert not edits
        verdict = "unsupported" if self.reason else "exact"
        return Doctor((LayerReport(layers, "attn", verdict, self.reason),), {})


@pytest.fixture
def prompt(monkeypatch: pytest.MonkeyPatch) -> Prompt:
    stand_in = Prompt()
    for name in ("prompt_tokens", "prompt_matrices"):
        monkeypatch.setattr(f"tl_geometry.analysis.prompt.{name}", getattr(stand_in, name))
    monkeypatch.setattr(tl_geometry.hooks, "attention_sites", lambda _: [])
    for name in ("select_sites", "doctor"):
        monkeypatch.setattr(tl_geometry.hooks, name, getattr(stand_in, name))
    return stand_in


def test_regimes_is_a_page_of_its_own() -> None:
    view = views.regimes(make_dataset())
    assert view.html.startswith("<!doctype html>")
    assert 'id="map-regime"' in view.html
    assert "CircuitsVis.render" not in view.html.split("<script>")[1]
    assert "<iframe" in view._repr_html_()


def test_contributions_shows_both_matrices(prompt: Prompt) -> None:
    view = views.contributions(None, "a b", layer=7, mode="inter")
    assert prompt.asked == [("a b", None)]
    usual = {"value_bias": "as_hooked", "output": "raw"}
    assert prompt.forwards == [([7], ("inter", "attention"), usual)]  # one forward for both
    for text in ("L7H0", "L7H2", "Contribution to the layer&#39;s output", "\\u003ci\\u003e"):
        assert text.replace("&#39;", "'") in view.html or text in view.html


def test_heads_can_be_chosen_and_ordered(prompt: Prompt) -> None:
    html = views.contributions(None, "a b", 7, heads=[2, 0]).html
    assert '"names":["L7H2","L7H0"]' in html


@pytest.mark.parametrize("heads", [[3], []])
def test_unknown_heads_are_refused(prompt: Prompt, heads: list[int]) -> None:
    with pytest.raises(ValueError, match=r"must name heads among \[0, 1, 2\]"):
        views.contributions(None, "a b", 7, heads=heads)


def test_many_heads_are_thinned_by_the_stated_rule(prompt: Prompt) -> None:
    prompt.heads = 20
    html = views.contributions(None, "a b", 1).html
    assert "12 of 20 heads: those whose contribution weights differ most" in html
    distance = np.abs(matrices(20, 3, 0) - matrices(20, 3, 1)).sum(-1).mean(-1)[0]
    expected = sorted(np.argsort(-distance)[:12].tolist())
    names = ",".join(f'"L1H{head}"' for head in expected)
    assert f'"names":[{names}]' in html


def test_cross_attention_cannot_be_drawn(prompt: Prompt) -> None:
    prompt.cross = True
    with pytest.raises(ValueError, match="attends to other tokens than its own"):
        views.contributions(None, "a b", "decoder.0.cross")


def test_what_cannot_be_measured_says_why(prompt: Prompt) -> None:
    prompt.reason = "it is gated"
    with pytest.raises(ValueError, match="layer=7 can't be measured: it is gated"):
        views.contributions(None, "a b", 7)
    assert prompt.forwards == []


def test_options_are_passed_on(prompt: Prompt) -> None:
    options: dict[str, Any] = {"value_bias": "remove", "output": "normed"}
    views.contributions(None, "a b", 7, prepend_bos=False, **options)
    assert prompt.asked == [("a b", False)]
    assert prompt.forwards[0][2] == options


def test_a_real_layer(tiny_model: Any) -> None:
    """Token ids on a real model: the page holds what prompt_contributions gives."""
    ids = torch.tensor([1, 7, 9, 12])
    view = views.contributions(tiny_model, ids, layer=1, mode="inter", value_bias="remove")
    stored = view.html.split('id="contributions-data">')[1].split("</script>")[0]
    panels = json.loads(stored)["panels"]
    for panel, mode in zip(panels, ("attention", "inter"), strict=True):
        expected = tl_geometry.prompt_contributions(
            tiny_model, ids, [1], mode, value_bias="remove"
        ).values[0]
        np.testing.assert_allclose(np.array(panel["values"], float), expected, atol=6e-4)
