"""The loop over batches and variants: scores, order of work, resumption, refusals, hygiene."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from evaluation_data.reference import (
    BlockCounter,
    corpus,
    document_loss,
    left_over_hooks,
    zero_heads,
)
from zoo.architectures import build_bridge

from tl_geometry.analysis.weights_digest import weights_digest
from tl_geometry.evaluation import Variant, prefix, read_documents, run_variants, runs

GONE = {
    "full": [],
    "none of layer 0": [(0, head) for head in range(4)],
    "three heads": [(0, 1), (1, 0), (1, 3)],
    "one late head": [(1, 2)],
}


def variants():
    found = [Variant("full")]
    for name, heads in list(GONE.items())[1:]:
        found.append(Variant(name, lambda batch, heads=heads: zero_heads(heads), heads[0][0]))
    return found


def scored(model, data, some=None, *, settings=None, checkpoint=None, resume=False, **options):
    documents = read_documents(model, data, **{"max_documents": None, **options})
    return run_variants(
        model,
        documents,
        variants() if some is None else some,
        settings=settings or {},
        checkpoint=checkpoint,
        resume=resume,
        progress=False,
    )


@pytest.mark.parametrize("side", ["left", "right"])
def test_scores_are_those_of_each_document_alone(tiny_model, side):
    tokens, mask, documents = corpus(side=side)
    scores = scored(tiny_model, (tokens, mask))
    assert scores.targets.tolist() == [len(ids) - 1 for ids in documents]
    for row, (name, heads) in enumerate(GONE.items()):
        expected = [document_loss(tiny_model, ids, zero_heads(heads)) for ids in documents]
        np.testing.assert_allclose(scores.nll[row], expected, rtol=2e-5)
        np.testing.assert_array_equal(scores.of(name), scores.nll[row])
    assert not np.allclose(scores.nll[0], scores.nll[1], rtol=1e-3)


@pytest.mark.parametrize("size", [1, 3])
def test_the_batch_size_changes_no_more_than_rounding(tiny_model, size):
    _, _, documents = corpus()
    whole = scored(tiny_model, documents, batch_size=4)
    found = scored(tiny_model, documents, batch_size=size)
    np.testing.assert_array_equal(found.targets, whole.targets)
    np.testing.assert_allclose(found.nll, whole.nll, rtol=1e-5)


def test_provenance(tiny_model):
    tokens, mask, _ = corpus()
    scores = scored(tiny_model, (tokens, mask), settings={"fraction": 0.1}, n_ctx=32)
    attrs = scores.attrs
    assert attrs["settings"] == {"fraction": 0.1}
    assert (attrs["documents"], attrs["tokens"], attrs["n_ctx"]) == (4, 40, 32)
    assert attrs["model_class"] == type(tiny_model).__name__
    assert attrs["weight_processing"]["backend"] == type(tiny_model).__name__
    assert attrs["prepend_bos"] is False
    assert attrs["skipped_documents"] == {}


# -- prefixes ------------------------------------------------------------------------------------


@pytest.mark.hooked
def test_starting_midway_gives_the_same_bits_for_fewer_blocks(tiny_hooked):
    model = tiny_hooked(n_layers=6)
    tokens, mask, _ = corpus(side="left")

    def late(block):
        return [
            Variant("full"),
            *(Variant(f"{k}", lambda batch, k=k: zero_heads([(k, 0)]), block(k)) for k in range(6)),
        ]

    documents = read_documents(model, (tokens, mask), max_documents=None)
    counts = {}
    for name, block in (("midway", lambda k: k), ("full", lambda k: None)):
        with BlockCounter(model) as counter:
            batch = documents.batches[0]
            with torch.no_grad():
                some = late(block)
                found = [nll for _, nll in runs._Runner(model, some).scores(batch, some)]
        counts[name] = (counter.count, found)
    np.testing.assert_allclose(counts["midway"][1], counts["full"][1], rtol=1e-6)
    # One clean run, layers k..5 for each head, and one block to see that it works.
    assert counts["midway"][0] == 6 + (6 + 5 + 4 + 3 + 2 + 1) + 1
    assert counts["full"][0] == 7 * 6


@pytest.mark.hooked
def test_a_model_that_cannot_start_midway_runs_in_full(tiny_hooked):
    """Shortformer attention adds the positions in every layer, and a start in the middle loses them."""
    model = tiny_hooked(n_layers=3, positional_embedding_type="shortformer")
    tokens, mask, documents = corpus((12, 12))
    some = [Variant("full"), Variant("late", lambda batch: zero_heads([(2, 1)]), 2)]
    batch = read_documents(model, (tokens, mask)).batches[0]
    with torch.no_grad():
        clean = prefix.clean_prefix(model, batch, [2])
        assert not prefix.reproduces(model, batch, clean, prefix.Readout(model), 2)
    scores = scored(model, (tokens, mask), some)
    expected = [document_loss(model, ids, zero_heads([(2, 1)])) for ids in documents]
    np.testing.assert_allclose(scores.of("late"), expected, rtol=2e-5)


def test_the_check_notices_a_wrong_residual(tiny_hooked):
    model = tiny_hooked(n_layers=3)
    tokens, mask, _ = corpus()
    batch = read_documents(model, (tokens, mask)).batches[0]
    with torch.no_grad():
        clean = prefix.clean_prefix(model, batch, [1, 2])
        readout = prefix.Readout(model)
        assert prefix.reproduces(model, batch, clean, readout, 2)
        swapped = prefix.Prefix(clean.logits, clean.final, {2: clean.residuals[1]})
        assert not prefix.reproduces(model, batch, swapped, readout, 2)
        readout.cap = 1.0
        assert not prefix.reproduces(model, batch, clean, readout, 2)


@pytest.mark.hooked
@pytest.mark.parametrize("changed", [{}, {"output_logits_soft_cap": 2.0}, {"final_rms": True}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_readout_gives_the_logits_of_the_model(tiny_hooked, changed, dtype):
    model = tiny_hooked(n_layers=2, dtype=dtype, **changed)
    torch.nn.init.normal_(model.unembed.b_U)
    batch = read_documents(model, corpus()[:2]).batches[0]
    with torch.no_grad():
        clean = prefix.clean_prefix(model, batch, [1])
        flat = clean.logits.flatten(0, 1)
        places = torch.tensor([3, 0, 11])
        found = prefix.Readout(model)(clean.final)(places)
    torch.testing.assert_close(found, flat[places])
    assert prefix.Readout(model).vocab == flat.shape[-1]


@pytest.mark.parametrize(
    "name",
    ["ln_final.hook_scale", "ln_final.hook_normalized", lambda n: n == "ln_final.hook_scale"],
)
def test_hooks_behind_the_last_block_count(tiny_hooked, name):
    model = tiny_hooked(n_layers=3)
    edit = [(name, lambda x, hook: 2 * x)]
    tokens, mask, documents = corpus((9, 12))
    some = [
        Variant("full"),
        Variant("edited", lambda batch: edit, 1),
        Variant("late", lambda batch: zero_heads([(2, 1)]), 2),
    ]
    scores = scored(model, (tokens, mask), some)
    expected = [document_loss(model, ids, edit) for ids in documents]
    np.testing.assert_allclose(scores.of("edited"), expected, rtol=2e-5)
    assert np.abs(scores.of("edited") - scores.of("full")).min() > 0.01


def test_what_stands_in_front_of_a_block_is_done_once(tiny_hooked):
    """A hook of the user's at the start of a block, which the resumed forward runs again."""
    model = tiny_hooked(n_layers=3)
    tokens, mask, documents = corpus((9, 12))
    doubled = [("blocks.1.hook_resid_pre", lambda x, hook: 2 * x)]
    some = [Variant(str(k), lambda batch, k=k: zero_heads([(k, 1)]), k) for k in range(3)]
    with model.hooks(fwd_hooks=doubled):
        scores = scored(model, (tokens, mask), some)
    for k in range(3):
        expected = [
            document_loss(model, ids, [*doubled, *zero_heads([(k, 1)])]) for ids in documents
        ]
        np.testing.assert_allclose(scores.of(str(k)), expected, rtol=2e-5)


