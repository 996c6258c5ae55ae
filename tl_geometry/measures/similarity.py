"""Oversmoothing: how alike the tokens of a document have become.

A layer that mixes tokens pulls them together. Two numbers say how far they have come: the mean
cosine between two tokens, and the part of them that is not their common mean.

Source: Sukenik, Lopez Amado, Lampert & Mondelli, "Sink vs. diagonal patterns as mechanisms for
attention switch and oversmoothing prevention", arXiv 2605.08453.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tl_geometry.arguments import true_or_false
from tl_geometry.measures.checks import check_axes, check_bool
from tl_geometry.measures.devices import check_devices
from tl_geometry.measures.scaling import power_of_two, scale, work_dtype

PART_ELEMENTS = 2**19


def token_similarity(
    x: Float[Tensor, "batch pos d_model"], mask: Tensor | None = None, *, skip_first: bool = True
) -> Float[Tensor, " batch"]:
    """Mean cosine between two different tokens of a document, in [-1, 1]; 1 when all point the same way.

    With unit vectors u_i it is (|sum_i u_i|^2 - n) / (n (n - 1)), so no pair is ever looked at.

    >>> token_similarity(torch.tensor([[[9.0, 9.0], [2.0, 0.0], [3.0, 0.0], [0.0, 1.0]]]))
    tensor([0.3333])

    Args:
        x: token vectors, such as the residual stream.
        mask: bool ``batch pos``, True at real tokens; all by default.
        skip_first: leave out each document's first real token, mostly bos, which is unlike the
            others in most models.

    Returns:
        One number per document. Tokens of length zero have no direction and are left out; with
        fewer than two others there is no pair, and the result is NaN.

    Raises:
        TypeError: ``x`` is not floating point, or ``mask`` not bool.
        ValueError: shapes that do not fit.
    """
    return TokenVectors(x, mask).similarity(skip_first=skip_first)


def relative_residual(
    x: Float[Tensor, "batch pos d_model"], mask: Tensor | None = None, *, skip_first: bool = True
) -> Float[Tensor, " batch"]:
    """Share of a document's token vectors that is not their mean, |X - 1 mean^T|_F / |X|_F, in [0, 1].

    >>> relative_residual(torch.tensor([[[9.0, 9.0], [1.0, 1.0], [1.0, -1.0]]]))
    tensor([0.7071])

    Arguments and errors as in :func:`token_similarity`. A single token is its own mean (0); NaN
    where no token is left, or all are zero.
    """
    return TokenVectors(x, mask).residual(skip_first=skip_first)


class TokenVectors:
    """Token vectors of a batch of documents in working precision, with what several measures need of them.

    Raises:
        TypeError: ``x`` is not floating point, or ``mask`` not bool.
        ValueError: shapes that do not fit.
    """

    def __init__(self, x: Float[Tensor, "batch pos d_model"], mask: Tensor | None = None) -> None:
        check_axes("x", x, "batch pos d_model")
        if mask is None:
            mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        check_bool("mask", mask, "True at real tokens")
        check_devices(x=x, mask=mask)
        if mask.shape != x.shape[:2]:
            raise ValueError(
                f"mask has shape {tuple(mask.shape)}; it must be batch pos {tuple(x.shape[:2])}, as x has it"
            )
        self.real: Bool[Tensor, "batch pos"] = mask
        self._hooked = x
        # What stands at padding, NaN included, takes part in nothing. The host knows its own masks.
        self._padded = mask.device.type != "cpu" or not bool(mask.all())

    @cached_property
    def x(self) -> Float[Tensor, "batch pos d_model"]:
        """The vectors, 0 at padding."""
        return self._part(slice(None))

    @cached_property
    def others(self) -> Bool[Tensor, "batch pos"]:
        """Real tokens but for the first."""
        return self.real & (self.real.cumsum(-1) > 1)

    @property
    def lengths(self) -> Float[Tensor, "batch pos"]:
        """Lengths of the vectors; 0 at padding."""
        return self._sweep[0]

    def _part(self, part: slice) -> Float[Tensor, "batch some_pos d_model"]:
        x = self._hooked[:, part].to(work_dtype(self._hooked))
        return x.masked_fill(~self.real[:, part, None], 0) if self._padded else x

    def _parts(self) -> Iterator[slice]:
        """Slices of the tokens that stay in a processor's cache, however often they are gone through."""
        batch, n, d_model = self._hooked.shape
        step = max(1, PART_ELEMENTS // max(1, batch * d_model))
        for start in range(0, n, step):
            yield slice(start, min(start + step, n))

    @cached_property
    def _sweep(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Lengths, and of the vectors at length one: how many there are beside the first, their sum, the first."""
        lengths, sums, others = [], [], self.others.unsqueeze(-1)
        for part in self._parts():
            x = self._part(part)
            exponent = power_of_two(x, -1)
            unit = scale(x, -exponent)
            length = torch.linalg.vector_norm(unit, dim=-1, keepdim=True)
            unit = unit / length.masked_fill(length == 0, 1)  # the length may need what it is of
            lengths.append(scale(length, exponent).squeeze(-1))
            # Unlike a product, this sums pairwise.
            sums.append(unit.masked_fill_(~others[:, part], 0).sum(-2))
        length = torch.cat(lengths, -1)
        place = self.real.to(torch.uint8).argmax(-1)[:, None, None]
        first = self._hooked.gather(1, place.expand(-1, 1, self._hooked.shape[-1])).squeeze(1)
        first = first.to(length.dtype).masked_fill(~self.real.any(-1, keepdim=True), 0)
        first = scale(first, -power_of_two(first, -1))
        size = torch.linalg.vector_norm(first, dim=-1, keepdim=True)
        first = first / size.masked_fill(size == 0, 1)
        return length, (self.others & (length != 0)).sum(-1), torch.stack(sums).sum(0), first

    def similarity(self, *, skip_first: bool = True) -> Float[Tensor, " batch"]:
        """See :func:`token_similarity`."""
        _, n, total, first = self._sweep
        if not true_or_false("skip_first", skip_first):
            n, total = n + (first != 0).any(-1), total + first
        pairs = total.square().sum(-1) - n
        return (pairs / torch.where(n > 1, n * (n - 1), torch.nan)).clamp(-1, 1)

    def residual(self, *, skip_first: bool = True) -> Float[Tensor, " batch"]:
        """See :func:`relative_residual`."""
        counted = self.others if true_or_false("skip_first", skip_first) else self.real
        lengths = torch.where(counted, self.lengths, 0)
        exponent = power_of_two(lengths, -1)
        lengths = scale(lengths, -exponent)
        factor = scale(torch.ones_like(lengths[:, :1, None]), -exponent.unsqueeze(-1))
        sums = [
            (self._part(part) * factor).masked_fill_(~counted[:, part, None], 0).sum(-2)
            for part in self._parts()
        ]
        mean = torch.stack(sums).sum(0) / counted.sum(-1, keepdim=True)
        rest = torch.cat(
            [
                torch.linalg.vector_norm((self._part(part) * factor).sub_(mean[:, None]), dim=-1)
                for part in self._parts()
            ],
            -1,
        )
        square, whole = (torch.where(counted, x, 0).square().sum(-1) for x in (rest, lengths))
        return (square / torch.where(whole > 0, whole, torch.nan)).sqrt().clamp(max=1)

    def first_cosines(self) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
        """Mean and largest cosine of the first real token with the others, in [-1, 1].

        NaN where the first token is zero or no other has a direction.
        """
        lengths, _, _, first = self._sweep
        along = []
        for part in self._parts():
            x = self._part(part)
            exponent = power_of_two(x, -1)
            product = (scale(x, -exponent) @ first.unsqueeze(-1)).squeeze(-1)
            along.append(product / scale(lengths[:, part], -exponent.squeeze(-1)))
        use = self.others & (lengths != 0) & (first != 0).any(-1, keepdim=True)
        cosine = torch.where(use, torch.cat(along, -1).clamp(-1, 1), 0)
        mean = cosine.sum(-1) / use.sum(-1)
        largest = cosine.masked_fill(~use, -torch.inf).amax(-1)
        return mean, torch.where(use.any(-1), largest, torch.nan)
