"""Does an edit reach z, and one of z the layer's output? A few rows tell.

The answer is asked for at once, so that the error names the layer: the host waits for the device once in
every edited layer. Three things cost another question: equal scores where entries are ranked (per layer), random
numbers, which are drawn for the real tokens on the host (per layer), and tokens that are chosen by number or by a
mask (once).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from tl_geometry.hooks import AttentionSite, LayerReport
from tl_geometry.hooks.agreement import wide
from tl_geometry.hooks.norms import apply_norm
from tl_geometry.measures.scaling import sign_vector

__all__ = ["EffectCheck", "OutputCheck"]

_ROWS = 8
_COARSE = 2.0**-10  # what a matrix product in float32 may be rounded to
_CLEAR = 4  # times the rounding: a change that can be told
_WHY = (
    "the model takes no notice of it, or another hook undoes it. If the model's attention implementation was changed "
    "after the hooks were made, make them again"
)


class EffectCheck:
    """Compares z with what it would be with and without the edits of one layer.

    The hooks of v, pattern and z report what they saw, in whatever order they fire. Only a z that
    is what it was without the edit, in every row where the edit makes a difference, is refused: other
    ablations in the same run may have changed it in their own way.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self._values: tuple[Tensor, Tensor, Tensor] | None = None
        self._expected: tuple[Tensor, Tensor, Tensor] | None = None
        self._seen: tuple[Tensor, float] | None = None

    def start(
        self,
        old: Float[Tensor, "batch key kv_head d_head"],
        new: Float[Tensor, "batch key kv_head d_head"],
    ) -> None:
        """Values before and after the edit; a new forward begins."""
        self._expected = self._seen = None
        size = old.detach().abs().amax(-1).float().transpose(1, 2)
        before = _along(old)
        self._values = before, before if new is old else _along(new), size

    def mix(
        self,
        old: Float[Tensor, "batch head query key"],
        new: Float[Tensor, "batch head query key"],
    ) -> None:
        """The pattern before and after the edit."""
        if self._values is None:
            return
        group = old.shape[1] // self._values[0].shape[1]
        before, after, size = (x.repeat_interleave(group, 1) for x in self._values)
        first = _rows(old.detach(), 2).float()
        last = first if new is old else _rows(new.detach(), 2).float()
        self._expected = _mixed(first, before), _mixed(last, after), _mixed(first.abs(), size)
        self._values = None
        self._judge()

    def compare(
        self, z: Float[Tensor, "batch query head d_head"], *, weights_edited: bool = False
    ) -> None:
        """What came out.

        Raises:
            RuntimeError: the edit reached nothing.
        """
        if weights_edited and self._values is not None:
            raise RuntimeError(
                f"{self.where}: its pattern is to be edited, but hook_pattern did not fire before hook_z. If the "
                "model's attention implementation was changed after the hooks were made, make them again"
            )
        rounding = max(torch.finfo(z.dtype).eps, _COARSE) * math.sqrt(z.shape[-1])
        self._seen = _rows(_along(z), 2), rounding
        self._judge()

    def _judge(self) -> None:
        if self._expected is None or self._seen is None:
            return
        (before, after, size), (seen, rounding) = self._expected, self._seen
        self._expected = self._seen = None
        told = (after - before).abs() > _CLEAR * rounding * size
        moved = ~((seen - before).abs() <= rounding * size)
        if bool(told.any() & ~(told & moved).any()):
            raise RuntimeError(
                f"{self.where} was edited, but z is what it was without the edit: {_WHY}"
            )


class OutputCheck:
    """Compares a layer's output with what it would be with and without an edit of its z.

    Hooks of others may change z further, before or behind ours. Only an output that is what it was
    without the edit, in every row where the edit makes a difference, is refused.

    Args:
        projected: whether the output is seen as z W_O + b_O, before what the layer's report says
            follows (a norm, a factor).
    """

    def __init__(
        self, where: str, site: AttentionSite, report: LayerReport, *, projected: bool
    ) -> None:
        self.where, self.site, self.report = where, site, report
        self.projected = projected
        self._z: tuple[Tensor, Tensor] | None = None

    def start(
        self,
        old: Float[Tensor, "batch query head d_head"],
        new: Float[Tensor, "batch query head d_head"],
    ) -> None:
        """The z before and after the edit."""
        self._z = _rows(old.detach(), 1), _rows(new.detach(), 1)

    @torch.no_grad()
    def compare(self, out: Tensor) -> None:
        """What the layer put out.

        Raises:
            RuntimeError: the edit reached nothing.
        """
        if self._z is None:
            return
        (before, size), (after, _) = (self._output(z, out.dtype) for z in self._z)
        seen = wide(_rows(out.detach(), 1))
        self._z = None
        if seen.shape != before.shape:
            return
        rounding = max(torch.finfo(out.dtype).eps, _COARSE) * size
        told = (after - before).norm(dim=-1) > _CLEAR * rounding
        moved = ~((seen - before).norm(dim=-1) <= rounding)
        if bool(told.any() & ~(told & moved).any()):
            raise RuntimeError(
                f"{self.where} was edited at z, but its output is what it was without the edit: {_WHY}"
            )

    def _output(
        self, z: Float[Tensor, "batch row head d_head"], dtype: torch.dtype
    ) -> tuple[Float[Tensor, "batch row d_model"], Float[Tensor, "batch row"]]:
        """The output that this z makes, and the size of the terms whose sum may be rounded."""
        site, w = self.site, wide(self.site.W_O)
        terms = torch.einsum("brhd,hdm->brhm", wide(z).to(w), w)
        output, size = terms.sum(2), terms.norm(dim=-1).sum(-1)
        if site.b_O is not None:
            output, size = output + site.b_O, size + wide(site.b_O).norm()
        if self.projected:
            return output, size
        if self.report.verdict == "normed" and site.post_norm is not None:
            normed = wide(apply_norm(site.post_norm, output.to(dtype)))
            return normed, size * normed.norm(dim=-1) / output.norm(dim=-1).clamp(min=1e-30)
        return output * self.report.output_scale, size * abs(self.report.output_scale)


def _rows(x: Tensor, dim: int) -> Tensor:
    """A few positions along an axis, the last included."""
    n, some = x.shape[dim], torch.arange(min(_ROWS, x.shape[dim]), device=x.device)
    return x.index_select(dim, (n - 1) - (n * some) // len(some))


def _along(
    x: Float[Tensor, "batch any_pos any_head d_head"],
) -> Float[Tensor, "batch any_head any_pos"]:
    direction = sign_vector(x.shape[-1], x.device, torch.float32)
    return (x.detach().float() @ direction).transpose(1, 2)


def _mixed(
    pattern: Float[Tensor, "batch head row key"], x: Float[Tensor, "batch head key"]
) -> Float[Tensor, "batch head row"]:
    return (pattern @ x.unsqueeze(-1)).squeeze(-1)
