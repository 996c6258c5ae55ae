"""A corpus in one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import torch
import xarray as xr
from torch import Tensor
from tqdm.auto import tqdm

from tl_geometry.analysis.accumulator import Accumulator
from tl_geometry.analysis.checkpoint import CHECKPOINT_EVERY, RunCheckpoint
from tl_geometry.analysis.defaults import (
    QUERIES,
    MeasureName,
    Options,
    checked_measures,
    default_measures,
)
from tl_geometry.analysis.examples import first_tokens, with_examples
from tl_geometry.analysis.merging import check_mergeable, merge
from tl_geometry.analysis.probe import Probe
from tl_geometry.analysis.processes import Processes, joined
from tl_geometry.analysis.run_identity import run_fingerprint
from tl_geometry.analysis.snapshot import Tracker
from tl_geometry.arguments import whole_number, whole_seed
from tl_geometry.data import BatchStream, token_batches
from tl_geometry.hooks.arguments import mask_argument
from tl_geometry.hooks.stream import has_stream
from tl_geometry.measures.layer import Output, ValueBias
from tl_geometry.measures.masks import SinkRule
from tl_geometry.measures.memory import MemoryBudget, checked_budget
from tl_geometry.measures.separability import TOP_N

__all__ = ["analyze"]


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
    checkpoint: str | Path | None = None,
    checkpoint_every: int = CHECKPOINT_EVERY,
    resume: bool = False,
    value_bias: ValueBias = "as_hooked",
    output: Output = "raw",
    memory_budget: MemoryBudget = None,
    keep_examples: int = 0,
    seed: int = 0,
    progress: bool = True,
    distributed: bool | None = None,
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
        checkpoint: a file that keeps what is measured of a long run, whatever ends it.
        checkpoint_every: documents between two writes of that file, which come between two batches.
        resume: go on from that file where it exists: with the same model, data and settings the
            result is that of an uninterrupted run bit for bit. The data are read from their beginning
            and compared, but not run again. A finished run leaves its result in the file, which stays;
            resuming it reads the data and runs nothing. Without it an existing file is refused. Accumulators of
            your own are kept by their states (``add_state``) and told apart by their ``settings`` and code; what is
            random in them must follow from the documents' numbers. Each of several processes keeps a file of its
            own, `<checkpoint>.rank1` and so on beside the first one's, until the result stands in that.
        value_bias: ``"remove"`` subtracts the value bias where the model has one.
        output: ``"normed"`` measures contributions after the norm that some models put behind the
            attention.
        memory_budget: bytes, or a text such as ``"500MB"``, for the temporaries of measures; by default a quarter of
            what is free (:class:`Probe`). Results do not depend on it beyond rounding, so a run that is resumed may
            have another.
        keep_examples: keep attention and contribution matrices of the first tokens (64 at most) of
            so many documents.
        seed: of everything random in measures that are named; recorded. Accumulators have their
            own, recorded with their settings.
        progress: show a progress bar.
        distributed: by default the documents are split over the processes that torchrun or
            `accelerate launch` has started, each with a model of its own; each must be given the same data
            and settings. False: this process measures all of them alone. True: an error where there is
            only one process.

    Returns:
        One dataset with dims ``layer`` and ``head``; means over documents, each with its standard
        error ``<name>_se``. ``attrs`` hold the provenance. Of several processes, each gets the
        dataset of all documents.

    Raises:
        TypeError: a number that should be an integer and is none.
        ValueError: data without a document, no measure, an unsupported layer, a model that takes no
            tokens, activations that can't be trusted, a checkpoint of another run or that is
            damaged, processes that differ in their data or settings, or a measure that can't be merged
            over them; the message says what was found and what to do.
        FileExistsError: the checkpoint exists and ``resume`` is False.
        OSError: the checkpoint can't be written; the file in place stays whole.
        RuntimeError: another run holds the checkpoint; another process has failed.
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
    one = isinstance(layers, str) or not isinstance(layers, Iterable)
    settings: dict[str, Any] = {
        "sink": sink,
        "layers": layers if one or layers is None else list(layers),
        "heads": None if heads is None else list(heads),
        "on_unsupported": on_unsupported,
        "value_bias": value_bias,
        "output": output,
    }
    budget = checked_budget(memory_budget)
    reading = {
        "n_ctx": stream.n_ctx,
        "batch_size": batch_size,
        "prepend_bos": prepend_bos,
        "max_documents": max_documents,
        "keep_examples": keep_examples,
        "seed": seed,
    }
    with joined(distributed) as processes, processes.quiet(), ExitStack() as stack:
        with processes.in_step():
            fingerprint: dict[str, Any] = {}
            if checkpoint is not None or processes.several:
                fingerprint = _fingerprint(processes, model, chosen, {**settings, **reading})
            place = processes.own_file(checkpoint)
            kept = RunCheckpoint(place, fingerprint, every=checkpoint_every, resume=resume)
            finished = stack.enter_context(kept).finished(stream)
            if processes.share(finished is not None)[0]:
                return _handed_out(finished, kept, processes)
            probe = Probe(model, chosen, memory_budget=budget, **settings)
            _refuse_decoder(probe)
            tracker = Tracker(probe, "distributed") if processes.several else None
        shown = progress and processes.first
        examples = _run(model, stream, probe, kept, keep_examples, shown, processes, tracker)
        with processes.in_step():
            if tracker is not None:
                kept.complete(examples)
                processes.compare_data()
                merge(tracker, processes)
            if processes.first:
                finished = probe.result()
                finished.attrs |= {
                    "n_ctx": stream.n_ctx,
                    "prepend_bos": stream.bos.prepend,
                    "bos_rule": stream.bos.rule,
                    "seed": seed
                    if given is None or any(isinstance(m, str) for m in given)
                    else None,
                    "skipped_documents": dict(stream.skipped),
                    "processes": processes.world,
                    "warnings": [*finished.attrs["warnings"], *notes, *stream.warnings],
                }
                if examples:
                    finished = with_examples(finished, model, probe, list(examples.values()))
                kept.finish(finished)
            return _handed_out(finished, kept, processes)


def _handed_out(ds: xr.Dataset | None, kept: RunCheckpoint, processes: Processes) -> xr.Dataset:
    """The result for all processes, of which the first alone keeps it in its file."""
    result = processes.hand_out(ds)
    if not processes.first:
        kept.remove()
    return result


def _fingerprint(
    processes: Processes, model: Any, measures: Sequence[Accumulator], settings: dict[str, Any]
) -> dict[str, Any]:
    """What a checkpoint belongs to; the same in all processes, but for their numbers and devices."""
    found = run_fingerprint(model, measures, settings)
    common = {name: value for name, value in found["model"].items() if name != "device"}
    processes.compare({**found, "model": common})
    return {"processes": processes.world, "process": processes.rank, **found}


def _run(
    model: Any,
    stream: BatchStream,
    probe: Probe,
    kept: RunCheckpoint,
    keep_examples: int,
    progress: bool,
    processes: Processes,
    tracker: Tracker | None,
) -> dict[int, Tensor]:
    """Measure every batch of this process that was not measured before; the first tokens of some documents."""
    device = next(model.parameters()).device
    examples = kept.follow(probe)
    with torch.no_grad(), tqdm(total=stream.total, unit=" documents", disable=not progress) as bar:
        for batch in stream:
            mine, held = processes.takes(batch), kept.holds(batch)
            if keep_examples and not held:
                examples = dict(sorted({**examples, **first_tokens(batch)}.items())[:keep_examples])
            if mine and not held:
                mask = batch.attention_mask
                model.run_with_hooks(
                    batch.tokens.to(device),
                    return_type=None,
                    fwd_hooks=probe.hooks(attention_mask=mask, documents=batch.documents),
                    **{mask_argument(model): mask.long().to(device)},
                )
                probe.check()
                if tracker is not None and probe.seen == len(batch.documents):
                    check_mergeable(tracker)  # at the first batch, and not only at the end
                kept.add(examples)
            bar.update(len(batch.documents))
    return examples


def _refuse_decoder(probe: Probe) -> None:
    if any(
        isinstance(site.layer, str) and site.layer.startswith("decoder") for site in probe.sites
    ):
        raise ValueError(
            "analyze runs models on tokens alone, but an encoder-decoder needs the decoder's tokens too: "
            "run it yourself, with Probe.hooks(attention_mask=..., decoder_attention_mask=...)"
        )


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
