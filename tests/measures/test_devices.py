"""Tensors of one call are on one device; where only shapes are asked for, meta tensors will do."""

from __future__ import annotations

import pytest
import torch
from measures.every import CALLS, LAYER, tensors_of

from tl_geometry import measures
from tl_geometry.measures.devices import check_devices, constants, seeded, upload
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.scaling import sign_vector


def test_every_measure_is_called():
    public = {name for name in measures.__all__ if name.islower()}
    assert set(CALLS) == public


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        (name, argument)
        for name, call in CALLS.items()
        for argument in call.tensors
        if len(call.tensors) > 1
    ],
)
def test_one_tensor_on_another_device_is_refused(name, argument):
    call = CALLS[name]
    with pytest.raises(ValueError, match=r"one device|meta device") as caught:
        call(**{argument: call.tensors[argument].to("meta")})
    message = str(caught.value)
    if argument != call.host:
        assert f"{argument} on meta" in message
        assert "on cpu" in message


@pytest.mark.parametrize("name", CALLS)
def test_meta_tensors_give_the_shapes(name):
    call = CALLS[name]
    # A mask of sinks says by its numbers how many there are.
    changed = {k: x.to("meta") for k, x in call.tensors.items() if k != "sink"}
    sink = {"sink": 1} if "sink" in call.tensors else {}
    if call.host:
        with pytest.raises(ValueError, match=f"{call.host} is on the meta device, which holds no"):
            call(**changed, **sink)
        return
    expected, found = tensors_of(call(**sink)), tensors_of(call(**changed, **sink))
    assert set(found) == set(expected)
    for field, x in found.items():
        assert x.device.type == "meta", field
        assert (x.shape, x.dtype) == (expected[field].shape, expected[field].dtype), field


@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if not call.host])
def test_meta_tensors_without_masks(name):
    """What is then read off the pattern may not ask for its numbers."""
    call = CALLS[name]
    kept = {k: x for k, x in call.tensors.items() if k not in ("available", "sink", "mask")}
    bare = type(call)(call.function, kept)
    found = tensors_of(bare(**{k: x.to("meta") for k, x in kept.items()}))
    assert {k: x.shape for k, x in found.items()} == {
        k: x.shape for k, x in tensors_of(bare()).items()
    }


def test_random_rankings_of_meta_tensors():
    meta = {name: x.to("meta") for name, x in LAYER.items()}
    assert measures.importance(**meta, kind="random").shape == LAYER["pattern"].shape
    scores = measures.separability(**meta, top_n=(2,), rank_by="random", repeats=2)
    assert scores.f_score.device.type == "meta"


def test_what_needs_numbers_says_so():
    meta = {name: x.to("meta") for name, x in LAYER.items()}
    for sink in ("auto", torch.ones(2, 8, dtype=torch.bool, device="meta")):
        with pytest.raises(ValueError, match=r"sink is on the meta device.*how many sinks"):
            measures.sink_geometry(**meta, sink=sink)


def test_z_and_a_generator_are_asked_too():
    z = torch.zeros(2, 8, 4, 3, device="meta")
    with pytest.raises(ValueError, match="z on meta"):
        AttentionGeometry(**LAYER, z=z)
    meta = {name: x.to("meta") for name, x in LAYER.items()}
    generator = torch.Generator()
    for call in (
        lambda: measures.importance(**meta, kind="random", generator=generator),
        lambda: measures.separability(**meta, rank_by="random", generator=generator),
    ):
        with pytest.raises(ValueError, match="generator is on cpu, the tensors are on meta"):
            call()


def test_helpers():
    check_devices(x=torch.zeros(1), y=None, sink="first")
    with pytest.raises(ValueError, match="got x on cpu, y on meta: move them"):
        check_devices(x=torch.zeros(1), y=torch.zeros(1, device="meta"))
    x = torch.ones(3)
    assert upload(x, "cpu") is x
    assert upload(x, "meta").device.type == "meta"
    assert constants((1, 2), x.double()).dtype == torch.float64
    generator = torch.Generator()
    assert seeded(x.device, 0, generator) is generator
    assert seeded(torch.device("meta"), 0) is None
    assert torch.equal(
        torch.rand(3, generator=seeded(x.device, 5)),
        torch.rand(3, generator=torch.Generator().manual_seed(5)),
    )


@pytest.mark.parametrize("n", [2, 4, 8, 16, 32, 64, 80, 96, 128, 256, 512])
def test_the_fixed_direction_is_made_of_signs_and_not_orthogonal_to_a_constant(n):
    signs = sign_vector(n, torch.device("cpu"), torch.float64)
    assert set(signs.tolist()) <= {-1.0, 1.0}
    assert float(signs.sum()) != 0
    assert abs(float(signs.sum())) <= 4 * n**0.5
    assert torch.equal(signs, sign_vector(2 * n, torch.device("cpu"), torch.float64)[:n])
