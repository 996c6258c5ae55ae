"""Short coordinates for what a head writes.

The output of a head lives in a subspace of the residual stream with at most ``d_head`` dimensions.
With an orthonormal basis Q of that subspace, ``W_O = L Q^T`` and lengths and angles of ``v W_O``
are those of the short vector ``v L``. Nothing is lost: unlike the Gram matrix ``W_O W_O^T``, its
square root ``L`` does not square the condition number.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tl_geometry.measures.scaling import power_of_two, scale


@dataclass(frozen=True)
class OutputFrame:
    """Short coordinates for what each head can write: ``W_O = 2^exponent * L @ Q^T`` with orthonormal Q.

    Q is never needed: lengths and angles of ``v W_O`` are those of ``v L``, in units of 2^exponent.
    """

    L: Float[Tensor, "head d_head rank"]
    exponent: Int[Tensor, " head"]

    @classmethod
    def of(
        cls,
        W_O: Float[Tensor, "head d_head d_model"],
        norm_weight: Float[Tensor, " d_model"] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> OutputFrame:
        """Factor an output projection, optionally followed by a norm's elementwise scale."""
        weight = W_O.to(torch.float32 if W_O.device.type == "mps" else torch.float64)
        if norm_weight is not None:
            weight = weight * norm_weight.to(weight)
        exponent = power_of_two(weight, (-2, -1), dtype)
        weight = scale(weight, -exponent)
        # Any orthonormal basis of the rows' span gives the same geometry, so it needs no gradient
        # of its own.
        with torch.no_grad():
            Q = torch.linalg.qr(weight.detach().transpose(-1, -2)).Q
        return cls((weight @ Q).to(dtype), exponent[:, 0, 0])
