"""Contribution weights over a corpus."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tl_geometry.analysis.accumulator import Accumulator, Measured, Variable
from tl_geometry.measures.geometry import AttentionGeometry, Mode
from tl_geometry.measures.scaling import scale
from tl_geometry.measures.sink_curve import widened
from tl_geometry.measures.sinks import masked_mean

__all__ = ["Contributions"]

_CW = "Cunningham & Muca Cirone, arXiv 2606.07604"


def _variable(long_name: str, units: str = "1") -> Variable:
    return Variable(long_name, units, _CW)


class Contributions(Accumulator):
    """Who moves each head's output, reduced per document: no matrix is kept.

    >>> probe = Probe(model, [Contributions()])
    >>> model.run_with_hooks(tokens, fwd_hooks=probe.hooks())
    >>> probe.result().contribution_attention_distance

    Means over the rows of a document in which the weights are defined; sink statistics over later
    queries only.
    """

    undefined_rows: Tensor

    variables: Mapping[str, Variable] = {
        "contribution_sink": _variable("contribution weight of the sink (intra)"),
        "contribution_self": _variable("contribution weight of the query's own token (intra)"),
        "contribution_negative": _variable(
            "sum of negative contribution weights, as a positive number (intra)"
        ),
        "contribution_attention_distance": _variable(
            "half the summed difference between contribution weights and attention, a null sink's included (intra)"
        ),
        "contribution_relative_norm": _variable("attention-weighted mean of |v W_O| / |o|"),
        "contribution_cosine": _variable("attention-weighted mean of cos(o, v W_O)"),
        "contribution_inter": _variable(
            "share of the head in the layer's output (sum of inter weights over keys)"
        ),
        "contribution_inter_sink": _variable("contribution weight of the sink (inter)"),
        "contribution_inter_negative": _variable(
            "sum of negative contribution weights, as a positive number (inter)"
        ),
        "output_norm": _variable("length of the head's output", "residual stream"),
        "undefined_rows": Variable(
            "rows whose output cancels to rounding error", "rows", _CW, over="rows"
        ),
    }

    def measure(self, geometry: AttentionGeometry) -> Measured:
        """One number per document and head for each variable."""
        found: dict[str, Tensor] = {}
        norms = geometry.output_norms("intra")
        defined = ~norms.isnan()
        found["undefined_rows"] = (geometry.rows & ~defined).sum(-1)
        mean = widened(masked_mean(norms, defined))
        found["output_norm"] = scale(mean, geometry.frame.exponent)
        found["contribution_relative_norm"] = masked_mean(geometry.gross / norms, defined)
        if not geometry.cross:
            own = (geometry.dual("intra") * geometry.values).sum(-1)
            own = own * geometry.pattern.diagonal(dim1=-2, dim2=-1)
            found["contribution_self"] = masked_mean(own, defined)
        for mode, infix in _INFIX.items():
            usable = ~geometry.output_norms(mode).isnan()
            sink = geometry.sink_contributions(mode)
            found[f"contribution{infix}_sink"] = masked_mean(sink, usable & geometry.sink_rows)
            negative, distance, cosine = _sums(geometry, mode)
            found[f"contribution{infix}_negative"] = masked_mean(negative, usable)
            if mode == "inter":
                found["contribution_inter"] = masked_mean(
                    geometry.contribution_sums("inter"), usable
                )
            else:
                found["contribution_attention_distance"] = masked_mean(distance, usable)
                found["contribution_cosine"] = masked_mean(cosine, usable)
        return found


_INFIX: dict[Mode, str] = {"intra": "", "inter": "_inter"}


def _sums(geometry: AttentionGeometry, mode: Mode) -> tuple[Tensor, Tensor, Tensor]:
    """Per row: the negative weights' sum, half the distance to attention, sum_j alpha_ij cos(o_i, v_j W_O).

    A learned null sink, whose value is 0, contributes nothing, so all of its attention is distance.
    Blocks of rows keep the temporaries in cache; sum |c| and sum c give the negative part without
    another pass.
    """
    lengths = geometry.value_norms
    inverse = (1 / torch.where(lengths > 0, lengths, torch.inf)).unsqueeze(-2)
    absolute, distance, cosine = [], [], []
    for rows, keys in geometry.spans(copies=4):
        c = geometry.contributions(mode, rows, keys)
        absolute.append(c.abs().sum(-1))
        if mode == "intra":
            cosine.append((c * inverse[..., keys]).sum(-1))
            distance.append(c.sub_(geometry.pattern[:, :, rows, keys]).abs_().sum(-1))
    negative = (torch.cat(absolute, -1) - geometry.contribution_sums(mode)) / 2
    if mode == "inter":
        return negative, negative, negative
    return (
        negative,
        (torch.cat(distance, -1) + geometry.null_attention.abs()) / 2,
        torch.cat(cosine, -1) * geometry.output_norms(mode),
    )
