"""Whether a layer's inputs let every token attend to the sink, whatever its weights are.

Sukenik et al., arXiv 2605.08453, ask that the sink and the other tokens lie in half-spaces; the
conditions below are our reconstruction. Some bilinear form W gives the sink the largest score from
every token, x_i^T W (x_0 - x_j) > 0 for all i, j >= 1, exactly if

    (a) the origin is not in the convex hull of the x_i, and
    (b) x_0 is not in the convex hull of the x_j.

If both hold, W = a b^T with a and b the normals of the separating hyperplanes will do; if one fails, a
weighted sum of the scores is 0 for every W. Rotary and other position-dependent scores have more
freedom than one W, and a causal mask asks for less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tl_geometry.arguments import true_or_false, whole_number, whole_seed
from tl_geometry.measures.checks import check_axes
from tl_geometry.measures.devices import check_numbers
from tl_geometry.measures.min_norm import hull_distance
from tl_geometry.measures.scaling import power_of_two, scale, work_dtype
from tl_geometry.measures.similarity import TokenVectors

FEASIBLE_ABOVE = 2.0**-20
"""A margin up to this share of the longest vector is 0: in single precision it can't be told from one."""

_NUMBERS = (
    "origin_margin",
    "sink_margin",
    "longest",
    "control_origin_margin",
    "control_sink_margin",
    "cosine_mean",
    "cosine_max",
)


@dataclass(frozen=True)
class HalfspaceMargins:
    """Margins of the two conditions, per document; NaN where there is no other token.

    A margin is the distance from a point to a convex hull, which is that to the best separating
    hyperplane through the point. It is 0 if the condition fails.

    Attributes:
        origin_margin: (a), in the units of the vectors.
        sink_margin: (b); NaN without a sink.
        longest: length of the longest vector, to compare margins with.
        control_origin_margin, control_sink_margin: the same margins for as many Gaussian vectors of
            the same root mean square length. Up to d of them satisfy (a) almost surely, so that a
            margin says something only beside them. NaN without a control.
        cosine_mean, cosine_max: of the sink with the others. If the largest is below 0, both
            conditions hold.
        rank: dimensions that the tokens span, the sink apart.
    """

    origin_margin: Float[Tensor, "*batch"]
    sink_margin: Float[Tensor, "*batch"]
    longest: Float[Tensor, "*batch"]
    control_origin_margin: Float[Tensor, "*batch"]
    control_sink_margin: Float[Tensor, "*batch"]
    cosine_mean: Float[Tensor, "*batch"]
    cosine_max: Float[Tensor, "*batch"]
    rank: Int[Tensor, "*batch"]

    @property
    def feasible(self) -> Bool[Tensor, "*batch"]:
        """Whether some W makes every token attend to the sink most: both margins are positive."""
        return (self.origin_margin > 0) & (self.sink_margin > 0)


