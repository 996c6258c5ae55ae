"""What sinks are worth: the loss, the outputs and the semantic cone under interventions on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from tl_geometry.ablations import (
    remove_sinks,
    replace_sink_values,
    rescale_sink_values,
    zero_sink_values,
)
from tl_geometry.ablations.targets import Heads, Layers, targets
from tl_geometry.analysis.reading import plain_sink
from tl_geometry.arguments import one_of, whole_seed
from tl_geometry.data import Batch
from tl_geometry.evaluation.documents import read_documents
from tl_geometry.evaluation.runs import Factory, Variant, run_variants, unedited
from tl_geometry.evaluation.sink_geometry import under_interventions
from tl_geometry.evaluation.statistics import Bootstrap
from tl_geometry.evaluation.variables import with_interval
from tl_geometry.hooks.entries import FwdHook
from tl_geometry.measures.masks import SinkRule

__all__ = ["INTERVENTIONS", "sink_interventions"]

INTERVENTIONS = ("zero_value", "renormalize", "rescale", "mean")
_CW = "Cunningham & Muca Cirone, arXiv 2606.07604"


def sink_interventions(
    model: Any,
    data: Any,
    interventions: Sequence[str] = INTERVENTIONS,
    *,
    factor: float = 2.0,
    sink: SinkRule = "first",
    layers: Layers = None,
    heads: Heads = None,
    n_ctx: int = 256,
    batch_size: int | None = None,
    prepend_bos: bool | None = None,
    max_documents: int | None = 8,
    resamples: int = 2000,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    seed: int = 0,
    progress: bool = True,
) -> xr.Dataset:
    """Loss, output norms and semantic-cone alignment with the sinks as they are and under interventions.

    >>> ds = sink_interventions(model, texts)
    >>> ds.delta_perplexity.sel(intervention="zero_value")
    >>> ds.group_cone_alignment.sel(group="low norm")

    ``"zero_value"`` sets the sinks' values to zero, ``"renormalize"`` removes their columns and
    divides the rest of each row by its sum, ``"rescale"`` multiplies their values by ``factor``,
    ``"mean"`` puts each query's mean of the values so far in their place. All layers and heads at
    once, unless told otherwise. Heads of low norm (lowest quartile of mean |o| in their layer, as the
    model is) are averaged apart.

    Source: Cunningham & Muca Cirone, arXiv 2606.07604.

    Args:
        model: a HookedTransformer or TransformerBridge with a next-token loss.
        data: as in :func:`tl_geometry.analyze`.
        interventions: which, of the four.
        factor: of ``"rescale"``.
        sink, layers, heads: as in :func:`tl_geometry.zero_sink_values`.
        n_ctx, batch_size, prepend_bos, max_documents: windows, as in :func:`tl_geometry.analyze`.
        resamples: bootstrap resamples of the documents, for 95 % intervals.
        checkpoint, resume: file for finished scores, and whether to go on from it.
        seed: of the bootstrap.
        progress: show a progress bar.

    Returns:
        Over ``intervention`` (with ``"none"``): ``nll``, ``perplexity``, ``delta_nll``,
        ``delta_perplexity``; over ``intervention layer head``: ``output_norm``, ``cone_alignment``,
        ``cone_tightness``, ``sink_rate`` (the attention that the edited model gives, whatever becomes
        of the values), means over documents; over ``intervention group``:
        ``group_output_norm`` (relative to the model as it is), ``group_cone_alignment`` and
        ``delta_group_cone_alignment`` (minus that of the model as it is, on the same documents);
        ``low_norm`` over ``layer head``. Intervals end in ``_low`` and ``_high``.

    Raises:
        ValueError: unknown interventions, one that a layer's hooks can't make, a model without a
            next-token loss, a checkpoint of another run.
    """
    if isinstance(interventions, str) or not interventions:
        raise ValueError(f"interventions must be one or more of {INTERVENTIONS}")
    for name in interventions:
        one_of("interventions", name, INTERVENTIONS)
    seed = whole_seed(seed)
    documents = read_documents(
        model,
        data,
        n_ctx=n_ctx,
        batch_size=batch_size,
        prepend_bos=prepend_bos,
        max_documents=max_documents,
    )
    chosen = targets("sink_interventions", model, layers, heads)
    everywhere = layers is None and heads is None
    named = [(target.site.layer, head) for target in chosen for head in target.heads]
    options = {"sink": sink, "heads": named}
    factories: dict[str, Factory] = {"none": unedited}
    factories |= {name: _factory(model, name, factor, options) for name in interventions}
    settings = {
        "evaluation": "sink_interventions",
        "interventions": list(interventions),
        "factor": factor,
        "sink": plain_sink(sink),
        "heads": None if everywhere else [[t.site.layer, list(t.heads)] for t in chosen],
        "seed": seed,
    }
    scores = run_variants(
        model,
        documents,
        [Variant(name, make) for name, make in factories.items()],
        settings=settings,
        checkpoint=checkpoint,
        resume=resume,
        progress=progress,
    )
    boot = Bootstrap(scores.targets, resamples=resamples, seed=seed)
    data_vars: dict[str, Any] = {}
    for name, perplexity in (("nll", False), ("perplexity", True)):
        full = scores.of("none")
        words = "perplexity" if perplexity else "mean NLL of the next token"
        units = "1" if perplexity else "nat/token"
        for prefix, baseline in (("", None), ("delta_", full)):
            found = boot.estimate(scores.nll, baseline=baseline, perplexity=perplexity)
            text = f"{words}{' minus that of the model as it is' if prefix else ''}"
            data_vars |= with_interval(
                prefix + name, ("intervention",), found, long_name=text, units=units, source=_CW
            )
    heads_too = under_interventions(
        model, documents, factories, sink, resamples=resamples, seed=seed, progress=progress
    )
    coords = {"intervention": list(factories)}
    return xr.Dataset(data_vars | dict(heads_too.data_vars), coords=coords, attrs=scores.attrs)


def _factory(model: Any, name: str, factor: float, options: dict[str, Any]) -> Factory:
    def make(batch: Batch) -> list[FwdHook]:
        with_mask = {**options, "attention_mask": batch.attention_mask}
        if name == "zero_value":
            return zero_sink_values(model, **with_mask)
        if name == "renormalize":
            return remove_sinks(model, renormalize=True, **with_mask)
        if name == "rescale":
            return rescale_sink_values(model, factor, **with_mask)
        return replace_sink_values(model, "mean", **with_mask)

    return make
