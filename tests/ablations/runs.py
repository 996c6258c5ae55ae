"""Tiny models that the tests share, and forwards of them that show each layer before and after our edits."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from analysis_data.reference import soften, tokens
from literal import ablations as literal
from zoo.architectures import build_bridge, build_hooked, enlarge

from tl_geometry.hooks import attention_sites, doctor
from tl_geometry.hooks.entries import hook_entries

TRANSFORMER_LENS = tuple(map(int, importlib.metadata.version("transformer-lens").split(".")[:2]))
HOOKED = ("gpt2", "llama", "window", "alibi", "bidirectional", "parallel")
RECONSTRUCTING = ("gpt2", "llama", "mistral", "gemma2", "gpt_oss")
# The wrapped model mixes values by itself; edits of hook_pattern come too late.
CAUSAL_DELEGATED = ("gptj", "opt")
DELEGATED = (*CAUSAL_DELEGATED, "bert", "vit", "bart", "t5")


def hooked(*names: str) -> list[Any]:
    """Parameters ("hooked", name), skipped where there is no HookedTransformer."""
    return [pytest.param(("hooked", n), marks=pytest.mark.hooked, id=f"hooked {n}") for n in names]


def bridged(*names: str) -> list[Any]:
    """Parameters ("bridge", name), skipped where there is no TransformerBridge."""
    found = []
    for name in names:
        marks = [pytest.mark.bridge]
        if name == "t5" and TRANSFORMER_LENS[0] == 3:
            why = "the T5 bridge of TransformerLens 3 does not run with transformers 5"
            marks.append(pytest.mark.skip(reason=why))
        found.append(pytest.param(("bridge", name), marks=marks, id=f"bridge {name}"))
    return found


WITH_PATTERN_EDITS = [*hooked(*HOOKED), *bridged(*RECONSTRUCTING)]
EVERY = [*WITH_PATTERN_EDITS, *bridged(*DELEGATED)]
ONE_OF_EACH = [*hooked("llama"), *bridged("llama", "opt")]


def build(case: tuple[str, str], dtype: torch.dtype = torch.float32) -> Any:
    """A new model of a case; it is the same for the same arguments."""
    backend, name = case
    if name == "native":
        return _native()
    if backend == "hooked":
        return build_hooked(name, dtype=dtype)
    model = build_bridge(name, dtype=dtype)
    return soften(model) if name == "gpt_oss" else model  # so that its learned sinks get much


@functools.cache
def model_of(case: tuple[str, str]) -> Any:
    """The model of a case, built once; tests must leave it as it is."""
    return build(case)


def _native() -> Any:
    """A bridge of TransformerLens' own small model, with values that heads share."""
    from transformer_lens.model_bridge import TransformerBridge

    config = {
        "n_layers": 2,
        "d_model": 32,
        "n_heads": 4,
        "n_key_value_heads": 2,
        "d_head": 8,
        "d_mlp": 48,
        "d_vocab": 50,
        "n_ctx": 64,
        "act_fn": "gelu",
        "normalization_type": "LN",
    }
    model = TransformerBridge.boot_native(config)
    enlarge(model.original_model)
    return model.eval()


@functools.cache
def sites_of(case: tuple[str, str]) -> list[Any]:
    """Its attention layers."""
    return attention_sites(model_of(case))


@functools.cache
def reports_of(case: tuple[str, str]) -> dict[int | str, Any]:
    """The doctor's reports by layer."""
    return {report.layer: report for report in doctor(model_of(case), edits=False).layers}