def halfspace_margins(
    x: Float[Tensor, "*batch pos d_model"],
    sink: int | None = 0,
    *,
    mask: Tensor | None = None,
    control: bool = True,
    seed: int = 0,
) -> HalfspaceMargins:
    """Test the half-space conditions for a sink, with margins and a random control.

    >>> x = torch.tensor([[-1.0, 0.0], [2.0, 1.0], [2.0, -1.0]])
    >>> margins = halfspace_margins(x, control=False)
    >>> margins.feasible.item(), round(margins.origin_margin.item(), 6), round(margins.sink_margin.item(), 6)
    (True, 2.0, 3.0)

    Args:
        x: inputs of an attention layer, after its norm; or projected values v W_O with
            ``sink=None``.
        sink: the sink's place among the real tokens. None tests (a) over all tokens: for values the
            margin is the shortest output that any attention can give, so that a head can be silent
            only through short values.
        mask: bool ``batch pos``, True at real tokens (``x`` with a batch axis only).
        control: compute the random control, which doubles the time.
        seed: of the control, which is the same for all documents of one length.

    Returns:
        Margins that were computed in float64, exact to 2^-20 of the longest vector; smaller ones
        are 0. The time grows with the third power of tokens and dimensions: about a second for 512
        of each.

    Raises:
        TypeError: ``x`` is not floating point, ``mask`` not bool, or a sink or seed no integer.
        ValueError: shapes that do not fit, a document without that token, a negative seed, or
            vectors that are not finite.
    """
    sink, seed = None if sink is None else whole_number("sink", sink), whole_seed(seed)
    control = true_or_false("control", control)
    if getattr(x, "ndim", None) == 2:
        if mask is not None:
            raise ValueError(f"mask needs x with a batch axis, but x has shape {tuple(x.shape)}")
        found = halfspace_margins(x[None], sink, control=control, seed=seed)
        return HalfspaceMargins(**{name: value[0] for name, value in vars(found).items()})
    check_axes("x", x, "batch pos d_model")
    check_numbers("x", x, "distances to convex hulls depend on them")
    tokens = TokenVectors(x, mask)
    vectors, real = tokens.x, tokens.real
    if sink is not None and sink < 0:
        raise ValueError(f"sink must be a place among the tokens, from 0 on, or None; got {sink}")
    short = (real.sum(-1) <= (sink or 0)).nonzero().flatten().tolist()
    if short:
        if sink is None:
            raise ValueError(f"mask leaves no token in the documents {short} of x {tuple(x.shape)}")
        raise ValueError(
            f"sink={sink}, but the documents {short} of x {tuple(x.shape)} have no such token"
        )
    if not bool(vectors.isfinite().all()):
        raise ValueError("x holds NaN or infinite values")
    rows = [_document(v[keep], sink, control, seed) for v, keep in zip(vectors, real, strict=True)]
    numbers, ranks = zip(*rows, strict=True)
    columns = torch.tensor(numbers, dtype=torch.float64).to(work_dtype(x)).to(x.device)
    fields = dict(zip(_NUMBERS, columns.unbind(-1), strict=True))
    return HalfspaceMargins(**fields, rank=torch.tensor(ranks, device=x.device))


def _document(
    x: Float[Tensor, "pos d_model"], sink: int | None, control: bool, seed: int
) -> tuple[list[float], int]:
    """The numbers of one document in the order of ``_NUMBERS``, and the rank."""
    accuracy = torch.finfo(x.dtype).eps
    x = x.detach().to("cpu", torch.float64)
    exponent = power_of_two(x, (-2, -1))[0, 0]
    x = scale(x, -exponent)
    if sink is not None:
        x = torch.cat([x[sink : sink + 1], x[:sink], x[sink + 1 :]])
    others = x[int(sink is not None) :]
    lengths = [*_margins(x, sink is not None), float(x.norm(dim=-1).max())]
    if control:
        size = float(x.square().sum(-1).mean().sqrt())
        unit = _gaussian_margins(len(x), x.shape[1], sink is not None, seed)
        lengths += [margin * size for margin in unit]
    else:
        lengths += [math.nan, math.nan]
    lengths = scale(torch.tensor(lengths, dtype=x.dtype), exponent).tolist()
    cosines = [math.nan, math.nan]
    if sink is not None:
        cosines = [float(cosine) for cosine in TokenVectors(x[None]).first_cosines()]
    rank = 0
    if len(others):
        rank = int(torch.linalg.matrix_rank(others, rtol=accuracy * max(others.shape)))
    return [*lengths, *cosines], rank


def _margins(x: Float[Tensor, "pos d_model"], with_sink: bool) -> tuple[float, float]:
    """Both margins; the sink, if there is one, comes first."""
    others = x[1:] if with_sink else x
    if not len(others):
        return math.nan, math.nan
    least = FEASIBLE_ABOVE * float(x.norm(dim=-1).max())
    origin = hull_distance(others, least)
    return origin, hull_distance(others - x[0], least) if with_sink else math.nan


@lru_cache(maxsize=64)
def _gaussian_margins(tokens: int, d_model: int, with_sink: bool, seed: int) -> tuple[float, float]:
    """Margins of Gaussian vectors whose mean squared length is 1."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, d_model, generator=generator, dtype=torch.float64)
    return _margins(x / x.square().sum(-1).mean().sqrt(), with_sink)
