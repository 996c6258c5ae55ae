"""What a probe saw and whether it can be believed: counts of documents and tokens, and checks of every layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torchmetrics import Metric

from tl_geometry.hooks import AttentionSite
from tl_geometry.measures import AttentionGeometry

__all__ = ["Ledger"]

_CHECKED_ROWS = 4
_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
_HALF_TOLERANCE = 5e-2


class Ledger(Metric):
    """Counts documents, tokens and skipped rows, and checks each layer while it is at hand.

    A few rows of every layer and batch are recomputed: pattern @ v must be z, and no attention may
        lie where the padding
    mask, causality or window say there is none. Nothing is compared on the host before
    :meth:`verify`.
    """

    full_state_update = False
    documents: Tensor
    tokens: Tensor
    padding: Tensor
    rows: Tensor
    hidden_sink_rows: Tensor
    non_finite: Tensor
    outside: Tensor
    mismatch: Tensor

    def __init__(self, sites: Sequence[AttentionSite], n_heads: int, device: torch.device) -> None:
        super().__init__(compute_with_cache=False)
        n = len(sites)
        self.sites = list(sites)
        self.fired = [0] * n
        for name, shape, reduce in (
            ("documents", (), "sum"),
            ("tokens", (), "sum"),
            ("padding", (), "sum"),
            ("rows", (n,), "sum"),
            ("hidden_sink_rows", (n,), "sum"),
            ("non_finite", (n, n_heads), "sum"),
            ("outside", (n,), "max"),
            ("mismatch", (n,), "max"),
        ):
            dtype = torch.float32 if name in {"outside", "mismatch"} else torch.int64
            self.add_state(
                name,
                torch.zeros(shape, dtype=dtype, device=device),
                dist_reduce_fx=reduce,
                persistent=True,
            )

    def update(
        self, layer: int, geometry: AttentionGeometry, hooked_z: Tensor, hooked_v: Tensor
    ) -> None:
        """Take in one layer of one batch."""
        self.fired[layer] += 1
        device = self.rows.device
        rows = geometry.rows
        self.rows[layer] += rows.any(1).sum().to(device)
        hidden = rows & ~geometry.sees_sink & geometry.sinks.any(-1, keepdim=True)
        self.hidden_sink_rows[layer] += hidden.any(1).sum().to(device)
        broken = ~torch.isfinite(hooked_z.transpose(1, 2)).all(-1) & rows
        self.non_finite[layer, : geometry.n_heads] += broken.sum((0, 2)).to(device)

        index, real = geometry.spread_rows(_CHECKED_ROWS)
        pattern = geometry.take_rows(geometry.pattern, index)
        available = geometry.take_rows(
            geometry.available.expand(-1, geometry.n_heads, -1, -1), index
        )
        outside = _largest((pattern * ~available).amax(-1), real)
        self.outside[layer] = torch.maximum(self.outside[layer], outside.to(device))

        values = geometry.per_head(hooked_v.to(geometry.dtype).transpose(1, 2))
        z = geometry.take_rows(hooked_z.to(geometry.dtype).transpose(1, 2), index)
        scale = (pattern @ values.abs()).amax(-1)
        error = (pattern @ values - z).abs().amax(-1)
        relative = torch.where(scale > 0, error / scale, (error > 0).to(error.dtype))
        mismatch = _largest(relative, real)
        self.mismatch[layer] = torch.maximum(self.mismatch[layer], mismatch.to(device))

    def count(self, documents: int, tokens: Tensor, padding: Tensor) -> None:
        """Take in the size of one batch: its rows, real tokens, and pads found without a mask."""
        self.documents += documents
        self.tokens += tokens.to(self.tokens.device)
        self.padding += padding.to(self.padding.device)

    def compute(self) -> dict[str, Tensor]:
        """All counts and checks."""
        return {name: getattr(self, name).clone() for name in self._defaults}

    def verify(self, dtype: torch.dtype) -> None:
        """Refuse what can't be trusted, naming the layer and head.

        Raises:
            RuntimeError: a hook never fired, or a forward stopped half-way.
            ValueError: NaN or infinite activations, attention where there should be none, or z
                unequal pattern @ v.
        """
        if not any(self.fired):
            raise RuntimeError(
                "no hook of this probe has fired yet: run the model with run_with_hooks(tokens, "
                "fwd_hooks=probe.hooks()) before asking for the result"
            )
        silent = [
            site.layer for site, fired in zip(self.sites, self.fired, strict=True) if not fired
        ]
        if silent:
            raise RuntimeError(
                f"the attention hooks of the layers {silent} never fired: the attention is not computed eagerly, so "
                'its pattern is never built (call set_attn_implementation("eager") on the Hugging Face model), or '
                "the forward stopped early (stop_at_layer)"
            )
        if len(set(self.fired)) > 1:
            raise RuntimeError(
                "the layers were seen in a different number of forwards, because one of them stopped "
                "half-way: call probe.reset() and run the batches again"
            )
        layer, head = _first(self.non_finite > 0)
        if layer is not None:
            raise ValueError(
                f"NaN or infinite activations (hook_z) at layer {self.sites[layer].layer}, head {head}: the model "
                "overflows on this input; try a wider dtype"
            )
        layer, _ = _first((self.outside > 0)[:, None])
        if layer is not None:
            raise ValueError(
                f"layer {self.sites[layer].layer} attends to keys that should be hidden (weight up to "
                f"{float(self.outside[layer]):.2g}): give the probe the attention_mask that the model gets; after a "
                "change of the model's attention, make a new Probe"
            )
        tolerance = _TOLERANCE.get(dtype, _HALF_TOLERANCE)
        layer, _ = _first((self.mismatch > tolerance)[:, None])
        if layer is not None:
            raise ValueError(
                f"layer {self.sites[layer].layer}: z differs from pattern @ v by "
                f"{float(self.mismatch[layer]):.2g} of its scale. Something changes z after the pattern is "
                "read, such as an ablation of hook_z in the same run: contribution weights of such a "
                "layer would be wrong"
            )


def _largest(
    x: Float[Tensor, "batch head row"], real: Bool[Tensor, "batch row"]
) -> Float[Tensor, ""]:
    """Maximum over real rows; NaN is reported elsewhere and does not count here."""
    return torch.where(real[:, None] & ~x.isnan(), x, 0).amax().float()


def _first(bad: Bool[Tensor, "layer head"]) -> tuple[int | None, int]:
    """Layer and head of the first entry that is set."""
    found = bad.nonzero()
    return (int(found[0, 0]), int(found[0, 1])) if len(found) else (None, 0)
