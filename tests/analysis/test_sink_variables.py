"""What Sinks finds about outputs, their curves and their cone, over padded batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from analysis_data.reference import assert_equal, document, record, soften, tokens
from analysis_data.sink_numbers import LABELS, sink_labels, sink_numbers
from zoo.architectures import build_bridge, build_hooked

from tl_geometry import Contributions, Probe, Sinks, load, save
from tl_geometry.measures.dormant import dormant_heads

PADDING = {
    "none": [[1] * 19] * 3,
    "right": [[1] * 19, [1] * 11 + [0] * 8, [1] * 17 + [0] * 2],
    "left": [[0] * 6 + [1] * 13, [1] * 19, [0] * 1 + [1] * 18],
    "both": [[0, 0] + [1] * 15 + [0, 0], [0] + [1] * 18, [1] * 10 + [0] * 9],
    "gaps": [[1, 0, 0, *[1] * 16], [1] * 8 + [0] * 3 + [1] * 8, [1] * 17 + [0, 1]],
}
VARIABLES = (
    "output_norm_with_sink",
    "output_norm_no_sink",
    "output_norm_ratio",
    "cone_tightness",
    "cone_alignment",
    "cone_alignment_no_sink",
    "sink_optimum",
    "sink_optimum_gap",
    "sink_optimum_inside",
    "sink_below_optimum",
    "minimal_norm",
    "minimal_norm",
    "minimal_norm_ratio",
    "sink_fit_convex",
    "norm_by_sink_rate",
    "optimum_gap_histogram",
)


@pytest.fixture
def model(tiny_hooked):
    return soften(tiny_hooked(dtype=torch.float64))


def run(model, ids, mask=None, hooks=(), **options):
    probe = Probe(model, [Sinks()], **options)
    arguments = {} if mask is None else {"attention_mask": mask}
    model.run_with_hooks(ids, fwd_hooks=[*hooks, *probe.hooks(mask)], **arguments)
    return probe.result()


def assert_documents(ds, label, layer, mask, *, window=None, tolerance=1e-6, **options):
    """Means and standard errors over the documents of the batch; returns the documents' numbers."""
    found = []
    for row in range(len(mask)):
        pattern, v, seen = document(layer, row, mask[row].bool(), window=window)
        found.append(sink_numbers(pattern, v, layer.W_O, seen, **options))
    assert set(found[0]) == set(VARIABLES)
    for name in VARIABLES:
        values = np.stack([numbers[name] for numbers in found])
        known = ~np.isnan(values)
        n = known.sum(0)
        total = np.where(known, values, 0).sum(0)
        mean = np.divide(total, n, out=np.full(total.shape, np.nan), where=n > 0)
        spread = np.where(known, (values - mean) ** 2, 0).sum(0)
        error = np.full(total.shape, np.nan)
        np.divide(spread, n * (n - 1.0), out=error, where=n > 1)
        for suffix, expected in (("", mean), ("_se", np.sqrt(error))):
            np.testing.assert_allclose(
                ds[f"{name}{suffix}"].sel(layer=label).values,
                expected,
                rtol=tolerance,
                atol=tolerance,
                err_msg=f"{name}{suffix}",
            )
    return found


@pytest.mark.hooked
@pytest.mark.parametrize("kind", PADDING)
def test_every_variable_equals_the_literal_computation(model, kind):
    ids, mask = tokens(3, 19), torch.tensor(PADDING[kind])
    ds = run(model, ids, mask)
    for label, layer in enumerate(record(model, ids, attention_mask=mask)):
        assert_documents(ds, label, layer, mask)
        means = {name: ds[name].sel(layer=label).values for name in ds.data_vars}
        for name, expected in sink_labels(means).items():
            np.testing.assert_allclose(means[name], expected, rtol=1e-10, atol=1e-10, err_msg=name)
    assert 0 < float(ds.sink_optimum_inside.mean()) < 1
    assert 0 < float(ds.sink_below_optimum.mean()) < 1


@pytest.mark.hooked
def test_another_sink_and_windows():
    model = soften(build_hooked("window", dtype=torch.float64))
    ids, mask = tokens(3, 19), torch.tensor(PADDING["none"])
    for sink in (0, 2):
        ds = run(model, ids, sink=sink)
        layers = record(model, ids)
        assert_documents(ds, 0, layers[0], mask, sink=sink)
        assert_documents(ds, 1, layers[1], mask, sink=sink, window=5)


@pytest.mark.bridge
@pytest.mark.parametrize("arch", ["llama", "gpt_oss"])
def test_bridges_and_learned_null_sinks(arch):
    model = soften(build_bridge(arch))
    ids, mask = tokens(3, 19), torch.tensor(PADDING["right"])
    ds = run(model, ids, mask)
    layer = record(model, ids, attention_mask=mask)[1]
    assert_documents(ds, 1, layer, mask, tolerance=5e-5)


@pytest.mark.hooked
def test_values_without_their_bias(model):
    ids, mask = tokens(3, 19), torch.tensor(PADDING["right"])
    ds = run(model, ids, mask, value_bias="remove")
    b_V = model.blocks[1].attn.b_V.detach().reshape(-1, 8)
    b_V = b_V if len(b_V) == 2 else b_V[::2]
    layer = record(model, ids, attention_mask=mask)[1]
    assert_documents(ds, 1, layer, mask, value_bias="remove", b_V=b_V)


