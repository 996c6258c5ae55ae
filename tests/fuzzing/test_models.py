"""What takes a model: tokens of odd integer types, batches of any size, and runs that are saved and shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

import tl_geometry as tlg
from fuzzing.profile import examples
from fuzzing.registry import ACCUMULATORS, EVALUATIONS

FORMS = {
    "uint8": lambda ids: ids.to(torch.uint8),
    "int8": lambda ids: ids.to(torch.int8),
    "int16": lambda ids: ids.to(torch.int16),
    "int32": lambda ids: ids.to(torch.int32),
    "stepped": lambda ids: ids.repeat_interleave(2, -1)[..., ::2],
    "transposed": lambda ids: ids.mT.contiguous().mT,
    "list of tensors": list,
    "list of int16": lambda ids: [row.to(torch.int16) for row in ids],
    "dicts": lambda ids: [
        {"input_ids": row, "attention_mask": torch.ones_like(row)} for row in ids
    ],
    "dicts of lists": lambda ids: [{"input_ids": row.tolist()} for row in ids],
    "numpy": lambda ids: ids.numpy(),
    "numpy uint16": lambda ids: [row.numpy().astype(np.uint16) for row in ids],
    "pairs": lambda ids: [(row, torch.ones_like(row)) for row in ids],
}
REFUSED = {
    "lists": lambda ids: ids.tolist(),
    "floats": lambda ids: ids.float(),
    "bools": lambda ids: ids > 20,
    "0-d": lambda ids: ids[0, 0],
    "one integer": lambda ids: 5,
    "nothing": lambda ids: None,
    "three axes": lambda ids: ids[None],
    "too large": lambda ids: ids + 1000,
    "negative": lambda ids: -ids,
    "empty": lambda ids: ids[:0],
}
QUIET: dict[str, Any] = {"progress": False, "prepend_bos": False}


@pytest.fixture(scope="module", params=["hooked", "bridge"])
def model(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(f"tiny_{request.param}")()


@st.composite
def documents(draw):
    shape = draw(st.integers(2, 4)), draw(st.integers(4, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    return torch.randint(4, 50, shape, generator=generator)


def same(left, right, tolerance=1e-5):
    assert set(left.data_vars) == set(right.data_vars)
    for name in left.data_vars:
        one, other = left[name].values, right[name].values
        if one.dtype.kind in "fc":
            error = (
                400 * tolerance if "fit" in name else tolerance
            )  # a second difference over 0.1^2
            np.testing.assert_allclose(one, other, rtol=error, atol=error, err_msg=name)
        else:
            assert one.tolist() == other.tolist(), name


@examples(1)
@given(documents())
def check_forms(model, ids):
    options = {"measures": ["contributions", "sinks"], "n_ctx": 16, "batch_size": 2, **QUIET}
    usual = tlg.analyze(model, ids, **options)
    for name, form in FORMS.items():
        print(name)  # pytest shows it with a failure
        same(tlg.analyze(model, form(ids), **options), usual)
    for name, form in REFUSED.items():
        print(name)
        with pytest.raises((TypeError, ValueError)):
            tlg.analyze(model, form(ids), **options)


def test_tokens_of_odd_types(model):
    check_forms(model)


def test_one_prompt_of_odd_types(model):
    ids = torch.tensor([7, 9, 20, 31])
    usual = tlg.prompt_contributions(model, ids)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
        found = tlg.prompt_contributions(model, ids.to(dtype))
        np.testing.assert_array_equal(found.values, usual.values)
    for wrong in (
        ids.float(),
        ids > 8,
        ids.tolist(),
        ids.numpy(),
        3,
        None,
        ids[0],
        ids[None, None],
    ):
        with pytest.raises((TypeError, ValueError), match="text"):
            tlg.prompt_contributions(model, wrong)


@pytest.mark.parametrize("name", [name for name in ACCUMULATORS if name != "Costs"])
def test_accumulators_do_not_depend_on_batches(name, model):
    @examples(2)
    @given(documents(), st.sampled_from((1, 3)))
    def run(ids, size):
        made = getattr(tlg, name)
        whole = tlg.analyze(model, ids, made(), batch_size=len(ids), **QUIET)
        parts = tlg.analyze(model, ids, made(), batch_size=size, **QUIET)
        same(parts, whole)
        probe = tlg.Probe(model, [made()])
        model.run_with_hooks(ids, fwd_hooks=probe.hooks())
        same(probe.result(), whole)

    run()


def test_costs_runs_files_and_pages(model, tmp_path):
    """Costs, compare, save, load and report on random runs; the doctor finds the same each time."""

    @examples(1)
    @given(documents(), st.integers(1, 2))
    def run(ids, kept):
        ds = tlg.analyze(model, ids, keep_examples=kept, **QUIET)
        loaded = tlg.load(tlg.save(ds, tmp_path / "run.nc"))
        assert loaded.identical(ds)
        found = tlg.compare(ds, loaded)
        assert found.agreement == 1
        page = tlg.report(loaded, tmp_path / "run.html").read_text(encoding="utf-8")
        assert page.count("<html") == page.count("</html>") == 1
        heads = tlg.head_costs(model, ds)
        assert (heads.sizes["layer"], heads.sizes["head"]) == (2, 4)
        probe = tlg.Probe(model, [tlg.Costs()])
        model.run_with_hooks(ids, fwd_hooks=probe.hooks())
        assert probe.result().sizes["layer"] == 2
        report = tlg.doctor(model)
        assert report.ok
        assert report.to_dataframe().equals(tlg.doctor(model).to_dataframe())

    run()


OPTIONS: dict[str, dict[str, Any]] = {
    "faithfulness": {
        "importances": ("attention", "contribution"),
        "fractions": (0.1, 0.5),
        "resamples": 20,
    },
    "head_sensitivity": {},
    "pattern_mixing": {"ts": (0.5, 1), "resamples": 20},
    "sink_interventions": {"resamples": 20},
    "sparsify": {"orders": ["entropy", "random"], "retention": (1, 0.5), "repeats": 1},
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_evaluations_do_not_depend_on_batches_or_types(name, model):
    """faithfulness, head_sensitivity, pattern_mixing, sink_interventions, sparsify."""

    @examples(1)
    @given(documents())
    def run(ids):
        function = getattr(tlg, name)
        whole = function(model, ids, batch_size=len(ids), **OPTIONS[name], **QUIET)
        parts = function(model, ids.to(torch.int32), batch_size=1, **OPTIONS[name], **QUIET)
        same(parts, whole, 1e-4)
        for wrong in (ids.float(), None, 3, ids[:0], -ids):
            with pytest.raises((TypeError, ValueError)):
                function(model, wrong, **OPTIONS[name], **QUIET)

    run()


def test_token_costs_of_odd_types(model):
    ids = torch.arange(4, 16).view(1, 12)
    options = {"lengths": (2, 4), "samples": 1, "norms": ("frobenius",), **QUIET}
    usual = tlg.token_costs(model, ids, **options)
    for form in (ids.to(torch.uint8), ids.to(torch.int32), [ids[0].to(torch.int16)]):
        same(tlg.token_costs(model, form, **options), usual)


@pytest.mark.parametrize(
    "wrong", [{"fraction": 2}, {"fraction": "all"}, {"mode": "x"}, {"scope": 3}, {"batch_size": 0},
              {"batch_size": 1.5}, {"seed": -1}, {"limit": 0}],
)  # fmt: skip
def test_downstream_refuses_what_cannot_be(wrong, model):
    with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
        tlg.downstream(model, ["boolq"], **wrong, progress=False)
