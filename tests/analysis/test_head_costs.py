"""Norms of heads against the whole matrices, and their correlations against scipy."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
import xarray as xr
from scipy import stats
from zoo.architectures import build_bridge, build_hooked

from tl_geometry.analysis import load, save
from tl_geometry.analysis.head_costs import head_costs, value_output_norms
from tl_geometry.hooks import attention_sites

COSTS = ("qk_frobenius", "qk_nuclear", "vo_frobenius", "vo_nuclear")


def literal(site):
    """d_model x d_model matrices of each head, and their singular values."""
    rows = []
    for h in range(site.n_heads):
        kv = h // (site.n_heads // site.n_kv_heads)
        W_QK = site.W_Q[h].double() @ site.W_K[kv].double().T
        W_VO = site.W_V[kv].double() @ site.W_O[h].double()
        values = [np.linalg.svd(W.numpy(), compute_uv=False) for W in (W_QK, W_VO)]
        rows.append([n for s in values for n in (np.sqrt((s**2).sum()), s.sum())])
    return np.array(rows).T


def assert_norms(model, costs, rel=1e-5):
    for site in attention_sites(model):
        found = np.stack([costs[name].sel(layer=site.layer).values for name in COSTS])
        np.testing.assert_allclose(found[:, : site.n_heads], literal(site), rtol=rel)
        assert np.isnan(found[:, site.n_heads :]).all()


@pytest.mark.hooked
@pytest.mark.parametrize("arch", ["gpt2", "llama"])
def test_norms_of_hooked_transformers(arch):
    model = build_hooked(arch)
    costs = head_costs(model)
    assert_norms(model, costs)
    assert dict(costs.sizes) == {"layer": 2, "head": 4}
    assert all(costs[name].attrs["long_name"] for name in COSTS)


@pytest.mark.bridge
@pytest.mark.parametrize("arch", ["gpt2", "falcon", "bart"])
def test_norms_of_bridges(arch):
    model = build_bridge(arch)
    assert_norms(model, head_costs(model))


@pytest.mark.hooked
@pytest.mark.parametrize(("dtype", "rel"), [(torch.bfloat16, 1e-5), (torch.float64, 1e-12)])
def test_other_precisions(dtype, rel):
    model = build_hooked("llama").to(dtype)
    assert_norms(model, head_costs(model), rel)


@pytest.mark.hooked
def test_wide_heads_have_no_more_singular_values_than_the_model_dimensions():
    model = build_hooked("gpt2", n_heads=1, d_head=48)
    assert_norms(model, head_costs(model))


@pytest.mark.hooked
def test_the_nuclear_norm_is_the_least_mean_of_squared_factors():
    """Over W_Q M and W_K M^-T, which give the same scores: never less, and reached by balancing."""
    site = attention_sites(build_hooked("gpt2"))[0]
    W_Q, W_K = site.W_Q[0].double(), site.W_K[0].double()
    nuclear = literal(site)[1, 0]
    left, values, right = torch.linalg.svd(W_Q @ W_K.T)
    half = values[:8].sqrt()
    balanced = (left[:, :8] * half).square().sum() + (right[:8].T * half).square().sum()
    assert float(balanced) / 2 == pytest.approx(nuclear)
    assert float(W_Q.square().sum() + W_K.square().sum()) / 2 > nuclear


@pytest.mark.hooked
def test_value_output_norms_are_the_same_numbers():
    model = build_hooked("llama")
    costs = head_costs(model)
    for site in attention_sites(model):
        found = value_output_norms(site)
        np.testing.assert_allclose(found, costs.vo_frobenius.sel(layer=site.layer), rtol=1e-6)


# -- beside a result ---------------------------------------------------------------------------------


def result(layers=(0, 1), heads=4, seed=0, **variables):
    generator = np.random.default_rng(seed)
    names = variables.get("names", ("sink_rate", "diagonal_attention"))
    data = {n: (("layer", "head"), generator.random((len(layers), heads))) for n in names}
    coords = {"layer": list(layers), "head": np.arange(heads)}
    return xr.Dataset(data, coords=coords)


@pytest.mark.hooked
def test_correlations_are_spearmans_over_heads():
    model = build_hooked("llama", n_layers=3)
    ds = result(layers=(0, 1, 2))
    ds.sink_rate[1, 2] = np.nan
    costs = head_costs(model, ds, resamples=200)
    for attention in ("sink_rate", "diagonal_attention"):
        xr.testing.assert_identical(
            costs[attention].drop_vars("head"), ds[attention].drop_vars("head")
        )
        y = ds[attention].values.ravel()
        known = ~np.isnan(y)
        assert int(costs.heads.sel(attention=attention)) == known.sum()
        for name in COSTS:
            x = costs[name].values.ravel()
            expected = stats.spearmanr(x[known], y[known]).statistic
            at = {"cost": name, "attention": attention}
            assert float(costs.spearman.sel(at)) == pytest.approx(expected)
            assert costs.spearman_low.sel(at) <= expected <= costs.spearman_high.sel(at)


@pytest.mark.hooked
def test_heads_are_matched_by_their_labels():
    model, ds = build_hooked("llama"), result()
    costs = head_costs(model, ds, resamples=20)
    shuffled = head_costs(model, ds.isel(head=[3, 1, 2, 0], layer=[1, 0]), resamples=20)
    shuffled.attrs["created"] = costs.attrs["created"]
    xr.testing.assert_identical(shuffled, costs)
    with pytest.raises(ValueError, match=r"its heads are \[0, 1, 2, 2\]"):
        head_costs(model, ds.isel(head=[0, 1, 2, 2]))


@pytest.mark.hooked
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["O", "Q"])
def test_weights_that_are_not_finite_are_named(value, name):
    model = build_hooked("llama")
    with torch.no_grad():
        getattr(model.blocks[1].attn, f"W_{name}")[2, 3, 4] = value
    with pytest.raises(ValueError, match=f"layer 1, head 2: W_{name} holds NaN or infinite"):
        head_costs(model)
    assert head_costs(model, layers=0).sizes["layer"] == 1
    if name == "O":
        with pytest.raises(ValueError, match="layer 1, head 2: W_O holds NaN or infinite"):
            value_output_norms(attention_sites(model)[1])


@pytest.mark.hooked
def test_intervals_shrink_with_a_perfect_order_and_follow_the_seed():
    model = build_hooked("llama")
    ds = result()
    ds.sink_rate.values[:] = head_costs(model).qk_nuclear.values ** 3
    found = head_costs(model, ds, resamples=100).sel(cost="qk_nuclear", attention="sink_rate")
    for name in ("spearman", "spearman_low", "spearman_high"):
        assert float(found[name]) == pytest.approx(1)
    one, two, other = (
        head_costs(model, ds, resamples=50, seed=seed).spearman_low.values for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, two)
    assert (one != other).any()
    wide = head_costs(model, ds, resamples=50, confidence=0.99)
    narrow = head_costs(model, ds, resamples=50, confidence=0.5)
    reach = [ds.spearman_high - ds.spearman_low for ds in (wide, narrow)]
    assert (reach[0] >= reach[1]).all()


@pytest.mark.hooked
def test_one_variable_and_some_layers_will_do():
    model = build_hooked("llama", n_layers=3)
    costs = head_costs(model, result(layers=(2, 0), names=["sink_rate"]), layers=[0, 2])
    assert costs.layer.values.tolist() == [0, 2]
    expected = result(layers=(2, 0), names=["sink_rate"]).sink_rate
    np.testing.assert_array_equal(costs.sink_rate.sel(layer=2), expected.sel(layer=2))
    assert costs.attention.values.tolist() == ["sink_rate"]


@pytest.mark.hooked
def test_a_constant_has_no_rank_correlation():
    ds = result()
    ds.sink_rate[:] = 0.5
    found = head_costs(build_hooked("llama"), ds, resamples=20)
    assert np.isnan(found.spearman.sel(attention="sink_rate")).all()
    assert np.isnan(found.spearman_low.sel(attention="sink_rate")).all()
    assert not np.isnan(found.spearman.sel(attention="diagonal_attention")).any()


@pytest.mark.hooked
def test_a_result_can_be_saved(tmp_path):
    costs = head_costs(build_hooked("llama"), result(), resamples=20)
    xr.testing.assert_identical(load(save(costs, tmp_path / "costs.nc")), costs)
    assert costs.attrs["weight_processing"]["model_class"] == "HookedTransformer"


@pytest.mark.hooked
def test_wrong_results_are_refused():
    model = build_hooked("llama")
    with pytest.raises(TypeError, match=r"ds must be an xarray.Dataset, got dict"):
        inspect.unwrap(head_costs)(model, {})  # the tests' type checks would answer first
    with pytest.raises(ValueError, match="ds holds neither sink_rate nor diagonal_attention"):
        head_costs(model, result(names=["entropy"]))
    with pytest.raises(ValueError, match=r"lacks the layers \[1\]"):
        head_costs(model, result(layers=(0, 7)))
    with pytest.raises(
        ValueError, match=r"its heads are \[0, 1, 2\] \(those of the model \[0, 1, 2, 3\]\)"
    ):
        head_costs(model, result(heads=3))
    with pytest.raises(ValueError, match="resamples must be at least 1, got 0"):
        head_costs(model, resamples=0)
    for seed, words in ((-1, "at least 0, got -1"), (2**64, "less than")):
        with pytest.raises(ValueError, match=f"seed must be {words}"):
            head_costs(model, seed=seed)
    with pytest.raises(ValueError, match=r"confidence must lie between 0 and 1, got 1.5"):
        head_costs(model, confidence=1.5)


@pytest.mark.bridge
@pytest.mark.parametrize(
    ("arch", "words"), [("deepseek_v3", "no matrix W_Q"), ("qwen3_next", "W_Q has 64 outputs")]
)
def test_layers_without_plain_projections_are_refused(arch, words):
    with pytest.raises(ValueError, match=words):
        head_costs(build_bridge(arch))
