"""Costs on a model's own tokens against direct fits on tokens made by hand, closed forms and scipy."""

from __future__ import annotations

import inspect
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from analysis_data.reference import plain_package
from scipy import stats
from zoo.architectures import build_bridge, build_hooked

import tl_geometry.models
from tl_geometry.analysis import load, save
from tl_geometry.analysis.head_costs import head_costs
from tl_geometry.analysis.token_costs import token_costs
from tl_geometry.measures.cost_scaling import cost_scaling
from tl_geometry.models import load_model
from tl_geometry.models.toy import WEIGHTS, toy_from_weights

ROWS = torch.tensor([[1, 5, 6, 5, 7], [1, 8, 5, 9, 10]])
FEW = {"lengths": (2, 4, 6), "norms": ("frobenius",), "samples": 3, "progress": False}
FIELDS = {
    "sink_exponent": "sink_exponent",
    "diagonal_exponent": "diagonal_exponent",
    "exponent_gap": "gap",
}


def unit(x):
    """Vectors of mean squared length 1, and the length before."""
    length = x.double().square().sum(-1).mean().sqrt()
    return x.double() / length, length.item()


def assert_scaling(costs, kind, norm, expected):
    found = costs.sel(tokens=kind, norm=norm)
    samples = len(expected.sink)
    for target in ("sink", "diagonal"):
        values = found[f"{target}_cost"].values
        np.testing.assert_allclose(values[:samples], getattr(expected, target), rtol=1e-5)
        assert np.isnan(values[samples:]).all()
        shares = getattr(expected, f"{target}_infeasible")
        np.testing.assert_array_equal(found[f"{target}_infeasible"], shares)
    for name, field in FIELDS.items():
        ends = [float(found[name + end]) for end in ("", "_low", "_high")]
        exponent = getattr(expected, field)
        wanted = (exponent.value, exponent.low, exponent.high)
        assert ends == pytest.approx(wanted, rel=1e-4, abs=1e-4, nan_ok=True)
    turn = math.nan if expected.turns_round is None else expected.turns_round
    assert float(found.turns_round) == pytest.approx(turn, nan_ok=True)


# -- whose tokens ------------------------------------------------------------------------------------


def embeddings(model, backend, tokens):
    """What the first layer of the tiny models without learned positions reads."""
    if backend == "hooked":
        norm = model.blocks[0].ln1
        return torch.nn.functional.layer_norm(
            model.W_E[tokens], (32,), norm.w, norm.b, model.cfg.eps
        )
    hf = model.original_model.model
    return hf.layers[0].input_layernorm(hf.embed_tokens.weight[tokens])


@torch.no_grad()
def test_repeated_tokens_are_left_out_and_counted(tiny_model, backend):
    """Of rows with learned rotation only, 5 comes three times; both rows have one sink."""
    costs = token_costs(tiny_model, ROWS, **FEW, seed=7)
    own, length = unit(embeddings(tiny_model, backend, torch.tensor([1, 5, 6, 7, 8, 9, 10])))
    expected = cost_scaling((2, 4, 6), tokens=own, norm="frobenius", seeds=(7, 8, 9))
    assert_scaling(costs, "model", "frobenius", expected)
    assert (costs.attrs["distinct_tokens"], costs.attrs["repeated_tokens"]) == (7, 2)
    assert costs.attrs["token_length"] == pytest.approx(length, rel=1e-5)
    assert (costs.attrs["documents"], costs.attrs["tokens"]) == (2, 10)


@pytest.mark.bridge
@torch.no_grad()
def test_learned_positions_make_repeated_tokens_differ():
    model = build_bridge("gpt2")
    rows = torch.tensor([[1, 5, 6, 5, 7], [1, 8, 6, 9, 10]])
    costs = token_costs(model, rows, **FEW)
    hf = model.original_model.transformer
    x = hf.h[0].ln_1(hf.wte.weight[rows] + hf.wpe.weight[:5])
    own, _ = unit(torch.cat([x[0], x[1, [1, 3, 4]]]))  # 6 stands in the same place twice
    assert_scaling(
        costs,
        "model",
        "frobenius",
        cost_scaling((2, 4, 6), tokens=own, norm="frobenius", seeds=(0, 1, 2)),
    )
    assert (costs.attrs["distinct_tokens"], costs.attrs["repeated_tokens"]) == (8, 1)


@pytest.mark.hooked
@torch.no_grad()
def test_a_later_layer_reads_contextual_tokens():
    model = build_hooked("llama")
    costs = token_costs(model, ROWS, **FEW, layer=1)
    _, cache = model.run_with_cache(ROWS)
    x = cache["blocks.1.ln1.hook_normalized"] * model.blocks[1].ln1.w
    own, _ = unit(torch.cat([x[0], x[1, 1:]]))
    assert_scaling(
        costs,
        "model",
        "frobenius",
        cost_scaling((2, 4, 6), tokens=own, norm="frobenius", seeds=(0, 1, 2)),
    )
    assert (costs.attrs["distinct_tokens"], costs.attrs["repeated_tokens"]) == (9, 0)
    assert costs.attrs["settings"]["layer"] == 1


