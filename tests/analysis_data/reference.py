"""What a probe must find, computed slowly: each document cut out of its padding, one at a time.

Only the literal measures are used, on activations that these functions record with hooks of their
own and on the model's public ``W_O``.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from analysis_data.sink_numbers import sink_labels, sink_numbers
from literal import (
    contributions as literal_contributions,
    regimes as literal_regimes,
    sinks as literal_sinks,
)

OFFSET_BINS = [-math.inf, 0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
CATEGORY_NAMES = ("self", "sink", "other")


@dataclass(frozen=True)
class Layer:
    """The activations of one attention layer and its weights."""

    name: str
    pattern: torch.Tensor
    v: torch.Tensor
    z: torch.Tensor
    W_O: torch.Tensor


def tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    """Random ids that are no special token; the first 46 of each row all differ."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.stack(
        [torch.randperm(46, generator=generator) for _ in range(math.prod(shape[:-1]))]
    )
    repeated = rows.repeat(1, 1 + shape[-1] // 46)[:, : shape[-1]] + 4
    return repeated.reshape(shape)


@torch.no_grad()
def soften(model: Any) -> Any:
    """Make attention less peaked: where one weight is 1, ranks are those of rounding errors."""
    for name, parameter in model.named_parameters():
        if any(part in name for part in ("W_Q", "b_Q", "q_proj", "q_norm")):
            parameter.mul_(0.15)
    return model


def site_names(model: Any) -> list[str]:
    suffix = ".hook_pattern"
    return [name.removesuffix(suffix) for name in model.hook_dict if name.endswith(suffix)]


def record(
    model: Any,
    *inputs: torch.Tensor,
    names: Sequence[str] | None = None,
    first: Sequence[Any] = (),
    **arguments: Any,
) -> list[Layer]:
    """One forward; ``first`` are hooks that run before the recording ones."""
    names = site_names(model) if names is None else names
    seen: dict[tuple[str, str], torch.Tensor] = {}
    hooks = list(first)
    for name in names:
        for kind in ("pattern", "v", "z"):

            def keep(tensor, hook, key=(name, kind)):
                seen[key] = tensor.detach().clone()

            hooks.append((f"{name}.hook_{kind}", keep))
    with torch.no_grad():
        model.run_with_hooks(*inputs, fwd_hooks=hooks, **arguments)
    return [
        Layer(
            name,
            *(seen[name, kind] for kind in ("pattern", "v", "z")),
            model.get_submodule(name).W_O.detach(),
        )
        for name in names
    ]


def document(
    layer: Layer,
    row: int,
    real: torch.Tensor,
    *,
    keys: torch.Tensor | None = None,
    causal: bool = True,
    window: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(pattern, values, available) of one document without its padding."""
    places = real.nonzero().flatten()
    key_places = places if keys is None else keys.nonzero().flatten()
    distance = places[:, None] - key_places[None, :]
    seen = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    if window is not None:
        seen = seen & (distance < window)
    pattern = layer.pattern[row][:, places][:, :, key_places]
    return pattern[None], layer.v[row][key_places][None], seen[None]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _cosine(x: np.ndarray, y: np.ndarray) -> float:
    return float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))


def spread(n: int, count: int) -> list[int]:
    """``count`` evenly spaced rows of ``n``, the last included; all rows if there are no more."""
    return list(range(n)) if n <= count else [n * k // count - 1 for k in range(1, count + 1)]


def numbers(
    pattern: torch.Tensor,
    v: torch.Tensor,
    W_O: torch.Tensor,
    available: torch.Tensor,
    *,
    sink: int = 0,
    cross: bool = False,
    epsilon: float = 0.3,
    tail_queries: int = 16,
    space: str = "head",
    **options: Any,
) -> dict[str, np.ndarray]:
    """Every variable of three measures for one document: an array over heads (and labels)."""
    inputs = {"available": available, **options}
    bias = {k: options[k] for k in ("value_bias", "b_V") if k in options}
    a, rho, cosine = (
        x[0] for x in literal_contributions.contribution_factors(pattern, v, W_O, **inputs)
    )
    c, c_inter = (
        literal_contributions.contribution_weights(pattern, v, W_O, mode=mode, **inputs)[0]
        for mode in ("intra", "inter")
    )
    projected = literal_contributions.projected_values(v, W_O, **options)[0]
    head_values = v
    if bias.get("value_bias") == "remove":
        head_values = v - bias["b_V"]
    position, category = (
        x[0]
        for x in literal_regimes.source_winners(
            pattern, head_values, W_O, space=space, available=available, sink=sink, cross=cross
        )
    )
    seen = available[0].numpy()
    heads, queries, keys = c.shape
    found: dict[str, list[Any]] = {}

    def put(name: str, value: Any) -> None:
        found.setdefault(name, []).append(value)

    for h in range(heads):
        outputs = [sum(a[h, i, j] * projected[h, j] for j in range(keys)) for i in range(queries)]
        rows = [i for i in range(queries) if not np.isnan(c[h, i]).any()]
        later = [i for i in range(queries) if seen[i, sink] and (cross or i != sink)]
        put("undefined_rows", queries - len(rows))
        put("output_norm", _mean([np.linalg.norm(outputs[i]) for i in rows]))
        put("contribution_relative_norm", _mean([a[h, i] @ rho[h, i] for i in rows]))
        put("contribution_cosine", _mean([a[h, i] @ cosine[h, i] for i in rows]))
        own = math.nan if cross else _mean([c[h, i, i] for i in rows])
        put("contribution_self", own)
        put("contribution_negative", _mean([-c[h, i][c[h, i] < 0].sum() for i in rows]))
        # A null sink takes what is left of a row, and contributes nothing.
        distances = [(np.abs(c[h, i] - a[h, i]).sum() + abs(1 - a[h, i].sum())) / 2 for i in rows]
        put("contribution_attention_distance", _mean(distances))
        put("contribution_sink", _mean([c[h, i, sink] for i in later if i in rows]))
        inter = [i for i in range(queries) if not np.isnan(c_inter[h, i]).any()]
        put("contribution_inter", _mean([c_inter[h, i].sum() for i in inter]))
        negative = [-c_inter[h, i][c_inter[h, i] < 0].sum() for i in inter]
        put("contribution_inter_negative", _mean(negative))
        put("contribution_inter_sink", _mean([c_inter[h, i, sink] for i in later if i in inter]))

        counted = [i for i in range(queries) if category[h, i] >= 0]
        counts = [int(sum(category[h, i] == code for i in counted)) for code in range(3)]
        put("winner_count", counts)
        for name, count in zip(CATEGORY_NAMES, counts, strict=True):
            put(f"{name}_share", count / len(counted) if counted else math.nan)
        offsets = [] if cross else [i - position[h, i] for i in counted]
        edges = [*OFFSET_BINS[1:], math.inf]
        bins = [next(n for n, edge in enumerate(edges) if offset < edge) for offset in offsets]
        shares = [_mean([float(found_bin == n) for found_bin in bins]) for n in range(len(edges))]
        put("winner_offset", [math.nan] * len(edges) if cross else shares)
        put(
            "output_sink_cosine",
            _mean([_cosine(outputs[i], projected[h, sink]) for i in counted if seen[i, sink]]),
        )
        towards = [] if cross else [_cosine(outputs[i], projected[h, i]) for i in counted]
        put("output_self_cosine", _mean(towards))

        put("sink_rate", _mean([a[h, i, sink] for i in later]))
        weights = pattern[0, h].double().numpy()
        put("null_sink_rate", _mean([1 - weights[i, seen[i]].sum() for i in later]))
        early = [i for i in range(min(64, queries)) if seen[i, sink]]
        received = _mean([a[h, i, sink] for i in early])
        nothing = _mean([1 - weights[i, seen[i]].sum() for i in range(min(64, queries))])
        for name, share in (("sink_metric", received), ("null_sink_metric", nothing)):
            put(name, float(share > epsilon) if queries >= 64 and not cross else math.nan)
        tail = [
            (i, j)
            for i in spread(queries, tail_queries)
            for j in range(keys)
            if seen[i, j] and j != sink and i in rows
        ]
        pairs = [(i, sink) for i in later if i in rows]
        for group, entries in (("tail", tail), ("sink", pairs)):
            chosen = ([x[h, i, j] for i, j in entries] for x in (c, a, rho, cosine))
            for name, value in literal_sinks.factor_correlations(*chosen).items():
                put(f"{group}_spearman_{name}", value)
        negative = [float(c[h, i, sink] < 0) for i in later if i in rows]
        put("sink_negative_share", _mean(negative))
        head = literal_contributions.projected_values(
            head_values, np.stack([np.eye(v.shape[-1])] * heads)
        )[0, h]
        for suffix, values in (("", head), ("_model", projected[h])):
            others = [j for j in range(keys) if j != sink and seen[:, j].any()]
            norm = np.linalg.norm(values[sink])
            median = float(np.median([np.linalg.norm(values[j]) for j in others]))
            cosines = [_cosine(values[sink], values[j]) for j in others]
            put(f"sink_norm{suffix}", norm)
            put(f"other_norm{suffix}", median)
            put(f"sink_norm_ratio{suffix}", norm / median)
            put(f"sink_cosine{suffix}", _mean(cosines))
            put(f"sink_cosine_max{suffix}", max(cosines))
    outputs = sink_numbers(pattern, v, W_O, available, sink=sink, cross=cross, **options)
    return {name: np.array(values, dtype=float) for name, values in found.items()} | outputs


SUMS = ("winner_count", "undefined_rows")


def over_documents(documents: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Means over documents with numpy's standard errors, sums, and what follows from the sums."""
    result: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy on columns that are NaN throughout
        for name in documents[0]:
            values = np.stack([found[name] for found in documents])
            if name in SUMS:
                result[name] = values.sum(0)
                continue
            n = (~np.isnan(values)).sum(0)
            result[name] = np.nanmean(values, 0)
            error = np.nanstd(values, 0, ddof=1) / np.sqrt(n)
            result[f"{name}_se"] = np.where(n > 1, error, np.nan)
    counts = result["winner_count"]
    top = np.sort(counts, -1)[:, ::-1]
    result["regime_rows"] = counts.sum(-1)
    with np.errstate(invalid="ignore"):
        result["regime_margin"] = (top[:, 0] - top[:, 1]) / counts.sum(-1)
    names = {0: "retriever", 1: "mixer", 2: "reset"}
    labels = [
        names[int(row.argmax())] if first > second else "reset" if first > 0 else ""
        for row, (first, second) in zip(counts, top[:, :2], strict=True)
    ]
    result["regime"] = np.array(labels)
    return result | sink_labels(result)


def allowed(name: str, tolerance: float) -> float:
    """The tolerance of a variable, given that of the lengths it follows from.

    The curvature through squared lengths in three neighbouring tenths is their second difference
    over 0.1^2, which multiplies errors by up to 4 / 0.01.
    """
    return 400 * tolerance if name.startswith("sink_fit") and "convex" not in name else tolerance


def assert_layer(ds: Any, label: int | str, expected: dict[str, Any], tolerance: float) -> None:
    """Every variable of one layer, and no variable that has no expectation."""
    layer = ds.sel(layer=label)
    assert set(ds.data_vars) == set(expected)
    for name, values in expected.items():
        found = layer[name].values
        if name == "regime":
            assert found.tolist() == values.tolist()
        else:
            error = allowed(name, tolerance)
            np.testing.assert_allclose(
                found, values, rtol=error, atol=error, err_msg=f"{name}, layer {label}"
            )


def assert_equal(left: Any, right: Any, tolerance: float = 1e-6) -> None:
    """Two results with the same labels and the same numbers within tolerance."""
    assert set(left.data_vars) == set(right.data_vars)
    for name in left.data_vars:
        one, other = left[name].values, right[name].values
        assert one.shape == other.shape, name
        if one.dtype.kind in "US":
            assert one.tolist() == other.tolist(), name
        else:
            error = allowed(name, tolerance)
            np.testing.assert_allclose(one, other, rtol=error, atol=error, err_msg=name)


def result_or_refusal(probe: Any, word: str) -> Any:
    """The result, or None where it is refused with a message that has this word."""
    try:
        return probe.result()
    except (ValueError, RuntimeError) as error:
        if word not in str(error):
            raise
        return None


@contextlib.contextmanager
def plain_package() -> Iterator[ModuleType]:
    """A second import of the package without run-time shape checks: what users see of its errors.

    With the checks on, they stop a wrong argument before the package's own message can.
    """

    def ours(key: str) -> bool:
        return key == "tl_geometry" or key.startswith("tl_geometry.")

    kept = {key: module for key, module in sys.modules.items() if ours(key)}
    finders = sys.meta_path[:]
    sys.meta_path[:] = [f for f in finders if not type(f).__module__.startswith("jaxtyping")]
    for key in kept:
        del sys.modules[key]
    try:
        yield importlib.import_module("tl_geometry")
    finally:
        for key in [key for key in sys.modules if ours(key)]:
            del sys.modules[key]
        sys.modules.update(kept)
        sys.meta_path[:] = finders
