"""What one attention step does to the similarity of tokens, from a matrix and two moments alone.

The step is y_i = x_i + sum_j A_ij u_j W with u = x, or u = norm(x), and W the product of the layer's
value and output matrices. Attention A = (1 - l) I + l U goes from the identity (l = 0) to uniform
(l = 1): U averages over all tokens, or over those up to the query.

The model of a step is that of Sukenik et al., arXiv 2605.08453; the expectations below are our
reconstruction. Tokens are independent draws with mean mu and covariance Sigma. Then
E<y_i, y_j> and E|y_i|^2 follow from four numbers,

    m = |mu_x + mu_u W|^2    s = tr Sigma_x    k = tr(C W)    b = tr(W^T Sigma_u W)

with C = E[(x - mu_x)^T (u - mu_u)]; for u = x, C = Sigma_u = Sigma_x. In wide layers |y_i|^2 hardly
varies, so that the mean cosine is E<y_i, y_j> over the root of E|y_i|^2 E|y_j|^2.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from tl_geometry.arguments import real_number, true_or_false, whole_number
from tl_geometry.measures.checks import check_axes
from tl_geometry.measures.devices import check_devices, no_autocast
from tl_geometry.measures.scaling import work_dtype

_CANCELLED = 2.0**-40


def one_step_similarity(
    W: Float[Tensor, "d_model d_model"],
    mean: Float[Tensor, " d_model"],
    covariance: Float[Tensor, "d_model d_model"],
    length: int,
    *,
    mixing: float | int = 1.0,
    causal: bool = False,
    normed_mean: Float[Tensor, " d_model"] | None = None,
    normed_covariance: Float[Tensor, "d_model d_model"] | None = None,
    cross_covariance: Float[Tensor, "d_model d_model"] | None = None,
) -> Float[Tensor, ""]:
    """Predict the mean pairwise cosine of tokens after one attention step with residual connection.

    With l = ``mixing``, T = ``length`` and B = I + (1 - l) W, attention over all tokens gives

        (m + e) / (m + e + tr(B^T Sigma B)),   e = (2 l / T) tr(B^T Sigma W) + (l^2 / T) tr(W^T Sigma W).

    A causal query i averages over i tokens. Of a pair i < j only the later one has the other's noise
    in its average, so e = (l tr(B^T Sigma W) + l^2 tr(W^T Sigma W)) / j, each |y_i|^2 is that of all-token
    attention with T = i, and the result is the mean over the pairs.

    >>> eye = torch.eye(64)
    >>> one_step_similarity(eye, torch.zeros(64), eye, 2)  # (x_0 + x_1) / 2 is added to both
    tensor(0.6000)

    As T grows, uniform attention leaves tokens more alike than the identity does if
    2 tr(Sigma W) + tr(W^T Sigma W) > 0 (and m > 0).

    Args:
        W: sum over heads of W_V W_O, applied from the right.
        mean: mean of the tokens x (without bos).
        covariance: covariance of the tokens, not divided by their number.
        length: number of tokens T.
        mixing: l, from 0 (every token sees itself alone) to 1 (uniform).
        causal: tokens see no later ones.
        normed_mean: mean of u = norm(x), for a layer that reads normed tokens.
        normed_covariance: covariance of u.
        cross_covariance: C, with x along the rows and u along the columns.

    Returns:
        The predicted cosine; NaN for one token, or where the output cancels to rounding error.
        Exact in the limit of wide layers.

    Raises:
        TypeError: moments that are no floating point tensors, or a length that is no integer.
        ValueError: shapes that do not fit, a share outside [0, 1], no token, or some of the three
            normed moments without the others.
    """
    check_axes("W", W, "d_model d_model")
    normed = (normed_mean, normed_covariance, cross_covariance)
    if any(x is None for x in normed) != all(x is None for x in normed):
        raise ValueError(
            "normed_mean, normed_covariance and cross_covariance describe norm(x) together: give all three or none"
        )
    mixing, causal = real_number("mixing", mixing), true_or_false("causal", causal)
    if not 0 <= mixing <= 1:
        raise ValueError(f"mixing is a share of attention, so it must lie in [0, 1], got {mixing}")
    length = whole_number("length", length)
    if length < 1:
        raise ValueError(f"length must be at least 1 token, got {length}")
    given = {
        "mean": mean,
        "covariance": covariance,
        "normed_mean": mean if normed_mean is None else normed_mean,
        "normed_covariance": covariance if normed_covariance is None else normed_covariance,
        "cross_covariance": covariance if cross_covariance is None else cross_covariance,
    }
    d = W.shape[0]
    for name, x in {"W": W, **given}.items():
        expected = (d,) if name.endswith("mean") else (d, d)
        check_axes(name, x, " ".join(["d_model"] * len(expected)))
        if tuple(x.shape) != expected:
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}; W {tuple(W.shape)} needs {expected}"
            )
    check_devices(W=W, **given)
    dtype = work_dtype(W, *given.values())
    wide = torch.float32 if W.device.type == "mps" else torch.float64  # squares of squares
    with no_autocast(W.device):
        weight = W.to(wide)
        mu_x, sigma_x, mu_u, sigma_u, cross = (x.to(weight) for x in given.values())
        shift = mu_u @ weight
        m = (mu_x + shift).square().sum()
        s = sigma_x.trace()
        k = (cross * weight.T).sum()
        b = (weight * (sigma_u @ weight)).sum()
        # What would be there if nothing cancelled: below its rounding error nothing is known.
        gross = (mu_x.norm() + shift.norm()).square() + (
            s.clamp(min=0).sqrt() + b.clamp(min=0).sqrt()
        ).square()
        return _mean_cosine(m, s, k, b, gross, length, mixing, causal=causal).to(dtype)


def _mean_cosine(
    m: Tensor,
    s: Tensor,
    k: Tensor,
    b: Tensor,
    gross: Tensor,
    length: int,
    mixing: float,
    *,
    causal: bool,
) -> Tensor:
    if length == 1:
        return torch.full_like(m, torch.nan)
    own = s + 2 * (1 - mixing) * k + (1 - mixing) ** 2 * b  # tr(B^T Sigma B)
    shared = mixing * (k + (1 - mixing) * b)  # l tr(B^T Sigma W)
    common = mixing**2 * b
    n = torch.arange(1, length + 1, device=m.device, dtype=m.dtype) if causal else float(length)
    square = torch.as_tensor(m + own + (2 * shared + common) / n)
    square = torch.where(square > _CANCELLED * gross, square, torch.nan)
    if not causal:
        return (m + (2 * shared + common) / n) / square
    inverse = square.rsqrt()
    # Of a pair, what depends on the later token, and what on the earlier one.
    pairs = (m + (shared + common) / n) * inverse
    earlier = inverse.cumsum(0) - inverse
    return (pairs * earlier).sum() / (length * (length - 1) / 2)