def test_what_a_variant_scores_depends_on_no_other(tiny_hooked):
    """Else a resumed run, which skips what is done, would give other numbers."""
    model = tiny_hooked(n_layers=3)
    documents = read_documents(model, corpus()[:2])
    some = [
        Variant("full"),
        Variant("first", lambda batch: zero_heads([(0, 1)]), 0),
        Variant("late", lambda batch: zero_heads([(2, 1)]), 2),
    ]
    batch = documents.batches[0]
    with torch.no_grad():
        together = {v.name: nll for v, nll in runs._Runner(model, some).scores(batch, some)}
        for variant in some:
            ((_, alone),) = runs._Runner(model, some).scores(batch, [variant])
            assert alone == together[variant.name]


@pytest.mark.bridge
def test_a_bridge_is_never_started_midway(tiny_bridge):
    assert not prefix.can_start_at_layer(tiny_bridge())


# -- resumption ----------------------------------------------------------------------------------


def test_finished_units_are_not_run_again(tiny_model, tmp_path):
    tokens, mask, _ = corpus()
    data = [(tokens[k : k + 2], mask[k : k + 2]) for k in (0, 2)]
    path = tmp_path / "run.json"
    plain = scored(tiny_model, data)
    calls = []

    def failing(batch):
        calls.append(batch.documents)
        if len(calls) == 2:
            raise RuntimeError("the power went")
        return zero_heads(GONE["three heads"])

    some = variants()
    some[2] = Variant("three heads", failing, 0)
    with pytest.raises(RuntimeError, match="the power went"):
        scored(tiny_model, data, some, checkpoint=path)
    assert calls == [(0, 1), (2, 3)]
    assert left_over_hooks(tiny_model) == 0

    counted = []
    again = [
        Variant(
            v.name,
            lambda batch, v=v: (counted.append((v.name, batch.documents)), v.hooks(batch))[1],
            v.first_block,
        )
        for v in variants()
    ]
    resumed = scored(tiny_model, data, again, checkpoint=path, resume=True)
    assert counted == [("three heads", (2, 3)), ("one late head", (2, 3))]
    assert resumed.nll.tobytes() == plain.nll.tobytes()
    assert resumed.targets.tobytes() == plain.targets.tobytes()

    counted.clear()
    finished = scored(tiny_model, data, again, checkpoint=path, resume=True)
    assert counted == []
    assert finished.nll.tobytes() == plain.nll.tobytes()


