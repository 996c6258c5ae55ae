"""The shared ingredients of one attention layer, computed once for all measures.

Projected values are held in the short coordinates of
:class:`tl_geometry.measures.frame.OutputFrame`, never as ``head query key d_model``. The pattern is
the only quadratic tensor; measures go through its rows in :meth:`AttentionLayer.spans`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tl_geometry.arguments import one_of
from tl_geometry.measures.frame import OutputFrame
from tl_geometry.measures.layer import AttentionLayer
from tl_geometry.measures.scaling import over_square, safe_norm, scale, sign_vector

Mode: TypeAlias = Literal["intra", "inter"]

UNDEFINED_BELOW = 2.0**-20
"""A row is undefined where |o| is at most this share of sum_j alpha_j |v_j W_O|: the sum has cancelled."""


@dataclass(frozen=True)
class RowTotals:
    """Attention-weighted sums over the keys of each row.

    Attributes:
        attention: of one; 1 but for learned sinks and rows without attention.
        hidden: of the keys that no query may see; 0 where the mask is right.
        along: of the hooked values along :func:`sign_vector`, which z must match.
        largest: of the hooked values' largest components.
        gross: of |v W_O|, in units of the head's frame.
    """

    attention: Float[Tensor, "batch head query"]
    hidden: Float[Tensor, "batch head query"]
    along: Float[Tensor, "batch head query"]
    largest: Float[Tensor, "batch head query"]
    gross: Float[Tensor, "batch head query"]


class AttentionGeometry(AttentionLayer):
    """One layer's attention and values, with everything that more than one measure needs, computed once.

    >>> pattern, v, W_O = torch.eye(4).expand(1, 2, 4, 4), torch.randn(1, 4, 1, 8), torch.randn(2, 8, 16)
    >>> geometry = AttentionGeometry(pattern, v, W_O)
    >>> geometry.contributions("intra").sum(-1).allclose(torch.ones(1, 2, 4))
    True

    Takes what :class:`tl_geometry.measures.layer.AttentionLayer` takes.
    """

    @cached_property
    def _duals(self) -> dict[Mode, Tensor]:
        return {}

    @cached_property
    def frame(self) -> OutputFrame:
        """The factored output projection."""
        return self._frame or OutputFrame.of(
            self.W_O.to(self.pattern.device), self._norm_weight, self.dtype
        )

    @cached_property
    def z(self) -> Float[Tensor, "batch head query d_head"]:
        """Mixed values, in the working precision."""
        if self._z is not None and self._z.dtype == self.dtype:
            return self._z.transpose(1, 2).masked_fill(self.silenced[..., None, None], 0)
        batch, n_kv = self.v.shape[0], self.v.shape[2]
        grouped = self.pattern.reshape(batch, n_kv, -1, self.n_keys)
        mixed = (grouped @ self.v.transpose(1, 2)).reshape(batch, self.n_heads, self.n_queries, -1)
        return mixed.masked_fill(self.silenced[..., None, None], 0)

    @cached_property
    def silenced(self) -> Bool[Tensor, "batch head"]:
        """Heads whose z is zero throughout a document, though pattern @ v is not: they were removed at ``hook_z``."""
        if self._hooked_z is None:
            return torch.zeros_like(self.rows[:, :1, 0]).expand(-1, self.n_heads)
        loud = (self.totals.along != 0) & self.rows
        return (self._hooked_z.abs().sum((1, 3)) == 0) & loud.any(-1)

    @cached_property
    def values(self) -> Float[Tensor, "batch head key rank"]:
        """Projected values v W_O of each query head, in the coordinates of its frame."""
        v = rearrange(self.v, "batch key kv_head d_head -> batch kv_head 1 key d_head")
        L = rearrange(
            self.frame.L,
            "(kv_head group) d_head rank -> kv_head group d_head rank",
            kv_head=v.shape[1],
        )
        return (v @ L).flatten(1, 2)

    @cached_property
    def outputs(self) -> Float[Tensor, "batch head query rank"]:
        """Head outputs z W_O, in the coordinates of their frames."""
        return self.z @ self.frame.L

    @cached_property
    def value_norms(self) -> Float[Tensor, "batch head key"]:
        """|v W_O| in units of the head's frame (divide by 2^exponent)."""
        return safe_norm(self.values)

    @cached_property
    def raw_value_norms(self) -> Float[Tensor, "batch head key"]:
        """|v| in head space."""
        return self.per_head(safe_norm(self.v.transpose(1, 2)))

    @cached_property
    def totals(self) -> RowTotals:
        """What one pass over the pattern tells of every row."""
        hidden = (~self.real_keys.any(1))[:, None].to(self.dtype)
        v = self.hooked_v.transpose(1, 2)
        along = v @ sign_vector(v.shape[-1], v.device, self.dtype)
        columns = (
            torch.ones_like(self.value_norms),
            hidden.expand_as(self.value_norms),
            self.per_head(along),
            self.per_head(v.abs().amax(-1)),
            self.value_norms,
        )
        left = torch.stack(columns, -2).flatten(0, 1)
        pattern = self.pattern.flatten(0, 1)
        # A few columns as the left factor, which is several times faster than as the right one.
        sums = [
            torch.bmm(left[..., keys], pattern[:, rows, keys].transpose(1, 2))
            for rows, keys in self.spans()
        ]
        found = torch.cat(sums, -1).view(*self.pattern.shape[:2], len(columns), self.n_queries)
        return RowTotals(*found.unbind(-2))

    @property
    def gross(self) -> Float[Tensor, "batch head query"]:
        """sum_j alpha_j |v_j W_O|: the output's length if nothing cancelled, in units of the head's frame."""
        return self.totals.gross

    @property
    def null_attention(self) -> Float[Tensor, "batch head query"]:
        """What is left of each row's attention: that of a learned null sink, whose value is 0.

        0 where the model is known to have none: what a row lacks there, an edit has taken.
        """
        attention = self.totals.attention
        return 1 - attention if self.null_sinks else torch.zeros_like(attention)

    # Intra mode works in each head's frame; inter mode in value space, in units of the layer's largest frame.

    @cached_property
    def _head_units(self) -> Float[Tensor, " head"]:
        """Each head's frame unit, relative to the largest of the layer."""
        exponent = self.frame.exponent
        return torch.ldexp(torch.ones_like(exponent, dtype=self.dtype), exponent - exponent.max())

    @cached_property
    def _layer_weight(self) -> Float[Tensor, "head d_head d_model"]:
        weight = self.W_O.to(self.pattern.device, self.dtype)
        if self._norm_weight is not None:
            weight = weight * self._norm_weight.to(weight)
        return scale(weight, -self.frame.exponent.max())

    @cached_property
    def layer_output(self) -> Float[Tensor, "batch query d_model"]:
        """Sum of the heads' outputs, without b_O, in units of the layer's largest frame."""
        return self.z.transpose(1, 2).flatten(2) @ self._layer_weight.flatten(0, 1)

    def keys(self, mode: Mode) -> Float[Tensor, "batch head key any"]:
        """The vectors that :meth:`dual` is paired with."""
        return self.values if mode == "intra" else self.head_values

    @cached_property
    def head_values(self) -> Float[Tensor, "batch head key d_head"]:
        """The values that each query head reads, in head space."""
        return self.per_head(self.v.transpose(1, 2)).contiguous()

    def key_norms(self, mode: Mode) -> Float[Tensor, "batch head key"]:
        """|v W_O| in the units of :meth:`output_norms`."""
        return self.value_norms if mode == "intra" else self.value_norms * self._head_units[:, None]

    @property
    def lengths(self) -> Float[Tensor, "batch head query"]:
        """|o| of every row of each head, as it is."""
        return self._intra[1]

    def output_norms(self, mode: Mode) -> Float[Tensor, "batch head query"]:
        """|o| per row; NaN where undefined."""
        _, norm, defined = self._direction(mode)
        return norm.masked_fill(~defined, torch.nan)

    def defined(self, mode: Mode) -> Bool[Tensor, "batch head query"]:
        """Real rows whose output has not cancelled to rounding error."""
        return self._direction(mode)[2]

    def dual(self, mode: Mode) -> Float[Tensor, "batch head query any"]:
        """Vectors w with ``c_ij = alpha_ij <w_i, key_j>``: the output over its squared length; NaN where undefined."""
        if mode not in self._duals:
            dual, _, defined = self._direction(mode)
            self._duals[mode] = dual.masked_fill(~defined.unsqueeze(-1), torch.nan).contiguous()
        return self._duals[mode]

    def _direction(self, mode: Mode) -> tuple[Tensor, Tensor, Tensor]:
        """The vectors of :meth:`dual` and |o|, finite everywhere, and the rows that are defined.

        What is differentiable multiplies these finite vectors and puts NaN into its result: a NaN that takes part in a
        product would spread to the gradients of other rows.
        """
        one_of("mode", mode, ("intra", "inter"))
        return self._intra if mode == "intra" else self._inter

    @cached_property
    def _intra(self) -> tuple[Tensor, Tensor, Tensor]:
        dual, norm = over_square(self.outputs)
        return dual, norm, self.rows & (norm > UNDEFINED_BELOW * self.gross)

    @cached_property
    def _inter(self) -> tuple[Tensor, Tensor, Tensor]:
        direction, norm = over_square(self.layer_output)
        gross = torch.einsum("bhq,h->bq", self.gross, self._head_units)
        defined = (self.rows.any(1) & (norm > UNDEFINED_BELOW * gross))[:, None] & self.rows
        along = direction @ self._layer_weight.flatten(0, 1).T
        dual = rearrange(
            along, "batch query (head d_head) -> batch head query d_head", head=self.n_heads
        )
        return (
            dual,
            norm[:, None].expand(-1, self.n_heads, -1),
            defined.expand(-1, self.n_heads, -1),
        )

    def contributions(
        self, mode: Mode, rows: slice = slice(None), keys: slice = slice(None)
    ) -> Float[Tensor, "batch head some_queries some_keys"]:
        """Contribution weights of some rows to some keys; a new tensor each time."""
        dual, _, defined = self._direction(mode)
        pattern = self.pattern[:, :, rows, keys]
        if not (dual.requires_grad or pattern.requires_grad):
            return self._scores(self.dual(mode), mode, rows, keys).mul_(pattern)
        undefined = ~defined[:, :, rows].unsqueeze(-1)
        return (self._scores(dual, mode, rows, keys) * pattern).masked_fill(undefined, torch.nan)

    def _scores(
        self, dual: Tensor, mode: Mode, rows: slice, keys: slice
    ) -> Float[Tensor, "batch head some_queries some_keys"]:
        """<w_i, key_j>. With batch and head as one axis, slices of rows and keys need no copy."""
        flat, targets = dual.flatten(0, 1), self.keys(mode).flatten(0, 1)
        scores = torch.bmm(flat[:, rows], targets[:, keys].transpose(1, 2))
        return scores.view(*dual.shape[:2], *scores.shape[1:])

    def sink_contributions(self, mode: Mode) -> Float[Tensor, "batch head query"]:
        """Contribution of the sinks together, per row, without computing the other keys."""
        scores = self.dual(mode) @ self.sink_vectors(self.keys(mode)).transpose(-1, -2)
        return (scores * self.sink_columns(self.pattern)).sum(-1)

    def contribution_sums(self, mode: Mode) -> Float[Tensor, "batch head query"]:
        """sum_k c_ik over the keys of each head: 1 in intra mode, the head's share of the output in inter mode."""
        dual, _, defined = self._direction(mode)
        mixed = self.outputs if mode == "intra" else self.z
        return (dual * mixed).sum(-1).masked_fill(~defined, torch.nan)

    def suppression(self, mode: Mode) -> Float[Tensor, "batch head query key"]:
        """alpha_ij sum_k c_ik - c_ij."""
        dual, _, defined = self._direction(mode)
        mixed = self.outputs if mode == "intra" else self.z
        scores = dual @ self.keys(mode).transpose(-1, -2)
        share = (dual * mixed).sum(-1, keepdim=True)
        return (self.pattern * (share - scores)).masked_fill(~defined.unsqueeze(-1), torch.nan)

    def relative_lengths(self, mode: Mode) -> Float[Tensor, "batch head query key"]:
        """alpha_ij |v_j W_O| / |o_i|."""
        _, norm, defined = self._direction(mode)
        relative = self.key_norms(mode).unsqueeze(-2) / torch.where(defined, norm, 1).unsqueeze(-1)
        return (self.pattern * relative).masked_fill(~defined.unsqueeze(-1), torch.nan)

    def factors(
        self, mode: Mode, rows: Int[Tensor, "batch row"] | None = None
    ) -> tuple[
        Float[Tensor, "batch head row key"],
        Float[Tensor, "batch head row key"],
        Float[Tensor, "batch head row key"],
    ]:
        """Attention, relative norm |v_j W_O| / |o_i| and cosine of some rows; their product is the contribution."""
        dual, output_norms, defined = self._direction(mode)
        pattern, norms = self.pattern, self.key_norms(mode)
        output_norms, defined = (x.unsqueeze(-1) for x in (output_norms, defined))
        if rows is not None:
            pattern, dual, output_norms, defined = (
                self.take_rows(x, rows) for x in (pattern, dual, output_norms, defined)
            )
        output_norms = torch.where(defined, output_norms, 1)
        # Both vectors enter the cosine at length one, so that no product over- or underflows.
        unit_values = self.keys(mode) / torch.where(norms == 0, 1, norms).unsqueeze(-1)
        cosine = ((dual * output_norms) @ unit_values.transpose(-1, -2)).clamp(-1, 1)
        found = (pattern, norms.unsqueeze(-2) / output_norms, cosine)
        attention, relative_norm, cosine = (x.masked_fill(~defined, torch.nan) for x in found)
        return attention, relative_norm, cosine
