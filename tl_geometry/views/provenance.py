"""Where a result comes from: its attributes, grouped and in words."""

from __future__ import annotations

from typing import Any

import xarray as xr

from tl_geometry.views.estimates import evaluation_of
from tl_geometry.views.results import number

_GROUPS = {
    "Model": ("model_name", "model_class", "model_dtype", "device", "weight_processing"),
    "Text": (
        "corpus",
        "documents",
        "tokens",
        "rows",
        "n_ctx",
        "prepend_bos",
        "bos_rule",
    ),
    "Method": (
        "evaluation",
        "measures",
        "tasks",
        "layer",
        "drawn_from",
        "distinct_tokens",
        "repeated_tokens",
        "token_length",
        "lengths",
        "norms",
        "samples",
        "causal",
        "importances",
        "modes",
        "rankings",
        "fractions",
        "fraction",
        "scope",
        "reference",
        "interventions",
        "factor",
        "targets",
        "ts",
        "mode",
        "sink",
        "layers",
        "heads",
        "value_bias",
        "output",
        "limit",
        "num_fewshot",
        "hooks",
        "repeats",
        "resamples",
        "confidence",
        "outliers",
        "outlier_rule",
        "auc_rule",
        "seed",
    ),
    "Skipped": ("skipped_layers", "skipped_documents", "skipped_rows", "truncated_rows"),
    "Software": (
        "tl_geometry",
        "transformer_lens",
        "transformers",
        "torch",
        "lm_eval",
        "python",
        "created",
    ),
}
_WORDS = {
    "model_name": "Model",
    "model_class": "Class",
    "model_dtype": "Number type",
    "device": "Device",
    "weight_processing": "Weight processing",
    "corpus": "Corpora",
    "documents": "Documents (windows)",
    "tokens": "Tokens",
    "rows": "Rows (queries) of each head",
    "n_ctx": "Longest window",
    "prepend_bos": "Beginning-of-sequence token",
    "bos_rule": "Rule for it",
    "evaluation": "Experiment",
    "measures": "Measures",
    "tasks": "Tasks",
    "layer": "Layer that reads the tokens",
    "drawn_from": "Tokens from",
    "distinct_tokens": "Distinct tokens",
    "repeated_tokens": "Repeated tokens left out",
    "token_length": "Root mean square length of a token",
    "lengths": "Numbers of tokens",
    "norms": "Norms",
    "samples": "Samples",
    "causal": "Only earlier tokens compete",
    "importances": "Importances",
    "modes": "Modes",
    "rankings": "Rankings of contributions",
    "fractions": "Removed shares",
    "fraction": "Removed share",
    "scope": "Ranked together",
    "reference": "Ranked by",
    "interventions": "Interventions",
    "factor": "Factor of “rescale”",
    "targets": "Target patterns",
    "ts": "Shares of the target",
    "mode": "Mode",
    "sink": "Sink",
    "layers": "Layers",
    "heads": "Heads",
    "limit": "Questions of a task, at most",
    "num_fewshot": "Solved examples in front",
    "hooks": "Hooks given",
    "repeats": "Random repeats",
    "resamples": "Resamples",
    "confidence": "Confidence of intervals",
    "outliers": "Outliers",
    "outlier_rule": "Rule for outliers",
    "auc_rule": "Area under the curve",
    "value_bias": "Value bias",
    "output": "Output",
    "seed": "Seed",
    "skipped_layers": "Layers",
    "skipped_documents": "Documents",
    "skipped_rows": "Rows",
    "truncated_rows": "Rows cut at the context length",
    "transformer_lens": "TransformerLens",
    "torch": "PyTorch",
    "python": "Python",
    "created": "Created",
}
_VALUES = {
    ("prepend_bos", True): "prepended to every window",
    ("prepend_bos", False): "not prepended",
    ("sink", "first"): "first: the first real token of each window",
    ("value_bias", "as_hooked"): "as_hooked: value vectors as the model's hook holds them",
    ("value_bias", "remove"): "remove: the value bias is subtracted",
    ("output", "raw"): "raw: the heads' output before any norm that follows attention",
    ("output", "normed"): "normed: through the norm after attention, its scale frozen",
    ("reference", "online"): "online: the masked run itself, layer by layer",
    ("reference", "clean"): "clean: the run without a mask",
    ("mode", "zero"): "zero: a removed head's output becomes zero",
    ("mode", "mean"): "mean: a removed head's output becomes its running mean",
}


def headline_facts(ds: xr.Dataset) -> list[str]:
    """One line of facts for the top of a page."""
    facts = []
    if "layer" in ds.sizes and "head" in ds.sizes:
        facts.append(f"{ds.sizes['layer']} layers × {ds.sizes['head']} heads")
    for name, noun in (("documents", "documents"), ("tokens", "tokens")):
        if isinstance(ds.attrs.get(name), int):
            facts.append(f"{number(ds.attrs[name], 0)} {noun}")
    created = str(ds.attrs.get("created") or "")
    return [*facts, created[:10]] if created else facts


def warnings(ds: xr.Dataset) -> list[str]:
    """What a reader must know before believing the numbers."""
    found = [str(warning) for warning in ds.attrs.get("warnings") or []]
    skipped = ds.attrs.get("skipped_layers") or {}
    if skipped:
        names = ", ".join(str(label) for label in skipped)
        found.append(f"Skipped layers: {names}. The reasons are under “Method and provenance”.")
    return found


def groups(ds: xr.Dataset) -> list[tuple[str, list[tuple[str, Any]]]]:
    """Every attribute once: (group, [(name in words, value)]); values may be nested."""
    attrs = {str(name): value for name, value in ds.attrs.items()}
    attrs.pop("warnings", None)
    if evaluation_of(ds):
        settings = attrs.pop("settings").items()
        attrs |= {str(name): value for name, value in settings if value is not None}
    result = []
    for group, names in _GROUPS.items():
        rows = [(_WORDS.get(n, n), _value(n, attrs.pop(n))) for n in names if n in attrs]
        if rows:
            result.append((group, rows))
    if attrs:
        result.append(("Other", [(name, _value(name, value)) for name, value in attrs.items()]))
    return result


def _value(name: str, value: Any) -> Any:
    if isinstance(value, (str, bool)) and (name, value) in _VALUES:
        return _VALUES[name, value]
    if isinstance(value, dict):
        return {str(key): _value("", item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        if value and all(type(item) in (int, float) for item in value):
            return ", ".join(f"{item:g}" if type(item) is float else str(item) for item in value)
        return [_value("", item) for item in value]
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "not known"
    if isinstance(value, int) and name != "seed":
        return number(value, 0)
    return str(value)
