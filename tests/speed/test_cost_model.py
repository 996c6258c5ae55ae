"""The cost model of docs/scaling.md against what torch counts on small models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from analysis_data.reference import soften
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import tl_geometry as tlg
from benchmarks.cost_model import (
    CAPACITY,
    MODELS,
    OUR_PASSES,
    Shape,
    forward_flops,
    frame_bytes,
    layer_flops,
    linear_bytes,
    longest_window,
    main,
    peak_bytes,
    state_numbers,
)
from benchmarks.counting import around, flops_of_hooks, peak_of_hooks
from tl_geometry.analysis.accumulator import Accumulator, Variable
from tl_geometry.analysis.defaults import default_measures
from tl_geometry.measures.layer import BLOCK_ELEMENTS

VOCABULARY, D_MLP = 50, 64


def shape_of(heads, kv_heads, d_head, layers=1):
    return Shape(layers, heads, kv_heads, d_head, 2 * heads * d_head, D_MLP, VOCABULARY, 2)


@pytest.fixture(scope="module")
def model_of(tiny_hooked):
    def make(shape, dtype=torch.float32):
        model = tiny_hooked(
            n_layers=shape.layers, n_heads=shape.heads, n_key_value_heads=shape.kv_heads,
            d_head=shape.d_head, rotary_dim=shape.d_head, d_model=shape.d_model, n_ctx=512, dtype=dtype,
        )  # fmt: skip
        with torch.no_grad():
            return soften(model)

    return make


def ids(length):
    return torch.randint(4, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(0))


def second(count, probe, length):
    """The first forward factors the output projections. The mask is given, so that no padding is looked for."""
    mask = torch.ones(1, length, dtype=torch.long)
    return [count(probe.model, ids(length), probe.hooks(attention_mask=mask)) for _ in range(2)][1]


@pytest.mark.hooked
@pytest.mark.parametrize("kv_heads", [2, 4])
@pytest.mark.parametrize("budget", [None, 120_000], ids=["one block", "blocks"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_operations_of_the_default_measures(model_of, kv_heads, budget, dtype):
    shape, length = shape_of(4, kv_heads, 8, layers=2), 70
    probe = tlg.Probe(model_of(shape, dtype), default_measures(stream=True), memory_budget=budget)
    done = second(flops_of_hooks, probe, length)
    elements = BLOCK_ELEMENTS if budget is None else budget // 4
    half = dtype == torch.bfloat16
    expected = layer_flops(shape, length, elements=elements, half=half, host=True)
    assert done == 2 * sum(expected.values())


@pytest.mark.hooked
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_operations_of_the_model(model_of, kv_heads):
    shape = shape_of(4, kv_heads, 8, layers=2)
    model = model_of(shape)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(ids(60))
    assert counter.get_total_flops() == forward_flops(shape, 60)


@pytest.mark.hooked
@pytest.mark.parametrize(("heads", "d_head", "length"), [(4, 64, 256), (4, 128, 256), (8, 32, 256)])
def test_memory_beside_the_pattern(model_of, heads, d_head, length):
    shape, budget = shape_of(heads, heads, d_head), 2**19
    probe = tlg.Probe(model_of(shape), default_measures(stream=True), memory_budget=budget)
    found = second(peak_of_hooks, probe, length)
    assert 0.5 < found / (linear_bytes(shape, length) + budget) <= 1


class Passes(TorchDispatchMode):
    """How often operators read or write a whole tensor of so many floats; picking entries is no pass."""

    def __init__(self, numbers):
        super().__init__()
        self.numbers, self.found = numbers, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given, made = ([x for x in tree_leaves(xs) if self._whole(x)] for xs in (args, result))
        stores = {x.untyped_storage().data_ptr() for x in given}
        view = any(x.untyped_storage().data_ptr() in stores for x in made)
        picks = func in (torch.ops.aten.gather.default, torch.ops.aten.diagonal.default)
        if not picks and (func._schema.is_mutable or not view):
            self.found += len(given) + len(made)
        return result

    def _whole(self, x):
        return isinstance(x, torch.Tensor) and x.is_floating_point() and x.numel() == self.numbers


@pytest.mark.hooked
def test_passes_over_the_pattern_and_its_temporaries(model_of):
    shape, length = shape_of(4, 4, 8), 100
    passes = Passes(shape.heads * length**2)
    # Separability takes chosen rows out of the pattern.
    measures = [m for m in default_measures() if not isinstance(m, tlg.Separability)]
    probe = tlg.Probe(model_of(shape), measures)
    mask = torch.ones(1, length, dtype=torch.long)
    hooks = around(probe.hooks(attention_mask=mask), passes)
    probe.model.run_with_hooks(ids(length), fwd_hooks=hooks, return_type=None)
    assert passes.found == OUR_PASSES


@pytest.mark.hooked
def test_factored_output_projections(model_of):
    shape = shape_of(4, 2, 8, layers=2)
    probe = tlg.Probe(model_of(shape))
    second(flops_of_hooks, probe, 20)
    frames = [probe.reader._frames.of(site, None).L for site in probe.sites]
    assert sum(L.nbytes for L in frames) == frame_bytes(shape)


class Counted(Accumulator):
    """Three moments of two means per head, one of them with an axis of five; one sum; one mean per layer."""

    variables: Mapping[str, Variable] = {
        "mean": Variable("m"),
        "binned": Variable("b", dims=("bin",)),
        "rows": Variable("r", over="rows"),
        "layer": Variable("l", per="layer"),
    }
    coords: Mapping[str, Sequence[int]] = {"bin": range(5)}

    def measure(self, geometry):
        return {}


def test_states_are_counted(monkeypatch):
    monkeypatch.setattr("benchmarks.cost_model.default_measures", lambda stream: [Counted()])
    assert state_numbers() == (3 + 15 + 1, 3)


def test_sizes_are_those_of_the_models():
    (seven, one), (seventy, eight) = MODELS.values()
    assert (one, eight) == (1, 8)
    assert 6.7e9 < seven.weights < 6.8e9
    assert 68e9 < seventy.weights < 70e9


@pytest.mark.parametrize(("shape", "devices"), MODELS.values(), ids=MODELS)
def test_the_longest_window_fits_and_the_next_does_not(shape, devices):
    longest = longest_window(shape, devices)
    assert peak_bytes(shape, longest, devices) <= CAPACITY
    assert peak_bytes(shape, longest + 256, devices) > CAPACITY
    assert 4096 < longest < 32768


def test_the_table_is_printed(capsys):
    main()
    printed = capsys.readouterr().out
    assert "computed, not measured" in printed
    assert printed.count("longest window") == len(MODELS)
