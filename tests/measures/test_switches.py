"""Switch rates, mixing ratios and logit margins against literal forms, and where they are undefined."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from literal import switches as literal
from literal.masks import all_masks, causal, padded, token_mask, windowed
from literal.problems import Problem, assert_same, problem, softmax_pattern, without_shape_checks

from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.mixing import mixing_ratio, row_rests
from tl_geometry.measures.sink_margin import log_leads, sink_logit_margin
from tl_geometry.measures.sinks import sink_rate
from tl_geometry.measures.switches import FRACTIONS, switch_rates

MASKS = all_masks(batch=2, heads=4, length=6)
SINKS = ["first", 1, [0, 2]]
LEVELS = (0.3, 0.6, 1.0)  # of random rows some are below each
every_mask = pytest.mark.parametrize("name", MASKS)
every_sink = pytest.mark.parametrize("sink", SINKS, ids=str)


def assert_rates(found, expected, tolerance=1e-5):
    assert set(vars(found)) == set(expected) | {"fractions"}
    for name, values in expected.items():
        assert_same(getattr(found, name), values, tolerance)


# -- the mixing ratio --------------------------------------------------------------------------------


@pytest.mark.parametrize("without_sink", [False, True])
@every_sink
@every_mask
def test_mixing_under_every_mask(name, sink, without_sink):
    made = problem(available=MASKS[name], seed=1)
    options = {"available": made.available, "sink": sink, "without_sink": without_sink}
    expected = literal.mixing_ratio(*made.tensors, **options)
    assert_same(mixing_ratio(*made.tensors, **options), expected, 1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"value_bias": "remove", "b_V": torch.full((2, 3), 0.7)},
        {"value_bias": "remove", "b_V": torch.full((4, 3), 0.7)},
        {"output": "normed", "norm_weight": torch.linspace(-1, 3, 7)},
    ],
    ids=["b_V", "b_V per head", "normed"],
)
def test_options(options):
    made = problem(available=MASKS["causal, left: b q k"], seed=2)
    shared = {"available": made.available, **options}
    plain = mixing_ratio(*made.tensors, available=made.available)
    for without_sink in (False, True):
        found = mixing_ratio(*made.tensors, without_sink=without_sink, **shared)
        expected = literal.mixing_ratio(*made.tensors, without_sink=without_sink, **shared)
        assert_same(found, expected, 1e-5)
    assert (found - plain).abs().nan_to_num().max() > 0.01
    rates = switch_rates(*made.tensors, fractions=LEVELS, **shared)
    assert_rates(rates, literal.switch_rates(*made.tensors, fractions=LEVELS, **shared))


def test_marked_sinks_of_each_head():
    marked = torch.rand(2, 4, 6, generator=torch.Generator().manual_seed(2)) < 0.4
    made = problem(available=MASKS["heads: b h q k"], seed=2)
    options = {"available": made.available, "sink": marked}
    for without_sink in (False, True):
        found = mixing_ratio(*made.tensors, without_sink=without_sink, **options)
        assert_same(
            found, literal.mixing_ratio(*made.tensors, without_sink=without_sink, **options)
        )
    rates = switch_rates(*made.tensors, fractions=LEVELS, **options)
    assert_rates(rates, literal.switch_rates(*made.tensors, fractions=LEVELS, **options))


def test_attention_across_has_no_own_token():
    for made, cross in ((problem(keys=4), False), (problem(), True)):
        assert mixing_ratio(*made.tensors, cross=cross).isnan().all()
        rates = switch_rates(*made.tensors, fractions=LEVELS, cross=cross)
        assert_rates(rates, literal.switch_rates(*made.tensors, fractions=LEVELS, cross=cross))
        assert rates.diagonal_attention.isnan().all()
        assert not rates.off_rate.isnan().any()


def test_weights_of_zero_and_one():
    """Exactly 0 and 1, with no rounding error of a subtraction."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        made = problem(queries=5, dtype=dtype)
        eye = torch.eye(5, dtype=dtype).expand(2, 4, 5, 5)
        assert (mixing_ratio(eye, made.v, made.W_O) == 0).all()
        sink = torch.zeros_like(eye)
        sink[..., 0] = 1
        found = mixing_ratio(sink, made.v, made.W_O)
        assert (found[:, :, 0] == 0).all()
        assert (found[:, :, 1:] == 1).all()
        without = mixing_ratio(sink, made.v, made.W_O, without_sink=True)
        assert (without[:, :, 0] == 0).all()
        assert without[:, :, 1:].isnan().all()  # nothing is left to compare


