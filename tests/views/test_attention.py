import numpy as np
import pytest
from views_data.dataset import make_dataset

from tl_geometry.views import attention


def test_choice_follows_the_rule() -> None:
    ds = make_dataset(10, 6)
    choices = attention.chosen_heads(ds)
    distance = ds["contribution_attention_distance"].values
    top = np.sort(distance.ravel())[::-1][:3]
    assert [distance[c.layer, c.head] for c in choices[:3]] == top.tolist()
    labels, margin = ds["regime"].values, ds["regime_margin"].values.copy()
    for choice in choices[:3]:
        margin[choice.layer, choice.head] = -1
    for choice, regime in zip(choices[3:], ["retriever", "mixer", "reset"], strict=True):
        assert labels[choice.layer, choice.head] == regime
        assert margin[choice.layer, choice.head] == margin[labels == regime].max()
    assert len({choice.name for choice in choices}) == 6


def test_without_the_measure_the_text_itself_decides() -> None:
    ds = make_dataset(3, 3)
    ds = ds.drop_vars(["contribution_attention_distance", "regime"])
    _, a, c = attention.example_matrices(ds)
    rows = np.nansum(np.abs(c - a), axis=-1) / 2
    expected = np.argsort(-rows.mean(-1).ravel())[:3]
    chosen = [choice.layer * 3 + choice.head for choice in attention.chosen_heads(ds)]
    assert chosen == expected.tolist()


def test_heads_without_matrices_are_not_chosen() -> None:
    ds = make_dataset(3, 2)
    ds["example_attention"].values[:, 1] = np.nan
    assert 1 not in [choice.layer for choice in attention.chosen_heads(ds)]


def test_padding_is_cut_from_the_example() -> None:
    tokens, a, c = attention.example_matrices(make_dataset(2, 2, n_tokens=12))
    assert len(tokens) == 11
    assert a.shape == c.shape == (2, 2, 11, 11)


def test_numbers_reach_the_page_rounded_and_missing_ones_as_null() -> None:
    ds = make_dataset(1, 1, n_tokens=6)
    figure = attention.example_figure(ds, attention.chosen_heads(ds))
    shown = figure.data["panels"][1]["values"][0]
    c = ds["example_contribution"].values[0, 0, 0]
    assert shown[3][:4] == [round(float(x), 3) for x in c[3, :4]]
    assert shown[0][1:] == [None] * 4


def test_long_texts_are_cropped_with_a_note() -> None:
    n = 70
    rows = np.full((1, n, n), 1 / n)
    figure = attention.heads_figure("a", [f"t{i}" for i in range(n)], ["L0H0"], rows, rows)
    assert len(figure.data["tokens"]) == 64
    assert np.shape(figure.data["panels"][0]["values"]) == (1, 64, 64)
    assert figure.notes == ["Cropped to the first 64 of 70 tokens."]


def test_one_scale_symmetric_and_never_above_1() -> None:
    rows = np.array([[[1.0, np.nan], [0.5, 0.5]]])
    wild = np.array([[[1.0, np.nan], [40.0, -39.0]]])
    assert attention.heads_figure("a", ["x", "y"], ["h"], rows, wild).data["limit"] == 1.0
    faint = attention.heads_figure("a", ["x", "y"], ["h"], rows * 0.01, rows * 0.01)
    assert faint.data["limit"] == pytest.approx(0.01)


def test_tokens_are_readable_labels() -> None:
    rows = np.ones((1, 4, 4))
    tokens = [" the", "\n", "\u202eevil", "a" * 60]
    labels = attention.heads_figure("a", tokens, ["h"], rows, rows).data["tokens"]
    assert labels == ["·the", "⏎", "\\u202eevil", "a" * 11 + "…"]


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match=r"contribution has shape \(1, 2, 3\).*= \(1, 2, 2\)"):
        attention.heads_figure("a", ["x", "y"], ["h"], np.ones((1, 2, 2)), np.ones((1, 2, 3)))
    with pytest.raises(ValueError, match="0 heads"):
        attention.heads_figure("a", ["x"], [], np.ones((0, 1, 1)), np.ones((0, 1, 1)))
