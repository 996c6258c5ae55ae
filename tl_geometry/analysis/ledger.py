"""What a probe saw and whether it can be believed: counts, and checks of every layer and row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torchmetrics import Metric

from tl_geometry.analysis.accumulator import ResidualStream
from tl_geometry.hooks import AttentionSite
from tl_geometry.measures import AttentionGeometry
from tl_geometry.measures.scaling import sign_vector

__all__ = ["Ledger"]

_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
_HALF_TOLERANCE = 2e-2
_STRUCTURE_ROWS = 4


class Ledger(Metric):
    """Counts documents, tokens and skipped rows, and checks each layer while it is at hand.

    In every row, pattern @ v must be z along one fixed direction, and nothing may be attended that
    the padding mask hides; in a few rows, nothing that causality or the window hides. One pass over
    the pattern does it, and nothing is compared on the host before :meth:`verify`.
    """

    full_state_update = False
    documents: Tensor
    tokens: Tensor
    padding: Tensor
    blank: Tensor
    unexplained: Tensor
    rows: Tensor
    hidden_sink_rows: Tensor
    non_finite: Tensor
    broken_stream: Tensor
    with_sink: Tensor
    attending: Tensor
    silenced: Tensor
    outside: Tensor
    mismatch: Tensor

    def __init__(self, sites: Sequence[AttentionSite], n_heads: int, device: torch.device) -> None:
        super().__init__(compute_with_cache=False, sync_on_compute=False)
        n = len(sites)
        self.sites = list(sites)
        self.fired = [0] * n
        for name, shape, reduce in (
            ("documents", (), "sum"),
            ("tokens", (), "sum"),
            ("padding", (), "sum"),
            ("blank", (), "sum"),
            ("unexplained", (), "sum"),
            ("rows", (n,), "sum"),
            ("hidden_sink_rows", (n,), "sum"),
            ("non_finite", (n, n_heads), "sum"),
            ("broken_stream", (n,), "sum"),
            ("with_sink", (), "sum"),
            ("attending", (n, n_heads), "sum"),
            ("silenced", (n, n_heads), "sum"),
            ("outside", (n,), "max"),
            ("mismatch", (n,), "max"),
        ):
            dtype = torch.float32 if reduce == "max" else torch.int64
            zeros = torch.zeros(shape, dtype=dtype, device=device)
            self.add_state(name, zeros, dist_reduce_fx=reduce, persistent=True)

    def update(self, layer: int, geometry: AttentionGeometry, z: Tensor, v: Tensor) -> None:
        """Take in one layer of one batch, with z and v as they were hooked."""
        self.fired[layer] += 1
        device = self.rows.device
        rows = geometry.rows
        self.rows[layer] += rows.any(1).sum().to(device)
        hidden = rows & ~geometry.sees_sink & geometry.sinks.any(-1, keepdim=True)
        self.hidden_sink_rows[layer] += hidden.any(1).sum().to(device)
        self.with_sink += geometry.sinks.any(-1).any(-1).sum().to(device)
        broken = ~geometry.lengths.isfinite() & rows
        self.non_finite[layer, : geometry.n_heads] += broken.sum((0, 2)).to(device)

        attending = (geometry.totals.attention != 0) & rows
        self.attending[layer, : geometry.n_heads] += attending.sum((0, 2)).to(device)
        self.silenced[layer, : geometry.n_heads] += geometry.silenced.sum(0).to(device)
        index, real = geometry.spread_rows(_STRUCTURE_ROWS)
        pattern = geometry.take_rows(geometry.pattern, index)
        beyond = (pattern * ~geometry.take_rows(geometry.available, index)).amax(-1)
        outside = torch.maximum(
            _largest(geometry.totals.hidden, rows), _largest(beyond, real[:, None])
        )
        self.outside[layer] = torch.maximum(self.outside[layer], outside.to(device))
        coarsest = max(_TOLERANCE.get(x.dtype, _HALF_TOLERANCE) for x in (z, v, geometry.pattern))
        told = rows & ~geometry.silenced.unsqueeze(-1)
        mismatch = _largest(_mismatch(geometry, z), told) / coarsest
        self.mismatch[layer] = torch.maximum(self.mismatch[layer], mismatch.to(device))

    def update_stream(self, layer: int, stream: ResidualStream) -> None:
        """Take in the residual stream around one layer: real tokens that are not finite."""
        for tokens in (stream.tokens_before, stream.tokens_attended, stream.tokens_after):
            broken = ~tokens.lengths.isfinite() & tokens.real
            self.broken_stream[layer] += broken.sum().to(self.broken_stream.device)

    def count(
        self,
        real: Bool[Tensor, "batch query"],
        *,
        pads_found: bool,
        unexplained: Tensor | None,
    ) -> None:
        """Take in one batch by its real tokens; ``pads_found`` if the others were found, not given."""
        if unexplained is not None:
            self.unexplained += unexplained.to(self.unexplained.device)
        real = real.to(self.tokens.device)
        self.documents += real.shape[0]
        self.tokens += real.sum()
        self.padding += (~real).sum() * int(pads_found)
        self.blank += (~real.any(-1)).sum()

    def compute(self) -> dict[str, Tensor]:
        """All counts and checks."""
        return {name: getattr(self, name).clone() for name in self._defaults}

    def verify(self) -> None:
        """Refuse what can't be trusted, naming the layer and head.

        Raises:
            RuntimeError: a hook never fired, or a forward stopped half-way.
            ValueError: NaN or infinite activations, rows without a real token, attention where there
                should be none, or z unequal pattern @ v.
        """
        self._verify_hooks()
        if self.blank > 0:
            raise ValueError(
                f"{int(self.blank)} rows hold only padding: leave them out of the batch, or give the "
                "attention_mask"
            )
        if self.unexplained > 0:
            raise ValueError(
                f"{int(self.unexplained)} positions get no attention from any head of the first layer: "
                "padding that the model masks, weights that round to zero, or an ablation? Say which "
                "tokens are real with hooks(attention_mask=...), all ones if all are"
            )
        self._verify_finite()
        for states, limit, what in (
            (
                self.outside,
                0,
                " attends to keys that should be hidden: give the probe the attention_mask that the "
                "model gets; after a change of the model's attention, make a new Probe",
            ),
            (
                self.mismatch,
                1,
                ": z differs from pattern @ v. Something changes z after the pattern is read, such as "
                "an ablation of hook_z in the same run: contribution weights would be wrong",
            ),
        ):
            bad = (states > limit).nonzero()
            if len(bad):
                raise ValueError(f"layer {self.sites[int(bad[0])].layer}{what}")

    def _verify_finite(self) -> None:
        """Name the first layer that is broken: its attention, or the residual stream around it."""
        remedy = "look at the weights and the input, or try a wider dtype"
        stream = self.broken_stream.nonzero().flatten().tolist()
        heads = (self.non_finite > 0).nonzero().tolist()
        if stream and (not heads or stream[0] < heads[0][0]):
            raise ValueError(
                f"NaN or infinite residual stream around layer {self.sites[stream[0]].layer}: {remedy}"
            )
        exists = torch.zeros_like(self.attending, dtype=torch.bool)
        for row, site in enumerate(self.sites):
            exists[row, : site.n_heads] = True
        for bad, what in (
            (self.non_finite > 0, "NaN or infinite activations or output weights"),
            ((self.attending == 0) & exists, "no attention in any row (NaN scores end so)"),
        ):
            places = bad.nonzero()
            if len(places):
                layer, head = places[0].tolist()
                raise ValueError(
                    f"{what} at layer {self.sites[layer].layer}, head {head}: {remedy}"
                )

    def _verify_hooks(self) -> None:
        silent = [s.layer for s, fired in zip(self.sites, self.fired, strict=True) if not fired]
        eager = (
            "the attention is not computed eagerly, so that its pattern is never built (call "
            'set_attn_implementation("eager") on the Hugging Face model, or make a new Probe)'
        )
        if len(silent) == len(self.sites):
            raise RuntimeError(
                "no hook of this probe has fired: either no forward was run yet "
                "(model.run_with_hooks(tokens, fwd_hooks=probe.hooks())), or one list of hooks stood "
                f"twice in one run, or {eager}"
            )
        if silent:
            raise RuntimeError(
                f"the attention hooks of the layers {silent} never fired: the forward stopped early "
                f"(stop_at_layer), or {eager}"
            )
        if len(set(self.fired)) > 1:
            raise RuntimeError(
                "the layers were seen in a different number of forwards, because one of them stopped "
                "half-way: call probe.reset() and run the batches again"
            )


def _mismatch(geometry: AttentionGeometry, z: Tensor) -> Float[Tensor, "batch head query"]:
    """How far z is from pattern @ v along one fixed direction, relative to sum_j alpha_j max |v_j|."""
    direction = sign_vector(z.shape[-1], z.device, geometry.dtype)
    totals = geometry.totals
    difference = (totals.along - z.to(geometry.dtype).transpose(1, 2) @ direction).abs()
    relative = difference / totals.largest
    return torch.where(totals.largest > 0, relative, (difference > 0).to(difference))


def _largest(
    x: Float[Tensor, "batch head row"], real: Bool[Tensor, "batch head_or_1 row"]
) -> Float[Tensor, ""]:
    """Maximum over real rows; NaN is reported elsewhere and does not count here."""
    return torch.where(real & ~x.isnan(), x, 0).amax().float()
