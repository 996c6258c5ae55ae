"""Negative log-likelihood of real targets, against sums written out by hand and the model's own loss."""

from __future__ import annotations

import math

import pytest
import torch
from analysis_data.reference import plain_package
from evaluation_data.reference import corpus, padded_losses

from tl_geometry.evaluation import likelihood, nll_per_document


def problem(seed=0, batch=5, length=11, vocab=23, dtype=torch.float32, scale=3.0):
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(batch, length, vocab, generator=generator) * scale).to(dtype)
    tokens = torch.randint(0, vocab, (batch, length), generator=generator)
    return logits, tokens


def masks(batch=5, length=11):
    one = torch.ones(batch, length, dtype=torch.long)
    right, left, both, holes = (one.clone() for _ in range(4))
    for row in range(batch):
        right[row, length - row :] = 0
        left[row, :row] = 0
        both[row, :row] = 0
        both[row, length - row :] = 0
    holes[:, 2] = 0
    holes[3, 5:8] = 0
    return {"none": one, "right": right, "left": left, "both": both, "holes": holes}


@pytest.mark.parametrize("kind", masks())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_equals_the_sum_written_out(kind, dtype):
    logits, tokens = problem(dtype=dtype)
    mask = masks()[kind]
    nll, targets = nll_per_document(logits, tokens, mask)
    sums, counts = padded_losses(logits, tokens, mask)
    assert nll.dtype == torch.float64
    assert targets.tolist() == counts
    tolerance = 1e-12 if dtype == torch.float64 else 3e-6
    torch.testing.assert_close(
        nll, torch.tensor(sums, dtype=torch.float64), rtol=tolerance, atol=tolerance
    )


def test_a_bool_mask_and_a_mask_of_integers_are_the_same():
    logits, tokens = problem()
    mask = masks()["left"]
    for one, other in zip(
        nll_per_document(logits, tokens, mask),
        nll_per_document(logits, tokens, mask.bool()),
        strict=True,
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", masks())
def test_padding_and_the_first_token_neither_predict_nor_count(kind):
    logits, tokens = problem()
    mask = masks()[kind]
    expected = nll_per_document(logits, tokens, mask)
    elsewhere = mask == 0
    for row in range(len(mask)):
        last = int(mask[row].nonzero().max())
        elsewhere[row, last] = True  # nothing real follows it
    changed = torch.where(elsewhere[..., None], torch.full_like(logits, 777.0), logits)
    other = tokens.clone()
    for row in range(len(mask)):
        first = int(mask[row].nonzero().min())
        other[row, first] = (tokens[row, first] + 1) % 23
        other[row, mask[row] == 0] = 22
    found = nll_per_document(changed, other, mask)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_one_real_token_is_no_target():
    logits, tokens = problem(batch=2, length=4)
    mask = torch.tensor([[0, 1, 0, 0], [1, 1, 0, 0]])
    nll, targets = nll_per_document(logits, tokens, mask)
    assert targets.tolist() == [0, 1]
    assert nll[0] == 0


def test_an_even_guess_costs_the_logarithm_of_the_vocabulary():
    nll, targets = nll_per_document(
        torch.full((1, 6, 50), 4.0), torch.arange(6)[None], torch.ones(1, 6, dtype=torch.long)
    )
    assert targets.item() == 5
    assert nll.item() == pytest.approx(5 * math.log(50), rel=1e-7)


def test_large_logits_do_not_overflow_and_nan_is_kept():
    logits, tokens = problem()
    mask = masks()["none"]
    shifted, _ = nll_per_document(logits + 1e4, tokens, mask)
    plain, _ = nll_per_document(logits, tokens, mask)
    torch.testing.assert_close(shifted, plain, rtol=1e-3, atol=1e-3)
    logits[2, 4, 0] = torch.nan
    found, _ = nll_per_document(logits, tokens, mask)
    assert found.isnan().tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("elements", [1, 23, 24, 23 * 7])
def test_pieces_change_nothing(monkeypatch, elements):
    logits, tokens = problem()
    mask = masks()["both"]
    whole, _ = nll_per_document(logits, tokens, mask)
    monkeypatch.setattr(likelihood, "CHUNK_ELEMENTS", elements)
    pieces, _ = nll_per_document(logits, tokens, mask)
    torch.testing.assert_close(pieces, whole, rtol=1e-7, atol=0)


def test_inputs_stay_as_they_are():
    logits, tokens = problem()
    mask = masks()["left"]
    copies = [x.clone() for x in (logits, tokens, mask)]
    nll_per_document(logits.requires_grad_(), tokens, mask)
    for kept, now in zip(copies, (logits, tokens, mask), strict=True):
        assert torch.equal(kept, now)


def test_equals_the_models_own_loss(tiny_model):
    tokens, _, _ = corpus((12, 12, 12))
    with torch.no_grad():
        logits = tiny_model(tokens)
        own = float(tiny_model(tokens, return_type="loss"))
    nll, targets = nll_per_document(logits, tokens, torch.ones_like(tokens))
    assert float(nll.sum() / targets.sum()) == pytest.approx(own, rel=1e-6)


def test_shapes_that_do_not_fit_are_named():
    logits, tokens = problem()
    with plain_package():
        from tl_geometry.evaluation import nll_per_document as plain

        with pytest.raises(ValueError, match=r"logits \(5, 11, 23\).*tokens \(5, 10\)"):
            plain(logits, tokens[:, 1:], masks()["none"])
