"""Representation costs over a corpus against the function on tokens that are recorded by hand."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from analysis_data.reference import assert_equal, plain_package, tokens
from analysis_data.streams import stream
from zoo.architectures import build_bridge

from tl_geometry import analyze, load, representation_cost, save
from tl_geometry.analysis import Costs, Probe, costs
from tl_geometry.analysis.accumulator import ResidualStream

TARGETS, NORMS = ("sink", "diagonal"), ("frobenius", "nuclear")
PADDING = {
    "none": [[1] * 7] * 3,
    "right": [[1] * 7, [1] * 4 + [0] * 3, [1] * 6 + [0]],
    "left": [[0] * 3 + [1] * 4, [1] * 7, [0] + [1] * 6],
}


def expected(x):
    """Costs of one document; equal tokens are counted once, lengths are those of unit tokens."""
    different = []
    for row in x.double():
        if all(
            float((row - other).norm()) > 1e-5 * float(x.norm(dim=-1).max()) for other in different
        ):
            different.append(row)
    different = torch.stack(different)
    unit = different / different.square().sum(-1).mean().sqrt()
    found = np.array(
        [[representation_cost(unit, target, norm).cost for norm in NORMS] for target in TARGETS]
    )
    return found, len(different)


def run(model, ids, mask, **options):
    probe = Probe(model, [Costs(**options)])
    model.run_with_hooks(ids, attention_mask=mask, fwd_hooks=probe.hooks(mask))
    return probe.result()


@pytest.mark.parametrize("kind", PADDING)
def test_costs_are_those_of_the_tokens_that_attention_reads(tiny_model, kind):
    ids, mask = tokens(3, 7), torch.tensor(PADDING[kind])
    ds = run(tiny_model, ids, mask)
    assert ds.representation_cost.dims == ("layer", "target", "norm")
    assert ds.attrs["measures"] == {"Costs": {"tokens": 32, "causal": None}}
    seen = stream(tiny_model, ids, attention_mask=mask)
    for layer in range(2):
        documents = [expected(seen[layer, "attended"][row, mask[row].bool()]) for row in range(3)]
        costs = np.stack([cost for cost, _ in documents])
        here = ds.sel(layer=layer)
        np.testing.assert_allclose(here.representation_cost, costs.mean(0), rtol=2e-3)
        assert (here.representation_infeasible == 0).all()
        assert (here.representation_undecided == 0).all()
        assert float(here.representation_tokens) == np.mean([count for _, count in documents])


def test_batches_change_nothing_and_files_keep_it(tiny_model, tmp_path):
    ids = tokens(3, 7)
    one, three = (
        analyze(tiny_model, ids, ["costs"], batch_size=size, progress=False) for size in (1, 3)
    )
    assert_equal(one, three, 1e-4)
    assert load(save(three, tmp_path / "run.nc")).identical(three)


def of(rows, *, layer_is_causal=True, **options):
    """The numbers of one document whose attention reads these vectors."""
    x = torch.as_tensor(rows)[None]
    real = torch.ones(x.shape[:2], dtype=torch.bool)
    stream = ResidualStream(x, x, x, real, causal=layer_is_causal)
    found = Costs(**options).measure_stream(stream)
    return {name: value[0] for name, value in found.items()}


def test_what_can_not_be_represented_counts_and_has_no_cost():
    """Two opposite tokens can't both prefer the sink; each can prefer itself."""
    found = of([[1.0, 1.0, 0.0], [0.0, 2.0, 1.0], [0.0, -2.0, -1.0]])
    assert found["representation_infeasible"].tolist() == [[1, 1], [0, 0]]
    assert found["representation_cost"].isnan().tolist() == [[True, True], [False, False]]


def test_keys_compete_as_the_layer_lets_them():
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    seen, every = of(x), of(x, layer_is_causal=False)
    diagonal = "representation_cost"
    assert (every[diagonal][1] > 1.1 * seen[diagonal][1]).all()
    for options, expected in (({"causal": False}, every), ({"causal": True}, seen)):
        for layer_is_causal in (True, False):
            found = of(x, layer_is_causal=layer_is_causal, **options)
            assert torch.equal(found[diagonal], expected[diagonal])


@pytest.mark.bridge
def test_layers_of_an_encoder_are_told_apart():
    bert = build_bridge("bert")
    ids = tokens(2, 7)
    default, causal = (
        analyze(bert, ids, [Costs(causal=given)], progress=False).representation_cost
        for given in (None, True)
    )
    assert (default.sel(target="diagonal") > 1.05 * causal.sel(target="diagonal")).all()


def test_what_the_solver_leaves_open_is_counted(monkeypatch):
    monkeypatch.setattr(
        costs, "representation_cost", partial(representation_cost, max_iterations=2)
    )
    found = of(torch.randn(6, 8, generator=torch.Generator().manual_seed(0)))
    assert (found["representation_undecided"] == 1).all()
    assert (found["representation_infeasible"] == 0).all()
    assert found["representation_cost"].isnan().all()


def test_few_tokens(tiny_model):
    ids = tokens(2, 7)
    few = run(tiny_model, ids, torch.ones_like(ids), tokens=3)
    assert (few.representation_tokens == 3).all()
    for rows in ([[1.0, 0.0]], [[1.0, 0.0]] * 4, [[0.0, 0.0]] * 4):
        found = of(rows)
        assert float(found["representation_tokens"]) == 1
        assert found["representation_cost"].isnan().all()
        assert found["representation_infeasible"].isnan().all()


@pytest.mark.parametrize(
    ("tokens", "error"), [(1, ValueError), (2.0, TypeError), (True, TypeError)]
)
def test_refusals(tokens, error):
    with plain_package():
        from tl_geometry.analysis.costs import Costs as Plain

        with pytest.raises(error, match="tokens must be"):
            Plain(tokens)