@pytest.mark.hooked
def test_padding_and_batching_leave_no_trace(tiny_hooked, tiny_tokenizer):
    """Windows of one length and of several, alone and together: the same tokens in the same order."""
    model = tiny_hooked(tokenizer=tiny_tokenizer)
    texts = ["the cat sat", "a dog ran over the hill and flew", "one two three"]
    together, alone = (
        token_costs(model, texts, **FEW, batch_size=size, n_ctx=7) for size in (8, 1)
    )
    assert together.attrs["distinct_tokens"] == 1 + len(set(" ".join(texts).split()))
    np.testing.assert_allclose(together.sink_cost, alone.sink_cost, rtol=1e-5)
    np.testing.assert_allclose(together.diagonal_cost, alone.diagonal_cost, rtol=1e-5)
    assert together.attrs["prepend_bos"] is True


@torch.no_grad()
def test_without_data_tokens_come_from_the_vocabulary(backend):
    """The toy has no tokenizer: id 0 comes first, and nothing is drawn twice in one row."""
    model = load_model("toy", backend=backend, processing=False, device="cpu")
    options = {**FEW, "lengths": (3, 40), "samples": 2}
    costs, again, other = (token_costs(model, **options, seed=seed) for seed in (5, 5, 6))
    xr.testing.assert_equal(costs, again)
    assert (costs.sink_cost != other.sink_cost).sel(tokens="model").any()
    assert costs.attrs["bos_rule"].startswith("token 0 opens every row")
    assert costs.attrs["tokens"] == 80
    assert costs.attrs["distinct_tokens"] + costs.attrs["repeated_tokens"] == 79
    hf = toy_from_weights(Path(tl_geometry.models.__file__).parent / WEIGHTS)
    table = hf.transformer.wte.weight[:, None] + hf.transformer.wpe.weight[:40]
    lengths = hf.transformer.h[0].ln_1(table).norm(dim=-1)
    assert lengths.min() < costs.attrs["token_length"] < lengths.max()


# -- what is made of them ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crowded():
    """Six dimensions, so that 3 tokens are few and 18 too many for a sink."""
    model = build_hooked("llama", n_heads=1, n_key_value_heads=1, d_head=6, d_model=6, rotary_dim=6)
    options = {"lengths": (3, 6, 18), "samples": 3, "progress": False}
    return model, options, token_costs(model, **options)


@pytest.mark.hooked
def test_orthonormal_tokens_have_their_closed_forms(crowded):
    costs = crowded[2].sel(tokens="orthonormal")
    T = costs.length.values
    assert costs.sample.values.tolist() == [0, 1, 2]
    np.testing.assert_allclose(
        costs.sink_cost.sel(norm="nuclear")[0], (T - 1) / np.sqrt(T), rtol=1e-3
    )
    harmonic = [sum(1 / k for k in range(1, n + 1)) for n in T]
    for target in ("sink", "diagonal"):
        found = costs[f"{target}_cost"].sel(norm="frobenius")
        np.testing.assert_allclose(found[0], np.sqrt(T - harmonic), rtol=1e-3)
        assert np.isnan(found[1:]).all()
    assert float(costs.exponent_gap.sel(norm="frobenius")) == pytest.approx(0, abs=1e-3)
    assert np.isnan(costs.cost_ratio_low).all()  # one sample


@pytest.mark.hooked
@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_an_infeasible_sink_is_a_share_and_no_number(crowded, norm):
    _, options, costs = crowded
    expected = cost_scaling(options["lengths"], tokens="random", d=6, norm=norm, seeds=(0, 1, 2))
    assert expected.sink_infeasible[-1] == 1
    assert_scaling(costs, "random", norm, expected)
    found = costs.sel(tokens="random", norm=norm)
    assert np.isnan(found.sink_cost[:, -1]).all()
    assert np.isnan(found.cost_ratio[-1])
    assert float(found.turns_round) in (6, 18)
    assert 0 < float(found.diagonal_infeasible[-1]) < 1


@pytest.mark.hooked
def test_the_ratio_is_a_geometric_mean_with_students_interval(crowded):
    costs = crowded[2]
    checked = 0
    for kind in ("random", "model"):
        for norm in costs.norm.values:
            found = costs.sel(tokens=kind, norm=norm)
            for k in range(3):
                logs = np.log(found.diagonal_cost[:, k] / found.sink_cost[:, k]).values
                logs = logs[~np.isnan(logs)]
                if len(logs) < 2:
                    continue
                low, high = stats.t.interval(0.95, len(logs) - 1, logs.mean(), stats.sem(logs))
                wanted = np.exp([logs.mean(), low, high])
                ends = [found[f"cost_ratio{end}"][k] for end in ("", "_low", "_high")]
                np.testing.assert_allclose(ends, wanted, rtol=1e-10)
                checked += 1
    assert checked >= 4