def test_values_of_zero():
    made = problem(available=causal(6)[None], seed=3)
    v = made.v.clone()
    v[:, 2:] = 0
    for without_sink in (False, True):
        found = mixing_ratio(made.pattern, v, made.W_O, without_sink=without_sink)
        expected = literal.mixing_ratio(made.pattern, v, made.W_O, without_sink=without_sink)
        assert_same(found, expected)
    assert (found[:, :, 2:] == 1).all()
    assert mixing_ratio(made.pattern, 0 * v, made.W_O).isnan().all()
    assert mixing_ratio(made.pattern, made.v, 0 * made.W_O).isnan().all()


@pytest.mark.parametrize("rest", [1e-3, 1e-7, 1e-12, 1e-25])
def test_what_the_sink_leaves_is_not_lost_beside_it(rest):
    """Of a row that gives the sink all but a little, the little is compared precisely."""
    made = problem(available=causal(6)[None], seed=4)
    pattern = made.pattern.double() * rest
    pattern[..., 0] = 0
    pattern[..., 0] = 1 - pattern.sum(-1)
    given = (pattern.float(), made.v, made.W_O)
    expected = literal.mixing_ratio(*given, without_sink=True)
    assert_same(mixing_ratio(*given, without_sink=True), expected, 1e-5)
    assert np.nanstd(expected) > 0.1


SCALES = [(1e-20, 1.0), (1e20, 1.0), (1e-20, 1e-20), (1e20, 1e-20), (1e15, 1e15)]


