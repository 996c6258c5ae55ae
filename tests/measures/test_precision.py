"""Any precision and any scale: half precision, autocast, factors of 1e20, and outputs that are zero."""

from __future__ import annotations

import itertools

import pytest
import torch
from measures.every import CALLS, LAYER, MASKED, tensors_of

from tl_geometry import measures

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32, torch.float64)
every_measure = pytest.mark.parametrize("name", CALLS)


def converted(call, dtype):
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in call.tensors.items()}


def assert_close(found, expected, tolerance, what=""):
    torch.testing.assert_close(
        found.double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True,
        msg=lambda text: f"{what}: {text}",
    )  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@every_measure
def test_results_are_those_of_double_precision(name, dtype):
    """What is given in half precision is computed in float32: only the inputs are rounded."""
    call = CALLS[name]
    given = converted(call, dtype)
    expected = tensors_of(
        call(**{k: x.double() if x.is_floating_point() else x for k, x in given.items()})
    )
    found = tensors_of(call(**given))
    assert set(found) == set(expected)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    for field, x in found.items():
        if (
            name != "inversion_bounds"
            and x.is_floating_point()
            and expected[field].dtype != x.dtype
        ):
            assert x.dtype == wide, field
        tolerance = 1e-2 if name == "inversion_bounds" and dtype in HALVES else 1e-4
        size = max(1.0, float(expected[field].double().nan_to_num().abs().max()))
        assert_close(x.double() / size, expected[field].double() / size, tolerance, field)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@every_measure
def test_autocast_regions_round_nothing(name, dtype):
    call = CALLS[name]
    outside = tensors_of(call())
    with torch.autocast("cpu", dtype=dtype):
        inside = tensors_of(call())
    for field, x in inside.items():
        assert x.dtype == outside[field].dtype, field
        assert torch.equal(x.nan_to_num(7), outside[field].nan_to_num(7)), field


# -- scales ------------------------------------------------------------------------------------------

# How fields grow with v and with W_O; all others don't.
LENGTHS = {
    "value_weighted_attention": {"0": (1, 1)},
    "sink_geometry": {
        "sink_norm": (1, 0),
        "other_norm": (1, 0),
        "sink_norm_model": (1, 1),
        "other_norm_model": (1, 1),
    },
    "sink_norm_curve": {
        "norm": (1, 1),
        "minimal_norm": (1, 1),
        "sink_length": (1, 1),
        "rest_length": (1, 1),
        "curvature": (2, 2),
        "inner": (2, 2),
    },
    "semantic_alignment": {"norm": (1, 1), "norm_no_sink": (1, 1)},
    "separability": {"margin": (1, 1)},
}
LAYER_MEASURES = [name for name, call in CALLS.items() if "v" in call.tensors]


@pytest.mark.parametrize(
    "powers", [p for p in itertools.product((-20, 0, 20), repeat=2) if any(p)], ids=str
)
@pytest.mark.parametrize("name", LAYER_MEASURES)
def test_tiny_and_huge_values_and_weights(name, powers):
    """Ratios, angles and shares don't change; lengths grow as they should wherever float32 can hold them."""
    call = CALLS[name]
    exact = converted(call, torch.float64)
    v_factor, w_factor = (10.0**power for power in powers)
    given = {"v": exact["v"] * v_factor, "W_O": exact["W_O"] * w_factor}
    if "b_V" in exact:
        given["b_V"] = exact["b_V"] * v_factor
    given = {key: x.float() for key, x in given.items()}
    expected, found = tensors_of(call(**exact)), tensors_of(call(**given))
    for field, x in found.items():
        in_v, in_w = LENGTHS.get(name, {}).get(field, (0, 0))
        power = in_v * powers[0] + in_w * powers[1]
        reference = expected[field]
        assert not x.isinf().any(), field
        if not x.is_floating_point():
            assert torch.equal(x, reference), field
            continue
        if power > 30 and x.dtype == torch.float32:  # what float32 can't hold is NaN
            reference = torch.where(x.isnan(), torch.nan, reference)
        if power < -30 and x.dtype == torch.float32:
            assert bool((x.nan_to_num().abs() < 1e-37).all()), field
            continue
        x = x.double() / 10.0**power
        size = max(1.0, float(reference.double().nan_to_num().abs().max()))
        assert_close(x.double() / size, reference.double() / size, 2e-5, field)