def test_batches_do_not_matter(tiny_model):
    model = soften(tiny_model)
    ids, mask = tokens(4, 15), torch.ones(4, 15, dtype=torch.long)
    mask[1, 9:] = mask[3, 12:] = 0
    whole = run(model, ids, mask)
    probe = Probe(model, [Sinks()])
    for row in range(4):
        length = int(mask[row].sum())
        model.run_with_hooks(ids[row : row + 1, :length], fwd_hooks=probe.hooks())
    assert_equal(whole, probe.result(), 1e-5)


@pytest.mark.hooked
def test_bins_and_thresholds_are_labelled_by_numbers(model, tmp_path):
    ds = run(model, tokens(3, 19))
    assert ds.norm_by_sink_rate.dims == ("layer", "head", "sink_rate_bin")
    assert ds.optimum_gap_histogram.dims == ("layer", "head", "gap_bin")
    assert ds.dormant_by_norm.dims == ("layer", "head", "norm_threshold")
    np.testing.assert_allclose(ds.sink_rate_bin, np.arange(10) / 10 + 0.05, atol=1e-12)
    np.testing.assert_allclose(ds.gap_bin, np.arange(20) / 10 - 0.95, atol=1e-12)
    assert ds.norm_threshold.values.tolist() == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    np.testing.assert_allclose(ds.optimum_gap_histogram.sum("gap_bin"), 1)
    centres = (ds.optimum_gap_histogram * ds.gap_bin).sum("gap_bin")
    assert abs(centres - ds.sink_optimum_gap).max() < 0.05
    again = load(save(ds, tmp_path / "run.nc"))
    assert again.identical(ds)
    chosen = again.norm_by_sink_rate.sel(sink_rate_bin=0.35)
    np.testing.assert_array_equal(chosen, ds.norm_by_sink_rate.values[..., 3])


@pytest.mark.hooked
def test_dormant_and_low_norm_heads(tiny_hooked):
    model = soften(tiny_hooked(dtype=torch.float64, n_key_value_heads=4))
    with torch.no_grad():
        model.blocks[1].attn.W_O[2] *= 0.01
        model.blocks[0].attn.W_O[1] = 0

    def to_first(pattern, hook):
        edited = pattern.clone()
        edited[:, 3] *= 0.1
        edited[:, 3, :, 0] += 0.9
        return edited

    ids = tokens(3, 19)
    hooks = [("blocks.1.attn.hook_pattern", to_first)]
    ds = run(model, ids, hooks=hooks)
    assert ds.dormant_by_rate.values.tolist()[1] == [0, 0, 0, 1]
    assert ds.low_norm.values.tolist() == [[0, 1, 0, 0], [0, 0, 1, 0]]
    assert ds.dormant_by_norm.values[1, 2].tolist() == [1] * 8
    assert ds.output_norm_ratio.values[0, 1] == 0  # a removed head is silent, not unknown
    assert ds.dormant_by_norm.values[0, 1].tolist() == [1] * 8
    assert np.isnan(ds.cone_alignment.values[0, 1])
    layer = record(model, ids, first=hooks)[1]
    found = dormant_heads(layer.pattern, layer.v, layer.W_O)
    for name, values in (
        ("sink_rate", found.sink_rate),
        ("output_norm_ratio", found.norm_ratio),
    ):
        np.testing.assert_allclose(ds[name].values[1], values.mean(0), rtol=1e-6)


@pytest.mark.hooked
def test_heads_that_are_not_asked_for_have_no_labels(model):
    ds = run(model, tokens(2, 12), heads=[(1, 2)])
    for name in (*VARIABLES, *LABELS):
        kept = ~np.isnan(ds[name].values.reshape(4, -1)).all(-1)
        assert kept.tolist() == [False, False, True, False], name
    full = run(model, tokens(2, 12))
    assert ds.low_norm.values[0, 2] == full.low_norm.values[1, 2]  # compared with the whole layer


@pytest.mark.hooked
def test_documents_too_short_to_say_anything(model):
    ds = run(model, tokens(3, 1))
    for name in (*VARIABLES, "dormant_by_rate", "low_norm"):
        if name != "output_norm_ratio":
            assert np.isnan(ds[name].values).all(), name
    assert not np.isnan(ds.output_norm_ratio.values).any()


@pytest.mark.hooked
def test_norms_are_those_of_the_contributions_but_for_the_first_row(model):
    ids = tokens(1, 12)
    probe = Probe(model, [Contributions(), Sinks()])
    model.run_with_hooks(ids, fwd_hooks=probe.hooks())
    ds = probe.result()
    layer = record(model, ids)[1]
    first = (layer.z[0, 0][:, None] @ layer.W_O)[:, 0].norm(dim=-1).numpy()
    later = (12 * ds.output_norm.values[1] - first) / 11
    np.testing.assert_allclose(ds.output_norm_with_sink.values[1], later, rtol=1e-6)
    ratio = ds.output_norm.values[1] / ds.output_norm.values[1].mean()
    np.testing.assert_allclose(ds.output_norm_ratio.values[1], ratio, rtol=1e-6)
