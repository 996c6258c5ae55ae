"""What must hold for any input: sums, gradients, invariances, undefined rows, extreme scales."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st
from literal import contributions as literal
from literal.masks import all_masks, available_mask, causal, padded, token_mask, windowed
from literal.problems import assert_same, problem, row_tolerance

from tl_geometry.measures.contributions import (
    contribution_factors,
    contribution_weights,
    importance,
    suppression,
    value_weighted_attention,
)
from tl_geometry.measures.regimes import head_regimes, source_winners
from tl_geometry.measures.sinks import sink_geometry, sink_metric, sink_rate

MODES = ("intra", "inter")
MASKS = all_masks(batch=2, heads=4, length=6)
mode_of = pytest.mark.parametrize("mode", MODES)
fast_profile = settings(deadline=None, derandomize=True, max_examples=30)

# All measures on (pattern, v, W_O), their results as named tensors.
MEASURES = {
    "weights": lambda p, v, W, **kw: {"": contribution_weights(p, v, W, **kw)},
    "inter": lambda p, v, W, **kw: {"": contribution_weights(p, v, W, mode="inter", **kw)},
    "factors": lambda p, v, W, **kw: vars(contribution_factors(p, v, W, **kw)),
    "value_weighted": lambda p, v, W, **kw: {"": value_weighted_attention(p, v, W, **kw)},
    "suppression": lambda p, v, W, **kw: {"": suppression(p, v, W, **kw)},
    "importance": lambda p, v, W, **kw: {"": importance(p, v, W, absolute=True, **kw)},
    "winners": lambda p, v, W, **kw: vars(source_winners(p, v, W, **kw)),
    "winners_model": lambda p, v, W, **kw: vars(source_winners(p, v, W, space="model", **kw)),
    "sink_rate": lambda p, *_, **kw: {"": sink_rate(p, **kw)},
    "sink_metric": lambda p, *_, **kw: {"": sink_metric(p, **kw)},
    "sink_geometry": lambda p, v, W, **kw: vars(sink_geometry(p, v, W, **kw)),
}
measure_of = pytest.mark.parametrize("name", MEASURES)


def close(actual, expected, tolerance=1e-5):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@st.composite
def layers(draw, dtypes=(torch.float64,)):
    """A random layer under a random mask."""
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    batch, queries = draw(st.integers(1, 3)), draw(st.integers(1, 7))
    kind = draw(st.sampled_from(["causal", "full", "window", "rectangular", "random", "heads"]))
    keys = draw(st.integers(1, 7)) if kind == "rectangular" else queries
    heads, seed = kv_heads * group, draw(st.integers(0, 2**16))
    shape = (batch, heads, queries, keys) if kind == "heads" else (batch, queries, keys)
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    if kind == "heads":  # padding queries are the same for all heads
        mask |= mask.any(1, keepdim=True) & ~mask.any(-1, keepdim=True)
    base = {"causal": causal(queries), "window": windowed(queries, 2)}
    if kind in ("causal", "full", "window"):
        tokens = torch.tensor(
            draw(st.lists(st.booleans(), min_size=batch * queries, max_size=batch * queries))
        ).view(batch, queries)
        mask = padded(base.get(kind, torch.ones(queries, queries, dtype=torch.bool)), tokens)
    return problem(
        available=mask,
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        queries=queries,
        keys=keys,
        d_head=draw(st.integers(1, 4)),
        d_model=draw(st.integers(1, 5)),
        sharpness=draw(st.sampled_from([0.1, 1.0, 20.0])),
        dtype=draw(st.sampled_from(dtypes)),
        seed=seed,
    )


@fast_profile
@given(layers(), st.sampled_from(MODES))
def test_weights_equal_the_literal_definition(made, mode):
    expected = literal.contribution_weights(*made.tensors, mode=mode, available=made.available)
    actual = contribution_weights(*made.tensors, mode=mode, available=made.available)
    # Ill-conditioned rows amplify rounding by the square of sum_j alpha_j |v~_j| / |o|.
    normalized = literal.value_weighted_attention(
        *made.tensors, normalized=True, mode=mode, available=made.available
    )
    condition = row_tolerance(normalized, mode, 1) ** 2
    assert_same(actual, expected, 1e-13 * condition)


@fast_profile
@given(
    layers((torch.float32, torch.float64, torch.bfloat16, torch.float16)), st.sampled_from(MODES)
)
def test_weights_sum_to_one_and_are_the_product_of_their_factors(made, mode):
    half = made.v.dtype in (torch.bfloat16, torch.float16)
    weights = contribution_weights(*made.tensors, mode=mode, available=made.available)
    assert not weights.isinf().any()
    axes = (3,) if mode == "intra" else (1, 3)
    total, size = weights.sum(axes), 1 + weights.abs().sum(axes)
    defined = ~total.isnan()
    error = (total - 1).abs()[defined] / size[defined]
    assert (error <= (1e-3 if half else 1e-5)).all(), error.max()
    factors = contribution_factors(*made.tensors, mode=mode, available=made.available)
    product = factors.attention * factors.relative_norm * factors.cosine
    mask = torch.from_numpy(available_mask(made.pattern, made.available))
    empty = ~mask.any(-1)
    assert weights[empty].isnan().all()
    assert (weights[~mask & ~weights.isnan().any(-1, keepdim=True)] == 0).all()
    assert_same(product, weights.double(), row_tolerance(weights.double().numpy(), mode))


@fast_profile
@given(layers((torch.float32, torch.float64)), st.sampled_from(MODES), st.randoms())
def test_invariances(made, mode, random):
    pattern, v, W_O = made.to(torch.float64).tensors
    options = {"available": made.available, "mode": mode}
    weights = contribution_weights(pattern, v, W_O, **options)
    bound = row_tolerance(weights.numpy(), mode, 1e-9) ** 2 * 1e9
    for factor in (-3.7, 1e-3):
        assert_same(contribution_weights(pattern, v, factor * W_O, **options), weights, bound)
    generator = torch.Generator().manual_seed(random.randrange(2**16))
    square = torch.randn(2 * [W_O.shape[-1]], generator=generator, dtype=torch.float64)
    rotation = torch.linalg.qr(square).Q
    assert_same(contribution_weights(pattern, v, W_O @ rotation, **options), weights, bound)
    copies = v.repeat_interleave(W_O.shape[0] // v.shape[2], 2)
    assert_same(contribution_weights(pattern, copies, W_O, **options), weights, bound)
    order = torch.randperm(W_O.shape[0], generator=generator)
    mask = made.available[:, order] if made.available.ndim == 4 else made.available
    permuted = contribution_weights(
        pattern[:, order], copies[:, :, order], W_O[order], available=mask, mode=mode
    )
    assert_same(permuted, weights[:, order], bound if mode == "inter" else bound[:, order])


@mode_of
@pytest.mark.parametrize("null_logit", [False, True], ids=["softmax", "null sink"])
def test_gradient_identity(mode, null_logit):
    mask = MASKS["causal, both: b q k"]
    made = problem(seed=1)
    logits = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(2))
    logits.requires_grad_()
    masked = logits.masked_fill(~mask[:, None], -1e4)
    if null_logit:  # rows sum to less than 1, as with a learned null sink
        masked = torch.cat([masked, torch.zeros_like(masked[..., :1])], -1)
    pattern = masked.softmax(-1)[..., :6]
    z = torch.einsum("bhqk,bkhd->bqhd", pattern, made.v.repeat_interleave(2, 2))
    outputs = torch.einsum("bqhd,hdm->bhqm", z, made.W_O)
    outputs = outputs.sum(1) if mode == "inter" else outputs
    real = mask.any(-1)
    logs = outputs.norm(dim=-1).log()
    kept = logs[real] if mode == "inter" else logs.transpose(1, 2)[real]
    (gradient,) = torch.autograd.grad(kept.sum(), logits)
    tensors = (pattern.detach(), made.v, made.W_O)
    weights = contribution_weights(*tensors, mode=mode, available=mask)
    identity = weights - tensors[0] * weights.sum(-1, keepdim=True)
    suppressed = suppression(*tensors, mode=mode, available=mask)
    rows = real[:, None].expand(-1, 4, -1)
    assert gradient[rows].abs().max() > 0.1
    close(gradient[rows], identity[rows], 1e-4)
    close(-gradient[rows], suppressed[rows], 1e-4)
    assert suppressed[~rows].isnan().all()


@measure_of
@pytest.mark.parametrize("masked", [True, False])
def test_inputs_are_never_modified(name, masked):
    made = problem(available=MASKS["causal, left: b q k"], seed=4)
    kept = [x.clone() for x in (*made.tensors, made.available)]
    # Without a mask the measures work on the caller's own pattern.
    MEASURES[name](*made.tensors, available=made.available if masked else None)
    for before, after in zip(kept, (*made.tensors, made.available), strict=True):
        assert torch.equal(before, after)


@measure_of
def test_memory_layout_does_not_matter(name):
    made = problem(available=MASKS["causal, left: b q k"], seed=4)
    usual = MEASURES[name](*made.tensors, available=made.available)
    strided = [x.transpose(0, -1).contiguous().transpose(0, -1) for x in made.tensors]
    strided[1] = made.v.repeat_interleave(2, -1)[..., ::2]
    assert not any(x.is_contiguous() for x in strided)
    for field, values in MEASURES[name](*strided, available=made.available.mT.clone().mT).items():
        close(values, usual[field])


@measure_of
def test_a_batch_equals_its_rows(name):
    made = problem(batch=4, available=padded(causal(6), token_mask("left", 4, 6)), seed=5)
    made.v[1] *= 1e18
    made.v[2] *= 1e-18
    together = MEASURES[name](*made.tensors, available=made.available)
    for b in range(4):
        row = slice(b, b + 1)
        alone = MEASURES[name](
            made.pattern[row], made.v[row], made.W_O, available=made.available[row]
        )
        for field, values in together.items():
            close(values[row], alone[field])


@measure_of
@pytest.mark.parametrize("side", ["left", "right", "both", "gaps"])
def test_padding_changes_nothing_on_real_tokens(name, side):
    tokens = token_mask(side, 2, 8)
    mask = padded(causal(8), tokens)
    made = problem(queries=8, available=mask, seed=6)
    garbage = ~tokens[..., None, None]
    made.v.copy_(torch.where(garbage, 1e6, made.v))
    full = MEASURES[name](*made.tensors, available=mask)
    for b, places in enumerate(t.nonzero()[:, 0] for t in tokens):
        pattern = made.pattern[b : b + 1, :, places][..., places]
        alone = MEASURES[name](
            pattern, made.v[b : b + 1, places], made.W_O, available=causal(len(places))[None]
        )
        for field, values in alone.items():
            axes = {"winners": 1, "winners_model": 1, "sink_rate": 1, "sink_metric": 1}
            n_axes = axes.get(name, 0 if name == "sink_geometry" else 2)
            padded_values = full[field][b : b + 1]
            for axis in range(2, 2 + n_axes):
                padded_values = padded_values.index_select(axis, places)
            if field == "position":  # positions count padding too
                values = torch.where(values >= 0, places[values.clamp(min=0)], values)
            close(padded_values, values)


@fast_profile
@given(layers(), st.sampled_from(("head", "model")))
def test_shares_of_regimes_sum_to_one(made, space):
    square = made.pattern.shape[2] == made.pattern.shape[3]
    regimes = head_regimes(
        *made.tensors,
        space=space,
        available=made.available,
        cross=not square,
    )
    shares = torch.stack([regimes.self_share, regimes.sink_share, regimes.other_share])
    counted = regimes.rows > 0
    close(shares.sum(0)[counted], torch.ones_like(shares[0][counted]))
    assert all((label != "") == bool(n) for label, n in zip(regimes.labels, counted, strict=True))


@fast_profile
@given(layers())
def test_all_sinks_together_receive_every_row(made):
    everything = torch.ones(made.v.shape[:2], dtype=torch.bool)
    rate = sink_rate(made.pattern, available=made.available, sink=everything)
    mask = torch.from_numpy(available_mask(made.pattern, made.available)).any(-1)
    assert rate[~mask].isnan().all()
    close(rate[mask], torch.ones_like(rate[mask]))
