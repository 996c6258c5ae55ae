"""What all rows are measured on: SmolLM2-135M, unprocessed, as a HookedTransformer in float32 on the CPU."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

import torch

import tl_geometry as tlg
from tl_geometry.analysis.accumulator import Accumulator
from tl_geometry.data import Batch, demo_corpora, token_batches
from tl_geometry.models import load_model

THREADS = 2


def described(threads: int) -> str:
    """The model, the machine and the versions, in one line."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformer-lens"))
    return (
        f"SmolLM2-135M, HookedTransformer, float32, CPU, {threads} threads; "
        f"Python {platform.python_version()}, {packages}, tl-geometry {tlg.__version__}, {platform.machine()}"
    )


@cache
def smollm2() -> Any:
    """The model, loaded once per process."""
    return load_model("smollm2", backend="hooked", processing=False, device="cpu")


@cache
def windows(n_ctx: int, batch_size: int = 1) -> Batch:
    """One batch of full windows of the demo texts."""
    text = "\n\n".join(text for corpus in demo_corpora().values() for text in corpus)
    stream = token_batches(
        [text], smollm2(), n_ctx=n_ctx, batch_size=batch_size, max_documents=batch_size
    )
    batch = next(iter(stream))
    assert batch.tokens.shape == (batch_size, n_ctx)
    assert bool(batch.attention_mask.all())
    return batch


def plain(
    n_ctx: int, batch_size: int = 1, return_type: str | None = "logits"
) -> Callable[[], object]:
    """The forward that others are compared with."""
    model, tokens = smollm2(), windows(n_ctx, batch_size).tokens
    return torch.no_grad()(lambda: model(tokens, return_type=return_type))


def probed(
    measures: Sequence[Accumulator],
    n_ctx: int,
    batch_size: int = 1,
    return_type: str | None = "logits",
) -> Callable[[], object]:
    """A forward that takes measures as :func:`tl_geometry.analyze` does, batch after batch.

    Unlike ``analyze`` it gives logits, as the plain forward does, unless ``return_type`` is None.
    """
    model, batch = smollm2(), windows(n_ctx, batch_size)
    probe = tlg.Probe(model, measures)
    mask = batch.attention_mask

    @torch.no_grad()
    def run() -> None:
        hooks = probe.hooks(attention_mask=mask, documents=batch.documents)
        model.run_with_hooks(
            batch.tokens, fwd_hooks=hooks, return_type=return_type, attention_mask=mask.long()
        )
        probe.check()

    return run