def test_another_run_is_refused_with_what_differs(tiny_model, tmp_path):
    tokens, mask, _ = corpus()
    path = tmp_path / "run.json"
    scored(tiny_model, (tokens, mask), checkpoint=path, settings={"seed": 0})

    def refused(words, model=tiny_model, data=(tokens, mask), some=None, settings=None, **options):
        with pytest.raises(ValueError, match=words):
            scored(
                model,
                data,
                some,
                checkpoint=path,
                resume=True,
                settings=settings or {"seed": 0},
                **options,
            )

    refused(r"settings\.seed was 0, now 1", settings={"seed": 1})
    refused(r"variants was", some=variants()[:2])
    refused(r"data\.n_ctx was 64, now 32", n_ctx=32)
    other = tokens.clone()
    other[2, 3] += 1 if other[2, 3] < 49 else -1
    refused(r"data\.documents", data=(other, mask))
    fewer = mask.clone()
    fewer[0, -1] = 0
    refused(r"data\.documents", data=(tokens, fewer))
    refused(r"data\.documents", data=list(tokens[:, :7]))
    changed = copy.deepcopy(tiny_model)
    with torch.no_grad():
        next(changed.parameters()).view(-1)[0] += 1e-3
    refused(r"model\.parameters", model=changed)
    # Ids under the padding say nothing.
    padded = torch.where(mask.bool(), tokens, 7)
    scored(tiny_model, (padded, mask), checkpoint=path, resume=True, settings={"seed": 0})


