"""Every variable of a probe's result against a slow computation, and what must not change it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from analysis_data.reference import (
    assert_equal,
    assert_layer,
    document,
    numbers,
    over_documents,
    record,
    soften,
    tokens,
)
from zoo.architectures import build_bridge, build_hooked

from tl_geometry import Contributions, Probe, Regimes, Sinks

PADDING = {
    "none": [[1] * 19] * 3,
    "right": [[1] * 19, [1] * 11 + [0] * 8, [1] * 17 + [0] * 2],
    "left": [[0] * 6 + [1] * 13, [1] * 19, [0] * 1 + [1] * 18],
    "both": [[0, 0] + [1] * 15 + [0, 0], [0] + [1] * 18, [1] * 10 + [0] * 9],
    "gaps": [[1, 0, 0, *[1] * 16], [1] * 8 + [0] * 3 + [1] * 8, [1] * 17 + [0, 1]],
}


def three():
    return [Contributions(), Regimes(), Sinks(tail_queries=16)]


def padding(kind):
    return torch.tensor(PADDING[kind])


def expected(layers, mask, **options):
    """One dict of reference numbers per layer."""
    document_options = {k: options.pop(k) for k in ("causal", "window") if k in options}
    result = []
    for layer in layers:
        found = []
        for row in range(len(mask)):
            pattern, v, seen = document(layer, row, mask[row].bool(), **document_options)
            found.append(numbers(pattern, v, layer.W_O, seen, **options))
        result.append(over_documents(found))
    return result


def measured(model, ids, mask=None, **options):
    probe = Probe(model, three(), **options)
    arguments = {} if mask is None else {"attention_mask": mask}
    model.run_with_hooks(ids, fwd_hooks=probe.hooks(mask), **arguments)
    return probe.result()


@pytest.fixture
def factory(backend, request):
    """Small models of each class, with soft attention."""
    build = request.getfixturevalue(f"tiny_{backend}")
    return lambda **options: soften(build(**options))


def precise(model_or_backend, kind):
    """float64, but for bridges with padding on the left: their empty rows are NaN in float64."""
    if model_or_backend == "bridge" and kind in ("left", "both"):
        return torch.float32, 5e-5
    return torch.float64, 1e-6


@pytest.mark.parametrize("kind", PADDING)
def test_every_variable_equals_the_literal_computation(factory, backend, kind):
    dtype, tolerance = precise(backend, kind)
    model = factory(dtype=dtype)
    ids, mask = tokens(3, 19), padding(kind)
    ds = measured(model, ids, mask)
    layers = record(model, ids, attention_mask=mask)
    assert ds.layer.values.tolist() == [0, 1]
    assert ds["head"].values.tolist() == [0, 1, 2, 3]
    for label, values in enumerate(expected(layers, mask)):
        assert_layer(ds, label, values, tolerance)
    assert ds.attrs["documents"] == 3
    assert ds.attrs["tokens"] == ds.attrs["rows"] == int(mask.sum())


def test_single_precision_stays_close_to_the_literal_computation(factory):
    model = factory()
    ids, mask = tokens(3, 19), padding("left")
    ds = measured(model, ids, mask)
    for label, values in enumerate(expected(record(model, ids, attention_mask=mask), mask)):
        for name in ("contribution_sink", "contribution_negative", "contribution_inter",
                     "contribution_attention_distance", "contribution_cosine", "output_norm",
                     "sink_rate", "sink_norm_ratio_model", "output_self_cosine"):  # fmt: skip
            np.testing.assert_allclose(ds[name].values[label], values[name], rtol=2e-5, atol=2e-5)
        assert ds.regime.values[label].tolist() == values["regime"].tolist()


def test_the_sink_metric_is_taken_over_the_first_64_tokens(factory):
    model = factory(dtype=torch.float64, seed=1)
    ids, mask = tokens(3, 64), torch.ones(3, 64, dtype=torch.long)
    mask[1, 63] = 0  # 63 tokens do not define it
    ds = measured(model, ids, mask)
    for label, layer in enumerate(record(model, ids, attention_mask=mask)):
        metric = (layer.pattern[[0, 2], :, :, 0].mean(-1) > 0.3).double().mean(0)
        assert ds.sink_metric.values[label].tolist() == metric.tolist()
    assert not np.isnan(ds.sink_metric.values).any()
    only_short = measured(model, ids[1:2, :63])
    assert np.isnan(only_short.sink_metric.values).all()


def test_the_sink_metric_finds_a_sink(factory):
    model = factory()
    ids = tokens(2, 64)

    def to_first(pattern, hook):
        share = torch.tensor([0.9, 0.31, 0.25, 0.0], dtype=pattern.dtype)
        edited = pattern * (1 - share)[None, :, None, None]
        edited[..., 0] += share[None, :, None]
        return edited

    hook_name = "blocks.1.attn.hook_pattern"
    probe = Probe(model, three())
    model.run_with_hooks(ids, fwd_hooks=[(hook_name, to_first), *probe.hooks()])
    ds = probe.result()
    layer = record(model, ids, first=[(hook_name, to_first)])[1]
    received = layer.pattern[:, :, :, 0].mean(-1)
    assert ds.sink_metric.values[1].tolist() == (received > 0.3).double().mean(0).tolist()
    assert ds.sink_metric.values[1, :2].tolist() == [1, 1]


@pytest.mark.parametrize("sink", [2, 5])
def test_another_sink(factory, sink):
    model = factory(dtype=torch.float64)
    ids, mask = tokens(3, 19), padding("right")
    ds = measured(model, ids, mask, sink=sink)
    layers = record(model, ids, attention_mask=mask)[1:]
    assert_layer(ds, 1, expected(layers, mask, sink=sink)[0], 1e-6)
    assert ds.attrs["sink"] == sink


@pytest.mark.hooked
def test_windows_hide_the_sink():
    model = soften(build_hooked("window", dtype=torch.float64))
    ids, mask = tokens(3, 19), padding("none")
    ds = measured(model, ids)
    layers = record(model, ids)
    assert_layer(ds, 0, expected(layers[:1], mask)[0], 1e-6)
    assert_layer(ds, 1, expected(layers[1:], mask, window=5)[0], 1e-6)
    hidden = 3 * (19 - 5)
    assert ds.attrs["skipped_rows"]["sink hidden by the window (rows of all layers)"] == hidden


@pytest.mark.bridge
@pytest.mark.parametrize("kind", ["none", "left"])
def test_windows_of_a_bridge(kind):
    dtype, tolerance = precise("bridge", kind)
    model = soften(build_bridge("mistral", dtype=dtype))
    ids, mask = tokens(3, 19), padding(kind)
    ds = measured(model, ids, mask)
    values = expected(record(model, ids, attention_mask=mask), mask, window=5)
    assert_layer(ds, 0, values[0], tolerance)
    assert_layer(ds, 1, values[1], tolerance)


@pytest.mark.hooked
def test_attention_both_ways():
    model = soften(build_hooked("bidirectional", dtype=torch.float64))
    ids, mask = tokens(2, 11), torch.ones(2, 11)
    ds = measured(model, ids)
    assert_layer(ds, 1, expected(record(model, ids)[1:], mask, causal=False)[0], 1e-6)
    assert ds.winner_offset.sel(offset_bin="<0").values.max() > 0


@pytest.mark.bridge
def test_rows_that_do_not_sum_to_one():
    model = soften(build_bridge("gpt_oss"))
    ids, mask = tokens(3, 19), padding("right")
    ds = measured(model, ids, mask)
    layers = record(model, ids, attention_mask=mask)
    assert float(layers[1].pattern.sum(-1).max()) < 0.99
    assert_layer(ds, 1, expected(layers[1:], mask)[0], 5e-5)


@pytest.mark.bridge
def test_an_encoder_its_decoder_and_the_attention_across():
    model = soften(build_bridge("bart", dtype=torch.float64))
    ids, targets = tokens(3, 12), tokens(3, 9, seed=1)
    mask = torch.tensor([[1] * 12, [1] * 7 + [0] * 5, [0] * 2 + [1] * 10])
    target_mask = torch.tensor([[1] * 9, [1] * 6 + [0] * 3, [1] * 8 + [0]])
    arguments = {
        "decoder_input": targets,
        "attention_mask": mask,
        "decoder_attention_mask": target_mask,
    }
    probe = Probe(model, three())
    hooks = probe.hooks(attention_mask=mask, decoder_attention_mask=target_mask)
    model.run_with_hooks(ids, fwd_hooks=hooks, **arguments)
    ds = probe.result()
    for layer in record(model, ids, **arguments):
        cross = "cross" in layer.name
        encoder = layer.name.startswith("encoder")
        queries = mask if encoder else target_mask
        keys = target_mask if "self" in layer.name else mask
        found = []
        for row in range(3):
            pattern, v, seen = document(
                layer, row, queries[row].bool(), keys=keys[row].bool(), causal="self" in layer.name
            )
            found.append(numbers(pattern, v, layer.W_O, seen, cross=cross))
        assert_layer(ds, layer.name, over_documents(found), 1e-6)
    across = ds.sel(layer="decoder_blocks.1.cross_attn")
    assert np.isnan(across.contribution_self.values).all()
    assert (across.winner_count.sel(category="self").values == 0).all()
    assert set(across.regime.values.tolist()) <= {"mixer", "reset"}


@pytest.mark.parametrize("kind", ["right", "gaps"])
def test_value_bias_removed(factory, kind):
    model = factory(dtype=torch.float64)
    ids, mask = tokens(3, 19), padding(kind)
    ds = measured(model, ids, mask, value_bias="remove")
    layers = record(model, ids, attention_mask=mask)
    for label, layer in list(enumerate(layers))[1:]:
        b_V = model.blocks[label].attn.b_V.detach().reshape(-1, 8)
        b_V = b_V if len(b_V) == 2 else b_V[::2]
        values = expected([layer], mask, value_bias="remove", b_V=b_V)[0]
        assert_layer(ds, label, values, 1e-6)
    as_hooked = measured(model, ids, mask)
    assert abs(ds.contribution_sink - as_hooked.contribution_sink).values.max() > 0.01


@pytest.mark.bridge
@pytest.mark.parametrize("arch", ["gemma2", "olmo2"])
def test_contributions_after_the_norm(arch):
    wide = arch == "olmo2"  # empty rows of windows are NaN in float64
    model = soften(build_bridge(arch, dtype=torch.float64 if wide else torch.float32))
    ids, mask = tokens(3, 19), padding("right")
    ds = measured(model, ids, mask, output="normed")
    raw = measured(model, ids, mask)
    layers = record(model, ids, attention_mask=mask)
    for label, layer in enumerate(layers):
        norm = model.original_model.model.layers[label].post_attention_layernorm
        scale = norm.weight.detach() + (1 if arch == "gemma2" else 0)
        window = 5 if arch == "gemma2" and label == 0 else None
        values = expected([layer], mask, window=window, output="normed", norm_weight=scale)[0]
        assert_layer(ds, label, values, 1e-6 if wide else 5e-5)
    assert abs(ds.contribution_sink - raw.contribution_sink).values.max() > 1e-3


@pytest.mark.hooked
def test_a_head_that_cancels_is_counted_and_left_out(tiny_hooked):
    model = tiny_hooked(n_key_value_heads=4)
    with torch.no_grad():
        model.blocks[0].attn.W_O[1] = 0
    ds = measured(model, tokens(2, 7))
    assert ds.undefined_rows.values[0].tolist() == [0, 14, 0, 0]
    for name in ("contribution_sink", "contribution_cosine", "output_norm", "output_self_cosine"):
        assert np.isnan(ds[name].values[0]).tolist() == [False, True, False, False]
    assert ds.contribution_inter.values[0, 1] == 0
    assert ds.sink_rate.values[0, 1] > 0
    assert ds.regime.values[0, 1] != ""


def test_documents_that_define_nothing_are_left_out_of_the_mean(factory):
    """A document of one token has no later query: NaN, and no part in sink statistics."""
    model = factory()
    ids = tokens(3, 9)
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[1, 1:] = 0
    ds = measured(model, ids, mask)
    without = measured(model, ids[[0, 2]])
    for name in ("sink_rate", "sink_rate_se", "contribution_sink", "sink_share", "other_share_se"):
        np.testing.assert_allclose(ds[name].values, without[name].values, rtol=1e-6, atol=1e-7)
    assert ds.attrs["documents"] == 3
    assert ds.attrs["rows"] == 19


# -- what must not change a result -------------------------------------------------------------------


def in_batches(model, ids, mask, groups, **options):
    probe = Probe(model, three(), **options)
    for rows in groups:
        model.run_with_hooks(
            ids[rows], attention_mask=mask[rows], fwd_hooks=probe.hooks(mask[rows])
        )
    return probe.result()


def test_batch_size_and_order_of_documents_change_nothing(factory):
    model = factory()
    ids, mask = tokens(5, 19), torch.cat([padding("left"), padding("right")])[:5]
    together = in_batches(model, ids, mask, [[0, 1, 2, 3, 4]])
    for groups in ([[0], [1], [2], [3], [4]], [[3, 4], [0, 1, 2]], [[4, 2, 0, 3, 1]]):
        assert_equal(in_batches(model, ids, mask, groups), together, 2e-6)


@pytest.mark.parametrize("kind", ["left", "right", "both"])
def test_padding_changes_nothing(factory, backend, kind):
    dtype, tolerance = precise(backend, kind)
    model = factory(dtype=dtype)
    ids, mask = tokens(3, 19), padding(kind)
    padded = in_batches(model, ids, mask, [[0, 1, 2]])
    probe = Probe(model, three())
    for row in range(3):
        model.run_with_hooks(ids[row][mask[row].bool()][None], fwd_hooks=probe.hooks())
    assert_equal(probe.result(), padded, tolerance)


def test_reading_a_cache_equals_the_hooks(factory):
    model = factory()
    ids, mask = tokens(3, 19), padding("left")
    hooked = in_batches(model, ids, mask, [[0, 1, 2]])
    _, cache = model.run_with_cache(ids, attention_mask=mask)
    probe = Probe(model, three())
    probe.read(cache, attention_mask=mask)
    assert_equal(probe.result(), hooked, 0)
    one = Probe(model, three())
    _, cache = model.run_with_cache(ids[0], remove_batch_dim=True)
    one.read(cache)
    assert_equal(one.result(), measured(model, ids[:1]), 1e-6)


def test_a_cache_without_a_layer_is_refused(factory):
    model = factory()
    _, cache = model.run_with_cache(tokens(1, 5))
    partial = {name: cache[name] for name in ("blocks.0.attn.hook_pattern", "blocks.0.attn.hook_v")}
    with pytest.raises(ValueError, match=r"blocks.0.attn.hook_z.*layers="):
        Probe(model, three()).read(partial)
    kept = {f"blocks.1.attn.hook_{kind}": cache[f"blocks.1.attn.hook_{kind}"]
            for kind in ("pattern", "v", "z")}  # fmt: skip
    probe = Probe(model, three(), layers=[1])
    probe.read(kept)
    assert probe.result().layer.values.tolist() == [1]


@pytest.mark.parametrize("kind", ["left", "right"])
def test_padding_changes_nothing_where_tokens_repeat(factory, backend, kind):
    """Equal tokens have equal values in the first layer: ties, which rounding must not break."""
    dtype, tolerance = precise(backend, kind)
    model = factory(dtype=dtype)
    ids, mask = tokens(3, 19) % 4 + 5, padding(kind)
    padded = in_batches(model, ids, mask, [[0, 1, 2]])
    probe = Probe(model, three())
    for row in range(3):
        model.run_with_hooks(ids[row][mask[row].bool()][None], fwd_hooks=probe.hooks())
    assert_equal(probe.result(), padded, tolerance)


@pytest.mark.hooked
def test_a_grouped_query_model_equals_its_ungrouped_copy(tiny_hooked):
    grouped = soften(tiny_hooked())
    ungrouped = tiny_hooked(n_key_value_heads=None)
    state = grouped.state_dict()
    for name in list(state):
        if "._" in name:  # _W_K, _W_V, _b_K, _b_V of key-value heads
            state[name.replace("._", ".")] = state.pop(name).repeat_interleave(2, 0)
    ungrouped.load_state_dict(state)
    ids = tokens(2, 15)
    assert_equal(measured(grouped, ids), measured(ungrouped, ids), 1e-5)
    grouped.set_ungroup_grouped_query_attention(True)
    assert_equal(measured(grouped, ids), measured(ungrouped, ids), 1e-5)


def llama_pair():
    """A bridge and a HookedTransformer of the same random Llama weights."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig
    from transformer_lens.pretrained.weight_conversions import convert_llama_weights

    bridge = soften(build_bridge("llama"))
    hf = bridge.original_model
    cfg = HookedTransformerConfig(
        n_layers=2, d_model=32, n_heads=4, n_key_value_heads=2, d_head=8, d_mlp=48, d_vocab=50,
        n_ctx=64, act_fn="silu", gated_mlp=True, normalization_type="RMS", final_rms=True,
        positional_embedding_type="rotary", rotary_dim=8, rotary_adjacent_pairs=False,
        eps=hf.config.rms_norm_eps, device="cpu",
    )  # fmt: skip
    hooked = HookedTransformer(cfg)
    clean = {name.replace("._original_component", ""): p for name, p in hf.state_dict().items()}
    from transformers import LlamaForCausalLM

    plain = LlamaForCausalLM(hf.config)
    plain.load_state_dict({name: clean[name] for name in plain.state_dict()})
    state = convert_llama_weights(plain, cfg)
    hooked.load_and_process_state_dict(
        state, fold_ln=False, center_writing_weights=False, center_unembed=False,
        fold_value_biases=False,
    )  # fmt: skip
    return hooked.eval(), bridge


