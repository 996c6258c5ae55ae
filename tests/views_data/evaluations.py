"""Synthetic results of the evaluations: made-up losses, tabulated by the evaluations' own functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from tl_geometry.evaluation.faithfulness_table import Scored, tabulate
from tl_geometry.evaluation.head_orders import ORDERS
from tl_geometry.evaluation.sensitivity import outlying
from tl_geometry.evaluation.sparsify_curves import removal_curves
from tl_geometry.evaluation.statistics import Bootstrap
from tl_geometry.evaluation.tasks import accuracies
from tl_geometry.evaluation.variables import with_interval
from tl_geometry.views.results import head_name

IMPORTANCES = (
    "attention", "value_weighted", "value_weighted_normalized", "contribution", "random",
)  # fmt: skip
FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.5)
_TARGETS = np.array([40, 60, 55, 30, 52, 47], dtype=np.int64)
_ATTRIBUTES = {
    "tl_geometry": "0.1.0",
    "torch": "2.13.0",
    "created": "2026-01-31T12:00:00+00:00",
    "model_name": "synthetic-135M",
    "model_class": "HookedTransformer",
    "n_ctx": 64,
    "prepend_bos": True,
    "bos_rule": "the model's own setting: a bos token before every window",
    "documents": len(_TARGETS),
    "tokens": int(_TARGETS.sum()) + len(_TARGETS),
    "skipped_documents": {},
    "warnings": [],
    "corpus": [{"name": "demo-prose", "texts": 6, "tokens": 290}],
}


def make_faithfulness(
    comprehensiveness: Mapping[str, float] | None = None,
    sufficiency: Mapping[str, float] | None = None,
    *,
    importances: Sequence[str] = IMPORTANCES,
    modes: Sequence[str] = ("intra", "inter"),
    rankings: Sequence[str] = ("signed", "absolute"),
    fractions: Sequence[float] = FRACTIONS,
    scope: str = "query",
    documents: int = len(_TARGETS),
    noise: float = 0.0,
    seed: int = 0,
    **settings: Any,
) -> xr.Dataset:
    """Delta NLL in nats per token at 50 % by name: `contribution`, `contribution inter absolute`.

    It shrinks with the square root of the fraction; `noise` is a standard deviation over documents.
    Names not given rise in the order of `importances` (fall, for sufficiency), random is worst.
    """
    rng = np.random.default_rng(seed)
    targets = _TARGETS[:documents]
    full = 2.5 * targets + rng.normal(0, 3, documents)
    rising = {name: 0.5 + 0.3 * k for k, name in enumerate(importances)} | {"random": 0.1}
    falling = {name: 0.5 - 0.1 * k for k, name in enumerate(importances)} | {"random": 0.9}
    alike = {"intra": scope == "row", "inter": scope in ("row", "query")}
    masked = {}
    for direction, given, usual in (
        ("comprehensiveness", comprehensiveness, rising),
        ("sufficiency", sufficiency, falling),
    ):
        nll = np.empty((len(importances), len(modes), len(rankings), len(fractions), documents))
        drawn: dict[str, Any] = {}
        for i, name in enumerate(importances):
            for m, mode in enumerate(modes):
                for r, ranking in enumerate(rankings):
                    keys = _keys(name, mode, ranking)
                    named = [key for key in keys if key in (given or {})]
                    peak = (given or {})[named[0]] if named else usual[name]
                    ranked = " ".join((*keys[:1],)) if name == "contribution" else keys[-1]
                    if name == "value_weighted_normalized":
                        ranked = f"{name} {mode}"
                    if ranked not in drawn:
                        drawn[ranked] = rng.normal(0, noise, (len(fractions), documents))
                    change = np.sqrt(np.array(fractions) / 0.5)[:, None] * (peak + drawn[ranked])
                    nll[i, m, r] = full + change * targets
                    if name == IMPORTANCES[2] and alike[mode] and IMPORTANCES[1] in importances:
                        nll[i, m, r] = nll[list(importances).index(IMPORTANCES[1]), m, r]
        masked[direction] = nll
    coords = {
        "importance": list(importances),
        "mode": list(modes),
        "ranking": list(rankings),
        "fraction": list(fractions),
    }
    ds = tabulate(Scored(full, masked, targets, coords), Bootstrap(targets, resamples=300, seed=0))
    ds.attrs = _attributes("faithfulness", documents, scope=scope, reference="online", **settings)
    ds.attrs["settings"] |= {"importances": {name: name for name in importances}} | settings
    return ds


def _keys(name: str, mode: str, ranking: str) -> list[str]:
    return [f"{name} {mode} {ranking}", f"{name} {mode}", f"{name} {ranking}", name]


def make_sparsify(
    orders: Sequence[str] = ORDERS,
    retention: Sequence[float] = (1.0, 0.9, 0.75, 0.5, 0.25, 0.1),
    *,
    repeats: int = 3,
    documents: int = len(_TARGETS),
    seed: int = 0,
) -> xr.Dataset:
    """Four layers of five heads; delta NLL grows with the heads removed, each order at its own pace."""
    rng = np.random.default_rng(seed)
    targets = _TARGETS[:documents]
    full = 2.5 * targets + rng.normal(0, 3, documents)
    removed = np.floor((1 - np.array(retention)) * 20 + 1e-9)
    grid = removed / 20
    runs = {}
    for k, name in enumerate(orders):
        for repeat in range(repeats if name == "random" else 1):
            pace = 1 + 0.3 * k + rng.uniform(0, 0.5)
            noisy = grid[:, None] ** 2 * targets * (pace + rng.normal(0, 0.1, documents))
            runs[name, repeat] = full + noisy
    boot = Bootstrap(targets, resamples=300, seed=0)
    variables = removal_curves(boot, runs, full, tuple(orders), grid)
    shape = (4, 5)
    ranks = [
        np.full(shape, np.nan)
        if name == "random"
        else rng.permutation(20).reshape(shape).astype(float)
        for name in orders
    ]
    variables["removed"] = (("retention",), removed.astype(int))
    variables["rank"] = (("order", "layer", "head"), np.array(ranks))
    if "random" in orders:
        random = [rng.permutation(20).reshape(shape).astype(float) for _ in range(repeats)]
        variables["random_rank"] = (("repeat", "layer", "head"), np.array(random))
    coords = {
        "order": list(orders),
        "retention": list(retention),
        "layer": range(4),
        "head": range(5),
    }
    ds = xr.Dataset(variables, coords=coords)
    ds.attrs = _attributes("sparsify", documents, mode="zero", seed=0, repeats=repeats)
    ds.attrs |= {"confidence": 0.95, "seed": 0}
    return ds


def make_sensitivity(
    n_layers: int = 4,
    n_heads: int = 3,
    *,
    peaks: Mapping[tuple[int, int], float] | None = None,
    blank: Sequence[tuple[int, int]] = (),
    layers: Sequence[Any] | None = None,
    documents: int = len(_TARGETS),
    seed: int = 0,
) -> xr.Dataset:
    """Delta NLL of about 0.01 nats, and larger where `peaks` say; `blank` heads were not looked at."""
    rng = np.random.default_rng(seed)
    targets = _TARGETS[:documents]
    labels = list(layers or range(n_layers))
    shape = (len(labels), n_heads)
    full = 2.5 * targets + rng.normal(0, 3, documents)
    delta = rng.normal(0.01, 0.01, shape)
    for place, value in (peaks or {}).items():
        delta[place] = value
    noisy = delta[..., None] + rng.normal(0, 0.004, (*shape, documents))
    boot = Bootstrap(targets, resamples=300, seed=0)
    found = boot.estimate(full + noisy * targets, baseline=full)
    kept = np.ones(shape, dtype=bool)
    for place in blank:
        kept[place] = False

    def spread(values: Any) -> Any:
        return np.where(kept, values, np.nan)

    flags = np.zeros(shape, dtype=bool)
    flags[kept] = outlying(found.value[kept])
    variables = {
        **with_interval("delta_nll", ("layer", "head"), found, long_name="", lay_out=spread),
        **with_interval("nll", (), boot.estimate(full), long_name=""),
        "outlier": (("layer", "head"), flags),
    }
    ds = xr.Dataset(variables, coords={"layer": labels, "head": np.arange(n_heads)})
    ds.attrs = _attributes("head_sensitivity", documents, mode="zero")
    ranked = sorted(zip(*np.nonzero(flags), strict=True), key=lambda p: -abs(found.value[p]))
    ds.attrs |= {
        "outliers": [head_name(labels[i], j) for i, j in ranked],
        "outlier_rule": "|delta NLL - median| > 5 * 1.4826 * MAD over heads",
        "confidence": 0.95,
        "seed": 0,
    }
    return ds


def make_interventions(
    interventions: Sequence[str] = ("zero_value", "renormalize", "rescale", "mean"),
    *,
    n_layers: int = 4,
    n_heads: int = 4,
    turn: float = 0.5,
    loss: float = 0.3,
    documents: int = len(_TARGETS),
    layers: Sequence[Any] | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """`turn` is what `zero_value` adds to the alignment of low-norm heads, `loss` to the NLL."""
    rng = np.random.default_rng(seed)
    targets = _TARGETS[:documents]
    names = ["none", *interventions]
    labels = list(layers or range(n_layers))
    shape = (len(labels), n_heads)
    full = 2.5 * targets + rng.normal(0, 3, documents)
    shift = {"none": 0.0, "zero_value": loss}
    nll = [
        full + targets * shift.get(name, 0.1) + _balanced(rng, documents) * (name != "none")
        for name in names
    ]
    boot = Bootstrap(targets, resamples=300, seed=0)
    variables: dict[str, Any] = {}
    for name, perplexity in (("nll", False), ("perplexity", True)):
        for prefix, baseline in (("", None), ("delta_", full)):
            found = boot.estimate(np.array(nll), baseline=baseline, perplexity=perplexity)
            variables |= with_interval(prefix + name, ("intervention",), found, long_name="")
    norm = np.exp(rng.normal(0, 0.5, shape))
    low = norm <= np.quantile(norm, 0.25, axis=1, keepdims=True)
    aligned = rng.uniform(-0.3, 0.4, shape)
    moved = {"none": 0.0, "zero_value": turn}
    per_head = {
        "output_norm": np.array([norm * (1 if n == "none" else 1.3) for n in names]),
        "cone_alignment": np.array([aligned + moved.get(n, 0.1) * low for n in names]),
    }
    axes = ("intervention", "layer", "head")
    variables |= {name: (axes, values) for name, values in per_head.items()}
    variables |= {f"{name}_se": (axes, np.full(v.shape, 0.01)) for name, v in per_head.items()}
    groups = np.stack(
        [per_head["cone_alignment"][:, heads].mean(-1) for heads in (low, ~low)], axis=1
    )
    noisy = groups[..., None] + 0.05 * _balanced(rng, documents)
    by_document = Bootstrap(np.ones(documents, dtype=np.int64), resamples=300, seed=0)
    for name, values in (
        ("group_cone_alignment", noisy),
        ("delta_group_cone_alignment", noisy - noisy[:1]),
        (
            "group_output_norm",
            np.ones_like(noisy) + 0.3 * (np.arange(len(names)) > 0)[:, None, None],
        ),
    ):
        found = by_document.estimate(values)
        variables |= with_interval(name, ("intervention", "group"), found, long_name="")
    variables["low_norm"] = (("layer", "head"), low.astype(float))
    coords = {
        "intervention": names,
        "layer": labels,
        "head": np.arange(n_heads),
        "group": ["low norm", "other"],
    }
    ds = xr.Dataset(variables, coords=coords)
    given = {"interventions": list(interventions), "factor": 2.0, "sink": "first"}
    ds.attrs = _attributes("sink_interventions", documents, layers=None, heads=None, **given)
    return ds


def make_mixing(
    targets: Sequence[str] = ("identity", "uniform"),
    ts: Sequence[float] = (0.25, 0.5, 1.0),
    *,
    moves: Mapping[str, Sequence[float]] | None = None,
    n_layers: int = 4,
    documents: int = len(_TARGETS),
    layers: Sequence[Any] | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """`moves` is what each share of a target adds to the similarity, in the mean over layers.

    The lower half of the layers moves the other way, the upper half by so much more.
    """
    rng = np.random.default_rng(seed)
    counts = _TARGETS[:documents]
    labels = list(layers or range(n_layers))
    n = len(labels)
    moved = {"identity": [-0.1 * t for t in ts], "uniform": [0.2 * t for t in ts], **(moves or {})}
    full = 2.5 * counts + rng.normal(0, 3, documents)
    plain = {
        "similarity": 0.3 + 0.02 * np.arange(n)[:, None] + rng.normal(0, 0.02, (n, documents)),
        "residual": 0.8 - 0.02 * np.arange(n)[:, None] + rng.normal(0, 0.02, (n, documents)),
    }
    shape = (len(targets), 1 + len(ts))
    nll = np.tile(full, (*shape, 1))
    out = {name: np.tile(values, (*shape, 1, 1)) for name, values in plain.items()}
    for i, target in enumerate(targets):
        for j, step in enumerate(moved.get(target, [0.0] * len(ts)), 1):
            nll[i, j] += counts * abs(step) + _balanced(rng, documents)
            by_layer = np.full(n, 3 * step)
            by_layer[: n // 2] = -0.01 * np.sign(step)
            by_layer += step - by_layer.mean()
            noise = np.stack([0.01 * _balanced(rng, documents) for _ in range(n)])
            out["similarity"][i, j] += by_layer[:, None] + noise
            out["residual"][i, j] -= by_layer[:, None] / 2
    boot = Bootstrap(counts, resamples=300, seed=0)
    variables: dict[str, Any] = {}
    for name, perplexity in (("nll", False), ("perplexity", True)):
        for prefix, baseline in (("", None), ("delta_", full)):
            found = boot.estimate(nll, baseline=baseline, perplexity=perplexity)
            variables |= with_interval(prefix + name, ("target", "t"), found, long_name="")
    by_document = Bootstrap(np.ones(documents, dtype=np.int64), resamples=300, seed=0)
    for name, after in out.items():
        before = np.roll(after, 1, axis=2)
        before[:, :, 0] = plain[name][0] - 0.05
        for variable, values, axes in (
            (f"{name}_in", before, ("target", "t", "layer")),
            (f"{name}_out", after, ("target", "t", "layer")),
            (f"delta_{name}_out", after - plain[name], ("target", "t", "layer")),
            (f"{name}_mean", after.mean(2), ("target", "t")),
            (f"delta_{name}_mean", (after - plain[name]).mean(2), ("target", "t")),
        ):
            found = by_document.estimate(values)
            variables |= with_interval(variable, axes, found, long_name="")
    coords = {"target": list(targets), "t": [0.0, *ts], "layer": labels}
    ds = xr.Dataset(variables, coords=coords)
    given = {
        "targets": list(targets),
        "ts": list(ts),
        "sink": "first",
        "heads": None,
        "seed": 0,
    }
    ds.attrs = _attributes("pattern_mixing", documents, **given)
    return ds


def _balanced(rng: np.random.Generator, documents: int) -> np.ndarray:
    """Noise over documents with a mean of 0."""
    noise = rng.normal(0, 0.5, documents)
    return noise - noise.mean()


def make_downstream(
    tasks: Sequence[str] = ("boolq", "winogrande"),
    variants: Sequence[str] = (
        "full", "contribution top", "contribution bottom", "random top", "random bottom",
    ),
    *,
    seed: int = 0,
) -> xr.Dataset:  # fmt: skip
    """Accuracies as `lm_eval` reports them, put into a dataset by the evaluation's own function."""
    rng = np.random.default_rng(seed)
    results = {
        variant: {
            "results": {
                task: {"acc,none": float(rng.uniform(0.4, 0.7)), "acc_stderr,none": 0.02}
                for task in tasks
            },
            "n-samples": {task: {"effective": 100 + k} for k, task in enumerate(tasks)},
        }
        for variant in variants
    }
    ds = accuracies(results, tasks)
    names = list(dict.fromkeys(v.rpartition(" ")[0] for v in variants if " " in v))
    ds.attrs = _attributes(
        "downstream", None, tasks=list(tasks), importances=names, fraction=0.1, hooks=None,
        scope="query", mode="inter", sink="first", seed=0, limit=None,
    )  # fmt: skip
    ds.attrs |= {"truncated_rows": 0}
    return ds


def _attributes(evaluation: str, documents: int | None, **settings: Any) -> dict[str, Any]:
    attributes = {**_ATTRIBUTES, "settings": {"evaluation": evaluation, **settings}}
    if documents is None:
        for name in ("documents", "tokens", "n_ctx", "corpus", "skipped_documents"):
            del attributes[name]
    else:
        attributes["documents"] = documents
        attributes["tokens"] = int(_TARGETS[:documents].sum()) + documents
    return attributes
