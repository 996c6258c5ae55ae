"""Whole models in half precision and in autocast regions: nothing infinite, sums within what the contract allows."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from analysis_data.reference import soften, tokens

from tl_geometry import Probe, analyze, doctor, prompt_contributions
from tl_geometry.analysis.defaults import default_measures

HALVES = (torch.float16, torch.bfloat16)
IDS = tokens(3, 20)
half = pytest.mark.parametrize("dtype", HALVES, ids=str)


@pytest.fixture
def build(backend, request):
    return lambda **options: soften(request.getfixturevalue(f"tiny_{backend}")(**options))


def everything(model):
    return analyze(model, IDS, top_n=(1, 2, 4), progress=False)


def assert_alike(found, exact, share):
    """The same NaN, nothing infinite, and shares, angles and ratios as far as rounded activations go."""
    assert set(found.data_vars) == set(exact.data_vars)
    for name in exact.data_vars:
        one, other = found[name].values, exact[name].values
        if one.dtype.kind in "US":
            continue
        assert not np.isinf(one).any(), name
        if "bin" not in str(exact[name].dims) and not name.endswith("_se"):
            assert (np.isnan(one) == np.isnan(other)).all(), name
    for name in ("sink_rate", "contribution_sink", "contribution_self", "sink_cosine",
                 "contribution_cosine", "cone_tightness", "mixing_ratio", "similarity_out",
                 "diagonal_attention", "self_share", "output_norm_ratio"):  # fmt: skip
        difference = abs(found[name].values - exact[name].values)
        assert np.nanmax(difference) < share, name


def assert_sums(model, limit):
    for mode, axes in (("intra", ("key",)), ("inter", ("head", "key"))):
        c = prompt_contributions(model, IDS[0], mode=mode)
        assert bool((abs(c.sum(axes) - 1) <= limit * (1 + abs(c).sum(axes))).all()), mode


@half
def test_models_in_half_precision(build, dtype):
    exact, rounded = build(dtype=torch.float64), build(dtype=dtype)
    for target, source in zip(exact.parameters(), rounded.parameters(), strict=True):
        target.data.copy_(source.data)
    assert doctor(rounded).ok
    assert_alike(everything(rounded), everything(exact), 0.06)
    assert_sums(rounded, 1e-3)


@half
def test_autocast_regions(build, dtype):
    """The model rounds its own activations there; what is measured of them is not rounded again."""
    model = build()
    exact = everything(model)
    with torch.autocast("cpu", dtype=dtype):
        found = everything(model)
        assert doctor(model).ok
        assert_sums(model, 1e-3)
    assert_alike(found, exact, 0.06)


@half
def test_the_region_does_not_matter_for_what_is_read(build, dtype):
    """The same activations, read inside of a region and outside: to the last bit."""
    model = build()
    _, cache = model.run_with_cache(IDS)
    results = []
    for enabled in (False, True):
        probe = Probe(model, default_measures())
        with torch.autocast("cpu", dtype=dtype, enabled=enabled):
            probe.read(cache)
        results.append(probe.result())
    outside, inside = results
    for name in outside.data_vars:
        assert (inside[name] == outside[name]).where(outside[name].notnull(), True).all(), name


def test_single_precision_sums(build):
    assert_sums(build(), 1e-5)
    assert_sums(build(dtype=torch.float64), 1e-12)


@pytest.mark.parametrize("power", [-15, 15])
def test_values_and_weights_at_any_scale(build, power):
    """Values 10^15 times as long, or as short: ratios, angles and shares of the whole corpus stay."""
    from tl_geometry.hooks import attention_sites

    model = build()
    names = ["contributions", "regimes", "sinks", "separability", "switches"]
    usual = analyze(model, IDS, names, top_n=(2,), queries=8, layers=[0], progress=False)
    site = attention_sites(model)[0]

    def scaled(v, hook):
        return v * 10.0**power

    probe = Probe(model, names[:3] + names[4:], layers=[0])
    hooks = [(site.v_hook, scaled), *probe.hooks()]
    model.run_with_hooks(IDS, fwd_hooks=hooks, stop_at_layer=1)
    found = probe.result()
    lengths = {name for name in found.data_vars if "norm" in name and "ratio" not in name}
    for name in set(found.data_vars) - lengths:
        if found[name].dtype.kind in "US":
            assert found[name].values.tolist() == usual[name].values.tolist(), name
        elif name != "contribution_relative_norm" and not name.startswith("norm_by"):
            np.testing.assert_allclose(
                found[name].values, usual[name].values, rtol=1e-4, atol=1e-4, err_msg=name
            )
    for name in ("output_norm", "sink_norm", "other_norm_model"):
        np.testing.assert_allclose(
            found[name].values / 10.0**power, usual[name].values, rtol=1e-5, err_msg=name
        )


def test_contribution_weights_backpropagate_through_a_model(build):
    """The derivative of a contribution weight by the queries' weights, against a difference quotient."""
    from tl_geometry import contribution_weights
    from tl_geometry.hooks import attention_sites

    model = build(dtype=torch.float64)
    site = attention_sites(model)[1]
    name, weight = next((n, p) for n, p in model.named_parameters() if "W_Q" in n or "q_proj" in n)
    assert weight.requires_grad, name

    def weights():
        seen = {}

        def keep(x, hook, kind):
            seen[kind] = x

        hooks = [
            (getattr(site, f"{kind}_hook"), partial(keep, kind=kind)) for kind in ("pattern", "v")
        ]
        model.run_with_hooks(IDS, fwd_hooks=hooks)
        return contribution_weights(seen["pattern"], seen["v"], site.W_O)[:, 1, 12, 3].sum()

    direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)).double()
    (gradient,) = torch.autograd.grad(weights(), weight)
    ends = []
    with torch.no_grad():
        for step in (1e-3, -2e-3):
            weight.add_(step * direction)
            ends.append(float(weights()))
        weight.add_(1e-3 * direction)
    slope = float((gradient * direction).sum())
    assert abs(slope) > 1e-4
    # Hugging Face computes the softmax in float32 whatever the data type.
    assert (ends[0] - ends[1]) / 2e-3 == pytest.approx(slope, rel=1e-3)