def test_the_digest_of_weights_feels_every_edit(tiny_model):
    before = weights_digest(tiny_model)
    assert weights_digest(copy.deepcopy(tiny_model)) == before
    for edit in (
        lambda w: w.view(-1)[5:6].mul_(1 + 2**-22),
        lambda w: w.copy_(w.flip(0)),
        lambda w: w.view(-1)[:2].copy_(w.view(-1)[:2].flip(0)),
    ):
        changed = copy.deepcopy(tiny_model)
        with torch.no_grad():
            edit(max(changed.parameters(), key=lambda p: p.numel()).data)
        assert weights_digest(changed) != before
    assert weights_digest(copy.deepcopy(tiny_model).to(torch.float64)) != before


# -- refusals and hygiene --------------------------------------------------------------------------


def test_nan_scores_name_the_variant_and_leave_no_hooks(tiny_model):
    tokens, mask, _ = corpus()

    def broken(z, hook):
        z = z.clone()
        z[1] = torch.nan
        return z

    some = [Variant("full"), Variant("broken", lambda b: [("blocks.1.attn.hook_z", broken)])]
    with pytest.raises(ValueError, match=r"'broken' gives NaN.* document 1"):
        scored(tiny_model, (tokens, mask), some)
    assert left_over_hooks(tiny_model) == 0


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_hooks_are_gone_after_an_exception_in_the_middle(tiny_model, error):
    tokens, mask, _ = corpus()

    def stop(z, hook):
        raise error("stop")

    some = [Variant("full"), Variant("stops", lambda b: [("blocks.1.attn.hook_z", stop)], 1)]
    kept = []
    tiny_model.add_hook("blocks.0.attn.hook_z", lambda z, hook: kept.append(len(z)))
    before = left_over_hooks(tiny_model)
    with pytest.raises(error, match="stop"):
        scored(tiny_model, (tokens, mask), some)
    assert left_over_hooks(tiny_model) == before == 1
    assert kept  # a hook of the user's own has run, and stays
    tiny_model.reset_hooks(including_permanent=True)
    assert torch.is_grad_enabled()


def test_gradients_are_neither_kept_nor_switched_off(tiny_model):
    tokens, mask, _ = corpus()
    for parameter in tiny_model.parameters():
        parameter.requires_grad_(True)
    scored(tiny_model, (tokens, mask))
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in tiny_model.parameters())


def test_names_must_differ(tiny_model):
    tokens, mask, _ = corpus()
    for some in ([], [Variant("a"), Variant("a")]):
        with pytest.raises(ValueError, match="variants"):
            scored(tiny_model, (tokens, mask), some)


def test_active_dropout_is_refused(tiny_bridge):
    model = tiny_bridge(attention_dropout=0.5)
    model.train()
    with pytest.raises(ValueError, match="dropout"):
        scored(model, corpus()[:2])


@pytest.mark.bridge
def test_models_that_look_ahead_have_no_loss_of_the_next_token():
    with pytest.raises(ValueError, match="depend on later tokens"):
        scored(build_bridge("bert"), corpus()[:2])


@pytest.mark.hooked
def test_bidirectional_hooked_models_are_refused(tiny_hooked):
    with pytest.raises(ValueError, match="depend on later tokens"):
        scored(tiny_hooked(attention_dir="bidirectional"), corpus()[:2])


@pytest.mark.bridge
@pytest.mark.parametrize("arch", ["t5", "bart"])
def test_encoder_decoders_are_refused(arch):
    with pytest.raises(ValueError, match="encoder-decoder"):
        scored(build_bridge(arch), corpus()[:2])


@pytest.mark.hooked
def test_a_model_without_a_full_vocabulary_of_outputs_is_refused(tiny_hooked):
    with pytest.raises(ValueError, match="no unembedding"):
        scored(tiny_hooked(d_vocab_out=5), corpus()[:2])