@pytest.mark.hooked
@pytest.mark.bridge
def test_both_model_classes_give_the_same_numbers():
    hooked, bridge = llama_pair()
    ids, mask = tokens(3, 19), padding("left")
    with torch.no_grad():
        difference = hooked(ids).log_softmax(-1) - bridge(ids).log_softmax(-1)
    assert float(difference.abs().max()) < 1e-4
    assert_equal(measured(hooked, ids, mask), measured(bridge, ids, mask), 1e-4)


@pytest.mark.smollm2
@pytest.mark.hooked
@pytest.mark.bridge
def test_both_model_classes_of_smollm2_give_the_same_numbers(smollm2_hooked, smollm2_bridge):
    from tl_geometry import prompt_contributions

    text = "The tide comes in twice a day, and the harbour waits for it. " * 2
    ids = smollm2_hooked.tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    ids = torch.cat([torch.tensor([[1]]), ids], 1)
    left, right = (prompt_contributions(model, ids) for model in (smollm2_hooked, smollm2_bridge))
    scale = 1 + np.abs(left.values).sum(-1, keepdims=True)
    assert float((np.abs(left.values - right.values) / scale).max()) < 1e-4
    np.testing.assert_allclose(left.values, right.values, atol=1e-4)
    one, other = (measured(model, ids) for model in (smollm2_hooked, smollm2_bridge))
    assert one.regime.values.tolist() == other.regime.values.tolist()
    for name in one.data_vars:
        if name.startswith(("sink_norm", "other_norm", "sink_cosine", "sink_rate", "contribution")):
            np.testing.assert_allclose(
                one[name].values, other[name].values, rtol=1e-4, atol=1e-4, err_msg=name
            )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close_and_its_sums_hold(factory, dtype):
    from tl_geometry import prompt_contributions

    reference, rounded = factory(dtype=torch.float64), factory(dtype=dtype)
    for target, source in zip(reference.parameters(), rounded.parameters(), strict=True):
        target.data.copy_(source.data)
    ids = tokens(3, 15)
    wide, narrow = measured(reference, ids), measured(rounded, ids)
    slack = 0.06 if dtype is torch.bfloat16 else 0.01
    for name in ("contribution_sink", "contribution_self", "contribution_cosine", "sink_rate",
                 "sink_cosine", "contribution_inter", "output_sink_cosine"):  # fmt: skip
        np.testing.assert_allclose(narrow[name].values, wide[name].values, atol=slack, err_msg=name)
    for mode, axes in (("intra", ("key",)), ("inter", ("head", "key"))):
        c = prompt_contributions(rounded, ids[0], mode=mode)
        assert c.dtype == np.float32
        sums, sizes = c.sum(axes), abs(c).sum(axes)
        assert (abs(sums - 1) <= 1e-3 * (1 + sizes)).all()