@pytest.mark.parametrize(("v_scale", "W_scale"), SCALES)
def test_extreme_scales(v_scale, W_scale):
    made = problem(available=MASKS["causal, right: b q k"], seed=5)
    scaled = (made.pattern, made.v * v_scale, made.W_O * W_scale)
    for without_sink in (False, True):
        options = {"without_sink": without_sink, "available": made.available}
        torch.testing.assert_close(
            mixing_ratio(*scaled, **options), mixing_ratio(*made.tensors, **options),
            equal_nan=True, rtol=1e-5, atol=1e-5,
        )  # fmt: skip
    options = {"fractions": LEVELS, "available": made.available}
    usual, found = switch_rates(*made.tensors, **options), switch_rates(*scaled, **options)
    for name in ("off_rate", "sink_rate_off", "sink_rate_on"):
        torch.testing.assert_close(getattr(found, name), getattr(usual, name), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_other_precisions(dtype):
    made = problem(available=causal(6)[None], seed=6).to(dtype)
    precise = dtype == torch.float64
    found = mixing_ratio(*made.tensors)
    assert found.dtype == (torch.float64 if precise else torch.float32)
    assert_same(found, literal.mixing_ratio(*made.tensors), 1e-12 if precise else 1e-5)
    rates = switch_rates(*made.tensors, fractions=LEVELS)
    assert_rates(rates, literal.switch_rates(*made.tensors, fractions=LEVELS), 1e-5)


def test_symmetries():
    """Scaling W_O, turning the residual stream, permuting heads, writing kv heads out."""
    made = problem(available=MASKS["causal, both: b q k"], seed=7)
    pattern, v, W_O = made.tensors
    rotation = torch.linalg.qr(torch.randn(7, 7, generator=torch.Generator().manual_seed(0))).Q
    order = [2, 3, 0, 1]
    options = {"available": made.available}
    for measure in (
        lambda *x: mixing_ratio(*x, **options),
        lambda *x: mixing_ratio(*x, without_sink=True, **options),
        lambda *x: switch_rates(*x, fractions=LEVELS, **options).off_rate,
    ):
        expected = measure(*made.tensors)
        for given in (
            (pattern, v, -3 * W_O),
            (pattern, v, W_O @ rotation),
            (pattern, v.repeat_interleave(2, 2), W_O),
        ):
            torch.testing.assert_close(measure(*given), expected, equal_nan=True)
        permuted = measure(pattern[:, order], v[:, :, [1, 0]], W_O[order])
        torch.testing.assert_close(permuted, expected[:, order], equal_nan=True)


@pytest.mark.parametrize("side", ["left", "right", "gaps"])
def test_padding_of_any_content_changes_nothing(side):
    tokens = token_mask(side, 2, 6)
    mask = padded(causal(6), tokens)
    made = problem(available=mask, seed=8)
    spoilt = Problem(
        torch.where(mask[:, None], made.pattern, torch.nan),
        torch.where(tokens[..., None, None], made.v, torch.nan),
        made.W_O,
        mask,
    )
    scores = made.pattern.log().masked_fill(~mask[:, None], torch.nan)
    for row in range(2):
        keep = tokens[row].nonzero().flatten()
        pattern = made.pattern[row : row + 1][:, :, keep][:, :, :, keep]
        alone = (pattern, made.v[row : row + 1, keep], made.W_O)
        for without_sink in (False, True):
            found = mixing_ratio(*spoilt.tensors, available=mask, without_sink=without_sink)
            expected = mixing_ratio(*alone, without_sink=without_sink)
            torch.testing.assert_close(found[row : row + 1][:, :, keep], expected)
            assert found[row][:, ~tokens[row]].isnan().all()
        rates = switch_rates(*spoilt.tensors, available=mask, fractions=LEVELS)
        expected_rates = switch_rates(*alone, fractions=LEVELS)
        for name in ("off_rate", "sink_rate_off", "sink_rate_on", "diagonal_attention"):
            torch.testing.assert_close(
                getattr(rates, name)[row], getattr(expected_rates, name)[0], equal_nan=True
            )
        for found, expected in zip(
            sink_logit_margin(scores, available=mask),
            sink_logit_margin(pattern.log()),
            strict=True,
        ):
            torch.testing.assert_close(found[row][:, keep], expected[0], equal_nan=True)


# -- switch rates ------------------------------------------------------------------------------------


@every_sink
@every_mask
def test_rates_under_every_mask(name, sink):
    made = problem(available=MASKS[name], seed=9)
    options = {"available": made.available, "sink": sink, "fractions": LEVELS}
    expected = literal.switch_rates(*made.tensors, **options)
    found = switch_rates(*made.tensors, **options)
    assert_rates(found, expected)
    assert found.fractions == LEVELS
    assert 0 < np.nanmean(expected["off_rate"]) < 1


def test_a_head_that_switches():
    """Rows 1 to 3 attend to a sink without a value, rows 4 to 7 to themselves."""
    sink_rows = torch.zeros(8, 8)
    sink_rows[:, 0] = 1
    pattern = torch.where(torch.arange(8)[:, None] < 4, sink_rows, torch.eye(8))[None, None]
    v = torch.ones(1, 8, 1, 2)
    v[:, 0] = 0
    rates = switch_rates(pattern, v, torch.ones(1, 2, 3))
    assert rates.fractions == FRACTIONS == (0.05, 0.1, 0.2, 0.3)
    torch.testing.assert_close(rates.off_rate, torch.full((1, 1, 4), 3 / 7))
    assert (rates.sink_rate_off == 1).all()
    assert (rates.sink_rate_on == 0).all()
    torch.testing.assert_close(rates.diagonal_attention, torch.full((1, 1), 4 / 7))


def test_a_row_whose_values_cancel_is_off():
    """Values that add to zero switch a head off without a sink."""
    pattern = torch.tensor([[[[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 1.0]]]])
    v = torch.tensor([1.0, 0.1, -0.1, 0.1]).view(1, 4, 1, 1)
    rates = switch_rates(pattern, v, torch.ones(1, 1, 1))
    torch.testing.assert_close(rates.off_rate, torch.full((1, 1, 4), 1 / 3))
    assert (rates.sink_rate_off == 0).all()


def test_rates_that_nothing_defines():
    made = problem(available=causal(6)[None], seed=10)
    silent = switch_rates(made.pattern, 0 * made.v, made.W_O)  # no length to compare with
    for name in ("off_rate", "sink_rate_off", "sink_rate_on"):
        assert getattr(silent, name).isnan().all()
    assert not silent.diagonal_attention.isnan().any()
    one = switch_rates(made.pattern[:, :, :1, :1], made.v[:, :1], made.W_O)
    for name in ("off_rate", "sink_rate_off", "sink_rate_on", "diagonal_attention"):
        assert getattr(one, name).isnan().all()
    always_on = switch_rates(*made.tensors, fractions=(1e-9,))
    assert (always_on.off_rate == 0).all()
    assert always_on.sink_rate_off.isnan().all()
    rate = sink_rate(made.pattern)[:, :, 1:].mean(-1, keepdim=True)
    torch.testing.assert_close(always_on.sink_rate_on, rate)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
@pytest.mark.parametrize("where", ["v", "pattern"])
def test_a_head_that_is_not_finite_is_neither_on_nor_off(where, wrong):
    made = problem(available=causal(6)[None], seed=10)
    usual = switch_rates(*made.tensors, fractions=LEVELS)
    pattern, v = made.pattern.clone(), made.v.clone()
    if where == "v":
        v[0, 3, 0] = wrong  # heads 0 and 1 read it
    else:
        pattern[0, :2, 3, 1] = wrong
    found = switch_rates(pattern, v, made.W_O, fractions=LEVELS)
    for name in ("off_rate", "sink_rate_off", "sink_rate_on"):
        values, expected = getattr(found, name), getattr(usual, name)
        assert values[0, :2].isnan().all()
        torch.testing.assert_close(values[0, 2:], expected[0, 2:], equal_nan=True)
        torch.testing.assert_close(values[1], expected[1], equal_nan=True)


def test_rows_behind_a_window_have_a_switch_and_no_sink_rate():
    made = problem(available=windowed(6, 2)[None], seed=11)
    found = switch_rates(*made.tensors, available=made.available, fractions=(1e9,))
    assert (found.off_rate == 1).all()
    torch.testing.assert_close(found.sink_rate_off[..., 0], made.pattern[:, :, 1, 0])


# -- logit margins -----------------------------------------------------------------------------------


def logits(mask=None, seed=0, length=6, spread=3.0):
    generator = torch.Generator().manual_seed(seed)
    scores = spread * torch.randn(2, 4, length, length, generator=generator, dtype=torch.float64)
    if mask is None:
        return scores
    full = mask if mask.ndim == 4 else mask[..., None, :, :]
    return scores.masked_fill(~full.broadcast_to(scores.shape), -torch.inf)


def assert_margins(found, expected, tolerance=1e-5):
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other, tolerance)


