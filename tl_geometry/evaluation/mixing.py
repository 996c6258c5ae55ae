"""Denser and sparser attention: the loss, and how alike the tokens become."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from tl_geometry.ablations import mix_pattern
from tl_geometry.ablations.mixing import MixTarget
from tl_geometry.ablations.targets import Heads, Layers, targets as find_targets
from tl_geometry.analysis.reading import plain_sink
from tl_geometry.arguments import one_of, whole_seed
from tl_geometry.data import Batch
from tl_geometry.evaluation.documents import read_documents
from tl_geometry.evaluation.runs import Factory, Scores, Variant, run_variants, unedited
from tl_geometry.evaluation.statistics import Bootstrap
from tl_geometry.evaluation.token_stream import TokenStream
from tl_geometry.evaluation.variables import with_interval
from tl_geometry.hooks.entries import FwdHook
from tl_geometry.measures.masks import SinkRule

__all__ = ["pattern_mixing"]

_SD = "Sukenik et al., arXiv 2605.08453"
_MINUS = ", minus that of the model as it is"
_WORDS = {
    "similarity": "mean cosine between tokens, bos apart,",
    "residual": "share of the tokens that is not their mean, bos apart,",
}


def pattern_mixing(
    model: Any,
    data: Any,
    targets: Sequence[MixTarget] = ("identity", "uniform"),
    ts: Sequence[float | int] = (0.25, 0.5, 1.0),
    *,
    n_ctx: int = 256,
    batch_size: int | None = None,
    prepend_bos: bool | None = None,
    max_documents: int | None = 8,
    sink: SinkRule = "first",
    layers: Layers = None,
    heads: Heads = None,
    resamples: int = 2000,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    seed: int = 0,
    progress: bool = True,
) -> xr.Dataset:
    """Loss and token similarity of the model as it is and with attention moved towards simple patterns.

    >>> ds = pattern_mixing(model, texts)
    >>> ds.delta_similarity_mean.sel(target="uniform")       # over t; positive: tokens more alike
    >>> ds.similarity_out.sel(target="identity", t=0.5)      # per layer

    Attention becomes (1 - t) attention + t target (:func:`tl_geometry.mix_pattern`), in all layers
    at once unless told otherwise, so the input of a layer has changed already. t = 0 is the model as
    it is and always among the runs. Similarity is the mean cosine between two tokens of a document
    (:func:`tl_geometry.token_similarity`), the residual the part of the tokens that is not their
    mean; both leave out each document's first token. One forward per batch gives loss and
    similarity; what comes from a checkpoint is run again for the similarity alone.

    Source: Sukenik et al., arXiv 2605.08453: denser patterns make tokens more alike, sparser ones less.

    Args:
        model: a HookedTransformer or TransformerBridge with a next-token loss.
        data: as in :func:`tl_geometry.analyze`.
        targets: ``"identity"``, ``"uniform"``, ``"sink"``, ``"permuted"``.
        ts: shares of the target, in [0, 1].
        n_ctx, batch_size, prepend_bos, max_documents: windows, as in :func:`tl_geometry.analyze`.
        sink, layers, heads: as in :func:`tl_geometry.mix_pattern`.
        resamples: bootstrap resamples of the documents, for 95 % intervals.
        checkpoint, resume: file for finished scores, and whether to go on from it.
        seed: of the bootstrap and of ``"permuted"``.
        progress: show a progress bar.

    Returns:
        Over ``target t``: ``nll``, ``perplexity``, and ``similarity_mean`` and ``residual_mean``, at
        the layers' outputs, averaged over layers. Over ``target t layer``: ``similarity_in``,
        ``similarity_out``, ``residual_in``, ``residual_out``, at the layer's input and output. With
        ``delta_`` in front (not of those at the input): minus the model as it is, on the same
        documents. Intervals end in ``_low`` and ``_high``.

    Raises:
        ValueError: an unknown target, a share outside [0, 1], an edit that a layer's hooks can't
            make, a model without a next-token loss, no document of three tokens, a checkpoint of
            another run.
    """
    given, seed = list(ts), whole_seed(seed)
    allowed, shares = get_args(MixTarget), sorted({0.0, *map(float, given)})
    held = [] if isinstance(targets, str) else list(dict.fromkeys(targets))
    if not held:
        raise ValueError(f"targets must be one or more of {allowed}, got {targets!r}")
    for name in held:
        one_of("targets", name, allowed)
    if len(shares) < 2 or not all(0 <= t <= 1 for t in shares):
        raise ValueError(
            f"ts must be shares of the target in [0, 1], one of them above 0, got {given}"
        )
    chosen = find_targets("pattern_mixing", model, layers, heads)
    everywhere = layers is None and heads is None
    named = [(target.site.layer, head) for target in chosen for head in target.heads]
    mix = partial(mix_pattern, model, heads=named, sink=sink, seed=seed)
    edits: dict[str, Factory] = {"none": unedited}
    for name in held:
        mix(shares[-1], name)  # refuses what can't be edited before anything is run
        edits |= {f"{name} {t}": _factory(mix, t, name) for t in shares[1:]}
    documents = read_documents(
        model,
        data,
        n_ctx=n_ctx,
        batch_size=batch_size,
        prepend_bos=prepend_bos,
        max_documents=max_documents,
    )
    stream = TokenStream(model, documents, edits)
    settings = {
        "evaluation": "pattern_mixing",
        "targets": held,
        "ts": shares[1:],
        "sink": plain_sink(sink),
        "heads": None if everywhere else [[c.site.layer, list(c.heads)] for c in chosen],
        "seed": seed,
    }
    scores = run_variants(
        model,
        documents,
        [Variant(name, partial(stream.hooks, name)) for name in edits],
        settings=settings,
        checkpoint=checkpoint,
        resume=resume,
        progress=progress,
    )
    stream.complete(progress=progress)
    place = list(edits).index
    rows = np.array([[0, *(place(f"{name} {t}") for t in shares[1:])] for name in held])
    bootstrap = partial(Bootstrap, resamples=resamples, seed=seed)
    found = _losses(scores, bootstrap(scores.targets), rows)
    found |= _similarities(stream, bootstrap(np.ones(stream.counted.sum(), dtype=np.int64)), rows)
    coords = {"target": held, "t": shares, "layer": [site.layer for site in stream.sites]}
    attrs = {**scores.attrs, "warnings": [*scores.attrs["warnings"], *stream.warnings]}
    return xr.Dataset(found, coords=coords, attrs=attrs)


def _factory(mix: Callable[..., list[FwdHook]], t: float, target: str) -> Factory:
    def make(batch: Batch) -> list[FwdHook]:
        return mix(t, target, attention_mask=batch.attention_mask, documents=batch.documents)

    return make


def _losses(scores: Scores, boot: Bootstrap, rows: NDArray[np.int64]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, perplexity in (("nll", False), ("perplexity", True)):
        words = "perplexity" if perplexity else "mean NLL of the next token"
        for prefix, baseline in (("", None), ("delta_", scores.of("none"))):
            found |= with_interval(
                prefix + name,
                ("target", "t"),
                boot.estimate(scores.nll, baseline=baseline, perplexity=perplexity),
                long_name=words + (_MINUS if prefix else ""),
                units="1" if perplexity else "nat/token",
                source=_SD,
                lay_out=lambda values: values[rows],
            )
    return found


def _similarities(stream: TokenStream, boot: Bootstrap, rows: NDArray[np.int64]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, words in _WORDS.items():
        into, out = np.moveaxis(stream.numbers[name][..., stream.counted], 1, 0)
        mean = out.mean(1)
        axes, ends = ("target", "t"), ("at the layer's input", "at the layer's output")
        for variable, dims, values, text in (
            (f"{name}_in", (*axes, "layer"), into, ends[0]),
            (f"{name}_out", (*axes, "layer"), out, ends[1]),
            (f"delta_{name}_out", (*axes, "layer"), out - out[:1], ends[1] + _MINUS),
            (f"{name}_mean", axes, mean, f"{ends[1]}, mean over layers"),
            (f"delta_{name}_mean", axes, mean - mean[:1], f"{ends[1]}, mean over layers{_MINUS}"),
        ):
            found |= with_interval(
                variable,
                dims,
                boot.estimate(values),
                long_name=f"{words} {text}",
                units="1",
                source=_SD,
                lay_out=lambda estimated: estimated[rows],
            )
    return found
