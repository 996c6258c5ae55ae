"""Which importance finds the entries that matter? Remove them and see what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import xarray as xr
from torch import Tensor

from tl_geometry.ablations.entries import EntryMasker, EntryScores
from tl_geometry.ablations.targets import Heads, Layers
from tl_geometry.analysis.reading import plain_sink
from tl_geometry.arguments import one_of, whole_number, whole_seed
from tl_geometry.data import Batch
from tl_geometry.evaluation.documents import read_documents
from tl_geometry.evaluation.faithfulness_plan import Run, gathered, plan_runs
from tl_geometry.evaluation.faithfulness_table import Scored, tabulate
from tl_geometry.evaluation.prefix import forward_logits
from tl_geometry.evaluation.runs import Factory, Variant, run_variants
from tl_geometry.evaluation.scorers import Importances, described_scorers, named_scorers
from tl_geometry.evaluation.statistics import Bootstrap
from tl_geometry.hooks import AttentionSite
from tl_geometry.hooks.capture import capture_hooks
from tl_geometry.hooks.entries import FwdHook
from tl_geometry.measures.geometry import Mode
from tl_geometry.measures.importances import IMPORTANCES
from tl_geometry.measures.masks import SinkRule
from tl_geometry.measures.selection import Scope, check_fraction

__all__ = ["FRACTIONS", "faithfulness"]

Ranking: TypeAlias = Literal["signed", "absolute"]

FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.5)
"""Shares of removed entries, those of DeYoung et al., arXiv 1911.03429."""


def faithfulness(
    model: Any,
    data: Any,
    importances: Importances = IMPORTANCES,
    modes: Sequence[Mode] = ("inter",),
    fractions: Sequence[float | int] = FRACTIONS,
    scope: Scope = "query",
    *,
    rankings: Sequence[Ranking] = ("signed", "absolute"),
    reference: Literal["online", "clean"] = "online",
    n_ctx: int = 256,
    batch_size: int | None = None,
    prepend_bos: bool | None = None,
    max_documents: int | None = 8,
    sink: SinkRule = "first",
    layers: Layers = None,
    heads: Heads = None,
    repeats: int = 1,
    resamples: int = 2000,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    seed: int = 0,
    progress: bool = True,
) -> xr.Dataset:
    """Comprehensiveness and sufficiency of importances: what removing attention entries does to the loss.

    >>> ds = faithfulness(model, texts)
    >>> ds.comprehensiveness.sel(importance="contribution", mode="inter", ranking="signed")
    >>> ds.aopc_comprehensiveness_difference.sel(importance="contribution", other="attention")

    Comprehensiveness is the mean NLL of the next token with the most important share of entries
    removed (:func:`tl_geometry.mask_entries`) minus that of the full model: the higher, the better
    the importance. Sufficiency is the same with the least important share removed: the lower, the
    better. AOPC is the mean over the fractions. A random ranking of equal budget is always there.

    Source: Cunningham & Muca Cirone, arXiv 2606.07604; DeYoung et al., arXiv 1911.03429.

    Args:
        model: a HookedTransformer or TransformerBridge with a next-token loss.
        data: as in :func:`tl_geometry.analyze`.
        importances: names, or a mapping of names to functions that score a layer's entries.
        modes: whose output the importances refer to, for those that use one.
        fractions: shares of entries to remove.
        scope: what is ranked together (:func:`tl_geometry.mask_entries`). Within one query, or one
            row, ``value_weighted`` and ``value_weighted_normalized`` of mode inter rank alike.
        rankings: contributions by value and by absolute value; other importances aren't negative.
        reference: ``"online"`` ranks by the masked run itself, layer by layer; ``"clean"`` by the run
            without a mask.
        n_ctx, batch_size, prepend_bos, max_documents: windows, as in :func:`tl_geometry.analyze`.
        sink: which keys are sinks; rows of their own queries are never masked.
        layers, heads: where to mask.
        repeats: random rankings whose NLL is averaged.
        resamples: bootstrap resamples of the documents, for 95 % intervals.
        checkpoint, resume: file for finished runs, and whether to go on from it. Functions among the
            importances are told apart by their code and the plain values, and the model, that they use
            (:mod:`tl_geometry.evaluation.function_digest`); others are refused.
        seed: of the random ranking and the bootstrap.
        progress: show a progress bar.

    Returns:
        Variables over ``importance mode ranking fraction``, each with ``_low`` and ``_high``:
        ``comprehensiveness`` and ``sufficiency`` in nats per token, ``..._perplexity`` as differences
        of perplexity, ``aopc_...`` without the fraction, and ``..._difference`` between ``importance``
        and ``other`` on the same documents. ``nll`` and ``nll_document`` hold the sums per
        document with and without a mask, ``targets`` their numbers of tokens.

    Raises:
        ValueError: unknown names or options, fractions outside [0, 1], a model that can't be masked
            or has no next-token loss, a checkpoint of another run, or one with functions that can't be
            told apart.
    """
    scorers = named_scorers(importances)
    scorers.setdefault("random", "random")
    shares = _shares(fractions)
    _each("modes", modes, ("intra", "inter"))
    _each("rankings", rankings, get_args(Ranking))
    one_of("scope", scope, get_args(Scope))
    one_of("reference", reference, ("online", "clean"))
    repeats, seed = whole_number("repeats", repeats, 1), whole_seed(seed)
    documents = read_documents(
        model,
        data,
        n_ctx=n_ctx,
        batch_size=batch_size,
        prepend_bos=prepend_bos,
        max_documents=max_documents,
    )
    masks = _Masks(model, reference, scope=scope, layers=layers, heads=heads, sink=sink)
    plan = plan_runs(scorers, modes, rankings, repeats, scope)
    variants = [Variant("full")]
    for run in {run for runs in plan.values() for run in runs}:
        for direction in ("comprehensiveness", "sufficiency"):
            for share in shares:
                hooks = masks.hooks(scorers[run.importance], run, direction, share, seed)
                variants.append(Variant(run.name(direction, share), hooks))
    variants[1:] = sorted(variants[1:], key=lambda variant: variant.name)
    settings = {
        "evaluation": "faithfulness",
        "importances": described_scorers(scorers, checkpoint, model),
        "modes": list(modes),
        "rankings": list(rankings),
        "fractions": shares,
        "scope": scope,
        "reference": reference,
        "sink": plain_sink(sink),
        "layers": [target.site.layer for target in masks.targets],
        "heads": None if heads is None else [[t.site.layer, list(t.heads)] for t in masks.targets],
        "repeats": repeats,
        "seed": seed,
    }
    scores = run_variants(
        model,
        documents,
        variants,
        settings=settings,
        checkpoint=checkpoint,
        resume=resume,
        progress=progress,
    )
    nll = {
        direction: gathered(scores.of, plan, direction, shares, len(scores.targets))
        for direction in ("comprehensiveness", "sufficiency")
    }
    coords: dict[str, Sequence[Any]] = {
        "importance": list(scorers),
        "mode": list(modes),
        "ranking": list(rankings),
        "fraction": shares,
    }
    scored = Scored(scores.of("full"), nll, scores.targets, coords)
    boot = Bootstrap(scores.targets, resamples=resamples, seed=seed)
    ds = tabulate(scored, boot)
    ds.attrs |= scores.attrs
    return ds


class _Masks:
    """Makes the masking hooks of every run, with what they share."""

    def __init__(self, model: Any, reference: str, **options: Any) -> None:
        self.model = model
        self.clean = reference == "clean"
        self.options = options
        first = EntryMasker(model, "attention", 0, **options)
        self.targets, self._frames = first.targets, first.frames
        self._cache: tuple[Any, dict[str, Tensor]] | None = None

    def hooks(
        self, scorer: EntryScores, run: Run, direction: str, share: float, seed: int
    ) -> Factory:
        """The hooks of one run, for any batch."""
        _, mode, ranking, repeat = run
        masker = EntryMasker(
            self.model,
            scorer,
            share,
            largest=direction == "comprehensiveness",
            mode="intra" if mode == "intra" else "inter",
            absolute=ranking == "absolute",
            seed=seed + repeat,
            **self.options,
        )
        masker.frames = self._frames

        def make(batch: Batch) -> list[FwdHook]:
            cache = self._activations(batch) if self.clean else None
            return masker.hooks(batch.attention_mask, documents=batch.documents, cache=cache)

        return make

    def _activations(self, batch: Batch) -> dict[str, Tensor]:
        """Patterns and values of the unmasked run, kept for the batch at hand."""
        if self._cache is None or self._cache[0] != batch.documents:
            kept: dict[str, Tensor] = {}

            def keep(site: AttentionSite, pattern: Tensor, v: Tensor, z: Tensor) -> None:  # noqa: ARG001
                kept[site.pattern_hook], kept[site.v_hook] = pattern, v

            self._cache = None
            sites = [target.site for target in self.targets]
            forward_logits(self.model, batch, capture_hooks(self.model, sites, keep))
            self._cache = (batch.documents, kept)
        return self._cache[1]


def _each(name: str, values: Sequence[str], allowed: Sequence[str]) -> None:
    if isinstance(values, str) or not values or len(set(values)) < len(values):
        raise ValueError(
            f"{name} must be one or more of {tuple(allowed)}, each once, got {values!r}"
        )
    for value in values:
        one_of(name, value, tuple(allowed))


def _shares(fractions: Sequence[float | int]) -> list[float]:
    shares = [check_fraction(fraction) for fraction in fractions]
    if not shares or len(set(shares)) < len(shares):
        raise ValueError(f"fractions must be one or more shares, each once, got {fractions!r}")
    return shares