@every_sink
@every_mask
def test_margins_under_every_mask(name, sink):
    mask = MASKS[name]
    scores = logits(mask, seed=12)
    expected = literal.sink_logit_margin(scores, available=mask, sink=sink)
    found = sink_logit_margin(scores, available=mask, sink=sink)
    assert found[0].dtype == torch.float64
    assert_margins(found, expected, 1e-12)
    assert_margins(sink_logit_margin(scores, sink=sink), expected, 1e-12)  # masked scores tell it
    lowest = scores.nan_to_num(neginf=torch.finfo(torch.float64).min)
    assert_margins(sink_logit_margin(lowest, sink=sink), expected, 1e-12)
    unmasked = logits(seed=12)
    assert_margins(sink_logit_margin(unmasked, available=mask, sink=sink), expected, 1e-12)


@every_sink
@every_mask
def test_a_pattern_has_the_margins_of_its_scores(name, sink):
    mask = MASKS[name]
    scores = logits(mask, seed=13)
    pattern = softmax_pattern(logits(seed=13), mask)
    expected = literal.sink_logit_margin(scores, available=mask, sink=sink)
    found = sink_logit_margin(pattern.log(), available=mask, sink=sink)
    assert_margins(found, expected, 1e-10)
    made = problem(available=mask)
    geometry = AttentionGeometry(pattern.float(), made.v, made.W_O, available=mask, sink=sink)
    assert_margins(log_leads(geometry, row_rests(geometry)), expected, 1e-5)


def test_margins_with_a_null_sink():
    """Rows that sum to less than one: a common factor changes no difference."""
    pattern = softmax_pattern(logits(seed=14), causal(6)[None])
    usual = sink_logit_margin(pattern.log())
    assert_margins(sink_logit_margin((pattern / 7).log()), [x.numpy() for x in usual], 1e-10)


def test_the_largest_of_several_sinks_counts():
    scores = torch.tensor([[[[0.0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [1.0, 5.0, 2.0, 4.0]]]])
    smallest, mean = sink_logit_margin(scores, sink=[0, 1])
    assert smallest[0, 0, 3].item() == 1.0
    assert mean[0, 0, 3].item() == 2.0


def test_sinks_that_are_found():
    scores = logits(causal(40), seed=15, length=40, spread=0.1)
    scores[:, 0, :, 2] += 6  # one head has a sink at the third token, the others have none
    found = sink_logit_margin(scores.masked_fill(~causal(40), -torch.inf), sink="auto")
    expected = sink_logit_margin(scores.masked_fill(~causal(40), -torch.inf), sink=2)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one[:, 0, 3:], other[:, 0, 3:])
        assert not one[:, 0, 3:].isnan().any()
        assert one[:, 1:].isnan().all()


def test_weights_that_round_to_zero():
    """A competitor of weight 0 is left out; a lost sink, or no competitor left, is NaN."""
    weights = torch.tensor([0.75, 0.25, 0.0, 0.0])
    pattern = torch.stack([weights, weights.roll(1), weights.roll(2), torch.eye(4)[0]])[None, None]
    every = torch.ones(1, 4, 4, dtype=torch.bool)
    smallest, mean = sink_logit_margin(pattern.log(), available=every)
    lead = float(np.log(3))
    assert_same(smallest, [[[lead, np.nan, np.nan, np.nan]]], 1e-6)
    assert_same(mean, [[[lead, np.nan, np.nan, np.nan]]], 1e-6)
    made = problem(batch=1, heads=1, kv_heads=1, queries=4)
    geometry = AttentionGeometry(pattern, made.v, made.W_O, available=every)
    assert_margins(log_leads(geometry, row_rests(geometry)), (smallest, mean), 1e-6)


