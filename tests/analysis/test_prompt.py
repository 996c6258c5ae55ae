"""The matrices of one prompt against the measures on a cache, their coordinates, and bad prompts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from analysis_data.reference import plain_package, record, soften, tokens
from literal import contributions as literal
from zoo.architectures import build_bridge, build_hooked

from tl_geometry import contribution_weights, prompt_contributions


@pytest.fixture
def build(backend, request):
    factory = request.getfixturevalue(f"tiny_{backend}")
    return lambda **options: soften(factory(**options))


@pytest.fixture(scope="module")
def plain():
    with plain_package() as package:
        yield package


@pytest.mark.parametrize("mode", ["intra", "inter"])
def test_it_equals_the_measure_on_a_cache(build, mode):
    model, ids = build(), tokens(1, 13)
    found = prompt_contributions(model, ids[0], mode=mode)
    assert found.dims == ("layer", "head", "query", "key")
    assert found.shape == (2, 4, 13, 13)
    for label, layer in enumerate(record(model, ids)):
        expected = literal.contribution_weights(layer.pattern, layer.v, layer.W_O, mode=mode)[0]
        np.testing.assert_allclose(found.sel(layer=label), expected, rtol=1e-4, atol=1e-5)
        direct = contribution_weights(layer.pattern, layer.v, layer.W_O, mode=mode)[0]
        np.testing.assert_allclose(found.sel(layer=label), direct, rtol=1e-4, atol=1e-5)
    assert (np.triu(found.values, 1) == 0).all()
    total = found.sum("key") if mode == "intra" else found.sum(("head", "key"))
    np.testing.assert_allclose(total, 1, atol=1e-4)


def test_attention_is_the_pattern(build):
    model, ids = build(), tokens(1, 13)
    found = prompt_contributions(model, ids, mode="attention")
    assert found.name == "attention"
    for label, layer in enumerate(record(model, ids)):
        np.testing.assert_allclose(found.sel(layer=label), layer.pattern[0], atol=1e-6)


def test_tokens_and_positions_are_coordinates(build, tiny_tokenizer):
    model = build(tokenizer=tiny_tokenizer)
    text = "the cat sat on the zebra"
    found = prompt_contributions(model, text, prepend_bos=True)
    words = ["<bos>", "the", "cat", "sat", "on", "the", "<unk>"]
    assert found.key_token.values.tolist() == found.query_token.values.tolist() == words
    assert found["query"].values.tolist() == found["key"].values.tolist() == list(range(7))
    assert found["layer"].values.tolist() == [0, 1]
    assert found["head"].values.tolist() == [0, 1, 2, 3]
    bare = prompt_contributions(model, text, prepend_bos=False)
    assert bare.key_token.values.tolist() == words[1:]
    ids = torch.tensor([1, *tiny_tokenizer(text, add_special_tokens=False)["input_ids"]])
    same = prompt_contributions(model, ids)
    np.testing.assert_array_equal(same.values, found.values)
    default = prompt_contributions(model, text)
    expected = 7 if model.cfg.default_prepend_bos else 6
    assert default.sizes["key"] == expected


def test_tokens_without_a_tokenizer_are_their_ids(build):
    found = prompt_contributions(build(), torch.tensor([7, 8, 9]))
    assert found.key_token.values.tolist() == ["7", "8", "9"]


def test_layers_may_be_chosen(build):
    model, ids = build(), tokens(9)
    whole = prompt_contributions(model, ids)
    one = prompt_contributions(model, ids, layers=[1])
    assert one["layer"].values.tolist() == [1]
    np.testing.assert_array_equal(one.sel(layer=1).values, whole.sel(layer=1).values)
    with pytest.raises(ValueError, match=r"layers: .*5"):
        prompt_contributions(model, ids, layers=[5])


def test_attributes(build):
    found = prompt_contributions(build(), tokens(5), mode="inter")
    assert found.attrs["mode"] == "inter"
    assert found.attrs["units"] == "1"
    assert found.attrs["model_class"] in ("HookedTransformer", "TransformerBridge")
    assert "arXiv" in found.attrs["source"]


@pytest.mark.bridge
@pytest.mark.parametrize("arch", ["deepseek_v3", "bitnet", "qwen3_next", "olmo_clip"])
def test_an_unsupported_layer_is_refused(arch):
    with pytest.raises(ValueError, match="can't be measured"):
        prompt_contributions(build_bridge(arch), tokens(9))


@pytest.mark.hooked
def test_a_window(tiny_hooked):
    model, ids = build_hooked("window"), tokens(1, 12)
    found = prompt_contributions(model, ids)
    beyond = np.tril(np.ones((12, 12), bool), -5)
    assert (found.sel(layer=1).values[:, beyond] == 0).all()
    assert (found.sel(layer=0).values[:, beyond] != 0).any()


def test_pads_in_a_prompt_are_tokens_like_others(build, tiny_tokenizer):
    """A model that masks pad tokens by itself must be told that these are meant."""
    import copy

    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.padding_side = "left"
    model, bare = build(tokenizer=tokenizer), build()
    ids = torch.tensor([0, 5, 6, 7, 8])
    found, expected = prompt_contributions(model, ids), prompt_contributions(bare, ids)
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-4, atol=1e-5)


# -- bad prompts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "   "])
def test_an_empty_text(build, plain, tiny_tokenizer, text):
    model = build(tokenizer=tiny_tokenizer)
    with pytest.raises(ValueError, match="at least one token"):
        plain.prompt_contributions(model, text, prepend_bos=False)


def test_a_text_without_a_tokenizer(build, plain):
    with pytest.raises(ValueError, match="no tokenizer; pass token ids"):
        plain.prompt_contributions(build(), "the cat")


@pytest.mark.parametrize("shape", [(2, 5), (0,), (1, 0), (1, 1, 5)])
def test_no_single_prompt(build, plain, shape):
    ids = torch.ones(shape, dtype=torch.long)
    with pytest.raises(ValueError, match="one prompt"):
        plain.prompt_contributions(build(), ids)


@pytest.mark.parametrize("bad", [77, 50, -1])
def test_ids_outside_the_vocabulary(build, plain, bad):
    with pytest.raises(ValueError, match=f"{bad}"):
        plain.prompt_contributions(build(), torch.tensor([5, bad, 6]))


def test_tokens_that_are_no_integers(build, plain):
    with pytest.raises(TypeError, match="integers"):
        plain.prompt_contributions(build(), torch.tensor([5.0, 6.5]))


@pytest.mark.parametrize("text", [[5, 6, 7], None, 5])
def test_something_else_than_a_prompt(build, plain, text):
    with pytest.raises((TypeError, ValueError), match="text"):
        plain.prompt_contributions(build(), text)


def test_a_prompt_longer_than_the_context(build, plain):
    with pytest.raises(ValueError, match="64"):
        plain.prompt_contributions(build(), tokens(65))
    assert plain.prompt_contributions(build(), tokens(64), [0]).sizes["key"] == 64


def test_an_unknown_mode(build, plain):
    with pytest.raises(ValueError, match="mode must be one of 'intra', 'inter', 'attention'"):
        plain.prompt_contributions(build(), tokens(5), mode="both")


def test_nan_is_no_number_to_look_at(build, plain):
    """NaN is for rows that have cancelled; a broken model is an error."""
    model = build()

    def poison(x, hook):
        x = x.clone()
        x[:, 20:] = torch.nan  # beyond what a look at a few made-up tokens would show
        return x

    model.add_hook("blocks.1.attn.hook_v", poison, is_permanent=True)
    with pytest.raises(ValueError, match=r"NaN.*layer 1"):
        plain.prompt_contributions(model, tokens(30))
    model.reset_hooks(including_permanent=True)


def test_z_that_another_hook_changes(build, plain):
    model = build()

    def patch(z, hook):
        z = z.clone()
        z[:, 20:] = 0
        return z

    model.add_hook("blocks.1.attn.hook_z", patch, is_permanent=True)
    with pytest.raises(ValueError, match="layer 1"):
        plain.prompt_contributions(model, tokens(30))
    model.reset_hooks(including_permanent=True)
