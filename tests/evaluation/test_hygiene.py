"""Whatever runs a model, and however it ends, leaves the model and the process as they were."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from ablations.every import ANYWHERE, NEED_WEIGHTS, RANDOM
from analysis_data.reference import tokens

from tl_geometry import (
    Probe,
    analyze,
    doctor,
    faithfulness,
    head_sensitivity,
    pattern_mixing,
    prompt_contributions,
    sink_interventions,
    sparsify,
    token_costs,
)
from tl_geometry.ablations.effect import EffectCheck, OutputCheck
from tl_geometry.analysis import layer_tokens
from tl_geometry.analysis.ledger import Ledger
from tl_geometry.hooks import attention_sites
from tl_geometry.hooks.examined import examined
from tl_geometry.hooks.probe_run import Recording

IDS = tokens(2, 9)
QUIET: dict[str, Any] = {"progress": False}


def probe(model: Any) -> None:
    found = Probe(model)
    model.run_with_hooks(IDS, fwd_hooks=found.hooks())
    found.result()


def ablated(make: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda model: model.run_with_hooks(IDS, fwd_hooks=make(model))


RUNS: dict[str, Callable[[Any], Any]] = {
    "Probe": probe,
    "analyze": partial(analyze, data=IDS, keep_examples=1, **QUIET),
    "prompt_contributions": lambda model: prompt_contributions(model, IDS[0]),
    "doctor": doctor,
    "token_costs": partial(token_costs, lengths=(2, 3), samples=1, max_documents=1, **QUIET),
    "faithfulness": partial(
        faithfulness, data=IDS, importances=("attention",), fractions=(0.2,), resamples=5, **QUIET
    ),
    "head_sensitivity": partial(head_sensitivity, data=IDS, **QUIET),
    "sparsify": partial(sparsify, data=IDS, retention=(0.5,), repeats=1, **QUIET),
    "sink_interventions": partial(
        sink_interventions, data=IDS, interventions=("zero_value", "renormalize"), resamples=5, **QUIET
    ),
    "pattern_mixing": partial(
        pattern_mixing, data=IDS, targets=("uniform",), ts=(0.5,), resamples=5, **QUIET
    ),
    **{f"ablation: {n}": ablated(m) for n, m in (ANYWHERE | NEED_WEIGHTS | RANDOM).items()},
}  # fmt: skip
ALIKE = ("rescale", "reference", "tokens", "identity", "sink", "one head", "heads, mean", "remove",
         "uniform", "renormalize", "attention", "permuted")  # fmt: skip
MANY = tuple(f"ablation: {name}" for name in ALIKE)
"""Ablations whose hooks are made as those of others are: how they fail is tried on the others."""


class StopError(Exception):
    """What only these tests raise."""


def checksum(model: Any) -> str:
    digest = hashlib.sha256()
    for tensors in (model.named_parameters(), model.named_buffers()):
        for name, x in tensors:
            digest.update(name.encode())
            digest.update(x.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def snapshot(model: Any) -> dict[str, Any]:
    """Everything that must be the same afterwards.

    Not Python's own random numbers: beartype, which checks shapes in these tests, draws from them.
    """
    cfg = {key: str(value) for key, value in vars(model.cfg).items()}
    hooks = {
        name: (
            [id(hook) for hook in point.fwd_hooks],
            [id(hook) for hook in point.bwd_hooks],
            list(point._forward_hooks),
            list(point._backward_hooks),
            point.ctx,
        )
        for name, point in model.hook_dict.items()
    }
    return {
        "hooks": hooks,
        "torch hooks": {
            name: (list(m._forward_hooks), list(m._forward_pre_hooks))
            for name, m in model.named_modules()
        },
        "attributes": {name: sorted(vars(m)) for name, m in model.named_modules()},
        "training": [m.training for m in model.modules()],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "gradients": [p.grad is None for p in model.parameters()],
        "cfg": cfg,
        "weights": checksum(model),
        "torch random": torch.random.get_rng_state().tolist(),
        "numpy random": str(np.random.get_state()),  # noqa: NPY002 - the global one is meant
        "modes": (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_default_dtype(),
            torch.get_num_threads(),
        ),
    }


def assert_unchanged(model: Any, before: dict[str, Any]) -> None:
    after = snapshot(model)
    for what, value in before.items():
        assert after[what] == value, what


class Tripwire:
    """Counts its calls, and raises at one of them if told so."""

    def __init__(self) -> None:
        self.calls, self.at, self.error = 0, 0, StopError("stop")

    def arm(self, at: int, error: BaseException) -> None:
        self.calls, self.at, self.error = 0, at, error

    def __call__(self, *arguments: Any, **more: Any) -> None:
        self.calls += 1
        if self.calls == self.at:
            raise self.error


@pytest.fixture
def model(tiny_model):
    """A model with flags of its own, a permanent hook of the user's, and one place in its forward that may fail."""
    tiny_model.blocks[0].mlp.train()
    for parameter in list(tiny_model.parameters())[::2]:
        parameter.requires_grad_(False)
    tiny_model.wires = {"user": Tripwire(), "forward": Tripwire()}
    user, forward = tiny_model.wires.values()
    tiny_model.add_hook("blocks.0.hook_resid_pre", user, is_permanent=True)
    tiny_model.blocks[0].mlp.register_forward_pre_hook(lambda *_: forward())
    examined(tiny_model, attention_sites(tiny_model))  # so that every run has as many forwards
    tiny_model(IDS, attention_mask=torch.ones_like(IDS))  # what a first forward sets up by itself
    return tiny_model


