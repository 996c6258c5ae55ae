"""What a sink and the diagonal cost to represent on the tokens of a model, beside those of theory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.special import stdtrit
from tqdm.auto import tqdm

from tl_geometry.analysis.head_costs import head_costs
from tl_geometry.analysis.layer_tokens import check_runnable, read_layer, vocabulary_rows
from tl_geometry.analysis.results import model_provenance
from tl_geometry.arguments import one_of, whole_number, whole_seed
from tl_geometry.data import token_batches
from tl_geometry.hooks import attention_sites, select_sites
from tl_geometry.hooks.processing import weight_processing
from tl_geometry.measures.cost_scaling import CostScaling, cost_scaling
from tl_geometry.measures.cost_solver import Norm

__all__ = ["KINDS", "NORMS", "token_costs"]

KINDS = ("orthonormal", "random", "model")
NORMS: tuple[Norm, ...] = ("frobenius", "nuclear")
_CONFIDENCE = 0.95
_SD = "Sukenik et al., arXiv 2605.08453"
_TARGETS = {"sink": "the sink", "diagonal": "the diagonal"}


def token_costs(
    model: Any,
    data: Any = None,
    lengths: Sequence[int] = (8, 16, 32, 64),
    *,
    ds: xr.Dataset | None = None,
    layer: int | str | None = None,
    norms: Sequence[Norm] = NORMS,
    samples: int = 8,
    causal: bool = True,
    n_ctx: int = 256,
    batch_size: int | None = None,
    prepend_bos: bool | None = None,
    max_documents: int | None = 8,
    seed: int = 0,
    progress: bool = True,
) -> xr.Dataset:
    """Cost of a sink and of the diagonal against the number of tokens: orthonormal, random, the model's own.

    >>> costs = token_costs(model, texts)
    >>> costs.cost_ratio.sel(tokens="model", norm="nuclear")     # diagonal over sink, by length
    >>> costs.exponent_gap.sel(norm="nuclear").to_series()

    The model's own tokens are what an attention layer reads, after its norm and with the positions
    where they are learned. Of all windows together, the first token of the first one is the sink;
    each sample draws others at random. A vector that occurred before is left out, since no W tells
    equal tokens apart: without learned positions, that is every repeated token of layer 0. All kinds
    have vectors of mean squared length 1. The cost asks for one W, as scores without rotation have
    it. Source: Sukenik et al., arXiv 2605.08453, as :func:`tl_geometry.cost_scaling` reconstructs it.

    Args:
        model: a HookedTransformer or TransformerBridge.
        data: as in :func:`tl_geometry.analyze`. By default tokens that are drawn from the
            vocabulary, behind bos (id 0 where there is no tokenizer).
        lengths: numbers of tokens T, the sink included.
        ds: a result of :func:`tl_geometry.analyze` for the model, whose heads are added as
            :func:`tl_geometry.head_costs` gives them.
        layer: label of the layer that reads the tokens, the first by default.
        norms: "frobenius", "nuclear".
        samples: of random tokens and of the model's, with the seeds `seed`, `seed` + 1, ... They
            overlap where there are few distinct tokens.
        causal: only keys up to the query compete.
        n_ctx, batch_size, prepend_bos, max_documents: windows, as in :func:`tl_geometry.analyze`.
        seed: of the samples, of tokens from the vocabulary, and of `ds`'s intervals.
        progress: show a progress bar.

    Returns:
        `sink_cost` and `diagonal_cost` over ``tokens norm sample length``, NaN where infeasible
        (or not found within the solver's iterations); `sink_infeasible` and `diagonal_infeasible`,
        shares of the samples, and `cost_ratio`, diagonal over sink, over ``tokens norm length``;
        `sink_exponent`, `diagonal_exponent`, `exponent_gap` and `turns_round` (NaN if it never does)
        over ``tokens norm``. 95 % intervals end in ``_low`` and ``_high``. Orthonormal tokens are one
        sample. ``attrs`` count the `distinct_tokens` and the `repeated_tokens` left out; a cost in the
        model's own units is that over `token_length` squared. With 64 tokens half a minute on one core.

    Raises:
        TypeError: several layers; lengths, samples or a seed that are no integers.
        ValueError: too few distinct tokens, unknown or repeated norms, wrong lengths, active dropout,
            an encoder-decoder, a model without tokens, a layer whose input can't be read or is not finite.
    """
    norms = _checked_norms(norms)
    lengths = [whole_number("each of lengths", T, 2) for T in lengths]
    seed, samples = whole_seed(seed), whole_number("samples", samples, 1)
    seeds = range(seed, seed + samples)
    sites = attention_sites(model)
    if isinstance(layer, Iterable) and not isinstance(layer, str):
        raise TypeError(f"layer must be the label of one layer, got {layer!r}")
    site = select_sites(sites, layer)[0]
    check_runnable(model, sites)
    longest = max(lengths, default=2)
    if data is None:
        rows = vocabulary_rows(model, samples, longest, seed)
        stream = token_batches(rows, model, n_ctx=rows.shape[1], batch_size=batch_size)
        opening = f"token {int(rows[0, 0])} opens every row that is drawn from the vocabulary"
    else:
        stream = token_batches(
            data,
            model,
            n_ctx=n_ctx,
            batch_size=batch_size,
            prepend_bos=prepend_bos,
            max_documents=max_documents,
        )
        opening = ""
    found = read_layer(model, site, stream)
    if len(found.x) < longest:
        raise ValueError(
            f"lengths go up to {longest}, but there are only {len(found.x)} distinct tokens in layer "
            f"{site.layer} ({found.repeated} repeated ones were left out): give more data or shorter lengths"
        )
    given: dict[str, dict[str, Any]] = {
        "orthonormal": {"tokens": "orthonormal"},
        "random": {"tokens": "random", "d": found.x.shape[1]},
        "model": {"tokens": found.x},
    }
    cells = [(kind, norm) for kind in KINDS for norm in norms]
    options: dict[str, Any] = {
        "causal": causal,
        "seeds": tuple(seeds),
        "confidence": _CONFIDENCE,
    }
    scalings = {
        (kind, norm): cost_scaling(lengths, norm=norm, **given[kind], **options)
        for kind, norm in tqdm(cells, unit=" fits", disable=not progress)
    }
    result = _dataset(scalings, norms, list(seeds), lengths)
    result.attrs = {
        **model_provenance(model, weight_processing(model, sites)),
        "n_ctx": stream.n_ctx,
        "prepend_bos": bool(opening) or stream.bos.prepend,
        "bos_rule": opening or stream.bos.rule,
        "documents": stream.documents,
        "tokens": stream.tokens,
        "skipped_documents": dict(stream.skipped),
        "distinct_tokens": len(found.x),
        "repeated_tokens": found.repeated,
        "token_length": found.length,
        "confidence": _CONFIDENCE,
        "warnings": list(stream.warnings),
        "settings": {
            "evaluation": "token_costs",
            "drawn_from": "vocabulary" if data is None else "data",
            "layer": site.layer,
            "lengths": lengths,
            "norms": norms,
            "samples": samples,
            "causal": causal,
            "seed": seed,
        },
    }
    return result if ds is None else result.merge(head_costs(model, ds, seed=seed))


def _checked_norms(norms: Any) -> list[Norm]:
    """The norms as a list, each of them once."""
    given: list[Norm] = [] if isinstance(norms, str) else list(norms)
    if not given:
        raise ValueError(f"norms must be one or more of {NORMS}, got {norms!r}")
    for norm in given:
        one_of("norms", norm, NORMS)
    if len(set(given)) < len(given):
        raise ValueError(f"norms must differ, got {given}")
    return given


def _dataset(
    scalings: dict[tuple[str, Norm], CostScaling],
    norms: list[Norm],
    seeds: list[int],
    lengths: list[int],
) -> xr.Dataset:
    coords: dict[str, list[Any]] = {
        "tokens": list(KINDS),
        "norm": norms,
        "sample": seeds,
        "length": lengths,
    }
    by_length = ("tokens", "norm", "length")
    table: dict[str, Any] = {}

    def add(
        name: str, dims: tuple[str, ...], words: str, read: Callable[[CostScaling], Any]
    ) -> None:
        """Lay out a quantity over kinds and norms."""
        values = np.full([len(coords[dim]) for dim in dims], np.nan)
        for (kind, norm), scaling in scalings.items():
            found = np.asarray(read(scaling), dtype=np.float64)
            cell = values[KINDS.index(kind), norms.index(norm), ...]  # a view, without axes too
            cell[tuple(map(slice, found.shape))] = found
        table[name] = (dims, values, {"long_name": words, "units": "1", "source": _SD})

    def add_interval(name: str, dims: tuple[str, ...], words: str, read: Any) -> None:
        add(name, dims, words, _part(read, 0))
        for place, end in enumerate(("low", "high"), 1):
            text = f"{end} end of the interval of: {words}"
            add(f"{name}_{end}", dims, text, _part(read, place))

    for target, words in _TARGETS.items():
        add(
            f"{target}_cost",
            ("tokens", "norm", "sample", "length"),
            f"least norm of a W that represents {words}, tokens of length 1 and margin 1",
            attrgetter(target),
        )
        text = f"share of the samples in which no W represents {words}"
        add(f"{target}_infeasible", by_length, text, attrgetter(f"{target}_infeasible"))
    add_interval("cost_ratio", by_length, "cost of the diagonal over that of the sink", _ratio)
    for name, field, words in (
        ("sink_exponent", "sink_exponent", "exponent of T in the cost of the sink"),
        ("diagonal_exponent", "diagonal_exponent", "exponent of T in the cost of the diagonal"),
        ("exponent_gap", "gap", "exponent of the diagonal minus that of the sink"),
    ):
        ends = attrgetter(*(f"{field}.{part}" for part in ("value", "low", "high")))
        add_interval(name, by_length[:2], words, ends)
    text = "number of tokens from which on the sink is the dearer one; NaN if it never is"
    add("turns_round", by_length[:2], text, attrgetter("turns_round"))
    return xr.Dataset(table, coords=coords)


def _part(read: Callable[[CostScaling], Any], place: int) -> Callable[[CostScaling], Any]:
    return lambda scaling: read(scaling)[place]


def _ratio(scaling: CostScaling) -> NDArray[np.float64]:
    """Geometric mean over the samples that have both costs, and Student's interval on the logarithm."""
    found = np.full((3, len(scaling.lengths)), np.nan)
    for column, logs in enumerate((scaling.diagonal / scaling.sink).log().T.numpy()):
        known = logs[np.isfinite(logs)]
        reach = np.nan
        if len(known) > 1:
            error = known.std(ddof=1) / np.sqrt(len(known))
            reach = error * stdtrit(len(known) - 1, (1 + _CONFIDENCE) / 2)
        if len(known):
            found[:, column] = np.exp(known.mean() + np.array([0, -reach, reach]))
    return found
