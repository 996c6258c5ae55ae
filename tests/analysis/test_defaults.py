"""Which measures a run takes, by default and by name."""

from __future__ import annotations

import inspect

import pytest
import torch
from analysis_data.reference import tokens

from tl_geometry import Contributions, Probe, Separability, Sinks, analyze
from tl_geometry.analysis.defaults import checked_measures

EVERY = ("contributions", "regimes", "sinks", "separability", "switches", "smoothing")


@pytest.fixture
def model(tiny_model):
    return tiny_model


def test_by_default_every_cheap_measure_runs(model):
    ds = analyze(model, tokens(2, 9), progress=False)
    assert list(ds.attrs["measures"]) == [name.capitalize() for name in EVERY]
    assert ds.attrs["measures"]["Smoothing"] == {"halfspace": False}
    assert {"regime", "f_score", "off_rate", "similarity_out"} <= set(ds.data_vars)


def test_names_and_accumulators_are_the_same_run(model):
    ids = tokens(2, 9)
    named = analyze(
        model, ids, ["sinks", "separability"], queries=4, top_n=(2,), seed=3, progress=False
    )
    given = analyze(model, ids, [Sinks(), Separability((2,), queries=4, seed=3)], progress=False)
    assert named.drop_attrs().identical(given.drop_attrs())
    assert named.attrs["measures"] == given.attrs["measures"]
    assert (named.attrs["seed"], given.attrs["seed"]) == (3, None)


def test_a_single_name_will_do(model):
    assert list(analyze(model, tokens(2, 9), "switches", progress=False).attrs["measures"]) == [
        "Switches"
    ]
    probe = Probe(model, "sinks")
    model.run_with_hooks(tokens(2, 9), fwd_hooks=probe.hooks())
    assert "sink_rate" in probe.result()


def test_halfspace_is_smoothing_with_its_conditions(model):
    ds = analyze(model, tokens(2, 9), ["halfspace"], seed=5, progress=False)
    assert ds.attrs["measures"]["Smoothing"]["seed"] == 5
    assert {"similarity_out", "halfspace_feasible"} <= set(ds.data_vars)
    values = analyze(model, tokens(2, 9), "value_halfspace", seed=5, progress=False)
    assert values.attrs["measures"]["Switches"]["seed"] == 5
    assert {"off_rate", "value_halfspace_feasible"} <= set(values.data_vars)
    with pytest.raises(ValueError, match="would be written twice"):
        analyze(model, tokens(2, 9), ["smoothing", "halfspace"], progress=False)


def test_a_probe_reads_no_residual_stream_unless_asked(model):
    probe = Probe(model)
    assert not any(measure.reads_stream for measure in probe.measures)
    assert not any("resid" in str(name) for name, _ in probe.hooks())


def test_without_hooks_of_the_residual_stream_smoothing_is_left_out(model, monkeypatch):
    hooks = {k: v for k, v in model.hook_dict.items() if "hook_resid" not in k}
    monkeypatch.setattr(type(model), "hook_dict", property(lambda _: hooks), raising=False)
    ds = analyze(model, tokens(2, 9), progress=False)
    assert "similarity_out" not in ds
    assert any("no hooks of its residual stream" in text for text in ds.attrs["warnings"])
    with pytest.raises(ValueError, match=r"no hooks of the residual stream around blocks\.0\.attn"):
        analyze(model, tokens(2, 9), ["smoothing"], progress=False)


@pytest.mark.parametrize(
    ("measures", "error", "said"),
    [
        (["sink"], ValueError, "there is no 'sink'; names are .*'sinks'"),
        ([Sinks], TypeError, "got Sinks"),
        ([3], TypeError, "got int"),
    ],
)
def test_what_is_no_measure_is_refused(measures, error, said):
    with pytest.raises(error, match=said):
        inspect.unwrap(checked_measures)(measures)


@pytest.mark.parametrize("options", [{"queries": 5}, {"top_n": (1, 2)}])
@pytest.mark.parametrize("measures", [[Contributions()], ["sinks"], [Sinks(), "contributions"]])
def test_options_that_set_nothing_are_refused(model, measures, options):
    with pytest.raises(ValueError, match=r"give them to Separability\(\)"):
        analyze(model, torch.ones(1, 4).long(), measures, progress=False, **options)