def inputs_of(case: tuple[str, str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a forward: two rows of nine tokens, without padding."""
    name = case[1]
    if name == "vit":
        generator = torch.Generator().manual_seed(0)
        return (torch.randn(2, 3, 12, 12, generator=generator),), {}
    if name in ("bart", "t5"):
        return (tokens(2, 9),), {"decoder_input": tokens(2, 7, seed=1)}
    return (tokens(2, 9),), {}


@dataclass(frozen=True)
class Layer:
    """One layer of a forward: attention and values before and after our edits, z and the output after them."""

    label: int | str
    pattern: torch.Tensor
    v: torch.Tensor
    edited_pattern: torch.Tensor
    edited_v: torch.Tensor
    z: torch.Tensor
    out: torch.Tensor
    W_O: torch.Tensor
    b_O: torch.Tensor | None  # noqa: N815
    report: Any
    cross: bool

    @property
    def n_heads(self) -> int:
        return self.pattern.shape[1]

    @property
    def seen(self) -> np.ndarray:
        """``batch query key`` where all tokens are real."""
        batch, _, queries, keys = self.pattern.shape
        return literal.visible(
            np.ones((batch, queries), dtype=bool),
            np.ones((batch, keys), dtype=bool),
            causal=self.report.causal,
            window=self.report.window,
        )

    def columns(self, keys: Sequence[int], heads: Sequence[int] | None = None) -> np.ndarray:
        """Entries of some keys, the same in each row of the batch."""
        chosen = np.zeros((len(self.pattern), self.pattern.shape[-1]), dtype=bool)
        chosen[:, list(keys)] = True
        return literal.columns(
            chosen,
            range(self.n_heads) if heads is None else heads,
            self.n_heads,
            self.pattern.shape[2],
        )

    @property
    def clean_z(self) -> np.ndarray:
        """z as it would be without our edits."""
        return literal.mix(self.pattern, self.v)

    @property
    def clean_out(self) -> np.ndarray:
        return literal.project(self.clean_z, self.W_O, self.b_O)

    def agrees(self, z: np.ndarray, out: np.ndarray | None = None, tolerance: float = 2e-5) -> None:
        """Assert that z and the layer's output (before any norm) are what they should be."""
        if out is None:
            out = literal.project(z, self.W_O, self.b_O)
        for found, expected in ((self.z, z), (self.out, out)):
            scale = max(1.0, np.abs(expected).max())
            np.testing.assert_allclose(
                found.double().numpy(), expected, rtol=0, atol=tolerance * scale
            )


def look(
    case: tuple[str, str],
    hooks: Sequence[Any] = (),
    *,
    model: Any = None,
    args: tuple[Any, ...] | None = None,
    **kwargs: Any,
) -> dict[int | str, Layer]:
    """Run a model with some hooks; what was there before they act and what they left, by layer."""
    model = model_of(case) if model is None else model
    if args is None:
        args, more = inputs_of(case)
        kwargs = {**more, **kwargs}
    held: dict[tuple[Any, str], torch.Tensor] = {}

    def keep(tensor, hook, key):
        held[key] = tensor.detach().clone()

    before, after = {}, {}
    sites = sites_of(case) if model is model_of(case) else attention_sites(model)
    for site in sites:
        for kind, name in (("pattern", site.pattern_hook), ("v", site.v_hook)):
            before[name] = functools.partial(keep, key=(site.layer, kind))
            after[name] = functools.partial(keep, key=(site.layer, f"edited {kind}"))
        for kind, name in (("z", site.z_hook), ("out", output_hook(model, site))):
            after[name] = functools.partial(keep, key=(site.layer, kind))
    first, last = (hook_entries(model, functions) for functions in (before, after))
    with torch.no_grad():
        model.run_with_hooks(*args, fwd_hooks=[*first, *hooks, *last], **kwargs)
    reports = reports_of(case)
    return {
        s.layer: Layer(
            s.layer,
            *(
                held[s.layer, kind]
                for kind in ("pattern", "v", "edited pattern", "edited v", "z", "out")
            ),
            s.W_O,
            s.b_O,
            reports[s.layer],
            s.cross,
        )
        for s in sites
    }


def output_hook(model: Any, site: Any) -> str:
    """Where z W_O + b_O shows, before any norm."""
    own = f"{site.name}.o.hook_out"
    return own if own in model.hook_dict else site.out_hook


@functools.cache
def clean(case: tuple[str, str]) -> dict[int | str, Layer]:
    """The forward without hooks of ours."""
    return look(case)


def logits(model: Any, *args: Any, hooks: Sequence[Any] = (), **kwargs: Any) -> torch.Tensor:
    """The model's output under some hooks."""
    with torch.no_grad():
        return model.run_with_hooks(*args, fwd_hooks=list(hooks), **kwargs)
