"""How far the sink's logit leads over the others: what a sink costs the scores.

Source: Sukenik et al., arXiv 2605.08453.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from tl_geometry.measures.checks import check_axes
from tl_geometry.measures.devices import check_devices
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.masks import SinkRule, mask_of, resolve_available, resolve_sinks
from tl_geometry.measures.mixing import RowRests
from tl_geometry.measures.scaling import work_dtype


def sink_logit_margin(
    scores: Float[Tensor, "batch head query key"],
    *,
    available: Tensor | None = None,
    sink: SinkRule = "first",
) -> tuple[Float[Tensor, "batch head query"], Float[Tensor, "batch head query"]]:
    """Smallest and mean lead of the sink's logit over those of the other keys that a row can see.

    >>> smallest, mean = sink_logit_margin(torch.tensor([[[[2.0, -torch.inf], [3.0, 1.0]]]]))
    >>> smallest[0, 0, 1].item(), mean[0, 0, 1].item()
    (2.0, 2.0)

    Args:
        scores: attention logits, before or after masking; or ``pattern.log()``, since a softmax
            keeps the differences within a row.
        available: entries that count. By default those that are not masked (minus infinity or the
            lowest number of the dtype): give it with unmasked scores.
        sink: which keys are sinks; of several the one with the largest logit is taken.

    Returns:
        ``(smallest, mean)`` in units of logits (nats). NaN where a row sees no sink, or nothing
        else, and where one of its logits is NaN. A weight that has underflowed to 0 is known only to
        be small: as a competitor it is left out, which never changes the smallest lead and makes
        the mean a lower bound; as the sink's, or where all competitors are lost, it leaves NaN.

    Raises:
        TypeError: scores that are not floating point, or a mask that is not bool.
        ValueError: a mask of another shape, or a sink outside the sequence.
    """
    check_axes("scores", scores, "batch head query key")
    check_devices(scores=scores, available=available, sink=mask_of(sink))
    known = ~(scores <= torch.finfo(scores.dtype).min / 2)  # NaN is no mask
    keep = known if available is None else resolve_available(scores, available)
    wide = scores.to(work_dtype(scores))
    attention = wide.masked_fill(~(keep & known), -torch.inf).softmax(-1).nan_to_num(0)
    sinks = resolve_sinks(sink, keep, attention).unsqueeze(-2)
    seen, others = keep & known & sinks, keep & known & ~sinks
    count = others.sum(-1)
    best = torch.where(seen, wide, -torch.inf).amax(-1)
    rival = torch.where(others, wide, -torch.inf).amax(-1)
    mean = torch.where(others, wide, 0).sum(-1) / count
    defined = seen.any(-1) & (count > 0)
    return (
        torch.where(defined, best - rival, torch.nan),
        torch.where(defined, best - mean, torch.nan),
    )


def log_leads(
    geometry: AttentionGeometry, rests: RowRests
) -> tuple[Float[Tensor, "batch head row"], Float[Tensor, "batch head row"]]:
    """:func:`sink_logit_margin` of the pattern's logarithm, for some rows."""
    columns = geometry.sink_columns(geometry.pattern)
    none = torch.zeros_like(geometry.sink_attention)
    best = rests.of(columns.amax(-1) if columns.shape[-1] else none)
    defined = rests.of(geometry.rows) & (best > 0) & (rests.count > 0)
    lead, rival = (torch.where(defined, x, 1).log() for x in (best, rests.largest))
    mean = rests.logarithms / torch.where(defined, rests.count, torch.nan)
    return (lead - rival).masked_fill(~defined, torch.nan), lead - mean