@pytest.mark.parametrize("power", [-20, 20])
def test_tiny_and_huge_tokens(power):
    factor = 10.0**power
    x, mask = CALLS["token_similarity"].tensors.values()
    for measure in (measures.token_similarity, measures.relative_residual):
        assert_close(measure((x.double() * factor).float(), mask), measure(x, mask), 1e-6)
    usual, found = (vars(measures.halfspace_margins(y, mask=mask)) for y in (x, x * factor))
    for field, value in usual.items():
        by = factor if "margin" in field or field == "longest" else 1
        assert_close(found[field].double() / by, value, 1e-5, field)
    costs = [measures.representation_cost(y, "sink").cost for y in (x[1], x[1].double() * factor)]
    assert costs[1] * factor**2 == pytest.approx(costs[0], rel=1e-5)
    costs = [
        measures.cost_scaling((2, 4), tokens=y, seeds=(0,)).diagonal
        for y in (x[1].double(), x[1].double() * factor)
    ]
    assert_close(costs[1] * factor**2, costs[0], 1e-5)


@pytest.mark.parametrize("power", [-15, 15])
def test_tiny_and_huge_moments(power):
    call = CALLS["one_step_similarity"]
    factor = 10.0**power
    scaled = {
        name: x * (1 if name == "W" else factor if name.endswith("mean") else factor**2)
        for name, x in call.tensors.items()
    }
    assert_close(call(**scaled)["0"], call()["0"], 1e-6)


# -- nothing to divide by ----------------------------------------------------------------------------

UNDEFINED = {
    "contribution_weights": ["0"],
    "contribution_factors": ["attention", "relative_norm", "cosine"],
    "suppression": ["0"],
    "importance": ["0"],
    "sink_geometry": ["norm_ratio", "cosine_mean", "cosine_max", "norm_ratio_model",
                      "cosine_mean_model", "cosine_max_model", "sink_spearman_attention",
                      "tail_spearman_cosine", "negative_share"],
    "sink_norm_curve": ["optimum", "optimum_unclipped", "sign_change"],
    "semantic_alignment": ["tightness", "alignment", "alignment_no_sink"],
    "dormant_heads": ["norm_ratio"],
    "mixing_ratio": ["0"],
    "switch_rates": ["off_rate", "sink_rate_off", "sink_rate_on"],
}  # fmt: skip


@pytest.mark.parametrize("zero", ["v", "W_O"])
@pytest.mark.parametrize("name", LAYER_MEASURES)
def test_zero_outputs_are_nan_never_infinite_and_never_a_quiet_zero(name, zero):
    call = CALLS[name]
    given = {zero: torch.zeros_like(call.tensors[zero])}
    if "b_V" in call.tensors and zero == "v":
        given["b_V"] = torch.zeros_like(call.tensors["b_V"])
    found = call(**given)
    for field, x in tensors_of(found).items():
        assert not x.isinf().any(), field
    in_head_space = ("norm_ratio", "cosine_mean", "cosine_max") if zero == "W_O" else ()
    for field in UNDEFINED.get(name, []):
        if field not in in_head_space or name != "sink_geometry":
            assert found[field].isnan().all(), field
    normalized = measures.value_weighted_attention(
        **{**MASKED, **given, "b_V": None}, normalized=True
    )
    assert normalized.isnan().all()


@pytest.mark.parametrize("mode", ["intra", "inter"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sums_are_one(dtype, mode):
    c = measures.contribution_weights(*(x.to(dtype) for x in LAYER.values()), mode=mode)
    axes = (-1,) if mode == "intra" else (1, 3)
    limit = (1e-3 if dtype in HALVES else 1e-5) * (1 + c.abs().sum(axes))
    assert bool(((c.sum(axes) - 1).abs() <= limit).all())
