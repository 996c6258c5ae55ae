"""What must hold for every layer, on the attention of a real model reading real text."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from analysis_data.reference import allowed, record, site_names
from literal import (
    contributions as literal_contributions,
    regimes as literal_regimes,
    separability as literal_separability,
    sinks as literal_sinks,
)
from literal.masks import causal
from literal.problems import assert_same, row_tolerance

from tl_geometry import (
    Contributions,
    Probe,
    Regimes,
    Separability,
    Sinks,
    analyze,
    contribution_factors,
    contribution_weights,
    head_regimes,
    importance,
    inversion_bounds,
    separability,
    sink_aware_certificate,
    sink_geometry,
    sink_metric,
    sink_rate,
    source_winners,
    suppression,
    value_weighted_attention,
)
from tl_geometry.data import demo_corpora
from tl_geometry.models import load_model

pytestmark = pytest.mark.smollm2

CHOSEN = (0, 12, 29)
LENGTH, HEADS, KV_HEADS, BOS, PAD = 48, 9, 3, 1, 0
TOP_N = (1, 2, 4, 8, 16, 32)
EPS = 2.0**-23
BACKENDS = [
    pytest.param("hooked", marks=pytest.mark.hooked),
    pytest.param("bridge", marks=pytest.mark.bridge),
]
MODES = pytest.mark.parametrize("mode", ["intra", "inter"])
EACH_LAYER = pytest.mark.parametrize("index", CHOSEN)


def encode(model, text, length):
    ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    return torch.tensor([[BOS, *ids[: length - 1]]])


def prose(genre):
    """One text of the prose corpus, by its position; without its title."""
    return demo_corpora()["demo-prose"][genre].split("\n\n", 1)[1]


@pytest.fixture(scope="module", params=BACKENDS)
def model(request):
    return request.getfixturevalue(f"smollm2_{request.param}")


@pytest.fixture(scope="module")
def paragraph(model):
    """The beginning of an essay."""
    ids = encode(model, prose(1), LENGTH)
    assert ids.shape == (1, LENGTH)
    return ids


@pytest.fixture(scope="module")
def layers(model, paragraph):
    names = site_names(model)
    assert len(names) == 30
    recorded = record(model, paragraph, names=[names[index] for index in CHOSEN])
    return dict(zip(CHOSEN, recorded, strict=True))


@pytest.fixture
def layer(layers, index):
    found = layers[index]
    assert found.pattern.shape == (1, HEADS, LENGTH, LENGTH)
    assert found.v.shape == (1, LENGTH, KV_HEADS, 64)
    assert found.W_O.shape == (HEADS, 64, 576)
    return found


def tensors(layer, dtype=torch.float32):
    return layer.pattern.to(dtype), layer.v.to(dtype), layer.W_O.to(dtype)


def three_measures():
    return [Contributions(), Regimes(), Sinks()]


def probed(model, ids, mask):
    probe = Probe(model, three_measures())
    model.run_with_hooks(ids, attention_mask=mask, fwd_hooks=probe.hooks(mask))
    return probe.result()


def assert_close(actual, expected, mode, relative=1e-5):
    """Within ``relative * (1 + sum |c|)``, the sum over what the weights of a row sum to 1 over."""
    assert not expected.isnan().any()
    expected = expected.double().numpy()
    assert_same(actual, expected, row_tolerance(expected, mode, relative))


@pytest.fixture(scope="module")
def unpadded(model, paragraph):
    return probed(model, paragraph, torch.ones_like(paragraph))


# -- one layer ---------------------------------------------------------------------------------------


@EACH_LAYER
@MODES
def test_weights_sum_to_one_and_are_the_product_of_their_factors(layer, mode):
    c = contribution_weights(*tensors(layer), mode=mode)
    axes = (-1,) if mode == "intra" else (1, 3)
    sums, sizes = (x.double().sum(axes) for x in (c, c.abs()))
    assert ((sums - 1).abs() <= 1e-5 * (1 + sizes)).all()
    factors = contribution_factors(*tensors(layer), mode=mode)
    assert torch.equal(factors.attention, layer.pattern)
    assert_close(factors.attention * factors.relative_norm * factors.cosine, c, mode)


@EACH_LAYER
@MODES
def test_suppression_is_minus_the_gradient_of_the_log_length(layer, mode):
    pattern, v, W_O = tensors(layer, torch.float64)
    logits = pattern.log().requires_grad_()
    values = torch.einsum("bkhd,hdm->bhkm", v.repeat_interleave(HEADS // KV_HEADS, 2), W_O)
    outputs = logits.softmax(-1) @ values
    if mode == "inter":
        outputs = outputs.sum(1)
    (gradient,) = torch.autograd.grad(outputs.norm(dim=-1).log().sum(), logits)
    assert float(gradient.abs().max()) > 0.05
    assert_same(suppression(*tensors(layer), mode=mode), -gradient, 1e-4)
    exact = logits.detach().softmax(-1)
    assert_same(suppression(exact, v, W_O, mode=mode), -gradient, 1e-9)


@EACH_LAYER
@MODES
def test_weights_depend_neither_on_the_scale_nor_on_the_basis_of_the_output(layer, mode):
    pattern, v, W_O = tensors(layer)
    c = contribution_weights(pattern, v, W_O, mode=mode)
    assert_close(contribution_weights(pattern, v, 3 * W_O, mode=mode), c, mode)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(576, 576, generator=generator, dtype=torch.float64)
    rotated = (W_O.double() @ torch.linalg.qr(noise).Q).float()
    assert float((rotated - W_O).abs().max()) > 0.1
    assert_close(contribution_weights(pattern, v, rotated, mode=mode), c, mode)


@EACH_LAYER
@MODES
def test_grouped_values_are_repeated_and_heads_may_be_permuted(layer, mode):
    pattern, v, W_O = tensors(layer)
    c = contribution_weights(pattern, v, W_O, mode=mode)
    own = v.repeat_interleave(HEADS // KV_HEADS, 2)
    assert_close(contribution_weights(pattern, own, W_O, mode=mode), c, mode)
    order = torch.tensor([4, 8, 0, 6, 2, 5, 1, 7, 3])
    permuted = pattern[:, order], own[:, :, order], W_O[order]
    assert_close(contribution_weights(*permuted, mode=mode), c[:, order], mode)


@EACH_LAYER
def test_other_measures_of_grouped_values(layer):
    pattern, v, W_O = tensors(layer)
    ungrouped = pattern, v.repeat_interleave(HEADS // KV_HEADS, 2), W_O
    for space in ("head", "model"):
        winners = [source_winners(*x, space=space) for x in (tensors(layer), ungrouped)]
        assert torch.equal(winners[0].position, winners[1].position)
        scores = [separability(*x, space=space) for x in (tensors(layer), ungrouped)]
        for name in ("f_score", "inversions"):
            left, right = (getattr(score, name) for score in scores)
            torch.testing.assert_close(left, right, equal_nan=True)
    left, right = (vars(sink_geometry(*x)) for x in (tensors(layer), ungrouped))
    for name, values in left.items():
        torch.testing.assert_close(right[name], values, rtol=1e-5, atol=1e-5)


# -- the fast forms are the definitions --------------------------------------------------------------


@EACH_LAYER
@MODES
def test_contributions_equal_their_definition(layer, mode):
    inputs = tensors(layer)
    c = literal_contributions.contribution_weights(*inputs, mode=mode)
    tolerance = row_tolerance(c, mode)
    assert_same(contribution_weights(*inputs, mode=mode), c, tolerance)
    found = contribution_factors(*inputs, mode=mode)
    a, rho, cosine = literal_contributions.contribution_factors(*inputs, mode=mode)
    assert_same(found.attention, a, 0)
    assert_same(found.relative_norm, rho, 1e-5 * (1 + rho))
    assert_same(found.cosine, cosine)
    expected = literal_contributions.suppression(*inputs, mode=mode)
    assert_same(suppression(*inputs, mode=mode), expected, tolerance)
    for normalized in (False, True):
        options = {"normalized": normalized, "mode": mode}
        expected = literal_contributions.value_weighted_attention(*inputs, **options)
        actual = value_weighted_attention(*inputs, **options)
        assert_same(actual, expected, 1e-5 * (1 + expected))
    assert_same(importance(*inputs, mode=mode, absolute=True), np.abs(c), tolerance)


@EACH_LAYER
@pytest.mark.parametrize("space", ["head", "model"])
def test_regimes_equal_their_definition(layer, space):
    inputs = tensors(layer)
    found = source_winners(*inputs, space=space)
    position, category = literal_regimes.source_winners(*inputs, space=space)
    assert found.position.tolist() == position.tolist()
    assert found.category.tolist() == category.tolist()
    regimes = head_regimes(*inputs, space=space)
    expected = literal_regimes.head_regimes(*inputs, space=space)
    labels, self_share, sink_share, other_share, rows, margin = zip(*expected, strict=True)
    assert regimes.labels == labels
    assert regimes.rows.tolist() == list(rows)
    for actual, values in (
        (regimes.self_share, self_share),
        (regimes.sink_share, sink_share),
        (regimes.other_share, other_share),
        (regimes.margin, margin),
    ):
        assert_same(actual, values, 1e-6)


@EACH_LAYER
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sinks_equal_their_definition(layer, dtype):
    inputs = tensors(layer, dtype)
    pattern = inputs[0]
    tolerance = 1e-5 if dtype == torch.float32 else 1e-9
    assert_same(sink_rate(pattern), literal_sinks.sink_rate(pattern), tolerance)
    assert_same(sink_metric(pattern), literal_sinks.sink_metric(pattern), 0)
    found = sink_geometry(*inputs)
    for name, values in literal_sinks.sink_geometry(*inputs).items():
        assert_same(getattr(found, name), values, tolerance * (1 + np.abs(values)))


@EACH_LAYER
@pytest.mark.parametrize(
    "options",
    [{}, {"exclude_sink": True}, {"rank_by": "value_weighted"}, {"distance": "cosine"}],
    ids=["attention", "no sink", "value-weighted", "cosine"],
)
def test_separability_equals_its_definition(layer, options):
    """On a few rows of each head, between the extremes that rounding of float32 allows."""
    queries, sizes, heads = torch.tensor([5, 9, 20, 33, 47]), (2, 8), [0, 4, 8]
    pattern, v = layer.pattern[:, heads], layer.v
    found = separability(pattern, v, top_n=sizes, queries=queries, **options)
    distance = {key: options[key] for key in options if key == "distance"}
    ranking = {key: options[key] for key in options if key != "distance"}
    rows = literal_separability.rows(pattern, v, **ranking)
    assert found.query.tolist() == [queries.tolist()]
    compared = 0
    for h, r, k in np.ndindex(len(heads), len(queries), len(sizes)):
        row, n = rows[0, h, int(queries[r])], sizes[k]
        exact, best, worst = row.scores_of(n, eps=EPS, **distance)
        actual = {x: getattr(found, x)[0, h, r, k].item() for x in literal_separability.FIELDS}
        if np.isnan(exact.f_score):
            assert np.isnan(list(actual.values())).all()
            continue
        if row.uncertain(n, EPS):
            continue
        compared += best == worst
        for name in ("precision", "recall", "f_score", "inversions"):
            low, high = sorted((getattr(worst, name), getattr(best, name)))
            assert low - 1e-6 <= actual[name] <= high + 1e-6, (name, h, r, n)
        assert abs(actual["margin"] - exact.margin) <= exact.margin_error, (h, r, n)
    assert compared >= 0.9 * len(heads) * (len(queries) * len(sizes) - 1)


# -- through the model -------------------------------------------------------------------------------


def assert_same_results(one, other, tolerance):
    """Equal labels, and differences within the tolerance times the size of the variable."""
    assert set(one.data_vars) == set(other.data_vars)
    for name, variable in other.data_vars.items():
        actual, expected = one[name].values, variable.values
        if expected.dtype.kind in "US":
            assert actual.tolist() == expected.tolist(), name
            continue
        # A standard error is as exact as its mean, what is left of a row's attention as the rest.
        sized = "sink_rate" if name.startswith("null_sink_rate") else name.removesuffix("_se")
        size = np.abs(np.nan_to_num(other[sized].values)).max()
        error = allowed(name, tolerance) * size
        np.testing.assert_allclose(actual, expected, rtol=0, atol=error, err_msg=name)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing_on_real_tokens(model, paragraph, layers, unpadded, side):
    amount = (7, 0) if side == "left" else (0, 7)
    ids = torch.nn.functional.pad(paragraph, amount, value=PAD)
    mask = torch.nn.functional.pad(torch.ones_like(paragraph), amount)
    real = mask[0].bool()
    names = [layer.name for layer in layers.values()]
    recorded = record(model, ids, names=names, attention_mask=mask)
    available = causal(len(real))[None] & real[:, None] & real
    for padded, layer in zip(recorded, layers.values(), strict=True):
        for mode in ("intra", "inter"):
            c = contribution_weights(*tensors(padded), mode=mode, available=available)
            assert c[:, :, ~real].isnan().all()
            assert not c[:, :, real][..., ~real].any()
            expected = contribution_weights(*tensors(layer), mode=mode)
            assert_close(c[:, :, real][..., real], expected, mode)
    found = probed(model, ids, mask)
    assert found.attrs["rows"] == unpadded.attrs["rows"] == LENGTH
    assert_same_results(found, unpadded, 1e-5)


def in_batches_of(sizes, model, measures, **options):
    texts = [" ".join(prose(n).split()[:words]) for n, words in enumerate((17, 11, 17, 14))]
    results = [
        analyze(model, texts, measures(), batch_size=size, progress=False, **options)
        for size in sizes
    ]
    assert [found.attrs["documents"] for found in results] == [len(texts)] * len(sizes)
    assert len({found.attrs["tokens"] for found in results}) == 1
    return results


def test_analysis_does_not_depend_on_the_batch_size(model):
    """All but the rank correlations: the model itself rounds by batch, and close neighbours swap."""
    one, three = in_batches_of((1, 3), model, three_measures)
    assert len(set(three.regime.values.flatten())) > 1
    ranks = [name for name in three.data_vars if "_spearman_" in name]
    assert len(ranks) == 12
    assert_same_results(one.drop_vars(ranks), three.drop_vars(ranks), 1e-6)


def test_ranks_and_counts_do_not_depend_on_the_batch_size():
    """In double precision, where the rounding of the model decides no comparison."""
    model = load_model("smollm2", processing=False, device="cpu", dtype="float64")
    one, three = in_batches_of(
        (1, 3), model, lambda: [Sinks(), Separability((2, 8))], layers=(*CHOSEN, 17)
    )
    assert {"tail_spearman_attention", "f_score", "certificate"} <= set(three.data_vars)
    assert_same_results(one, three, 1e-6)


def test_bounds_on_separability_hold_on_every_row():
    model = load_model("smollm2", processing=False, device="cpu")
    texts = [corpus[0] for corpus in demo_corpora().values()]
    ids = torch.cat([encode(model, text, 128) for text in texts])
    recorded = record(model, ids)
    assert len(recorded) == 30
    rows = 0
    for layer in recorded:
        scores = separability(layer.pattern, layer.v, top_n=TOP_N)
        certified = sink_aware_certificate(layer.pattern, layer.v, top_n=TOP_N)
        known = ~scores.f_score.isnan()
        rows += int(known.sum())
        assert torch.equal(known, ~certified.f_score.isnan())
        separated = scores.margin > 0
        assert torch.equal(separated[known], (scores.inversions == 0)[known])
        assert torch.equal(separated[known], (scores.f_score == 1)[known])
        assert (certified.inversions >= scores.inversions)[known].all(), layer.name
        bounds = inversion_bounds(scores.inversions, TOP_N)
        for k, name in enumerate(("precision", "recall", "f_score")):
            measured = getattr(scores, name) + 1e-6
            assert (measured >= bounds[k])[known].all(), (layer.name, name)
            assert (measured >= getattr(certified, name))[known].all(), (layer.name, name)
    assert rows == 2 * 30 * HEADS * sum(128 - n for n in TOP_N)
