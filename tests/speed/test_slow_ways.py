"""The slow ways of the benchmarks give the same numbers as the package, so that comparing their speed is fair."""

from __future__ import annotations

import pytest
import torch
from analysis_data.reference import record, soften, tokens

import tl_geometry as tlg
from benchmarks.slow_ways import (
    cached_contributions,
    contributions_of_layer,
    norm_analysis,
    value_zeroing,
)
from tl_geometry.hooks import attention_sites

pytestmark = pytest.mark.hooked


@pytest.fixture
def model(tiny_hooked):
    return soften(tiny_hooked(dtype=torch.float64))


@pytest.fixture
def layer(model):
    return record(model, tokens(2, 13))[1]


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_matrices_and_factors_by_einsum(layer):
    slow = contributions_of_layer(layer.pattern, layer.v, layer.W_O)
    inputs = layer.pattern, layer.v, layer.W_O
    for mode in ("intra", "inter"):
        close(tlg.contribution_weights(*inputs, mode=mode), slow[mode])
    factors = tlg.contribution_factors(*inputs)
    close(factors.relative_norm, slow["relative_norm"])
    close(factors.cosine, slow["cosine"])


def test_reduced_per_head_from_a_cache(model):
    ids = tokens(3, 17)
    probe = tlg.Probe(model, [tlg.Contributions()])
    model.run_with_hooks(ids, fwd_hooks=probe.hooks())
    ours, slow = probe.result(), cached_contributions(model, ids)
    assert set(slow) == {
        name for name in ours.data_vars if name != "undefined_rows" and not name.endswith("_se")
    }
    for name, values in slow.items():
        close(torch.from_numpy(ours[name].values), values)


def test_norms_of_weighted_vectors(layer):
    inputs = layer.pattern, layer.v, layer.W_O
    close(tlg.value_weighted_attention(*inputs), norm_analysis(*inputs))


@pytest.mark.parametrize("n_layers", [None, 1])
@pytest.mark.parametrize("at_once", [1, 3])
def test_value_zeroing_is_masking_a_token(model, n_layers, at_once):
    ids = tokens(1, 11)
    sites = attention_sites(model)[:n_layers]
    positions = [0, 4, 7, 10]
    found = value_zeroing(model, ids, positions, layers=sites, at_once=at_once)
    _, intact = model.run_with_cache(ids)
    labels = [site.layer for site in sites]
    for position, distance in zip(positions, found, strict=True):
        with model.hooks(fwd_hooks=tlg.mask_tokens(model, [position], layers=labels)):
            _, masked = model.run_with_cache(ids)
        ours = 1 - torch.cosine_similarity(masked["resid_post", 1], intact["resid_post", 1], dim=-1)
        close(ours[0], distance)
    assert (found[1][4:] > 1e-4).all()
    assert found[1][:4].abs().max() < 1e-12  # earlier tokens can't see it


def test_value_zeroing_of_one_layer_in_closed_form(tiny_hooked):
    """With nothing behind the attention, zeroing takes out one term: contributions say how much of the output."""
    model = soften(tiny_hooked(n_layers=1, attn_only=True, dtype=torch.float64))
    ids, j = tokens(1, 9), 3
    _, cache = model.run_with_cache(ids)
    pattern, v, W_O = cache["pattern", 0], cache["v", 0], model.blocks[0].attn.W_O
    v = v.repeat_interleave(2, 2)
    term = torch.einsum("hq,hd,hdm->qm", pattern[0, :, :, j], v[0, j], W_O)
    after = cache["resid_post", 0][0]
    expected = 1 - torch.cosine_similarity(after - term, after, dim=-1)
    close(value_zeroing(model, ids, [j])[0], expected)

    output = cache["attn_out", 0][0] - model.blocks[0].attn.b_O
    lost = (term * output).sum(-1) / output.square().sum(-1)
    c = tlg.contribution_weights(pattern, cache["v", 0], W_O, mode="inter")
    close(c[0, :, :, j].sum(0), lost)