@pytest.mark.hooked
def test_all_tokens_compete_where_the_order_does_not_matter():
    model = build_hooked("llama")
    costs = token_costs(model, ROWS, **FEW, causal=False)
    T = costs.length.values
    for target in ("sink", "diagonal"):
        found = costs[f"{target}_cost"].sel(tokens="orthonormal", norm="frobenius")[0]
        np.testing.assert_allclose(found, np.sqrt(T - 1), rtol=1e-3)


@pytest.mark.hooked
def test_the_heads_of_a_run_come_along_and_all_can_be_saved(tmp_path):
    model = build_hooked("llama")
    generator = np.random.default_rng(3)
    run = xr.Dataset(
        {"sink_rate": (("layer", "head"), generator.random((2, 4)))},
        coords={"layer": [0, 1], "head": np.arange(4)},
    )
    costs = token_costs(model, ROWS, **FEW, ds=run, seed=4)
    heads = head_costs(model, run, seed=4)
    for name in heads.variables:
        np.testing.assert_array_equal(costs[name], heads[name])
    xr.testing.assert_identical(load(save(costs, tmp_path / "costs.nc")), costs)
    assert costs.attrs["settings"] == {
        "evaluation": "token_costs",
        "drawn_from": "data",
        "layer": 0,
        "lengths": [2, 4, 6],
        "norms": ["frobenius"],
        "samples": 3,
        "causal": True,
        "seed": 4,
    }
    assert costs.attrs["weight_processing"]["model_class"] == "HookedTransformer"


# -- refusals ----------------------------------------------------------------------------------------


@pytest.mark.hooked
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"norms": "nuclear"}, "norms must be one or more of"),
        ({"norms": ()}, "norms must be one or more of"),
        ({"norms": ("spectral",)}, "norms must be one of 'frobenius', 'nuclear', got 'spectral'"),
        ({"samples": 0}, "samples must be at least 1, got 0"),
        ({"lengths": (4, 8)}, r"up to 8, .* only 7 distinct tokens in layer 0 \(2 repeated"),
        ({"lengths": ()}, "lengths must be two or more increasing numbers"),
        ({"lengths": (4, 2)}, "increasing"),
        ({"norms": ("nuclear", "nuclear")}, r"norms must differ, got \['nuclear', 'nuclear'\]"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"lengths": (1, 4)}, "each of lengths must be at least 2, got 1"),
        ({"layer": 2}, r"the attention layers are \[0, 1\]"),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    model = build_hooked("llama")
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(token_costs)(model, ROWS, **FEW | change)


@pytest.mark.hooked
@pytest.mark.parametrize("layer", [[1, 0], (1,), np.array([1])])
def test_one_layer_only(layer):
    with pytest.raises(TypeError, match="layer must be the label of one layer, got"):
        inspect.unwrap(token_costs)(build_hooked("llama"), ROWS, **FEW, layer=layer)


@pytest.mark.hooked
@torch.no_grad()
def test_generators_and_numpy_integers_are_taken():
    model = build_hooked("llama")
    expected = token_costs(model, ROWS, **FEW, layer=1, seed=2)
    given = {
        "norms": (norm for norm in FEW["norms"]),
        "lengths": (np.int64(T) for T in FEW["lengths"]),
        "samples": np.int64(FEW["samples"]),
        "layer": np.int64(1),
        "seed": np.int64(2),
    }
    with plain_package() as plain:  # without the tests' type checks
        found = plain.token_costs(model, ROWS, progress=False, **given)
    xr.testing.assert_equal(found, expected)
    assert json.dumps(found.attrs["settings"]) == json.dumps(expected.attrs["settings"])


@pytest.mark.hooked
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_tokens_that_are_not_finite_are_refused(value):
    model = build_hooked("llama")
    with torch.no_grad():
        model.blocks[0].mlp.b_out[3] = value
    with pytest.raises(ValueError, match="layer 1 reads NaN or infinite values"):
        token_costs(model, ROWS, **FEW, layer=1)


@pytest.mark.bridge
def test_models_that_would_mislead_are_refused():
    model = build_bridge("gpt2")
    with pytest.raises(ValueError, match=r"dropout is active .* model.eval\(\)"):
        token_costs(model.train(), ROWS, **FEW)
    with pytest.raises(ValueError, match="encoder-decoder"):
        token_costs(build_bridge("bart"), ROWS, **FEW)
    for data in (ROWS, None):
        with pytest.raises(ValueError, match="is a model of images and takes no tokens"):
            token_costs(build_bridge("vit"), data, **FEW)


@pytest.mark.hooked
def test_a_vocabulary_of_unknown_size_needs_data():
    model = build_hooked("llama")
    model.cfg.d_vocab = -1
    with pytest.raises(ValueError, match=r"size of its vocabulary .* give data"):
        token_costs(model, **FEW)