def test_underflow_leaves_the_smallest_and_bounds_the_mean():
    scores = logits(causal(30), seed=16, length=30, spread=40.0)
    exact = sink_logit_margin(scores)
    pattern = scores.softmax(-1).float()
    assert ((pattern == 0) & causal(30)).any()
    found = sink_logit_margin(pattern.log())
    # What is smaller than normal numbers is known to a few bits.
    known = ~found[0].isnan() & (pattern[..., 0] >= torch.finfo(torch.float32).tiny)
    assert known.float().mean() > 0.1
    torch.testing.assert_close(found[0][known].double(), exact[0][known], rtol=1e-5, atol=1e-4)
    assert (found[1][known] <= exact[1][known] + 1e-2).all()
    assert (found[1][known] < exact[1][known] - 1).any()
    made = problem(queries=30)
    geometry = AttentionGeometry(pattern, made.v, made.W_O)
    for one, other in zip(log_leads(geometry, row_rests(geometry)), found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4, equal_nan=True)


def test_a_logit_that_is_nan_is_not_masked():
    inf, nan = torch.inf, torch.nan
    scores = torch.tensor([[[[0, -inf, -inf], [1.0, 0, -inf], [3, nan, 1]]]])
    for options in ({}, {"available": causal(3)}):
        for found in sink_logit_margin(scores, **options):
            assert_same(found, [[[nan, 1, nan]]])
    scores[0, 0, 0, 1] = nan  # out of the row's sight
    assert_same(sink_logit_margin(scores, available=causal(3))[0], [[[nan, 1, nan]]])


def test_one_token_has_no_competitor():
    assert all(x.isnan().all() for x in sink_logit_margin(torch.zeros(1, 1, 1, 1)))


def test_half_precision_scores_are_compared_in_single():
    scores = logits(causal(6), seed=17).to(torch.bfloat16)
    found = sink_logit_margin(scores)
    assert found[0].dtype == torch.float32
    assert_margins(found, literal.sink_logit_margin(scores, available=causal(6)[None]), 1e-5)


# -- all of them -------------------------------------------------------------------------------------


def test_inputs_stay_and_autocast_does_not_round():
    made = problem(available=causal(6)[None], seed=18)
    copies = [x.clone() for x in made.tensors]
    outside = mixing_ratio(*made.tensors), switch_rates(*made.tensors).sink_rate_on
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = mixing_ratio(*made.tensors), switch_rates(*made.tensors).sink_rate_on
    for one, other in zip(outside, inside, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    for x, copy in zip(made.tensors, copies, strict=True):
        assert torch.equal(x, copy)
    x = made.v.clone().requires_grad_()
    assert not mixing_ratio(made.pattern, x, made.W_O).requires_grad


def test_wrong_arguments():
    made = problem()
    scores = logits()
    cases = [
        ("switches", "switch_rates", made.tensors, {"fractions": ()}, "fractions.*positive"),
        ("switches", "switch_rates", made.tensors, {"fractions": (0.1, 0.0)}, r"fractions.*0\.0"),
        ("switches", "switch_rates", made.tensors, {"sink": 9}, "sink names.*9"),
        ("mixing", "mixing_ratio", (made.pattern, made.v[:, :5], made.W_O), {}, "v has shape"),
        ("mixing", "mixing_ratio", made.tensors, {"value_bias": "remove"}, "needs b_V"),
        ("sink_margin", "sink_logit_margin", (scores[0],), {}, r"scores.*\(4, 6, 6\)"),
        ("sink_margin", "sink_logit_margin", (scores.long(),), {}, "scores.*int64"),
        ("sink_margin", "sink_logit_margin", (scores,), {"sink": 9}, "sink names.*9"),
        (
            "sink_margin", "sink_logit_margin", (scores,),
            {"available": torch.ones(3, 6, 6, dtype=torch.bool)}, r"available.*\(3, 6, 6\)",
        ),
    ]  # fmt: skip
    for module, name, given, options, message in cases:
        with (
            without_shape_checks(f"tl_geometry.measures.{module}") as plain,
            pytest.raises((ValueError, TypeError), match=message),
        ):
            getattr(plain, name)(*given, **options)
