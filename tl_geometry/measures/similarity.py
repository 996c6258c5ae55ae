"""Oversmoothing: how alike the tokens of a document have become.

A layer that mixes tokens pulls them together. Two numbers say how far they have come: the mean
cosine between two tokens, and the part of them that is not their common mean.

Source: Sukenik, Lopez Amado, Lampert & Mondelli, "Sink vs. diagonal patterns as mechanisms for
attention switch and oversmoothing prevention", arXiv 2605.08453.
"""

from __future__ import annotations

from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tl_geometry.arguments import true_or_false
from tl_geometry.measures.checks import check_axes, check_bool
from tl_geometry.measures.devices import check_devices
from tl_geometry.measures.scaling import power_of_two, safe_norm, scale, work_dtype


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
        self.x = x.to(work_dtype(x)).masked_fill(~self.real.unsqueeze(-1), 0)

    @cached_property
    def others(self) -> Bool[Tensor, "batch pos"]:
        """Real tokens but for the first."""
        return self.real & (self.real.cumsum(-1) > 1)

    @cached_property
    def lengths(self) -> Float[Tensor, "batch pos"]:
        """Lengths of the vectors; 0 at padding."""
        return safe_norm(self.x)

    @cached_property
    def directions(self) -> Float[Tensor, "batch pos d_model"]:
        """The vectors at length one; 0 at padding and for vectors without a direction."""
        scaled = scale(self.x, -power_of_two(self.x, -1))
        length = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
        return scaled / torch.where(length == 0, 1, length)

    @cached_property
    def directed(self) -> Bool[Tensor, "batch pos"]:
        """Tokens that have a direction."""
        return (self.x != 0).any(-1)

    def similarity(self, *, skip_first: bool = True) -> Float[Tensor, " batch"]:
        """See :func:`token_similarity`."""
        counted = self.others if true_or_false("skip_first", skip_first) else self.real
        n = (counted & self.directed).sum(-1)
        # Unlike a product, this sums pairwise.
        total = torch.where(counted.unsqueeze(-1), self.directions, 0).sum(-2)
        pairs = total.square().sum(-1) - n
        return (pairs / torch.where(n > 1, n * (n - 1), torch.nan)).clamp(-1, 1)

    def residual(self, *, skip_first: bool = True) -> Float[Tensor, " batch"]:
        """See :func:`relative_residual`."""
        counted = self.others if true_or_false("skip_first", skip_first) else self.real
        lengths = torch.where(counted, self.lengths, 0)
        exponent = power_of_two(lengths, -1)
        lengths = scale(lengths, -exponent)
        x = scale(self.x, -exponent.unsqueeze(-1))
        x = torch.where(counted.unsqueeze(-1), x, 0)
        mean = x.sum(-2, keepdim=True) / counted.sum(-1)[:, None, None]
        rest = torch.linalg.vector_norm(x - mean, dim=-1)
        rest = torch.where(counted, rest, 0)
        square, whole = (part.square().sum(-1) for part in (rest, lengths))
        return (square / torch.where(whole > 0, whole, torch.nan)).sqrt().clamp(max=1)

    def first_cosines(self) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
        """Mean and largest cosine of the first real token with the others, in [-1, 1].

        NaN where the first token is zero or no other has a direction.
        """
        place = (self.real & ~self.others).unsqueeze(-1)
        first = torch.where(place, self.directions, 0).sum(-2, keepdim=True)
        cosine = (self.directions * first).sum(-1).clamp(-1, 1)
        use = self.others & self.directed & (first != 0).any(-1)
        mean = torch.where(use, cosine, 0).sum(-1) / use.sum(-1)
        largest = torch.where(use, cosine, -torch.inf).amax(-1)
        return mean, torch.where(use.any(-1), largest, torch.nan)
