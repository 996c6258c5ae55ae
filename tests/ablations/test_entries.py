"""Entries by importance: what goes is what a sort of every group names, and the layer loses exactly its terms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ablations.runs import bridged, build, hooked, look, model_of
from analysis_data.reference import tokens
from literal import ablations as literal, contributions, selection

from tl_geometry.ablations import mask_entries
from tl_geometry.ablations.entries import EntryMasker
from tl_geometry.evaluation.likelihood import nll_per_document
from tl_geometry.hooks import attention_sites
from tl_geometry.measures.importances import document_noise

SCOPES = ("row", "query", "head", "layer", "token")
CASES = [*hooked("llama"), *bridged("gpt2")]
OTHERS = [*hooked("window", "bidirectional"), *bridged("mistral", "gemma2", "gpt_oss")]


def gone(layer):
    """The entries that our hooks set to zero, where there was attention."""
    return ((layer.edited_pattern == 0) & (layer.pattern != 0)).numpy()


def ranked(layer, fraction, *, of=None, sinks=(0,), heads=None, scores=None, **options):
    """What should go, from the attention and values before the edit (or of another run)."""
    of = layer if of is None else of
    ranking = {key: options.pop(key) for key in ("scope", "largest") if key in options}
    seen = np.repeat(layer.seen[:, None], layer.n_heads, 1)
    candidates = seen.copy()
    candidates[:, :, list(sinks)] = False
    if heads is not None:
        candidates[:, [h for h in range(layer.n_heads) if h not in heads]] = False
    if scores is None:
        scores = contributions.importance(
            of.pattern, of.v, of.W_O, available=torch.from_numpy(seen), **options
        )
    return selection.select_entries(scores, candidates, fraction, **ranking)


def is_removed(layer, entries):
    """Exactly these entries go, whatever their weight, and all else stays."""
    pattern = layer.pattern.masked_fill(torch.from_numpy(entries), 0)
    assert torch.equal(layer.edited_pattern, pattern)
    terms = literal.removed_terms(layer.pattern, layer.v, layer.W_O, entries)
    layer.agrees(literal.mix(pattern, layer.v), out=layer.clean_out - terms)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("scope", SCOPES)
def test_every_scope_online(case, scope, largest):
    options = {"scope": scope, "largest": largest}
    hooks = mask_entries(model_of(case), importance="attention", fraction=0.3, **options)
    for layer in look(case, hooks).values():
        entries = ranked(layer, 0.3, kind="attention", **options)
        assert entries.any()
        is_removed(layer, entries)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mode", ["intra", "inter"])
@pytest.mark.parametrize("kind", ["value_weighted", "value_weighted_normalized", "contribution"])
def test_every_importance_in_both_modes(case, kind, mode):
    hooks = mask_entries(model_of(case), importance=kind, fraction=0.2, mode=mode)
    for layer in look(case, hooks).values():
        is_removed(layer, ranked(layer, 0.2, kind=kind, mode=mode))


@pytest.mark.parametrize("case", OTHERS)
def test_other_architectures(case):
    hooks = mask_entries(model_of(case), importance="contribution", fraction=0.2, scope="head")
    for layer in look(case, hooks).values():
        is_removed(layer, ranked(layer, 0.2, kind="contribution", mode="inter", scope="head"))


@pytest.mark.parametrize("case", CASES)
def test_absolute_contributions(case):
    options = {"importance": "contribution", "fraction": 0.2, "largest": False}
    signed, absolute = (
        look(case, mask_entries(model_of(case), absolute=a, **options))[0] for a in (False, True)
    )
    is_removed(
        absolute,
        ranked(absolute, 0.2, kind="contribution", mode="inter", absolute=True, largest=False),
    )
    assert not np.array_equal(gone(signed), gone(absolute))


@pytest.mark.parametrize("case", CASES)
def test_clean_ranks_by_the_run_without_the_mask_and_online_by_its_own(case):
    model = model_of(case)
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens(2, 9))
    options = {"importance": "contribution", "fraction": 0.4, "scope": "layer"}
    plain = look(case)
    clean = look(case, mask_entries(model, reference="clean", cache=cache, **options))
    online = look(case, mask_entries(model, **options))
    for label in (0, 1):
        expected = ranked(
            clean[label], 0.4, of=plain[label], kind="contribution", mode="inter", scope="layer"
        )
        is_removed(clean[label], expected)
        expected = ranked(online[label], 0.4, kind="contribution", mode="inter", scope="layer")
        is_removed(online[label], expected)
    assert torch.equal(clean[0].edited_pattern, online[0].edited_pattern)
    assert not np.array_equal(gone(clean[1]), gone(online[1]))


@pytest.mark.parametrize("case", CASES)
def test_sinks_keep_their_rows_and_other_rows_may_lose_the_sink(case):
    hooks = mask_entries(model_of(case), importance="attention", fraction=1, sink=[0, 3])
    for layer in look(case, hooks).values():
        is_removed(layer, ranked(layer, 1, sinks=(0, 3), kind="attention"))
        rows = layer.edited_pattern.abs().sum((0, 1, 3))
        assert [i for i in range(9) if rows[i] > 0] == [0, 3]


@pytest.mark.parametrize("case", CASES)
def test_only_named_heads_are_ranked(case):
    options = {"scope": "layer", "largest": True}
    heads = [(0, 1), (0, 2)]
    hooks = mask_entries(
        model_of(case), importance="attention", fraction=0.3, heads=heads, **options
    )
    layer = look(case, hooks)[0]
    is_removed(layer, ranked(layer, 0.3, heads=(1, 2), kind="attention", **options))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("scope", SCOPES)
def test_no_share_changes_nothing(case, scope):
    hooks = mask_entries(model_of(case), importance="contribution", fraction=0, scope=scope)
    found, plain = look(case, hooks), look(case)
    for label, layer in found.items():
        assert torch.equal(layer.out, plain[label].out)


@pytest.mark.parametrize("case", CASES)
def test_random_removes_as_much_as_the_others_and_something_else(case):
    def entries(kind, **more):
        hooks = mask_entries(model_of(case), importance=kind, fraction=0.3, **more)
        return gone(look(case, hooks)[0])

    expected = entries("attention")
    for seed in (0, 1):
        drawn = entries("random", seed=seed)
        assert np.array_equal(drawn.sum((1, 3)), expected.sum((1, 3)))  # equal budget in every row
        assert not np.array_equal(drawn, expected)
    assert not np.array_equal(entries("random", seed=0), entries("random", seed=1))
    assert np.array_equal(entries("random", seed=1), entries("random", seed=1))


@pytest.mark.parametrize("case", CASES)
def test_random_follows_the_documents(case):
    """The second row of a batch as document 5, and alone as document 5."""
    model, ids = model_of(case), tokens(2, 9)
    real = torch.ones(1, 9, dtype=torch.bool)
    found = []
    for batch, documents in ((ids, [2, 5]), (ids[1:], [5])):
        hooks = mask_entries(model, importance="random", fraction=0.4, seed=9, documents=documents)
        found.append(look(case, hooks, args=(batch,))[1])
    assert torch.equal(found[0].edited_pattern[1] == 0, found[1].edited_pattern[0] == 0)
    noise = document_noise(4, real, real, seed=9, layer=1, documents=[5])
    is_removed(found[1], ranked(found[1], 0.4, scores=noise))


@pytest.mark.parametrize("case", CASES)
def test_an_importance_of_ones_own(case):
    def distance(geometry):
        place = torch.arange(geometry.n_keys)
        return (place[:, None] - place).abs().float().expand(geometry.pattern.shape)

    hooks = mask_entries(model_of(case), importance=distance, fraction=0.5, scope="row")
    for layer in look(case, hooks).values():
        place = np.arange(9)
        scores = np.broadcast_to(abs(place[:, None] - place), layer.pattern.shape)
        is_removed(layer, ranked(layer, 0.5, scores=torch.tensor(scores).float(), scope="row"))


@pytest.mark.parametrize("case", CASES)
def test_an_importance_that_is_the_oracle_wins(case):
    """One entry of the last layer goes: none costs more than the one that measured costs name first, none less
    than the one that they name last."""
    model, ids, label = model_of(case), tokens(1, 4), 1
    entries = [(h, i, j) for h in range(4) for i in range(1, 4) for j in range(i + 1)]
    copies = ids.expand(len(entries), -1)

    def nll(batch, **options):
        hooks = mask_entries(model, layers=[label], **options) if options else []
        with torch.no_grad():
            logits = model.run_with_hooks(batch, fwd_hooks=hooks)
        return nll_per_document(logits, batch, torch.ones_like(batch))[0]

    only = torch.zeros(len(entries), 4, 4, 4, dtype=torch.bool)
    for row, entry in enumerate(entries):  # each copy of the text loses one entry
        only[row][entry] = True
    base = float(nll(ids))
    measured = (nll(copies, mask=only) - base).tolist()
    costs = torch.zeros(1, 4, 4, 4)
    for entry, cost in zip(entries, measured, strict=True):
        costs[0][entry] = cost
    kinds = ["attention", "value_weighted", "value_weighted_normalized", "contribution", "random"]
    for largest, best in ((True, max(measured)), (False, min(measured))):
        budget = {"fraction": 1.01 / len(entries), "largest": largest, "scope": "layer"}
        oracle = nll(ids, importance=lambda geometry: costs.to(geometry.dtype), **budget) - base
        assert float(oracle) == pytest.approx(best, abs=1e-5)
        others = [nll(ids, importance=kind, **budget) - base for kind in kinds]
        sign = 1 if largest else -1
        assert all(sign * (oracle - other) >= -1e-5 for other in others)
        assert any(sign * (oracle - other) > 1e-3 for other in others)


@pytest.mark.parametrize("case", CASES)
def test_a_mask_may_be_broadcast_and_differ_between_layers(case):
    generator = torch.Generator().manual_seed(1)
    by_layer = {n: torch.rand(2, 4, 9, 9, generator=generator) < 0.4 for n in (0, 1)}
    for layer in look(case, mask_entries(model_of(case), by_layer)).values():
        is_removed(layer, by_layer[layer.label].numpy())
    layer = look(case, mask_entries(model_of(case), {1: by_layer[1]}))
    assert torch.equal(layer[0].edited_pattern, layer[0].pattern)
    for mask in (by_layer[0][:1, :1], by_layer[0][0, 0], by_layer[0][:, :, :1]):
        full = mask.expand(2, 4, 9, 9)
        for layer in look(case, mask_entries(model_of(case), mask)).values():
            is_removed(layer, full.numpy())


@pytest.mark.parametrize("case", CASES)
def test_a_masker_goes_from_batch_to_batch_and_follows_new_weights(case):
    model = build(case)
    masker = EntryMasker(model, "contribution", 0.3)
    for scale in (torch.linspace(-1, 1, 32), 1.0):
        for ids in (tokens(2, 9), tokens(1, 6, seed=1)):
            for layer in look(case, masker.hooks(), model=model, args=(ids,)).values():
                is_removed(layer, ranked(layer, 0.3, kind="contribution", mode="inter"))
        before = attention_sites(model)[0].W_O.clone()
        with torch.no_grad():
            for site in attention_sites(model):
                site.W_O.mul_(scale)  # a view of the live weights
        assert torch.equal(attention_sites(model)[0].W_O, before * scale)
