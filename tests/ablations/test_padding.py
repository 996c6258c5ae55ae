"""A document under an ablation gives the same numbers alone and padded, in whatever company."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from ablations.every import RANDOM, ablations_for
from ablations.runs import bridged, hooked, logits, model_of
from analysis_data.reference import tokens

from tl_geometry.ablations import mask_entries, remove_heads, zero_sink_values
from tl_geometry.hooks import attention_sites
from tl_geometry.hooks.arguments import mask_argument

PLACES = {
    "left": [3, 4, 5, 6, 7, 8, 9],
    "right": [0, 1, 2, 3, 4, 5, 6],
    "inside": [0, 1, 3, 4, 5, 7, 8],
}
DOCUMENT = tokens(1, 7)


def padded(side):
    """A batch of another document and ours, with the mask."""
    places = PLACES[side]
    batch, mask = tokens(2, 10, seed=5), torch.ones(2, 10, dtype=torch.long)
    mask[1] = 0
    batch[1, places], mask[1, places] = DOCUMENT[0], 1
    return batch, mask, places


CASES = [
    *[(case, side) for case in hooked("llama") for side in ("left", "inside")],
    *[(case, "left") for case in (*hooked("window"), *bridged("gpt_oss", "opt"))],
    *[(case, "right") for case in bridged("llama")],
    *[(case, "inside") for case in bridged("bert")],
]
CASES = [
    pytest.param(case.values[0], side, marks=case.marks, id=f"{case.id} {side}")
    for case, side in CASES
]


@pytest.mark.parametrize(("case", "side"), CASES)
def test_alone_and_in_a_padded_batch(case, side):
    model = model_of(case)
    batch, mask, places = padded(side)
    plain = logits(model, DOCUMENT)[0]
    assert len(ablations_for(case)) >= 10
    for name, ablation in ablations_for(case).items():
        alone, company = ({"documents": d} if name in RANDOM else {} for d in ([5], [0, 5]))
        expected = logits(model, DOCUMENT, hooks=ablation(model, **alone))[0]
        hooks = ablation(model, attention_mask=mask, **company)
        found = logits(model, batch, hooks=hooks, **{mask_argument(model): mask})[1, places]
        assert float((found - expected).abs().max()) < 5e-5, name
        assert float((plain - expected).abs().max()) > 1e-2, name


@pytest.mark.parametrize("case", [*hooked("llama"), *bridged("llama", "opt")])
def test_a_mask_may_be_asked_for_at_each_batch(case):
    model, batches = model_of(case), [padded("left"), padded("right"), padded("inside")]
    current = {}
    hooks = zero_sink_values(model, attention_mask=lambda: current["mask"])
    expected = logits(model, DOCUMENT, hooks=zero_sink_values(model))[0]
    for batch, mask, places in batches:
        current["mask"] = mask
        found = logits(model, batch, hooks=hooks, **{mask_argument(model): mask})[1, places]
        assert float((found - expected).abs().max()) < 5e-5


def with_tokenizer(case, **ids):
    """The model with a tokenizer that knows special tokens and nothing else."""
    model = model_of(case)
    known = {"pad_token_id": None, "bos_token_id": None, "padding_side": "right", **ids}
    return model, SimpleNamespace(**known)


@pytest.mark.parametrize("case", [*hooked("llama"), *bridged("llama", "opt")])
class TestWithoutAMask:
    def test_pads_at_the_end_of_rows_are_no_tokens(self, case, monkeypatch):
        model, tokenizer = with_tokenizer(case, pad_token_id=0, bos_token_id=1)
        batch, mask, _ = padded("right")
        batch[1, 7:] = 0
        for name in ("zero", "heads, mean", "uniform"):
            ablation = ablations_for(case)[name]
            with_mask = logits(model, batch, hooks=ablation(model, attention_mask=mask))
            with monkeypatch.context() as patch:
                patch.setattr(model, "tokenizer", tokenizer)
                found = logits(model, batch, hooks=ablation(model))
            assert torch.equal(found, with_mask), name

    def test_rows_that_begin_with_pads_are_refused(self, case, monkeypatch):
        model, tokenizer = with_tokenizer(case, pad_token_id=0, bos_token_id=1)
        batch, mask, _ = padded("left")
        batch[1, :3] = 0
        monkeypatch.setattr(model, "tokenizer", tokenizer)
        with pytest.raises(ValueError, match=r"rows \[1\] begin with pad tokens"):
            logits(model, batch, hooks=zero_sink_values(model))
        every = torch.ones_like(mask)
        for given in (mask, every):
            logits(model, batch, hooks=zero_sink_values(model, attention_mask=given))

    def test_a_bos_token_with_the_id_of_the_pad_is_no_pad(self, case, monkeypatch):
        model, tokenizer = with_tokenizer(case, pad_token_id=1, bos_token_id=1)
        batch = tokens(2, 9)
        batch[:, 0] = 1
        expected = logits(model, batch, hooks=zero_sink_values(model))
        monkeypatch.setattr(model, "tokenizer", tokenizer)
        assert torch.equal(logits(model, batch, hooks=zero_sink_values(model)), expected)
        batch[1, :3] = 1
        with pytest.raises(ValueError, match="begin with pad tokens"):
            logits(model, batch, hooks=zero_sink_values(model))

    def test_edits_that_ask_for_no_tokens_take_any_batch(self, case, monkeypatch):
        model, tokenizer = with_tokenizer(case, pad_token_id=0)
        batch, _, _ = padded("left")
        batch[1, :3] = 0
        monkeypatch.setattr(model, "tokenizer", tokenizer)
        logits(model, batch, hooks=remove_heads(model, [(0, 1)]))
        if case[1] != "opt":
            gone = torch.zeros(1, 1, 10, 10, dtype=torch.bool)
            logits(model, batch, hooks=mask_entries(model, gone))


@pytest.mark.parametrize("case", bridged("bart", "t5"))
def test_encoder_and_decoder_have_masks_of_their_own(case):
    model = model_of(case)
    no_cross = [s.layer for s in attention_sites(model) if not s.cross]
    batch, mask, _ = padded("right")
    decoder = batch.flip(0).roll(1, 1)
    decoder[1, :5], decoder_mask = DOCUMENT[0, :5], torch.ones_like(mask)
    decoder_mask[1, 5:] = 0
    masks = {"attention_mask": mask, "decoder_attention_mask": decoder_mask}
    for name in ("zero", "tokens", "heads, mean", "identity", "uniform"):
        ablation = ablations_for(case)[name]
        only = {"layers": no_cross} if name == "identity" else {}
        hooks = ablation(model, **only)
        expected = logits(model, DOCUMENT, decoder_input=DOCUMENT[:, :5], hooks=hooks)[0]
        hooks = ablation(model, **only, **masks)
        found = logits(model, batch, decoder_input=decoder, attention_mask=mask, hooks=hooks)
        assert float((found[1, :5] - expected).abs().max()) < 5e-5, name
        other = mask.roll(1, 0)
        if name == "heads, mean":
            hooks = ablation(model, attention_mask=other, decoder_attention_mask=decoder_mask)
            found = logits(model, batch, decoder_input=decoder, attention_mask=mask, hooks=hooks)
            assert float((found[1, :5] - expected).abs().max()) > 1e-3  # the mask was asked for


@pytest.mark.hooked
def test_masks_that_do_not_fit():
    case = ("hooked", "llama")
    model = model_of(case)
    ids = tokens(2, 9)
    for mask, error, message in (
        (torch.ones(2, 8), ValueError, r"attention_mask has shape \(2, 8\).*batch 2 and 9 key"),
        (lambda: torch.ones(3, 9), ValueError, r"attention_mask has shape \(3, 9\)"),
        (lambda: [[1] * 9] * 2, TypeError, "attention_mask must be a tensor, got list"),
    ):
        with pytest.raises(error, match=message):
            logits(model, ids, hooks=zero_sink_values(model, attention_mask=mask))
    empty = torch.ones(2, 9)
    empty[1] = 0
    with pytest.raises(ValueError, match=r"rows \[1\] hold only padding"):
        zero_sink_values(model, attention_mask=empty)
    with pytest.raises(ValueError, match="single stack"):
        zero_sink_values(model, decoder_attention_mask=torch.ones(2, 9))
