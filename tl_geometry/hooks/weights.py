"""Head-wise weights of a live attention module, whichever class it has."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["head_counts", "input_weights", "output_weights", "per_head_bias"]


def head_counts(module: nn.Module, v_point: Any, z_point: Any) -> tuple[int, int]:
    """Number of query heads and of value heads as `hook_z` and `hook_v` show them.

    A HookedTransformer has head-wise parameters; a TransformerBridge splits flat activations by
    counts that it keeps at the hook points themselves.
    """
    query_heads = _query_heads(module, z_point)
    return query_heads, _value_heads(module, v_point, query_heads)


def _query_heads(module: nn.Module, z_point: Any) -> int:
    parameter = module._parameters.get("W_O")
    if parameter is not None and parameter.ndim == 3:
        return int(parameter.shape[0])
    split = _split_of(z_point)
    return split if split is not None else int(_property(module, "W_O").shape[0])


def _value_heads(module: nn.Module, v_point: Any, query_heads: int) -> int:
    grouped = module._parameters.get("_W_V")
    if grouped is not None:  # grouped-query attention of a HookedTransformer
        cfg = getattr(module, "cfg", None)
        if getattr(cfg, "ungroup_grouped_query_attention", False):
            return query_heads
        return int(grouped.shape[0])
    plain = module._parameters.get("W_V")
    if plain is not None and plain.ndim == 3:
        return int(plain.shape[0])
    split = _split_of(v_point)
    if split is not None:
        return split
    try:
        return int(_property(module, "W_V").shape[0])
    except NotImplementedError:
        # Latent attention has no value matrix; the doctor says what hook_v shows instead.
        return query_heads


def _split_of(hook_point: Any) -> int | None:
    count = getattr(getattr(hook_point, "hook_conversion", None), "n_heads", None)
    return count if isinstance(count, int) and count > 0 else None


def output_weights(module: nn.Module, n_heads: int) -> Float[Tensor, "head d_head d_model"]:
    """W_O split into heads: z.flatten(-2) @ W_O.flatten(0, 1) is what the module computes.

    Raises: ValueError if the projection's width is no multiple of the number of heads.
    """
    parameter = module._parameters.get("W_O")
    if parameter is not None and parameter.ndim == 3:
        return parameter.detach()
    flat = _flat_projection(module, "o")
    if flat is None:
        return _property(module, "W_O")
    if flat.shape[0] % n_heads:
        raise ValueError(
            f"{type(module).__name__}: W_O has {flat.shape[0]} inputs for {n_heads} heads"
        )
    return flat.reshape(n_heads, -1, flat.shape[1])


def input_weights(
    module: nn.Module, which: str, heads: int, d_head: int
) -> Float[Tensor, "{heads} d_model {d_head}"]:
    """Projection to queries, keys or values (`which` is "Q", "K" or "V"), a matrix per head as hooked.

    x @ W plus the head's bias is what the module computes from its input x, before any rotation or
    norm of queries and keys. A fused projection has been split by the bridge.

    Raises: ValueError if there is no such matrix (latent attention) or it makes more than the heads
    take (gates).
    """
    grouped = module._parameters.get(f"_W_{which}")
    if grouped is not None:
        return grouped.detach().repeat_interleave(heads // grouped.shape[0], dim=0)
    plain = module._parameters.get(f"W_{which}")
    if plain is not None and plain.ndim == 3:
        return plain.detach()
    flat = _flat_projection(module, which.lower())
    if flat is None:
        raise ValueError(
            f"{type(module).__name__} has no matrix W_{which} (latent attention, or a projection "
            "that is no plain matrix); leave the layer out with layers="
        )
    if flat.shape[1] != heads * d_head:
        raise ValueError(
            f"{type(module).__name__}: W_{which} has {flat.shape[1]} outputs, which are not the "
            f"{heads} heads of {d_head} that the hooks show; leave the layer out with layers="
        )
    return flat.reshape(-1, heads, d_head).transpose(0, 1)


def per_head_bias(
    module: nn.Module, which: str, heads: int
) -> Float[Tensor, "heads d_head"] | None:
    """Bias of queries, keys or values (`which` is "Q", "K" or "V"), a row per head as hooked."""
    grouped = module._parameters.get(f"_b_{which}")
    if grouped is not None:
        return grouped.detach().repeat_interleave(heads // grouped.shape[0], dim=0)
    plain = module._parameters.get(f"b_{which}")
    if plain is not None:
        return plain.detach()
    bias = getattr(getattr(module, which.lower(), None), "bias", None)
    if not isinstance(bias, Tensor):
        return None
    return bias.detach().reshape(heads, -1)


def _flat_projection(module: nn.Module, name: str) -> Float[Tensor, "d_in d_out"] | None:
    """The matrix of one of a TransformerBridge's projections, None if it is no plain matrix."""
    inner = getattr(getattr(module, name, None), "original_component", None)
    weight = getattr(inner, "weight", None)
    if not (isinstance(weight, Tensor) and weight.ndim == 2 and weight.is_floating_point()):
        return None
    stored_in_out = type(inner).__name__ == "Conv1D"  # a Linear stores [out, in]
    return (weight if stored_in_out else weight.T).detach()


def _property(module: nn.Module, name: str) -> Tensor:
    value = getattr(module, name)
    if not isinstance(value, Tensor) or value.ndim != 3:
        raise ValueError(f"{type(module).__name__}.{name} is no tensor of shape head x ... x ...")
    return value.detach()
