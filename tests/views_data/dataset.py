"""A synthetic result of `analyze`, with the variables, coordinates and attributes of a real one."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from views_data.mechanisms import COORDS, make_mechanisms

OFFSETS = ["0", "1", "2-3", "4-7", "8-15"]
WORDS = ["<bos>", "The", " cat", " sat", " on", " the", " mat", ".", "\n", " It", " slept", "!"]


def make_dataset(
    n_layers: int = 4,
    n_heads: int = 3,
    *,
    n_examples: int = 1,
    n_tokens: int = 12,
    layers: list[str] | None = None,
    blank_layers: tuple[int, ...] = (),
    tokens: list[str] | None = None,
    top_n: tuple[int, ...] = (1, 2, 4, 8, 16, 32),
    seed: int = 0,
    **attrs: Any,
) -> xr.Dataset:
    """Random but consistent: shares sum to 1, contributions of a row sum to 1, causal, bounds below F."""
    rng = np.random.default_rng(seed)
    shape = (n_layers, n_heads)
    shares = rng.dirichlet([0.7, 1.2, 0.8], size=shape)
    top = np.sort(shares, axis=-1)
    names = np.array(["retriever", "mixer", "reset"], dtype=object)
    sink_rate = np.clip(shares[..., 1] + rng.normal(0, 0.05, shape), 0, 1)
    maps = {
        "self_share": shares[..., 0],
        "sink_share": shares[..., 1],
        "other_share": shares[..., 2],
        "self_share_se": np.full(shape, 0.01),
        "regime_margin": top[..., 2] - top[..., 1],
        "regime_rows": np.full(shape, 4096.0),
        "sink_rate": sink_rate,
        "sink_rate_se": np.full(shape, 0.012),
        "null_sink_rate": np.zeros(shape),
        "sink_metric": (sink_rate > 0.3) * rng.uniform(0.8, 1.0, shape),
        "sink_norm": rng.uniform(0.1, 0.6, shape),
        "other_norm": rng.uniform(0.8, 1.5, shape),
        "sink_norm_ratio": np.exp(rng.normal(-1.5, 0.9, shape)),
        "sink_cosine": rng.uniform(-0.5, 0.2, shape),
        "sink_negative_share": rng.uniform(0, 1, shape),
        "contribution_sink": sink_rate * rng.uniform(-0.4, 0.6, shape),
        "contribution_self": shares[..., 0],
        "contribution_negative": rng.uniform(0, 0.5, shape),
        "contribution_attention_distance": sink_rate * rng.uniform(0.4, 1.2, shape),
        "contribution_attention_distance_se": np.full(shape, 0.02),
        "contribution_inter": rng.dirichlet(np.ones(n_heads), size=n_layers) * 1.2 - 0.2 / n_heads,
        "undefined_rows": np.zeros(shape),
    }
    regime = names[shares.argmax(-1)]
    for layer in blank_layers:
        regime[layer] = ""
        for values in maps.values():
            values[layer] = np.nan
    variables: dict[str, Any] = {name: (("layer", "head"), x) for name, x in maps.items()}
    variables["regime"] = (("layer", "head"), regime)
    offsets = rng.dirichlet(np.ones(len(OFFSETS)), size=shape)
    variables["winner_offset"] = (("layer", "head", "offset_bin"), offsets)
    if n_examples:
        variables |= _examples(rng, shape, n_examples, n_tokens, tokens, blank_layers)
    variables |= make_mechanisms(sink_rate, seed, blank_layers)
    if top_n:
        variables |= _separability(rng, shape, top_n, blank_layers)
    coords: dict[str, Any] = {
        "layer": np.array(layers if layers else range(n_layers)),
        "head": np.arange(n_heads),
        "offset_bin": OFFSETS,
        **COORDS,
    } | ({"top_n": list(top_n)} if top_n else {})
    return xr.Dataset(variables, coords=coords, attrs=_attributes(shape) | attrs)


def _separability(
    rng: np.random.Generator,
    shape: tuple[int, int],
    top_n: tuple[int, ...],
    blank_layers: tuple[int, ...],
) -> dict[str, Any]:
    size = (*shape, len(top_n))
    f_score = 1 - np.log2(top_n) / 8 - rng.uniform(0, 0.15, size)
    held = {
        "f_score": f_score,
        "f_score_no_sink": f_score + rng.uniform(0, 0.1, size),
        "f_score_random": f_score * rng.uniform(0.2, 0.4, size),
        "inversion_bound": f_score * rng.uniform(0.5, 0.8, size),
        "certificate": f_score * rng.uniform(0, 0.1, size),
        "separable_share": f_score**3,
    }
    for values in held.values():
        values[..., np.array(top_n) == 1] = 1
    held |= {f"{name}_se": np.full(size, 0.01) for name in held}
    for values in held.values():
        values[list(blank_layers)] = np.nan
    return {name: (("layer", "head", "top_n"), values) for name, values in held.items()}


def _examples(
    rng: np.random.Generator,
    shape: tuple[int, int],
    n_examples: int,
    n_tokens: int,
    tokens: list[str] | None,
    blank_layers: tuple[int, ...],
) -> dict[str, Any]:
    words = tokens or [WORDS[i % len(WORDS)] for i in range(n_tokens)]
    n_tokens = len(words)
    length = max(n_tokens - 1, 1)
    logits = rng.normal(0, 1.5, (n_examples, *shape, n_tokens, n_tokens))
    logits[..., 0] += 2
    seen = np.tril(np.ones((n_tokens, n_tokens), dtype=bool))
    weights = np.exp(logits) * seen
    attention = weights / weights.sum(-1, keepdims=True)
    contribution = attention * rng.normal(1, 0.6, attention.shape)
    contribution[..., 0] *= -0.3
    contribution /= contribution.sum(-1, keepdims=True)
    hidden = ~seen
    hidden[length:] = True
    for matrix in (attention, contribution):
        matrix[..., hidden] = np.nan
        matrix[:, list(blank_layers)] = np.nan
    dims = ("example", "layer", "head", "query", "key")
    return {
        "example_tokens": (("example", "token"), np.array([words] * n_examples)),
        "example_length": (("example",), np.full(n_examples, length)),
        "example_attention": (dims, attention.astype(np.float32)),
        "example_contribution": (dims, contribution.astype(np.float32)),
    }


def _attributes(shape: tuple[int, int]) -> dict[str, Any]:
    return {
        "tl_geometry": "0.1.0",
        "torch": "2.13.0",
        "transformers": "5.23.0",
        "transformer_lens": "3.9.0",
        "python": "3.11.7",
        "created": "2026-01-31T12:00:00+00:00",
        "model_name": "synthetic-135M",
        "model_class": "HookedTransformer",
        "model_dtype": "float32",
        "weight_processing": {"folded_layer_norm": True, "compatibility_mode": None},
        "prepend_bos": True,
        "bos_rule": "the model's own setting: a bos token before every window",
        "sink": "first",
        "value_bias": "as_hooked",
        "output": "raw",
        "n_ctx": 512,
        "documents": 24,
        "tokens": 12288,
        "rows": 12288 * shape[0] * shape[1],
        "skipped_layers": {},
        "skipped_rows": {"query is the sink": 24},
        "warnings": [],
        "seed": 0,
        "measures": ["Contributions", "Regimes", "Sinks", "Switches", "Smoothing"],
        "corpus": [{"name": "demo-prose", "documents": 24, "tokens": 12288}],
    }
