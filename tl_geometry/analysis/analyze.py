"""A corpus in one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from tqdm.auto import tqdm

from tl_geometry.analysis.accumulator import Accumulator
from tl_geometry.analysis.defaults import (
    QUERIES,
    MeasureName,
    Options,
    checked_measures,
    default_measures,
)
from tl_geometry.analysis.probe import Probe
from tl_geometry.analysis.prompt import (
    PromptMode,
    prompt_matrices,
    prompt_tokens,
    token_array,
)
from tl_geometry.arguments import whole_number, whole_seed
from tl_geometry.data import Batch, token_batches
from tl_geometry.hooks.arguments import mask_argument
from tl_geometry.hooks.stream import has_stream
from tl_geometry.measures.layer import Output, ValueBias
from tl_geometry.measures.masks import SinkRule
from tl_geometry.measures.separability import TOP_N

__all__ = ["analyze"]

EXAMPLE_TOKENS = 64


def analyze(
    model: Any,
    data: Any,
    measures: Sequence[Accumulator | MeasureName] | Accumulator | MeasureName | None = None,
    n_ctx: int = 512,
    batch_size: int | None = None,
    prepend_bos: bool | None = None,
    sink: SinkRule = "first",
    max_documents: int | None = None,
    queries: int = QUERIES,
    top_n: Sequence[int] = TOP_N,
    on_unsupported: Literal["raise", "skip"] = "raise",
    layers: Iterable[int | str] | None = None,
    heads: Iterable[tuple[int | str, int]] | None = None,
    *,
    value_bias: ValueBias = "as_hooked",
    output: Output = "raw",
    keep_examples: int = 0,
    seed: int = 0,
    progress: bool = True,
) -> xr.Dataset:
    """Measure a corpus: every default measure, layer by layer, in bounded memory.

    >>> ds = analyze(model, ["A text.", "Another text."])
    >>> ds.regime.sel(layer=5), ds.sink_rate.max()
    >>> ds.to_dataframe()

    Args:
        model: a HookedTransformer or TransformerBridge.
        data: a text, texts, token ids (``pos`` or ``batch pos``), or an iterable of texts, token
            ids, ``(tokens, mask)`` pairs or dicts with ``input_ids`` and ``attention_mask``.
        measures: accumulators, or names of them: ``"contributions"``, ``"regimes"``, ``"sinks"``,
            ``"separability"``, ``"switches"`` and ``"smoothing"``, which are the default, and
            ``"value_halfspace"`` and ``"halfspace"`` (switches, smoothing with the half-space conditions
            of values and of tokens, about a second per layer and document) and ``"costs"`` (convex
            programs for the cost of a sink and of the diagonal, a quarter of a second or more).
        n_ctx: tokens per window. Each window of a text is one document of the statistics.
        batch_size: windows per forward; by default about a thousand tokens.
        prepend_bos: whether a bos token opens every window of text; by default what the model's
            tokenizer setting says. The result records the decision.
        sink: which keys are sinks (:func:`tl_geometry.measures.masks.resolve_sinks`).
        max_documents: stop after so many windows.
        queries: evenly spaced queries per document that separability is scored on, where it is named.
        top_n: sizes N of the selected set for separability, where it is named.
        on_unsupported: ``"raise"`` on a layer that can't be measured, or ``"skip"`` it and record
            why.
        layers: labels of the layers to measure.
        heads: list of (layer, head); other heads are NaN.
        value_bias: ``"remove"`` subtracts the value bias where the model has one.
        output: ``"normed"`` measures contributions after the norm that some models put behind the
            attention.
        keep_examples: keep attention and contribution matrices of the first tokens (64 at most) of
            so many documents.
        seed: of everything random in measures that are named; recorded. Accumulators have their
            own, recorded with their settings.
        progress: show a progress bar.

    Returns:
        One dataset with dims ``layer`` and ``head``; means over documents, each with its standard
        error ``<name>_se``. ``attrs`` hold the provenance.

    Raises:
        TypeError: a number that should be an integer and is none.
        ValueError: data without a document, no measure, an unsupported layer, a model that takes no
            tokens, or activations that can't be
            trusted; the message says what was found and what to do.
    """
    if isinstance(measures, (Accumulator, str)):
        measures = [measures]
    given = None if measures is None else list(measures)
    if given is not None and not given:
        raise ValueError("measures is empty: name at least one, or leave it out for the default")
    seed, keep_examples = whole_seed(seed), whole_number("keep_examples", keep_examples, 0)
    options = Options(tuple(top_n), whole_number("queries", queries, 1), seed)
    chosen, notes = _measures(model, given, options)
    stream = token_batches(
        data,
        model,
        n_ctx=n_ctx,
        batch_size=batch_size,
        prepend_bos=prepend_bos,
        max_documents=max_documents,
    )
    probe = Probe(
        model,
        chosen,
        sink=sink,
        layers=layers,
        heads=heads,
        on_unsupported=on_unsupported,
        value_bias=value_bias,
        output=output,
    )
    device = probe.sites[0].device
    if any(
        isinstance(site.layer, str) and site.layer.startswith("decoder") for site in probe.sites
    ):
        raise ValueError(
            "analyze runs models on tokens alone, but an encoder-decoder needs the decoder's tokens too: "
            "run it yourself, with Probe.hooks(attention_mask=..., decoder_attention_mask=...)"
        )
    examples: dict[int, Tensor] = {}
    with torch.no_grad(), tqdm(total=stream.total, unit=" documents", disable=not progress) as bar:
        for batch in stream:
            mask = batch.attention_mask
            model.run_with_hooks(
                batch.tokens.to(device),
                return_type=None,
                fwd_hooks=probe.hooks(attention_mask=mask, documents=batch.documents),
                **{mask_argument(model): mask.long().to(device)},
            )
            probe.check()
            examples |= _first_tokens(batch) if keep_examples else {}
            examples = dict(sorted(examples.items())[:keep_examples])
            bar.update(len(batch.documents))
    ds = probe.result()
    ds.attrs |= {
        "n_ctx": stream.n_ctx,
        "prepend_bos": stream.bos.prepend,
        "bos_rule": stream.bos.rule,
        "seed": seed if given is None or any(isinstance(m, str) for m in given) else None,
        "skipped_documents": dict(stream.skipped),
        "warnings": [*ds.attrs["warnings"], *notes, *stream.warnings],
    }
    return _with_examples(ds, model, probe, list(examples.values())) if examples else ds


def _measures(
    model: Any, given: list[Any] | None, options: Options
) -> tuple[list[Accumulator], list[str]]:
    """The accumulators of a run, and what to say about them."""
    if given is None:
        streams = has_stream(model)
        note = "no measures of smoothing: the model has no hooks of its residual stream"
        return default_measures(options, stream=streams), [] if streams else [note]
    named = {measure for measure in given if isinstance(measure, str)}
    if "separability" not in named and options != Options(seed=options.seed):
        raise ValueError(
            "queries and top_n set measures that go by a name; give them to Separability() itself"
        )
    return checked_measures(given, options), []


def _first_tokens(batch: Batch) -> dict[int, Tensor]:
    """The first real tokens of each document, by its number."""
    rows = zip(batch.documents, batch.tokens, batch.attention_mask, strict=True)
    return {number: tokens[mask][:EXAMPLE_TOKENS] for number, tokens, mask in rows}


def _with_examples(ds: xr.Dataset, model: Any, probe: Probe, examples: list[Tensor]) -> xr.Dataset:
    """Add the matrices of some documents' first tokens; NaN where a query can't see a key."""
    longest = max(len(tokens) for tokens in examples)
    shape = (len(examples), len(probe.sites), ds.sizes["head"], longest, longest)
    modes: tuple[PromptMode, ...] = ("attention", "intra")
    found = {mode: np.full(shape, np.nan, np.float32) for mode in modes}
    words = np.full((len(examples), longest), "", dtype=object)
    reader = probe.reader
    for row, example in enumerate(examples):
        tokens, words[row, : len(example)] = prompt_tokens(model, example, prepend_bos=None)
        one = prompt_matrices(
            model,
            tokens,
            probe.sites,
            probe.diagnosis,
            modes,
            value_bias=reader.value_bias,
            output=reader.output,
        )
        for mode, array in found.items():
            visible = np.where(one.available[:, None], one.by_mode[mode], np.nan)
            array[row, :, : visible.shape[1], : len(example), : len(example)] = visible
    axes = ("example", "layer", "head", "query", "key")
    names = {"attention": "attention", "intra": "contribution weight (intra)"}
    with_examples: xr.Dataset = ds.assign(
        example_tokens=(("example", "token"), token_array(words)),
        example_length=(("example",), np.array([len(tokens) for tokens in examples])),
        example_attention=(
            axes,
            found["attention"],
            {"long_name": names["attention"], "units": "1"},
        ),
        example_contribution=(axes, found["intra"], {"long_name": names["intra"], "units": "1"}),
    )
    return with_examples
