"""The mixing ratio: how much of a head's output comes from other tokens, and how much from the query's own.

Source: Kobayashi, Kuribayashi, Yokoi & Inui, "Incorporating Residual and Normalization Layers into
Analysis of Masked Language Models", EMNLP 2021, arXiv 2109.07152; without sinks as in Sukenik et al.,
arXiv 2605.08453.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.layer import Output, ValueBias
from tl_geometry.measures.masks import SinkRule
from tl_geometry.measures.scaling import full_precision, power_of_two, safe_norm, scale


@full_precision
@torch.no_grad()
def mixing_ratio(
    pattern: Float[Tensor, "batch head query key"],
    v: Float[Tensor, "batch key kv_head d_head"],
    W_O: Float[Tensor, "head d_head d_model"],
    *,
    without_sink: bool = False,
    available: Tensor | None = None,
    sink: SinkRule = "first",
    value_bias: ValueBias = "as_hooked",
    b_V: Float[Tensor, "any_head d_head"] | None = None,
    output: Output = "raw",
    norm_weight: Float[Tensor, " d_model"] | None = None,
    cross: bool = False,
) -> Float[Tensor, "batch head query"]:
    """How much of a row comes from other tokens, in [0, 1]: 0 where the head acts like an MLP.

        |sum_{j != i} alpha_ij v_j W_O| / (|sum_{j != i} alpha_ij v_j W_O| + |alpha_ii v_i W_O|)

    Kobayashi et al.'s ratio, of one head and without the residual connection.

    >>> pattern, v = torch.tensor([[[[1.0, 0.0], [0.75, 0.25]]]]), torch.tensor([[[[1.0]], [[1.0]]]])
    >>> mixing_ratio(pattern, v, torch.ones(1, 1, 1))[0, 0].tolist()
    [0.0, 0.75]
    >>> mixing_ratio(pattern, v, torch.ones(1, 1, 1), without_sink=True)[0, 0].tolist()
    [0.0, 0.0]

    Args:
        without_sink: leave the sinks' terms out of what is mixed in (a sink's own row keeps its
            diagonal).

    Returns:
        NaN in rows of padding queries, where both lengths are 0, and in cross-attention, where no
        key is the query.

    Other arguments and errors as in :func:`switch_rates`.
    """
    if not isinstance(without_sink, bool):
        raise TypeError(f"without_sink must be True or False, got {without_sink!r}")
    geometry = AttentionGeometry(
        pattern, v, W_O, available=available, sink=sink, value_bias=value_bias, b_V=b_V,
        output=output, norm_weight=norm_weight, cross=cross,
    )  # fmt: skip
    return mixing_ratios(geometry, row_rests(geometry))[int(without_sink)]


@dataclass(frozen=True)
class RowRests:
    """What some rows of each document hold beside their sinks' columns.

    Attributes:
        rows: positions of the rows' queries.
        values: sum of alpha_ij v_j over the keys j != i, with v at a scale of order one per kv head.
        largest: largest weight, the diagonal included.
        logarithms: sum of the logarithms of the weights that have not underflowed to 0.
        count: how many these are.
    """

    rows: Int[Tensor, "batch row"]
    values: Float[Tensor, "batch head row d_head"]
    largest: Float[Tensor, "batch head row"]
    logarithms: Float[Tensor, "batch head row"]
    count: Float[Tensor, "batch head row"]

    def of(self, x: Shaped[Tensor, "batch head query"]) -> Shaped[Tensor, "batch head row"]:
        """What belongs to these rows."""
        return AttentionGeometry.take_rows(x.unsqueeze(-1), self.rows).squeeze(-1)


def row_rests(
    geometry: AttentionGeometry, rows: Int[Tensor, "batch row"] | None = None
) -> RowRests:
    """Go through some rows, all by default, without the sinks' columns.

    The values are summed without diagonal and sinks, since taking these off a finished sum would
    leave its rounding error.
    """
    if rows is None:
        every = torch.arange(geometry.n_queries, device=geometry.pattern.device)
        rows = every.expand(geometry.pattern.shape[0], -1)
    v = scale(geometry.v.transpose(1, 2), -_exponents(geometry))
    # Products and signs cost a tenth of what masks and comparisons cost.
    kept = (~geometry.sinks).to(geometry.dtype).unsqueeze(-2)
    parts = []
    for part in geometry.blocks(rows.shape[1]):
        block = geometry.take_rows(geometry.pattern, rows[:, part]) * kept
        sign = block.sign()
        largest, count, logs = block.amax(-1), sign.sum(-1), torch.zeros_like(block[..., 0])
        if not geometry.cross:
            place = rows[:, None, part, None].expand(-1, block.shape[1], -1, -1)
            own = block.gather(-1, place).squeeze(-1)
            logs = torch.where(own > 0, own, 1).log()
            for x in (block, sign):
                x.scatter_(-1, place, 0)
        grouped = rearrange(
            block, "batch (kv group) row key -> batch kv (group row) key", kv=v.shape[1]
        )
        values = (grouped @ v).view(*block.shape[:3], -1)
        # Zeros become ones, whose logarithm adds nothing.
        logs = logs + block.add_(sign.neg_().add_(1)).log_().sum(-1)
        parts.append((values, largest, logs, count))
    return RowRests(rows, *(torch.cat(part, 2) for part in zip(*parts, strict=True)))


def _exponents(geometry: AttentionGeometry) -> Int[Tensor, "batch kv_head 1 1"]:
    return power_of_two(geometry.v.transpose(1, 2), (-2, -1))


def mixing_ratios(
    geometry: AttentionGeometry, rests: RowRests
) -> tuple[Float[Tensor, "batch head row"], Float[Tensor, "batch head row"]]:
    """The mixing ratio of each row, with the sinks' terms and without them."""
    if geometry.cross:
        undefined = torch.full_like(rests.largest, torch.nan)
        return undefined, undefined
    exponent = geometry.per_head(_exponents(geometry))
    index, _ = geometry.sink_keys
    columns = geometry.take_rows(geometry.sink_columns(geometry.pattern), rests.rows)
    columns = columns.masked_fill(index.unsqueeze(-2) == rests.rows[:, None, :, None], 0)
    sinks = scale(geometry.sink_vectors(geometry.values), -exponent)
    without_sink = rests.values @ geometry.frame.L
    unsunk, mixed = safe_norm(without_sink), safe_norm(without_sink + columns @ sinks)
    own = rests.of(geometry.pattern.diagonal(dim1=-2, dim2=-1))
    kept = own * scale(rests.of(geometry.value_norms), -exponent.squeeze(-1))
    real = rests.of(geometry.rows)
    return _share(mixed, kept, real), _share(unsunk, kept, real)


def _share(part: Tensor, other: Tensor, real: Tensor) -> Tensor:
    whole = part + other
    return torch.where(real & (whole > 0), part / torch.where(whole > 0, whole, 1), torch.nan)
