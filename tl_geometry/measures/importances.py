"""The importances that a faithfulness experiment compares, on a layer that is at hand already.

Source: Cunningham & Muca Cirone, arXiv 2606.07604; lengths of weighted values as in Kobayashi et al., arXiv 2004.10102.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tl_geometry.arguments import one_of
from tl_geometry.measures.devices import upload
from tl_geometry.measures.geometry import AttentionGeometry, Mode
from tl_geometry.measures.scaling import scaled_length
from tl_geometry.measures.selection import Scope

__all__ = [
    "IMPORTANCES",
    "Importance",
    "document_noise",
    "layer_importance",
    "random_importance",
    "share_output",
    "value_weighted",
]

Importance: TypeAlias = Literal[
    "attention", "value_weighted", "value_weighted_normalized", "contribution", "random"
]
IMPORTANCES: tuple[str, ...] = get_args(Importance)

_MIX = 1_000_003  # keeps the seeds of neighbouring documents and layers apart


def layer_importance(
    geometry: AttentionGeometry, kind: str, mode: Mode = "intra", *, absolute: bool = False
) -> Float[Tensor, "batch head query key"]:
    """Attention, the length of what it moves, that length over |o|, or the contribution weight of every entry.

    NaN in rows of padding, and where |o| is undefined for the last two.
    """
    one_of("kind", kind, IMPORTANCES[:-1])
    if kind == "contribution":
        weights = geometry.contributions(mode)
        return weights.abs() if absolute else weights
    if kind == "value_weighted_normalized":
        return geometry.relative_lengths(mode)
    one_of("mode", mode, ("intra", "inter"))
    weighted = geometry.pattern if kind == "attention" else value_weighted(geometry)
    return weighted.masked_fill(~geometry.rows.unsqueeze(-1), torch.nan)


def share_output(scope: Scope, mode: Mode) -> bool:
    """Whether all entries that are ranked together belong to one output o.

    Then ``value_weighted`` and ``value_weighted_normalized`` rank them alike.
    """
    return scope == "row" or (scope == "query" and mode == "inter")


def value_weighted(geometry: AttentionGeometry) -> Float[Tensor, "batch head query key"]:
    """alpha_ij |v_j W_O|, in units of the residual stream; NaN where |v_j W_O| leaves the range of the data type."""
    norms = scaled_length(geometry.value_norms, geometry.frame.exponent[:, None])
    return geometry.pattern * norms.unsqueeze(-2)


def random_importance(
    geometry: AttentionGeometry, seed: int
) -> Float[Tensor, "batch head query key"]:
    """Uniform numbers, the same for a document in whatever batch and padding it comes."""
    noise = document_noise(
        geometry.n_heads,
        geometry.rows.any(1),
        geometry.real_keys.any(1),
        seed=seed,
        layer=geometry.layer,
        documents=geometry.documents,
    )
    return upload(noise, geometry.pattern.device).to(geometry.dtype)


def document_noise(
    n_heads: int,
    real_queries: Bool[Tensor, "batch query"],
    real_keys: Bool[Tensor, "batch key"],
    *,
    seed: int,
    layer: int,
    documents: Sequence[int],
) -> Float[Tensor, "batch {n_heads} query key"]:
    """Uniform numbers in [0, 1) for the real tokens of documents, seeded by document and layer; 0 at padding.

    Raises:
        ValueError: not as many documents as rows.
    """
    batch = len(real_queries)
    if len(documents) != batch:
        raise ValueError(f"documents names {len(documents)} rows, but the batch has {batch}")
    whole = (batch, n_heads, real_queries.shape[1], real_keys.shape[1])
    drawn = torch.zeros(whole, dtype=torch.float32)
    # Both in one copy from the device.
    real, n = torch.cat([real_queries, real_keys], -1).cpu(), real_queries.shape[1]
    for row, document in enumerate(documents):
        queries, keys = (part.nonzero().flatten() for part in (real[row, :n], real[row, n:]))
        mixed = ((seed * _MIX + layer) * _MIX + int(document)) % 2**63
        generator = torch.Generator().manual_seed(mixed)
        shape = (n_heads, len(queries), len(keys))
        numbers = torch.rand(shape, generator=generator, dtype=torch.float32)
        if numbers.shape == drawn.shape[1:]:
            drawn[row] = numbers
        else:
            drawn[row][:, queries[:, None], keys] = numbers
    return drawn
