"""Sink rate, sink metric and sink geometry against literal forms and numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from literal import sinks as literal
from literal.contributions import contribution_weights
from literal.masks import all_masks, causal, padded, token_mask, windowed
from literal.problems import assert_same, problem, softmax_pattern

from tl_geometry.measures.sinks import sink_geometry, sink_metric, sink_rate

MASKS = all_masks(batch=2, heads=4, length=6)
FACTORS = ("attention", "relative_norm", "cosine")


def gu_sink_metric(attention: np.ndarray, epsilon: float) -> float:
    """Share of (layer, head, token) of one causal sample, as in arXiv 2410.10781, equation 3."""
    layers, heads, length, _ = attention.shape
    hits = 0
    for layer in range(layers):
        for h in range(heads):
            scores = [attention[layer, h, k:, k].sum() / (length - k) for k in range(length)]
            hits += scores[0] > epsilon
    return hits / (layers * heads)


@pytest.mark.parametrize("sink", ["first", 1, [0, 2]], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_rate_under_every_mask(name, sink):
    made = problem(available=MASKS[name], seed=1)
    expected = literal.sink_rate(made.pattern, available=made.available, sink=sink)
    assert_same(sink_rate(made.pattern, available=made.available, sink=sink), expected)


@pytest.mark.parametrize("shape", [(2, 6), (2, 4, 6)])
def test_rate_of_marked_keys(shape):
    marked = torch.rand(shape, generator=torch.Generator().manual_seed(2)) < 0.4
    made = problem(available=MASKS["causal, both: b q k"], seed=2)
    expected = literal.sink_rate(made.pattern, available=made.available, sink=marked)
    assert_same(sink_rate(made.pattern, available=made.available, sink=marked), expected)


def test_rate_by_hand():
    pattern = torch.tensor(
        [[[[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0.25, 0.75, 0], [0, 0, 0.1, 0.9]]]]
    )
    rate = sink_rate(pattern, available=windowed(4, 2)[None])
    torch.testing.assert_close(rate[0, 0, :2], torch.tensor([1.0, 0.5]))
    assert rate[0, 0, 2:].isnan().all()  # the window hides the first token
    second = sink_rate(pattern, available=windowed(4, 2)[None], sink=1)[0, 0]
    torch.testing.assert_close(second[1:3], torch.tensor([0.5, 0.25]))
    assert second[[0, 3]].isnan().all()
    both = sink_rate(pattern, available=windowed(4, 2)[None], sink=[0, 2])[0, 0]
    torch.testing.assert_close(both, torch.tensor([1.0, 0.5, 0.75, 0.1]))
    null = sink_rate(pattern / 2, sink="first")[0, 0]  # nothing is renormalised
    torch.testing.assert_close(null, torch.tensor([0.5, 0.25, 0.0, 0.0]))


def test_bidirectional_and_cross_attention():
    for keys in (6, 4):
        made = problem(keys=keys, seed=3)
        assert_same(sink_rate(made.pattern), made.pattern[..., 0].numpy())
        mean = made.pattern.double().mean(2).numpy()
        epsilon = float(np.median(mean))
        assert_same(sink_metric(made.pattern, epsilon), (mean > epsilon).astype(float), 0)
        for field, values in literal.sink_geometry(*made.tensors).items():
            found = getattr(sink_geometry(*made.tensors), field)
            assert_same(found, values, 1e-5 * (1 + np.abs(values)))


def test_auto_counts_sixteen_later_real_queries():
    pattern = torch.zeros(2, 1, 20, 20)
    pattern[..., 2] = 1
    pattern[:, :, :2] = torch.eye(20)[:2]
    tokens = torch.ones(2, 20, dtype=torch.bool)
    tokens[1, 19] = False  # 17 and 16 later queries
    rate = sink_rate(pattern, available=padded(causal(20), tokens), sink="auto")
    assert (rate[0, 0, 2:] == 1).all()
    assert (rate[1, 0, 2:19] == 1).all()
    tokens[1, 18] = False  # now 15: no sink in the second document, so no rate
    rate = sink_rate(pattern, available=padded(causal(20), tokens), sink="auto")
    assert (rate[0, 0, 2:] == 1).all()
    assert rate[1].isnan().all()


def test_auto_compares_means_in_full_precision():
    """Eleven and nine of the bfloat16 numbers around 0.3: their mean rounds across it."""
    pattern = torch.zeros(1, 1, 20, 20, dtype=torch.bfloat16)
    pattern[..., 0] = torch.tensor([154 / 512] * 11 + [153 / 512] * 9)
    assert sink_rate(pattern, sink="auto", available=causal(20)[None]).isnan().all()
    assert (sink_metric(pattern, available=causal(20)[None]) == 0).all()
    pattern[..., 0] = torch.tensor([154 / 512] * 13 + [153 / 512] * 7)
    assert not sink_rate(pattern, sink="auto", available=causal(20)[None]).isnan().any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_rate_and_metric_accumulate_beyond_half_precision(dtype):
    made = problem(queries=40, available=causal(40)[None], sharpness=0.1, seed=4).to(dtype)
    sinks = list(range(0, 40, 2))
    expected = literal.sink_rate(made.pattern, available=made.available, sink=sinks)
    assert_same(sink_rate(made.pattern, sink=sinks), expected, 1e-6)
    received = literal.received_attention(made.pattern, made.available)
    for epsilon in np.quantile(received, [0.1, 0.5, 0.9]) * (1 + 1e-5):
        expected = literal.sink_metric(made.pattern, epsilon, available=made.available)
        assert_same(sink_metric(made.pattern, float(epsilon)), expected, 0)


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("name", [name for name in MASKS if name.startswith(("causal", "window"))])
def test_metric_under_causal_masks(name, epsilon):
    made = problem(available=MASKS[name], seed=5)
    expected = literal.sink_metric(made.pattern, epsilon, available=made.available)
    assert np.nansum(expected) > 0
    assert_same(sink_metric(made.pattern, epsilon, available=made.available), expected, 0)


def test_metric_is_the_one_of_gu_et_al():
    made = problem(batch=5, heads=8, queries=64, available=causal(64), sharpness=1.0, seed=6)
    pattern = made.pattern.clone()
    pattern[:, ::2, :, 0] += 1  # the batch axis stands for layers here
    pattern /= pattern.sum(-1, keepdim=True)
    for epsilon in (0.2, 0.3, 0.52):
        ours = sink_metric(pattern, epsilon)[..., 0].mean()
        assert ours.item() == pytest.approx(gu_sink_metric(pattern.numpy(), epsilon))
    assert 0 < sink_metric(pattern)[..., 0].mean() < 1
    assert torch.equal(sink_metric(pattern), sink_metric(pattern, 0.3))


def test_metric_by_hand():
    pattern = torch.tensor([[[[1.0, 0.0], [0.25, 0.75]]]])
    assert sink_metric(pattern, 0.6).tolist() == [[[1, 1]]]  # (1 + 0.25) / 2 and 0.75
    assert sink_metric(pattern, 0.625).tolist() == [[[0, 1]]]  # must exceed epsilon
    hidden = torch.tensor([[True, False], [True, False]])
    metric = sink_metric(pattern, 0.6, available=hidden[None])
    assert metric[0, 0, 0] == 1
    assert metric[0, 0, 1].isnan()


GEOMETRY = {
    "causal": (causal(12)[None], "first"),
    "window": (windowed(12, 5)[None], "first"),
    "left": (padded(causal(12), token_mask("left", 2, 12)), "first"),
    "both, second": (padded(causal(12), token_mask("both", 2, 12)), 1),
    "gaps": (padded(causal(12), token_mask("gaps", 2, 12)), "first"),
    "window, right": (padded(windowed(12, 4), token_mask("right", 2, 12)), "first"),
    "one sink a document": (causal(12)[None], torch.eye(12, dtype=torch.bool)[[2, 1]]),
    "one sink a head": (
        causal(12)[None],
        torch.eye(12, dtype=torch.bool)[[2, 1, 0, 4]].expand(2, -1, -1),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", GEOMETRY)
def test_geometry_equals_the_literal_form(name, dtype):
    mask, sink = GEOMETRY[name]
    made = problem(queries=12, available=mask, sharpness=1.0, dtype=dtype, seed=7)
    expected = literal.sink_geometry(*made.tensors, available=mask, sink=sink)
    actual = vars(sink_geometry(*made.tensors, available=mask, sink=sink))
    assert set(expected) == set(actual)
    for field, values in expected.items():
        assert_same(actual[field], values, 1e-5 * (1 + np.abs(values)))
    assert np.nanmax(expected["negative_share"]) > 0


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 1), (6, 2)])
def test_geometry_of_grouped_queries_with_a_bias(heads, kv_heads):
    made = problem(heads=heads, kv_heads=kv_heads, queries=9, available=causal(9)[None], seed=8)
    b_V = torch.randn(kv_heads, 3, generator=torch.Generator().manual_seed(9))
    for options in ({}, {"value_bias": "remove", "b_V": b_V}):
        expected = literal.sink_geometry(*made.tensors, available=made.available, **options)
        actual = sink_geometry(*made.tensors, available=made.available, **options)
        for field, values in expected.items():
            assert_same(getattr(actual, field), values, 1e-5 * (1 + np.abs(values)))


def test_norms_and_cosines_against_numpy():
    made = problem(batch=1, heads=2, kv_heads=1, queries=7, available=causal(7)[None], seed=10)
    geometry = sink_geometry(*made.tensors, available=made.available)
    values = made.v[0, :, 0].double().numpy()
    for h in range(2):
        for suffix, v in (("", values), ("_model", values @ made.W_O[h].double().numpy())):
            norms = np.linalg.norm(v, axis=-1)
            cosines = v[1:] @ v[0] / norms[1:] / norms[0]
            expected = {
                "sink_norm": norms[0],
                "other_norm": np.median(norms[1:]),  # an even number of keys: a mean of two
                "norm_ratio": norms[0] / np.median(norms[1:]),
                "cosine_mean": cosines.mean(),
                "cosine_max": cosines.max(),
            }
            for name, number in expected.items():
                found = getattr(geometry, name + suffix)[0, h].item()
                assert found == pytest.approx(number, rel=1e-5, abs=1e-6), name + suffix


def test_share_of_negative_contributions():
    """One sink opposed to the other values: negative while its attention is small."""
    weight = torch.tensor([1.0, 0.1, 0.9, 0.2, 0.3, 0.5, 0.0])  # the 0.5 cancels: undefined
    pattern = torch.diag(1 - weight)[None, None]
    pattern[0, 0, :, 0] += weight
    v = torch.tensor([-1.0, *[1.0] * 6]).view(1, 7, 1, 1)
    geometry = sink_geometry(pattern, v, torch.ones(1, 1, 1))
    # Left out are the undefined row and the sink's own; a contribution of 0 is not negative.
    assert geometry.negative_share.item() == pytest.approx(3 / 5)
    assert geometry.cosine_mean.item() == geometry.cosine_max.item() == -1
    assert geometry.norm_ratio.item() == geometry.norm_ratio_model.item() == 1


def test_several_sinks():
    """Norms are averaged over the sinks; the tail is everything else."""
    sinks = [0, 2]
    made = problem(queries=9, available=causal(9)[None], seed=16)
    geometry = sink_geometry(*made.tensors, available=made.available, sink=sinks)
    expected = literal.sink_geometry(*made.tensors, available=made.available, sink=sinks)
    fields = ["sink_norm", "other_norm", "norm_ratio", "cosine_mean"]
    fields += [f"{field}_model" for field in fields] + [f"tail_spearman_{name}" for name in FACTORS]
    for field in fields:
        values = expected[field]
        assert_same(getattr(geometry, field), values, 1e-5 * (1 + np.abs(values)))


def test_hidden_sinks_and_undefined_rows_are_left_out():
    length = 8
    made = problem(batch=1, heads=1, kv_heads=1, queries=length, seed=12)
    pattern = softmax_pattern(made.pattern.log(), causal(length)[None])
    mask = causal(length)[None].clone()
    mask[:, 5:, 0] = False  # later queries do not see the sink
    pattern[0, 0, 2] = 0  # an undefined row
    expected = literal.sink_geometry(pattern, made.v, made.W_O, available=mask)
    actual = sink_geometry(pattern, made.v, made.W_O, available=mask)
    for field, values in expected.items():
        assert_same(getattr(actual, field), values, 1e-5 * (1 + np.abs(values)))
    shares = contribution_weights(pattern, made.v, made.W_O, available=mask)[0, 0, [1, 3, 4], 0]
    assert actual.negative_share.item() == pytest.approx((shares < 0).mean())


def test_nothing_to_compare_is_nan():
    one = problem(queries=1, available=causal(1)[None], seed=13)
    geometry = sink_geometry(*one.tensors, available=one.available)
    assert geometry.norm_ratio.isnan().all()
    assert geometry.cosine_mean.isnan().all()
    assert geometry.negative_share.isnan().all()
    assert geometry.sink_spearman_attention.isnan().all()
    tokens = torch.tensor([[True] * 6, [False] * 6])
    mask = padded(causal(6), tokens)
    made = problem(available=mask, seed=14)
    for values in vars(sink_geometry(*made.tensors, available=mask)).values():
        assert values[1].isnan().all()
    assert sink_rate(made.pattern, available=mask)[1].isnan().all()
    assert sink_metric(made.pattern, available=mask)[1].isnan().all()
    uniform = torch.full((1, 1, 4, 4), 0.25)
    constant = sink_geometry(uniform, torch.ones(1, 4, 1, 2), torch.eye(2)[None])
    assert constant.tail_spearman_attention.isnan().all()  # constant ranks have no correlation
    assert constant.norm_ratio.item() == pytest.approx(1)


def test_without_any_sink_there_is_no_cosine():
    made = problem(available=MASKS["causal, both: b q k"], seed=2)
    none = torch.zeros(2, 6, dtype=torch.bool)
    found = sink_geometry(*made.tensors, available=made.available, sink=none)
    for name in ("norm_ratio", "cosine_mean", "cosine_max"):
        for suffix in ("", "_model"):
            assert getattr(found, name + suffix).isnan().all(), name + suffix


@pytest.mark.parametrize("name", ["norm_ratio", "norm_ratio_model", "cosine_mean"])
def test_derivatives(name):
    """By finite differences: medians send them to the values that they are made of."""
    made = problem(queries=5, available=causal(5)[None], batch=1, seed=6).to(torch.float64)
    v = made.v.clone().requires_grad_()

    def run(v):
        return getattr(sink_geometry(made.pattern, v, made.W_O, available=made.available), name)

    assert torch.autograd.gradcheck(run, (v,))
