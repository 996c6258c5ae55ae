"""Padding that nobody told us about: masked positions in a pattern, pad tokens at a row's end."""

from __future__ import annotations

import copy

import pytest
import torch
from analysis_data.reference import record, tokens
from literal import masks
from zoo.architectures import build_bridge, build_hooked

from tl_geometry.hooks.padding import PadToken, masked_padding, unexplained_keys


def pattern_of(real, *, causal, empty, window=None, heads=3, seed=0):
    """A softmax pattern under a mask; rows without a key are zero or uniform."""
    batch, length = real.shape
    base = masks.causal(length) if causal else torch.ones(length, length, dtype=torch.bool)
    if window is not None:
        base = base & masks.windowed(length, window)
    seen = base[None] & real[:, None, :]  # as models do it: only keys are masked
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(batch, heads, length, length, generator=generator)
    pattern = scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1)
    fill = 0.0 if empty == "zero" else 1 / length
    return torch.where(seen.any(-1)[:, None, :, None], pattern, fill)


def found(pattern, *, causal):
    """What is known to be padding, and what may be."""
    pads = masked_padding(pattern, causal=causal)
    return pads, unexplained_keys(pattern, pads)


@pytest.mark.parametrize("empty", ["zero", "uniform"])
@pytest.mark.parametrize("kind", ["left", "right", "both", "gaps", "none"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 3])
def test_masked_positions_are_found_or_questioned(kind, causal, empty, window):
    if window is not None and not causal:
        pytest.skip("windows look back only")
    real = masks.token_mask(kind, 3, 9)
    pattern = pattern_of(real, causal=causal, empty=empty, window=window)
    pads, questioned = found(pattern, causal=causal)
    leading = (~real).long().cumprod(-1).bool()
    assert torch.equal(pads, leading if causal else ~real)
    assert torch.equal(pads | questioned, ~real)


def test_a_key_that_one_head_uses_is_no_padding():
    pattern = pattern_of(torch.ones(1, 5, dtype=torch.bool), causal=True, empty="zero")
    pattern[:, 1:, :, 2] = 0
    assert not masked_padding(pattern, causal=True).any()
    pattern[:, 0, 3:, 2] = 0
    assert not masked_padding(pattern, causal=True).any()  # its own row sees it still


def test_rows_are_judged_one_by_one():
    real = torch.tensor([[True] * 6, [False] * 2 + [True] * 4, [True] * 6])
    pattern = pattern_of(real, causal=True, empty="uniform")
    whole = masked_padding(pattern, causal=True)
    for row in range(3):
        assert torch.equal(masked_padding(pattern[row : row + 1], causal=True)[0], whole[row])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_precision(dtype):
    real = masks.token_mask("both", 3, 9)
    pattern = pattern_of(real, causal=True, empty="uniform").to(dtype)
    pads, questioned = found(pattern, causal=True)
    assert torch.equal(pads | questioned, ~real)


@pytest.mark.parametrize("kind", ["left", "right", "both", "gaps", "none"])
def test_on_real_models(backend, kind):
    model = build_hooked() if backend == "hooked" else build_bridge("llama")
    real = masks.token_mask(kind, 3, 9)
    for layer in record(model, tokens(3, 9), attention_mask=real.long()):
        pads, questioned = found(layer.pattern, causal=True)
        assert torch.equal(pads | questioned, ~real)


def test_a_key_that_an_ablation_removed_is_no_padding():
    pattern = pattern_of(torch.ones(1, 6, dtype=torch.bool), causal=True, empty="zero")
    pattern[..., 3] = 0
    pads, questioned = found(pattern, causal=True)
    assert not pads.any()
    assert not questioned.any()
    renormalised = pattern / pattern.sum(-1, keepdim=True)
    pads, questioned = found(renormalised, causal=True)
    assert not pads.any()
    assert questioned[0].nonzero().tolist() == [[3]]  # nobody can tell this from a mask


def test_empty_rows_of_a_broken_model_are_no_padding():
    pattern = torch.zeros(1, 2, 5, 5)
    assert not masked_padding(pattern, causal=True).any()


def embedded(text, table):
    return table[torch.tensor(text)]


PADS = ([[5, 6, 0, 0], [0, 0, 5, 6], [5, 0, 6, 0], [5, 6, 7, 8], [0, 0, 0, 0]],
        [[0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]])  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_pads_at_the_end_of_rows(dtype):
    table = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    ids, expected = PADS
    by_embedding = PadToken("hook_embed", 0, table[0]).trailing(embedded(ids, table.to(dtype)))
    by_id = PadToken("embed.hook_in", 0, None).trailing(torch.tensor(ids))
    assert by_embedding.int().tolist() == by_id.int().tolist() == expected
    assert PadToken("embed.hook_in", 0, None).trailing(torch.tensor(ids[:1])) is None


def test_what_shows_no_tokens_shows_no_pads():
    assert PadToken("embed.hook_in", 0, None).trailing(torch.zeros(1, 3, 4)) is None
    assert PadToken("hook_embed", 0, torch.zeros(4)).trailing(torch.zeros(1, 3, 5)) is None


def test_the_pad_token_of_a_model(backend, tiny_tokenizer):
    model = build_hooked() if backend == "hooked" else build_bridge("llama")
    model.tokenizer = None
    assert PadToken.of(model) is None
    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.pad_token = None
    model.tokenizer = tokenizer
    assert PadToken.of(model) is None
    tokenizer.pad_token = "<unk>"
    pad, seen = PadToken.of(model), []
    with torch.no_grad():
        model.run_with_hooks(
            torch.tensor([[4, 3, 3], [3, 3, 4]]),
            fwd_hooks=[(pad.hook, lambda x, **_: seen.append(pad.trailing(x)))],
        )
    assert seen[0].int().tolist() == [[0, 1, 1], [0, 0, 0]]


@pytest.mark.hooked
def test_a_pad_token_that_the_model_cannot_embed(tiny_tokenizer):
    model = build_hooked()
    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.add_special_tokens({"pad_token": "<another pad>"})
    model.tokenizer = tokenizer
    assert tokenizer.pad_token_id == 50
    assert PadToken.of(model) is None
