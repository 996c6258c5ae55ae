"""Padding: given, found, contradicted; and activations that can't be trusted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from analysis_data.reference import assert_equal, result_or_refusal, soften, tokens
from zoo.architectures import build_bridge, build_hooked

from tl_geometry import Contributions, Probe, Regimes, Sinks


def three():
    return [Contributions(), Regimes(), Sinks()]


def ones(*shape):
    return torch.ones(*shape, dtype=torch.long)


@pytest.fixture
def factory(backend, request):
    build = request.getfixturevalue(f"tiny_{backend}")
    return lambda **options: soften(build(**options))


def left(pads, length, batch=2):
    mask = ones(batch, length)
    mask[0, :pads] = 0
    return mask


# -- the mask and the model disagree -----------------------------------------------------------------


@pytest.mark.parametrize("pads", [1, 3])
def test_a_mask_for_the_probe_alone_is_refused(factory, pads):
    """Real rows of the model then attend to what the mask calls padding."""
    model = factory()
    probe = Probe(model, three())
    model.run_with_hooks(tokens(2, 24), fwd_hooks=probe.hooks(attention_mask=left(pads, 24)))
    with pytest.raises(ValueError, match=r"layer 0 .*attention_mask"):
        probe.result()


@pytest.mark.bridge
@pytest.mark.parametrize("pads", range(1, 6))
def test_a_mask_for_the_probe_alone_is_refused_behind_short_windows(pads):
    """Only the few rows after the padding see it; those must be looked at."""
    model = build_bridge("mistral", sliding_window=3)
    probe = Probe(model, three())
    model.run_with_hooks(tokens(2, 24), fwd_hooks=probe.hooks(attention_mask=left(pads, 24)))
    with pytest.raises(ValueError, match=r"layer 0 .*attention_mask"):
        probe.result()


@pytest.mark.parametrize("kind", ["gap", "right"])
def test_masked_positions_that_may_be_padding_are_questioned(factory, kind):
    model = factory()
    mask = ones(2, 12)
    mask[0, {"gap": slice(4, 6), "right": slice(9, 12)}[kind]] = 0
    probe = Probe(model, three())
    model.run_with_hooks(tokens(2, 12), attention_mask=mask, fwd_hooks=probe.hooks())
    with pytest.raises(ValueError, match=f"{int((mask == 0).sum())} positions get no attention"):
        probe.result()


def test_a_weight_that_rounds_to_zero_is_questioned_not_dropped(factory):
    model, ids = factory(), tokens(2, 12)

    def sharpen(pattern, hook):
        pattern = pattern.clone()
        pattern[:, :, -1, -1] = 0
        return pattern / pattern.sum(-1, keepdim=True)

    edits = [("blocks.0.attn.hook_pattern", sharpen)]
    silent, told = Probe(model, three()), Probe(model, three())
    model.run_with_hooks(ids, fwd_hooks=[*edits, *silent.hooks()])
    with pytest.raises(ValueError, match="2 positions get no attention"):
        silent.result()
    model.run_with_hooks(ids, fwd_hooks=[*edits, *told.hooks(ones(2, 12))])
    assert told.result().attrs["tokens"] == 24


def test_left_padding_that_the_model_masked_is_found_without_a_mask(factory):
    model = factory()
    ids, mask = tokens(2, 12), ones(2, 12)
    mask[0, :3] = 0
    told, untold = Probe(model, three()), Probe(model, three())
    for probe, given in ((told, mask), (untold, None)):
        model.run_with_hooks(ids, attention_mask=mask, fwd_hooks=probe.hooks(given))
    assert_equal(untold.result(), told.result(), 0)
    pads = int((mask == 0).sum())
    assert untold.result().attrs["skipped_rows"]["padding found without a mask"] == pads
    assert told.result().attrs["skipped_rows"]["padding found without a mask"] == 0
    assert untold.result().attrs["tokens"] == told.result().attrs["tokens"] == 24 - pads


def test_full_batches_have_no_padding_to_find(factory):
    model = factory()
    told, untold = Probe(model, three()), Probe(model, three())
    for probe, given in ((told, ones(2, 12)), (untold, None)):
        model.run_with_hooks(tokens(2, 12), fwd_hooks=probe.hooks(given))
    assert_equal(untold.result(), told.result(), 0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_texts_that_transformer_lens_pads_by_itself(factory, tiny_tokenizer, side):
    """A list of texts: pads are masked on the left only, and must not count on the right either."""
    import copy

    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.padding_side = side
    model = factory(tokenizer=tokenizer)
    texts = ["the cat sat on the mat .", "a dog ran", "the lazy dog and the quick fox"]
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    longest = max(map(len, ids))
    rows, masks = [], []
    for row in ids:
        pads = [0] * (longest - len(row))
        rows.append(pads + row if side == "left" else row + pads)
        marks = [1] * len(row)
        masks.append(pads + marks if side == "left" else marks + pads)
    batch, mask = torch.tensor(rows), torch.tensor(masks)
    told, untold = Probe(model, three()), Probe(model, three())
    model.run_with_hooks(batch, attention_mask=mask, fwd_hooks=told.hooks(mask))
    arguments = {"attention_mask": mask} if side == "left" else {}
    model.run_with_hooks(batch, fwd_hooks=untold.hooks(), **arguments)
    assert_equal(untold.result(), told.result(), 2e-6)


@pytest.mark.bridge
@pytest.mark.parametrize("arch", ["gemma1", "gemma2", "gpt2", "opt", "granite", "bert"])
def test_pads_at_the_end_are_found_whatever_is_done_to_embeddings(tiny_tokenizer, arch):
    """Some models scale or normalise what they embed. Found or refused, but not counted as text."""
    model = build_bridge(arch)
    model.tokenizer = tiny_tokenizer
    probe = Probe(model, three())
    ids = torch.tensor([[5, 6, 7, 8, 9, 0, 0, 0], [5, 6, 7, 8, 9, 10, 11, 12]])
    model.run_with_hooks(ids, fwd_hooks=probe.hooks())
    ds = result_or_refusal(probe, "attention_mask")
    assert ds is None or ds.attrs["tokens"] == 13


def knock_out(key):
    def edit(pattern, hook):
        pattern = pattern.clone()
        pattern[..., key] = 0
        return pattern

    return edit


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("layers", [None, [0], [1]])
def test_a_key_that_an_ablation_removes_is_no_padding(factory, layer, layers):
    """Attention knock-out: all heads of one layer lose a key. Its row is still a row.

    Without a mask it may be refused, with a message that asks for one, but not left out in silence.
    """
    model = factory()
    probe, told = Probe(model, three(), layers=layers), Probe(model, three(), layers=layers)
    edits = [(f"blocks.{layer}.attn.hook_pattern", knock_out(3))]
    model.run_with_hooks(tokens(2, 9), fwd_hooks=[*edits, *probe.hooks()])
    model.run_with_hooks(tokens(2, 9), fwd_hooks=[*edits, *told.hooks(ones(2, 9))])
    assert told.result().attrs["tokens"] == 18
    found = result_or_refusal(probe, "attention_mask")
    if found is not None:
        assert_equal(found, told.result(), 0)


# -- masks of the wrong kind -------------------------------------------------------------------------


def test_a_row_of_padding_only_is_refused(factory):
    mask = ones(3, 5)
    mask[1] = 0
    with pytest.raises(ValueError, match=r"attention_mask: the rows \[1\] hold only padding"):
        Probe(factory(), three()).hooks(attention_mask=mask)
    with pytest.raises(ValueError, match="decoder_attention_mask was given"):
        Probe(factory(), three()).hooks(decoder_attention_mask=mask)


@pytest.mark.parametrize("shape", [(2, 5), (2, 7), (1, 6), (3, 6)])
def test_a_mask_that_does_not_fit_the_batch_is_refused_in_the_forward(factory, shape):
    model = factory()
    probe = Probe(model, three())
    with pytest.raises(ValueError, match="attention_mask has shape") as raised:
        model.run_with_hooks(tokens(2, 6), fwd_hooks=probe.hooks(attention_mask=ones(*shape)))
    assert str(shape) in str(raised.value)
    assert "layer" in str(raised.value) or "pattern" in str(raised.value)


@pytest.mark.parametrize("shape", [(6,), (2, 1, 6), (2, 1, 1, 6)])
def test_a_mask_of_another_rank_is_refused(factory, shape):
    with pytest.raises(ValueError, match="attention_mask must be batch pos"):
        Probe(factory(), three()).hooks(attention_mask=ones(*shape))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float32])
def test_masks_of_any_number_type(factory, dtype):
    model = factory()
    ids, mask = tokens(2, 8), left(3, 8)
    whole, other = Probe(model, three()), Probe(model, three())
    for probe, given in ((whole, mask), (other, mask.to(dtype))):
        model.run_with_hooks(ids, attention_mask=mask, fwd_hooks=probe.hooks(given))
    assert_equal(whole.result(), other.result(), 0)


def test_the_decoder_mask_means_nothing_to_a_single_stack(factory):
    """A mask under the wrong name must not be dropped in silence."""
    model = factory()
    probe = Probe(model, three())
    with pytest.raises(ValueError, match="decoder_attention_mask"):
        model.run_with_hooks(tokens(2, 8), fwd_hooks=probe.hooks(decoder_attention_mask=left(3, 8)))


# -- encoders and decoders ---------------------------------------------------------------------------


@pytest.mark.bridge
@pytest.mark.parametrize("layers", [None, ["decoder_blocks.0.cross_attn"]])
@pytest.mark.parametrize("side", ["left", "right"])
def test_the_encoders_padding_is_found_for_the_attention_across(layers, side):
    model = build_bridge("bart")
    ids, targets = tokens(2, 9), tokens(2, 7, seed=1)
    mask = left(3, 9) if side == "left" else left(3, 9).flip(1)
    told, untold = Probe(model, three(), layers=layers), Probe(model, three(), layers=layers)
    for probe, given in ((told, mask), (untold, None)):
        model.run_with_hooks(
            ids, decoder_input=targets, attention_mask=mask, fwd_hooks=probe.hooks(given)
        )
    assert_equal(untold.result(), told.result(), 0)


def hooked_encoder_decoder():
    from transformer_lens import HookedEncoderDecoder, HookedTransformerConfig
    from zoo.architectures import enlarge

    model = HookedEncoderDecoder(
        HookedTransformerConfig(
            n_layers=2, d_model=32, n_heads=4, d_head=8, d_mlp=64, d_vocab=50, n_ctx=64,
            act_fn="gelu", device="cpu", attention_dir="bidirectional", normalization_type="RMS",
            positional_embedding_type="relative_positional_bias", use_attn_scale=False,
            relative_attention_num_buckets=8, relative_attention_max_distance=16,
            tie_word_embeddings=True, decoder_start_token_id=0,
        )
    )  # fmt: skip
    return enlarge(model).eval()


@pytest.mark.hooked
def test_an_encoder_decoder_of_hooked_transformers_kind():
    model = hooked_encoder_decoder()
    ids, targets, mask = tokens(2, 9), tokens(2, 7, seed=1), left(3, 9)
    told, untold = Probe(model, three()), Probe(model, three())
    for probe, given in ((told, mask), (untold, None)):
        model.run_with_hooks(
            ids, targets, one_zero_attention_mask=mask, fwd_hooks=probe.hooks(given)
        )
    assert told.result().layer.values.tolist()[:3] == [
        "encoder.0.attn", "encoder.1.attn", "decoder.0.attn"
    ]  # fmt: skip
    assert_equal(untold.result(), told.result(), 0)


# -- activations that can't be trusted ---------------------------------------------------------------


@pytest.mark.parametrize("position", range(9))
def test_z_changed_in_the_same_run_is_refused(factory, position):
    """Activation patching of a single position is enough to make contributions wrong."""
    model = factory()
    probe = Probe(model, three())

    def patch(z, hook):
        z = z.clone()
        z[1, position, 2] = 0
        return z

    model.run_with_hooks(
        tokens(2, 9), fwd_hooks=[("blocks.1.attn.hook_z", patch), *probe.hooks(ones(2, 9))]
    )
    with pytest.raises(ValueError, match="layer 1: z differs from pattern @ v"):
        probe.result()


@pytest.mark.parametrize("what", ["v", "pattern"])
def test_values_and_patterns_edited_before_the_probe_are_what_it_measures(factory, what):
    """An ablation listed first is seen, whole: the probe agrees with a cache of the edited run."""
    model = factory()

    def edit(x, hook):
        x = x.clone()
        if what == "v":
            x[:, 2] = 0.5
        else:
            x[:, 1, :, 0] = 0
        return x

    edits = [(f"blocks.0.attn.hook_{what}", edit)]
    probe, plain, reread = (Probe(model, three()) for _ in range(3))
    model.run_with_hooks(tokens(2, 9), fwd_hooks=[*edits, *probe.hooks()])
    model.run_with_hooks(tokens(2, 9), fwd_hooks=plain.hooks())
    for name, hook in edits:
        model.add_hook(name, hook)
    _, cache = model.run_with_cache(tokens(2, 9))
    model.reset_hooks()
    reread.read(cache)
    assert_equal(probe.result(), reread.result(), 1e-6)
    name = "contribution_attention_distance"
    moved = abs(probe.result()[name] - plain.result()[name]).max("head").values
    assert (moved > 1e-4).all()


@pytest.mark.parametrize("what", ["v", "pattern", "z"])
def test_nan_in_activations_names_layer_and_head(factory, what):
    model = factory()

    def poison(x, hook):
        x = x.clone()
        if what == "pattern":
            x[1, 3, 5] = torch.nan
        elif what == "v":
            x[1, 5, 1] = torch.nan  # key-value head 1: heads 2 and 3
        else:
            x[1, 5, 3] = torch.inf
        return x

    probe = Probe(model, three())
    model.run_with_hooks(
        tokens(2, 9), fwd_hooks=[(f"blocks.1.attn.hook_{what}", poison), *probe.hooks(ones(2, 9))]
    )
    with pytest.raises(ValueError, match=f"NaN.* layer 1, head {2 if what == 'v' else 3}"):
        probe.result()


def test_nan_on_padding_does_not_matter(factory):
    model = factory()
    mask = left(3, 9)

    def poison(z, hook):
        z = z.clone()
        z[0, 1] = torch.nan
        return z

    probe, clean = Probe(model, three()), Probe(model, three())
    for target, first in ((probe, [("blocks.1.attn.hook_z", poison)]), (clean, [])):
        model.run_with_hooks(
            tokens(2, 9), attention_mask=mask, fwd_hooks=[*first, *target.hooks(mask)]
        )
    assert_equal(probe.result(), clean.result(), 0)


@pytest.mark.parametrize("when", ["before", "after"])
def test_nan_in_the_output_weights_of_the_last_layer(factory, when):
    """No activation that the probe captures is NaN then: the weights must be looked at."""
    from tl_geometry.hooks import attention_sites

    model = factory()
    probe = Probe(model, three()) if when == "after" else None
    with torch.no_grad():
        weights = attention_sites(model)[1].W_O
        weights[2, 0, 0] = torch.nan
    assert torch.isnan(attention_sites(model)[1].W_O).any()

    def measure():
        used = probe or Probe(model, three())
        model.run_with_hooks(tokens(2, 9), fwd_hooks=used.hooks())
        return used.result()

    with pytest.raises(ValueError, match="layer 1"):
        measure()


@pytest.mark.hooked
def test_a_key_value_cache_is_refused_by_a_hooked_transformer(tiny_hooked, tiny_tokenizer):
    try:
        from transformer_lens.cache.key_value_cache import TransformerLensKeyValueCache as Cache
    except ImportError:
        from transformer_lens.past_key_value_caching import HookedTransformerKeyValueCache as Cache

    model = tiny_hooked(tokenizer=tiny_tokenizer)
    for new, given in ((1, None), (3, None), (3, ones(2, 3)), (3, ones(2, 8))):
        cache = Cache.init_cache(model.cfg, "cpu", 2)
        model(tokens(2, 5), past_kv_cache=cache)
        probe = Probe(model, three())
        with pytest.raises(ValueError, match="KV cache"):
            model.run_with_hooks(tokens(2, new), past_kv_cache=cache, fwd_hooks=probe.hooks(given))


@pytest.mark.bridge
@pytest.mark.parametrize("arch", ["llama", "opt"])
def test_a_key_value_cache_is_refused_by_a_bridge(arch):
    model = build_bridge(arch)
    for new, given in ((1, None), (3, None), (3, ones(2, 3)), (3, ones(2, 8))):
        cache = model.original_model(tokens(2, 5), use_cache=True).past_key_values
        probe = Probe(model, three())
        with pytest.raises(ValueError, match="KV cache"):
            model.run_with_hooks(
                tokens(2, new), past_key_values=cache, fwd_hooks=probe.hooks(given)
            )


@pytest.mark.bridge
@pytest.mark.parametrize("arch", ["opt", "bart"])
def test_attention_that_is_not_eager_is_refused_and_the_remedy_works(arch):
    model = build_bridge(arch, attn="sdpa")
    with pytest.raises(ValueError, match="set_attn_implementation"):
        Probe(model, three())
    model.original_model.set_attn_implementation("eager")
    probe = Probe(model, three())
    model.run_with_hooks(tokens(2, 9), fwd_hooks=probe.hooks())
    assert probe.result().attrs["documents"] == 2
    later = Probe(model, three())
    model.original_model.set_attn_implementation("sdpa")
    model.run_with_hooks(tokens(2, 9), fwd_hooks=later.hooks())
    with pytest.raises(RuntimeError, match="set_attn_implementation"):
        later.result()


@pytest.mark.bridge
def test_active_dropout_is_refused():
    model = build_bridge("gpt2")
    model.train()
    with pytest.raises(ValueError, match=r"dropout.*model\.eval\(\)"):
        Probe(model, three())
    model.eval()
    probe = Probe(model, three())
    model.train()  # after the probe has looked

    def measure():
        model.run_with_hooks(tokens(2, 9), fwd_hooks=probe.hooks())
        return probe.result()

    with pytest.raises(ValueError, match="dropout"):
        measure()


@pytest.mark.hooked
def test_train_mode_without_dropout_is_fine(tiny_hooked):
    model = tiny_hooked().train()
    probe = Probe(model, three())
    model.run_with_hooks(tokens(2, 9), fwd_hooks=probe.hooks())
    assert probe.result().attrs["documents"] == 2
    assert model.training


@pytest.mark.hooked
def test_rows_from_which_a_window_hides_the_sink_are_counted():
    model = build_hooked("window")
    probe = Probe(model, three(), sink=0)
    model.run_with_hooks(tokens(1, 20), fwd_hooks=probe.hooks())
    ds = probe.result()
    assert ds.attrs["skipped_rows"]["sink hidden by the window (rows of all layers)"] == 15
    assert not np.isnan(ds.sink_rate.values).any()