@pytest.mark.parametrize("name", RUNS)
def test_a_run_leaves_everything_as_it_was(model, name):
    before, user = snapshot(model), model.wires["user"]
    user.arm(0, StopError())
    RUNS[name](model)
    assert_unchanged(model, before)
    assert user.calls > 0  # the user's hook was at work all the time
    user.arm(0, StopError())
    model(IDS)
    assert user.calls == 1


def assert_failures_leave_everything(model: Any, name: str, wire: Tripwire) -> None:
    """Fail at the first, at a middle and at the last of the calls that a whole run makes."""
    wire.arm(0, StopError())
    RUNS[name](model)
    n, before = wire.calls, snapshot(model)
    assert n > 0
    for at, error in ((1, StopError()), (1 + n // 2, KeyboardInterrupt()), (n, StopError())):
        wire.arm(at, error)
        with pytest.raises(type(error)):
            RUNS[name](model)
        assert_unchanged(model, before)


FORWARD = ("Probe", "analyze", "doctor", "faithfulness", "ablation: zero")


@pytest.mark.parametrize(
    ("name", "place"),
    [(name, "user") for name in RUNS if name not in MANY] + [(name, "forward") for name in FORWARD],
)
def test_a_users_hook_or_the_forward_fails(model, name, place):
    assert_failures_leave_everything(model, name, model.wires[place])


# What runs inside our own hooks, by class and method.
INSIDE: tuple[tuple[Any, str], ...] = (
    (Ledger, "update"),
    (EffectCheck, "start"),
    (OutputCheck, "start"),
    (Recording, "keep"),
    (layer_tokens, "_keep"),
)


@pytest.mark.parametrize("name", [name for name in RUNS if name not in MANY])
def test_our_own_hook_fails(model, name, monkeypatch):
    wire = Tripwire()
    for owner, method in INSIDE:
        monkeypatch.setattr(owner, method, _tripped(getattr(owner, method), wire))
    assert_failures_leave_everything(model, name, wire)


def _tripped(function: Callable[..., Any], wire: Tripwire) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*arguments: Any, **more: Any) -> Any:
        wire()
        return function(*arguments, **more)

    return run
