"""Similarity around each layer against a slow computation on the recorded residual stream."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from analysis_data.reference import assert_equal, soften, tokens
from analysis_data.streams import stream
from literal import similarity as literal
from zoo.architectures import build_bridge, build_hooked

from tl_geometry import load, save
from tl_geometry.analysis import Accumulator, Probe, Variable
from tl_geometry.analysis.contributions import Contributions
from tl_geometry.analysis.smoothing import Smoothing
from tl_geometry.measures.halfspace import halfspace_margins

VARIABLES = ("similarity_in", "similarity_out", "residual_in", "residual_out", "bos_cosine",
             "bos_cosine_max")  # fmt: skip
PADDING = {
    "none": [[1] * 13] * 3,
    "right": [[1] * 13, [1] * 7 + [0] * 6, [1] * 12 + [0]],
    "left": [[0] * 6 + [1] * 7, [1] * 13, [0] + [1] * 12],
    "gaps": [[1, 0, 0, *[1] * 10], [1] * 5 + [0] * 3 + [1] * 5, [1] * 11 + [0, 1]],
}


def numbers(seen, block, mask):
    """The variables of all documents: arrays over them."""
    mean, largest = literal.first_token_cosines(seen[block, "attended"], mask)
    return {
        **{
            f"similarity_{k}": literal.token_similarity(seen[block, k], mask) for k in ("in", "out")
        },
        **{f"residual_{k}": literal.relative_residual(seen[block, k], mask) for k in ("in", "out")},
        "bos_cosine": mean,
        "bos_cosine_max": largest,
    }


def run(model, measures, ids, mask=None, first=(), **options):
    probe = Probe(model, measures, **options)
    arguments = {} if mask is None else {"attention_mask": mask}
    model.run_with_hooks(ids, fwd_hooks=[*first, *probe.hooks(mask)], **arguments)
    return probe.result()


def assert_numbers(ds, seen, mask, tolerance):
    for block in range(2):
        for name, values in numbers(seen, block, mask).items():
            found = ds.sel(layer=block)
            error = values.std(ddof=1) / np.sqrt(len(values))
            for suffix, expected in (("", values.mean()), ("_se", error)):
                np.testing.assert_allclose(
                    found[name + suffix].values, expected, rtol=tolerance, atol=tolerance,
                    err_msg=f"{name}{suffix}, layer {block}",
                )  # fmt: skip


@pytest.mark.parametrize("kind", PADDING)
def test_every_variable_equals_the_literal_computation(tiny_model, kind):
    ids, mask = tokens(3, 13), torch.tensor(PADDING[kind])
    ds = run(tiny_model, [Smoothing()], ids, mask)
    assert set(ds.data_vars) == {name + s for name in VARIABLES for s in ("", "_se")}
    for name, variable in ds.data_vars.items():
        assert variable.dims == ("layer",)
        assert "arXiv" in variable.attrs["source"], name
    assert_numbers(ds, stream(tiny_model, ids, attention_mask=mask), mask.bool(), 1e-5)
    np.testing.assert_allclose(ds.similarity_out[0], ds.similarity_in[1], rtol=1e-12)


@pytest.mark.parametrize("kind", ["left", "right"])
def test_padding_and_batches_change_nothing(tiny_model, kind):
    ids, mask = tokens(3, 13), torch.tensor(PADDING[kind])
    measures = lambda: [Smoothing(halfspace=True, halfspace_tokens=6)]  # noqa: E731
    together = run(tiny_model, measures(), ids, mask)
    alone, pairs = (Probe(tiny_model, measures()) for _ in range(2))
    for row in range(3):
        tiny_model.run_with_hooks(ids[row][mask[row].bool()][None], fwd_hooks=alone.hooks())
    assert_equal(alone.result(), together, 1e-5)
    for rows in ([2], [0, 1]):
        hooks = pairs.hooks(mask[rows])
        tiny_model.run_with_hooks(ids[rows], attention_mask=mask[rows], fwd_hooks=hooks)
    assert_equal(pairs.result(), together, 1e-5)


def test_ablations_before_the_probe_are_seen(tiny_model):
    ids, every = tokens(2, 13), torch.ones(2, 13, dtype=torch.long)

    def uniform(pattern, hook):
        lower = torch.ones_like(pattern).tril()
        return lower / lower.sum(-1, keepdim=True)

    def none(pattern, hook):
        return torch.eye(pattern.shape[-1]).expand_as(pattern).clone()

    found = {}
    for edit in (uniform, none):
        edits = [(f"blocks.{block}.attn.hook_pattern", edit) for block in range(2)]
        found[edit] = run(tiny_model, [Smoothing()], ids, every, first=edits)
        seen = stream(tiny_model, ids, first=edits)
        assert_numbers(found[edit], seen, every.bool(), 1e-5)
    plain = run(tiny_model, [Smoothing()], ids, every)
    for ds in found.values():
        assert abs(ds.similarity_out - plain.similarity_out).max() > 1e-4


@pytest.mark.bridge
@pytest.mark.parametrize("arch", ["gemma2", "falcon", "olmo2"])
def test_norms_behind_the_attention_and_parallel_blocks(arch):
    """Sandwich norms, attention beside the MLP, attention that reads the bare stream."""
    model = soften(build_bridge(arch))
    ids, every = tokens(3, 13), torch.ones(3, 13, dtype=torch.bool)
    seen = stream(model, ids)
    if arch == "olmo2":
        seen |= {(block, "attended"): seen[block, "in"] for block in range(2)}
    assert_numbers(run(model, [Smoothing()], ids), seen, every, 1e-5)


@pytest.mark.hooked
@pytest.mark.parametrize("arch", ["parallel", "attention_only", "sandwich"])
def test_blocks_of_other_kinds(arch):
    model = build_hooked(arch)
    ids, every = tokens(3, 13), torch.ones(3, 13, dtype=torch.bool)
    assert_numbers(run(model, [Smoothing()], ids), stream(model, ids), every, 1e-5)


@pytest.mark.bridge
def test_an_encoder_and_its_decoder():
    model = soften(build_bridge("bart"))
    ids, targets = tokens(3, 12), tokens(3, 9, seed=1)
    mask = torch.tensor([[1] * 12, [1] * 7 + [0] * 5, [1] * 12])
    probe = Probe(model, [Smoothing()])
    hooks = probe.hooks(attention_mask=mask, decoder_attention_mask=torch.ones(3, 9))
    model.run_with_hooks(ids, fwd_hooks=hooks, attention_mask=mask, decoder_input=targets)
    ds = probe.result()
    own, across = (ds.sel(layer=f"decoder_blocks.1.{name}") for name in ("self_attn", "cross_attn"))
    for name in VARIABLES[:4]:
        assert float(own[name]) == float(across[name])
    assert not np.isnan(own.bos_cosine)
    assert np.isnan(across.bos_cosine)
    assert np.isnan(across.bos_cosine_max)
    assert not np.isnan(ds.similarity_in.values).any()


def test_half_precision(tiny_bridge):
    model = tiny_bridge(dtype=torch.bfloat16)
    ids, every = tokens(3, 13), torch.ones(3, 13, dtype=torch.bool)
    assert_numbers(run(model, [Smoothing()], ids), stream(model, ids), every, 1e-4)


def test_short_documents(tiny_model):
    ids, mask = tokens(3, 13), torch.ones(3, 13, dtype=torch.long)
    mask[1, 1:] = 0  # one token: nothing to compare
    mask[2, 2:] = 0  # bos and another: no pair
    measure = Smoothing(halfspace=True)
    ds = run(tiny_model, [measure], ids, mask)
    counts = {name: getattr(measure, name)[2].tolist() for name in measure.variables}
    assert counts["similarity_in"] == [1, 1]
    assert counts["residual_in"] == [2, 2]
    assert counts["bos_cosine"] == [2, 2]
    assert counts["halfspace_feasible"] == [2, 2]
    assert ds.attrs["documents"] == 3
    np.testing.assert_allclose(ds.halfspace_tokens.values, 16 / 3)


# -- half-space conditions ---------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [512, 5])
def test_halfspace_conditions_of_what_the_attention_reads(tiny_model, limit):
    ids, mask = tokens(3, 13), torch.tensor(PADDING["gaps"])
    measure = Smoothing(halfspace=True, halfspace_tokens=limit, seed=4)
    ds = run(tiny_model, [measure], ids, mask)
    seen = stream(tiny_model, ids, attention_mask=mask)
    for block in range(2):
        found = {}
        for x, real in zip(seen[block, "attended"], mask.bool(), strict=True):
            x = x[real]
            n = len(x)
            if n > limit:
                x = x[[-(-k * n // limit) for k in range(limit)]]
            margins = halfspace_margins(x, seed=4)
            values = {
                "feasible": float(margins.feasible),
                "rank": float(margins.rank),
                "tokens": min(n, limit),
                "origin_margin": float(margins.origin_margin / margins.longest),
                "sink_margin": float(margins.sink_margin / margins.longest),
                "origin_margin_random": float(margins.control_origin_margin / margins.longest),
                "sink_margin_random": float(margins.control_sink_margin / margins.longest),
            }
            for name, value in values.items():
                found.setdefault(f"halfspace_{name}", []).append(value)
        for name, values in found.items():
            np.testing.assert_allclose(
                ds[name].sel(layer=block).values, np.mean(values), rtol=1e-5, err_msg=name
            )
    assert ds.attrs["measures"]["Smoothing"] == {
        "halfspace": True, "halfspace_tokens": limit, "seed": 4,
    }  # fmt: skip


def test_it_is_left_out_by_default(tiny_model):
    ds = run(tiny_model, [Smoothing()], tokens(2, 9))
    assert not any(name.startswith("halfspace") for name in ds.data_vars)
    assert ds.attrs["measures"] == {"Smoothing": {"halfspace": False}}
    with pytest.raises(ValueError, match="halfspace_tokens must be at least 2, got 1"):
        Smoothing(halfspace_tokens=1)


# -- the probe ---------------------------------------------------------------------------------------


class PerLayer(Accumulator):
    """Variables of a layer from its attention and from its stream, with axes of their own."""

    reads_stream = True
    variables = {  # noqa: RUF012
        "rows": Variable("rows", per="layer", over="rows"),
        "entries": Variable("entries", per="layer", over="rows", dims=("half",)),
        "width": Variable("width", per="layer", dims=("half",)),
    }
    coords = {"half": (0, 1)}  # noqa: RUF012

    def measure(self, geometry):
        rows = geometry.rows.sum((1, 2))
        return {"rows": rows, "entries": torch.stack([rows, rows * rows], -1)}

    def measure_stream(self, stream):
        return {"width": stream.real.sum(-1, keepdim=True) * torch.tensor([1.0, 2.0])}


def test_variables_of_a_layer(tiny_model):
    ds = run(tiny_model, [PerLayer()], tokens(2, 9), torch.tensor([[1] * 9, [1] * 7 + [0] * 2]))
    assert ds.rows.dims == ("layer",)
    assert ds.rows.values.tolist() == [16, 16]
    assert ds.entries.dims == ds.width.dims == ds.width_se.dims == ("layer", "half")
    assert ds.entries.values.tolist() == [[16, 130]] * 2
    assert ds.width.values.tolist() == [[8, 16]] * 2
    assert ds.width_se.values.tolist() == [[1, 2]] * 2


def test_chosen_layers_and_heads(tiny_model, tmp_path):
    ids = tokens(2, 9)
    whole = run(tiny_model, [Smoothing(), Contributions()], ids)
    part = run(tiny_model, [Smoothing(), Contributions()], ids, heads=[(1, 2)])
    assert part.layer.values.tolist() == [1]
    for name in VARIABLES:
        assert part[name].values.tolist() == whole[name].sel(layer=[1]).values.tolist()
    assert np.isnan(part.output_norm.values).sum() == 3
    save(whole, tmp_path / "run.nc")
    assert load(tmp_path / "run.nc").identical(whole)


def test_reading_a_cache_equals_the_hooks(tiny_model):
    ids, mask = tokens(3, 13), torch.tensor(PADDING["left"])
    hooked = run(tiny_model, [Smoothing()], ids, mask)
    _, cache = tiny_model.run_with_cache(ids, attention_mask=mask)
    probe = Probe(tiny_model, [Smoothing()])
    probe.read(cache, attention_mask=mask)
    assert_equal(probe.result(), hooked, 0)
    one = Probe(tiny_model, [Smoothing()])
    _, cache = tiny_model.run_with_cache(ids[0], remove_batch_dim=True)
    one.read(cache)
    assert_equal(one.result(), run(tiny_model, [Smoothing()], ids[:1]), 1e-6)
    missing = {name: cache[name] for name in cache if "resid_post" not in name}
    missing = {name: value for name, value in missing.items() if not name.endswith("1.hook_out")}
    with pytest.raises(ValueError, match=r"the cache has no .*hook_resid_post"):
        Probe(tiny_model, [Smoothing()]).read(missing)


def test_the_stream_is_read_only_where_a_measure_asks(tiny_model):
    names = []
    for measures in ([Contributions()], [Contributions(), Smoothing()]):
        points = {point.name for point in tiny_model.hook_dict.values()}
        hooks = Probe(tiny_model, measures).hooks(torch.ones(1, 4))
        names.append(
            {n for name, _ in hooks for n in ([name] if isinstance(name, str) else filter(name, points))}
        )  # fmt: skip
    assert names[0] < names[1]
    assert len(names[0]) == 6


def test_a_forward_that_breaks_off_inside_a_block(tiny_model):
    probe, clean = (Probe(tiny_model, [Smoothing()]) for _ in range(2))

    def stop(x, hook):
        raise InterruptedError

    with pytest.raises(InterruptedError):
        tiny_model.run_with_hooks(
            tokens(2, 9), fwd_hooks=[*probe.hooks(), ("blocks.1.hook_mlp_out", stop)]
        )
    with pytest.raises(RuntimeError, match=r"stopped inside a block.*probe\.reset\(\)"):
        probe.result()
    probe.reset()
    for target in (probe, clean):
        tiny_model.run_with_hooks(tokens(3, 7), fwd_hooks=target.hooks())
    assert_equal(probe.result(), clean.result(), 0)


def test_nothing_of_the_model_changes(tiny_model):
    ids = tokens(2, 9)
    with torch.no_grad():
        plain = tiny_model(ids)
        probe = Probe(tiny_model, [Smoothing()])
        assert torch.equal(tiny_model.run_with_hooks(ids, fwd_hooks=probe.hooks()), plain)
    assert not any(point.fwd_hooks for point in tiny_model.hook_dict.values())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_gradient_modes_change_nothing(tiny_model, mode):
    probe, plain = (Probe(tiny_model, [Smoothing(halfspace=True)]) for _ in range(2))
    with mode():
        tiny_model.run_with_hooks(tokens(2, 9), fwd_hooks=probe.hooks())
        inside = probe.result()
    tiny_model.run_with_hooks(tokens(2, 9), fwd_hooks=plain.hooks())
    assert_equal(inside, plain.result(), 1e-6)
    tiny_model.run_with_hooks(tokens(3, 7), fwd_hooks=probe.hooks())
    assert probe.result().attrs["documents"] == 5
