"""Orders of removal, and what they rank by, against one head at a time written out."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from analysis_data.reference import document, record, soften
from evaluation_data.reference import corpus
from literal import contributions as literal_contributions, regimes as literal_regimes

from tl_geometry.evaluation import read_documents
from tl_geometry.evaluation.head_orders import (
    ORDERS,
    REGIME_ORDERS,
    checked_orders,
    head_order,
    head_statistics,
)
from tl_geometry.hooks import attention_sites

N_HEADS = 4


@pytest.fixture
def measured(tiny_model):
    model = soften(tiny_model)
    tokens, mask, _ = corpus(side="left")
    documents = read_documents(model, (tokens, mask), max_documents=None)
    layers = record(model, tokens, attention_mask=mask)
    return model, mask, layers, head_statistics(model, documents, attention_sites(model))


def one_layer(layer, mask):
    """Per document: mean output norm, mean entropy and mean sum |c| (inter) of each head; winners of all rows."""
    norms, entropies, sizes, winners = [], [], [], np.zeros((N_HEADS, 3), dtype=int)
    for row in range(len(mask)):
        pattern, v, seen = document(layer, row, mask[row].bool())
        c = literal_contributions.contribution_weights(
            pattern, v, layer.W_O, mode="inter", available=seen
        )[0]
        values = literal_contributions.projected_values(v, layer.W_O)[0]
        weights = pattern[0].double().numpy()
        category = literal_regimes.source_winners(pattern, v, layer.W_O, available=seen)[1][0]
        queries = range(len(seen[0]))
        norms.append(
            [
                np.mean([np.linalg.norm(weights[h, i] @ values[h]) for i in queries])
                for h in range(4)
            ]
        )
        entropies.append(
            [
                np.mean([-sum(a * math.log(a) for a in weights[h, i] if a > 0) for i in queries])
                for h in range(N_HEADS)
            ]
        )
        sizes.append([np.mean([np.abs(c[h, i]).sum() for i in queries]) for h in range(N_HEADS)])
        for h in range(N_HEADS):
            for code in range(3):
                winners[h, code] += (category[h] == code).sum()
    return np.mean(norms, 0), np.mean(entropies, 0), np.mean(sizes, 0), winners


def test_statistics_equal_heads_written_out(measured):
    _, mask, layers, found = measured
    for label, layer in enumerate(layers):
        norms, entropies, sizes, winners = one_layer(layer, mask)
        at = found.sel(layer=label)
        np.testing.assert_allclose(at.output_norm, norms, rtol=2e-5)
        np.testing.assert_allclose(at.entropy, entropies, rtol=2e-5)
        np.testing.assert_allclose(at.contribution, sizes, rtol=2e-5)
        for head in range(N_HEADS):
            top = winners[head].max()
            leaders = np.flatnonzero(winners[head] == top)
            name = ("retriever", "mixer", "reset")[leaders[0] if len(leaders) == 1 else 2]
            assert str(at.regime.values[head]) == name


def test_weight_norms_equal_dense_products(measured):
    model, _, layers, found = measured
    for label, layer in enumerate(layers):
        W_V = model.get_submodule(layer.name).W_V.detach()
        for head in range(N_HEADS):
            value = W_V[head * len(W_V) // N_HEADS].double()
            dense = value @ layer.W_O[head].double()
            norm = math.sqrt(sum(x * x for x in dense.flatten().tolist()))
            assert float(found.weight_norm.sel(layer=label, head=head)) == pytest.approx(
                norm, rel=1e-5
            )


def columns(seed=0, n=12):
    generator = np.random.default_rng(seed)
    found = {
        name: np.round(generator.random(n), 1)  # many ties
        for name in ("output_norm", "contribution", "entropy", "weight_norm")
    }
    found["regime"] = generator.choice(["retriever", "mixer", "reset"], n)
    return found


def literal_order(order, table):
    """Take out the next head again and again; of equal ones the lowest number."""
    left, found = list(range(len(table["regime"]))), []
    while left:
        best = left[0]
        for head in left[1:]:
            if before(order, table, head, best):
                best = head
        left.remove(best)
        found.append(best)
    return found


def before(order, table, one, other):
    if order in REGIME_ORDERS:
        names = order.split(">")
        places = [names.index(table["regime"][head]) for head in (one, other)]
        if places[0] != places[1]:
            return places[0] < places[1]
        return table["output_norm"][one] < table["output_norm"][other]
    if order == "entropy":
        return table["entropy"][one] > table["entropy"][other]
    return table[order][one] < table[order][other]


@pytest.mark.parametrize("order", [name for name in ORDERS if name != "random"])
@pytest.mark.parametrize("seed", range(4))
def test_orders_equal_a_literal_selection(order, seed):
    table = columns(seed)
    assert head_order(order, table).tolist() == literal_order(order, table)


def test_the_first_regime_named_goes_first():
    table = {
        "regime": np.array(["reset", "mixer", "retriever", "mixer"]),
        "output_norm": np.array([1.0, 3.0, 9.0, 2.0]),
    }
    assert head_order("retriever>mixer>reset", table).tolist() == [2, 3, 1, 0]
    assert head_order("reset>mixer>retriever", table).tolist() == [0, 3, 1, 2]


def test_there_are_six_orders_of_regimes():
    names = {">".join(p) for p in itertools.permutations(("reset", "mixer", "retriever"))}
    assert set(REGIME_ORDERS) == names
    assert set(ORDERS) - names == {
        "output_norm",
        "contribution",
        "entropy",
        "weight_norm",
        "random",
    }


@pytest.mark.parametrize("order", ["output_norm", "entropy", "retriever>mixer>reset"])
def test_heads_without_a_value_go_first(order):
    table = columns()
    table["output_norm"][7] = table["entropy"][7] = np.nan
    table["regime"][7] = ""
    assert head_order(order, table)[0] == 7


def test_random_orders_are_permutations_from_a_seed():
    table = columns()
    found = [head_order("random", table, seed=(3, repeat)).tolist() for repeat in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    assert sorted(found[2]) == list(range(12))


def test_random_orders_are_even():
    """Each head is as often in the first half as any other: 500 draws, 5 standard deviations."""
    table = columns(n=6)
    first = np.zeros(6)
    for repeat in range(500):
        first[head_order("random", table, seed=(0, repeat))[:3]] += 1
    assert abs(first - 250).max() < 5 * math.sqrt(500 / 4)


@pytest.mark.parametrize("orders", [["regime"], [], ["random", "random"], "mixer"])
def test_unknown_orders_are_refused_with_the_known_ones(orders):
    with pytest.raises(ValueError, match=r"'retriever>mixer>reset'.*each once"):
        checked_orders(orders)


def test_one_order_may_be_named_alone():
    assert checked_orders("entropy") == ("entropy",)
    assert checked_orders(None) == ORDERS


def test_statistics_leave_the_weight_norm_out_where_nobody_asks(tiny_model, monkeypatch):
    from tl_geometry.evaluation import head_orders

    def refuse(site):
        raise ValueError("no plain matrix of values")

    monkeypatch.setattr(head_orders, "value_output_norms", refuse)
    documents = read_documents(tiny_model, corpus()[:2])
    sites = attention_sites(tiny_model)
    assert "weight_norm" not in head_statistics(tiny_model, documents, sites, ["entropy"])
    with pytest.raises(ValueError, match="no plain matrix"):
        head_statistics(tiny_model, documents, sites)
    assert torch.is_grad_enabled()
