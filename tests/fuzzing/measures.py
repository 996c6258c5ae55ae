"""The measures of one layer: how their options are drawn, and what they must give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from literal import (
    cone as literal_cone,
    contributions as literal_contributions,
    regimes as literal_regimes,
    sink_curve as literal_curve,
    sinks as literal_sinks,
    switches as literal_switches,
)
from literal.masks import available_mask, sink_mask

import tl_geometry as tlg
from fuzzing.strategies import Layer, literal_sink, sinks

Options = dict[str, Any]
Arrays = dict[str, np.ndarray]
MODES = ("intra", "inter")


@dataclass(frozen=True)
class Measure:
    """One public function of a layer.

    Attributes:
        options: draws the keywords that it may be given, the mask apart.
        literal: its fields from the slow reference, or None where another test has one.
        arguments: which of the layer's tensors it takes.
        ranks: it ranks or counts, so that rounding may change a result by more than itself; compared in
            float64 only.
    """

    options: Callable[[Any, Layer], Options]
    literal: Callable[[Layer, Options], Arrays] | None
    arguments: tuple[str, ...] = ("pattern", "v", "W_O")
    ranks: bool = False


def fields(found: Any) -> dict[str, torch.Tensor]:
    """The tensors of a result by name."""
    if isinstance(found, torch.Tensor):
        return {"": found}
    if isinstance(found, tuple):
        return {str(k): x for k, x in enumerate(found)}
    return {name: x for name, x in vars(found).items() if isinstance(x, torch.Tensor)}


def given(layer: Layer, options: Options) -> tuple[tuple[torch.Tensor, ...], Options]:
    """Arguments of a slow reference."""
    sink = {"sink": literal_sink(options["sink"], layer)} if "sink" in options else {}
    return layer.tensors, {"available": layer.available, **options, **sink}


def frame_options(draw: Any, layer: Layer) -> Options:
    """Bias and norm, which many measures take."""
    options: Options = {}
    if draw(st.booleans()):
        options |= {"value_bias": "remove", "b_V": layer.b_V}
    if draw(st.booleans()):
        options |= {"output": "normed", "norm_weight": layer.norm_weight}
    return options


def with_mode(draw: Any, layer: Layer) -> Options:
    return {"mode": draw(st.sampled_from(MODES)), **frame_options(draw, layer)}


def with_sink(draw: Any, layer: Layer) -> Options:
    return {"sink": draw(sinks(layer))}


def with_frame(draw: Any, layer: Layer) -> Options:
    return frame_options(draw, layer) | with_sink(draw, layer)


def with_cross(draw: Any, layer: Layer) -> Options:
    return with_frame(draw, layer) | {"cross": draw(st.booleans())}


def winner_options(draw: Any, layer: Layer) -> Options:
    return with_sink(draw, layer) | {
        "space": draw(st.sampled_from(("head", "model"))),
        "queries": draw(st.sampled_from(("all", "last"))),
        "cross": draw(st.booleans()) or not layer.square,
    }


def one(function: Callable[..., Any], *names: str) -> Callable[[Layer, Options], Arrays]:
    """A reference that returns one array, several by name, or a dictionary."""

    def run(layer: Layer, options: Options) -> Arrays:
        tensors, keywords = given(layer, options)
        found = function(*tensors, **keywords)
        if isinstance(found, dict):
            return found
        return dict(zip(names, found, strict=True)) if names else {"": found}

    return run


def pattern_only(function: Callable[..., Any]) -> Callable[[Layer, Options], Arrays]:
    def run(layer: Layer, options: Options) -> Arrays:
        tensors, keywords = given(layer, options)
        return {"": function(tensors[0], **keywords)}

    return run


def literal_head_regimes(layer: Layer, options: Options) -> Arrays:
    tensors, keywords = given(layer, options)
    rows = literal_regimes.head_regimes(*tensors, **keywords)
    names = ("self_share", "sink_share", "other_share", "rows", "margin")
    return dict(zip(names, np.array([row[1:] for row in rows], dtype=float).T, strict=True))


def literal_dormant(layer: Layer, options: Options) -> Arrays:
    tensors, keywords = given(layer, options)
    sink, cross = keywords.pop("sink"), keywords.pop("cross") or not layer.square
    keywords = {k: x for k, x in keywords.items() if k not in ("rate", "norm")}
    rates = literal_sinks.sink_rate(tensors[0], available=layer.available, sink=sink)
    own = sink_mask(sink, tensors[0], layer.available)
    means = np.full(rates.shape[:2], np.nan)
    for b, h in np.ndindex(means.shape):
        rows = rates[b, h]
        rows = rows[~np.isnan(rows)] if cross else rows[~np.isnan(rows) & ~own[b, h]]
        means[b, h] = rows.mean() if len(rows) else np.nan
    ratio = literal_cone.output_norm_ratios(*tensors, **keywords)
    return {"sink_rate": means, "norm_ratio": ratio}


MEASURES: dict[str, Measure] = {
    "contribution_weights": Measure(with_mode, one(literal_contributions.contribution_weights)),
    "contribution_factors": Measure(
        with_mode,
        one(literal_contributions.contribution_factors, "attention", "relative_norm", "cosine"),
    ),
    "value_weighted_attention": Measure(
        lambda draw, layer: with_mode(draw, layer) | {"normalized": draw(st.booleans())},
        one(literal_contributions.value_weighted_attention),
    ),
    "suppression": Measure(with_mode, one(literal_contributions.suppression)),
    "importance": Measure(
        lambda draw, layer: (
            with_mode(draw, layer)
            | {
                "kind": draw(
                    st.sampled_from(
                        ("attention", "contribution", "value_weighted", "value_weighted_normalized")
                    )
                ),
                "absolute": draw(st.booleans()),
            }
        ),
        one(literal_contributions.importance),
    ),
    "source_winners": Measure(
        winner_options, one(literal_regimes.source_winners, "position", "category"), ranks=True
    ),
    "head_regimes": Measure(winner_options, literal_head_regimes, ranks=True),
    "sink_rate": Measure(with_sink, pattern_only(literal_sinks.sink_rate), ("pattern",)),
    "null_sink_rate": Measure(
        lambda draw, layer: {}, pattern_only(literal_sinks.null_sink_rate), ("pattern",)
    ),
    "sink_metric": Measure(
        lambda draw, layer: {"epsilon": draw(st.sampled_from((0, 0.25317, 0.5001, 1)))},
        pattern_only(literal_sinks.sink_metric),
        ("pattern",),
        ranks=True,
    ),
    "sink_geometry": Measure(
        lambda draw, layer: (
            {"sink": draw(sinks(layer, several=False))}
            | ({"value_bias": "remove", "b_V": layer.b_V} if draw(st.booleans()) else {})
        ),
        one(literal_sinks.sink_geometry),
        ranks=True,
    ),
    "sink_norm_curve": Measure(with_cross, one(literal_curve.sink_norm_curve)),
    "semantic_alignment": Measure(with_cross, one(literal_cone.semantic_alignment)),
    "dormant_heads": Measure(
        lambda draw, layer: (
            with_cross(draw, layer)
            | {
                "rate": draw(st.sampled_from((0, 0.4, 1))),
                "norm": draw(st.sampled_from((None, 0.5, [0.2, 2], np.array([0.3])))),
            }
        ),
        literal_dormant,
    ),
    "switch_rates": Measure(
        lambda draw, layer: (
            with_cross(draw, layer)
            | {"fractions": draw(st.sampled_from(((0.05, 0.7), [0.3, 1, 3])))}
        ),
        one(literal_switches.switch_rates),
        ranks=True,
    ),
    "mixing_ratio": Measure(
        lambda draw, layer: with_cross(draw, layer) | {"without_sink": draw(st.booleans())},
        one(literal_switches.mixing_ratio),
    ),
    "separability": Measure(
        lambda draw, layer: (
            with_sink(draw, layer)
            | {
                "space": draw(st.sampled_from(("head", "model"))),
                "rank_by": draw(st.sampled_from(("attention", "value_weighted"))),
                "exclude_sink": draw(st.booleans()),
                "top_n": draw(st.sampled_from(((1, 2, 5), [3], 2))),
            }
        ),
        None,
        ranks=True,
    ),
    "sink_aware_certificate": Measure(
        lambda draw, layer: {
            "sink": draw(sinks(layer, several=False)),
            "space": draw(st.sampled_from(("head", "model"))),
            "top_n": draw(st.sampled_from(((1, 2, 5), [3], 2))),
        },
        None,
        ranks=True,
    ),
}
"""By public name; what takes something else than a layer stands in ``test_other_measures.py``."""


def call(name: str, layer: Layer, options: Options, package: Any = tlg) -> Any:
    """Run one measure on a layer."""
    measure = MEASURES[name]
    tensors = [getattr(layer, argument) for argument in measure.arguments]
    return getattr(package, name)(*tensors, available=layer.available, **options)


def condition(layer: Layer, options: Options) -> np.ndarray:
    """How much rounding is amplified in each row, ``batch head query``: what is summed over what is left."""
    tensors = layer.tensors
    chosen = ("value_bias", "b_V", "output", "norm_weight")
    frame = {name: options[name] for name in chosen if name in options}
    mode = options.get("mode", "intra")
    share = literal_contributions.value_weighted_attention(
        *tensors, normalized=True, mode=mode, available=layer.available, **frame
    )
    whole = available_mask(layer.pattern, layer.available).any(-1)
    axes = -1 if mode == "intra" else (1, 3)
    total = np.nan_to_num(share, nan=1e9).sum(axes, keepdims=True)
    total = np.broadcast_to(total, share.shape)[..., 0]
    return np.where(whole, 1 + total, 1)
