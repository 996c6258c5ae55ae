"""Every measure of a layer on random layers: its definition, its layout, its inputs, its dtype."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from literal.sink_curve import assert_curve

from fuzzing.measures import MEASURES, call, condition, fields
from fuzzing.profile import examples
from fuzzing.strategies import Layer, layers, layouts

WORST = 2.0**10
"""Rows that amplify rounding more than this are left out where numbers are compared."""


@st.composite
def problems(draw, name, **options):
    """A layer and options of one measure."""
    layer = draw(layers(**options))
    return layer, MEASURES[name].options(draw, layer)


def agree(found, expected, tolerance, keep=None, label="") -> None:
    found, expected = found.detach().double().numpy(), np.asarray(expected, dtype=float)
    assert found.shape == expected.shape, (label, found.shape, expected.shape)
    keep = np.ones(found.shape, bool) if keep is None else np.broadcast_to(keep, found.shape)
    np.testing.assert_array_equal(np.isnan(found[keep]), np.isnan(expected[keep]), err_msg=label)
    error = np.nan_to_num(np.abs(found - expected)[keep])
    allowed = np.broadcast_to(tolerance, found.shape)[keep]
    assert (error <= allowed).all(), (label, (error - allowed).max(), found, expected)


def is_row_wise(values: np.ndarray, layer: Layer) -> bool:
    return values.ndim >= 3 and values.shape[:3] == layer.pattern.shape[:3]


DEFINED = [name for name, measure in MEASURES.items() if measure.literal is not None]


@pytest.mark.parametrize("name", DEFINED)
def test_definition(name):
    measure = MEASURES[name]
    dtypes = {"dtypes": (torch.float64,)} if measure.ranks else {}

    @examples(25)
    @given(problems(name, **dtypes))
    def run(problem):
        layer, options = problem
        found, expected = fields(call(name, layer, options)), measure.literal(layer, options)
        assert set(expected) <= set(found)
        worse = condition(layer, options)
        if name == "sink_norm_curve":
            left = 1 - np.nan_to_num(expected["attention"])
            keep = (worse < WORST) & (left > 1 / WORST)
            for values in expected.values():
                values[~keep] = np.nan
            found = {k: x.masked_fill(torch.from_numpy(~keep), torch.nan) for k, x in found.items()}
            curve = SimpleNamespace(**found)
            assert_curve(curve, expected, 256 * layer.eps * worse**2 / left)
            return
        size = max(1.0, *(float(np.nanmax(np.abs(e), initial=0)) for e in expected.values()))
        for field, values in expected.items():
            values = np.asarray(values, dtype=float)
            rows = worse if is_row_wise(values, layer) else worse.max()
            rows = rows[(...,) + (None,) * (values.ndim - 3)] if np.ndim(rows) else rows
            tolerance = 256 * layer.eps * rows**2 * size
            keep = rows < WORST
            if name == "contribution_factors":  # a key that can't be seen has no relative norm
                keep = keep & layer.mask.numpy()
            if field.startswith(("sink_norm", "other_norm")):  # lengths stand without a comparison
                keep = keep & ~np.isnan(expected["norm_ratio"])
            agree(found[field], values, tolerance, keep, f"{name} {field}")

    run()


@pytest.mark.parametrize("name", MEASURES)
def test_layout_inputs_and_dtype(name):
    """Where the numbers lie in memory changes nothing, nothing is written, the dtype is the working one."""

    @examples(12)
    @given(problems(name, long=True), layouts())
    def run(problem, layout):
        layer, options = problem
        moved = layer.map(layout)
        frame = {"b_V": moved.b_V, "norm_weight": moved.norm_weight}
        changed = {k: frame.get(k, value) for k, value in options.items()}
        before = [x.detach().clone() for x in vars(moved).values() if x is not None]
        usual = fields(call(name, layer, options))
        other = fields(call(name, moved, changed))
        after = [x for x in vars(moved).values() if x is not None]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        worse = condition(layer, options)
        for field, values in usual.items():
            floating = values.is_floating_point()
            wide = ("curvature", "inner") if name == "sink_norm_curve" else ()
            if floating:
                assert values.dtype == (torch.float64 if field in wide else _work(name, layer)), (
                    field
                )
                assert not values.isinf().any(), field
            assert other[field].dtype == values.dtype
            numbers = values.detach().double().numpy()
            rows = worse if is_row_wise(numbers, layer) else worse.max()
            rows = rows[(...,) + (None,) * (numbers.ndim - 3)] if np.ndim(rows) else rows
            if MEASURES[name].ranks and (layer.eps > 1e-10 or not floating):
                continue
            size = 1 + np.nanmax(np.abs(numbers), initial=0)
            tolerance = 256 * layer.eps * rows**2 * size
            agree(other[field], numbers, tolerance, rows < WORST, f"{name} {field}")

    run()


def _work(name: str, layer: Layer) -> torch.dtype:
    if MEASURES[name].arguments == ("pattern",):
        return torch.float64 if layer.pattern.dtype == torch.float64 else torch.float32
    return layer.work_dtype


@pytest.mark.parametrize("name", MEASURES)
def test_a_batch_is_its_rows_and_what_is_masked_takes_no_part(name):
    @examples(10)
    @given(problems(name, dtypes=(torch.float64,)), st.sampled_from((1e30, torch.nan, torch.inf)))
    def run(problem, garbage):
        layer, options = problem
        if layer.available is None:
            return
        together = fields(call(name, layer, options))
        unseen = ~layer.mask.any(2).any(1)
        v = torch.where(unseen[..., None, None], garbage, layer.v)
        pattern = torch.where(layer.mask, layer.pattern, garbage)
        pattern = layer.pattern if name == "separability" and garbage == 1e30 else pattern
        dirty = Layer(**vars(layer) | {"v": v, "pattern": pattern})
        worse = condition(layer, options).max()
        dirtied = fields(call(name, dirty, options))
        for field, values in together.items():
            label = f"{name} {field} beside {garbage}"
            tolerance = (
                256 * layer.eps * worse**2 * (1 + np.nanmax(values.double().numpy(), initial=0))
            )
            if worse < WORST:
                agree(dirtied[field], values.double().numpy(), tolerance, None, label)
        if name == "head_regimes":
            return  # counts over all documents
        for b in range(len(layer.pattern)):
            row = slice(b, b + 1)
            alone = Layer(
                layer.pattern[row], layer.v[row], layer.W_O, layer.mask[row], layer.mask[row],
                layer.b_V, layer.norm_weight,
            )  # fmt: skip
            chosen = dict(options)
            if (
                isinstance(options.get("sink"), torch.Tensor)
                and options["sink"].dtype == torch.bool
            ):
                chosen["sink"] = options["sink"][row]
            for field, values in fields(call(name, alone, chosen)).items():
                if values.ndim and worse < WORST:
                    expected = together[field][row].double().numpy()
                    tolerance = 256 * layer.eps * worse**2 * (1 + np.nanmax(expected, initial=0))
                    agree(values, expected, tolerance, None, f"{name} {field} alone")

    run()
