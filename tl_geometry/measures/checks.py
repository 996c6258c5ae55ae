"""Refusals: what can't be one attention layer, said with the argument's name and shape."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tl_geometry.measures.devices import check_devices, check_numbers
from tl_geometry.measures.scaling import work_dtype


def check_bool(name: str, mask: Any, meaning: str) -> None:
    """Refuse what is not a bool tensor, saying how to make one of it."""
    if not isinstance(mask, Tensor):
        raise TypeError(
            f"{name} must be a bool torch.Tensor ({meaning}), got {type(mask).__name__}: "
            "convert an array with torch.from_numpy, a list with torch.tensor"
        )
    if mask.dtype != torch.bool:
        raise TypeError(
            f"{name} must be a bool tensor ({meaning}), got dtype {mask.dtype}: "
            "convert a 0/1 mask with .bool()"
        )


def check_float(name: str, tensor: Any, axes: str) -> None:
    """Refuse what is not a floating point tensor, naming the axes that it should have."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor ({axes}), got {type(tensor).__name__}")
    if not tensor.is_floating_point():
        raise TypeError(
            f"{name} must be a floating point tensor ({axes}), got dtype {tensor.dtype}"
        )


def check_axes(name: str, tensor: Any, axes: str) -> None:
    """Refuse what is not a floating point tensor with these axes."""
    check_float(name, tensor, axes)
    if tensor.ndim != len(axes.split()):
        raise ValueError(f"{name} must have the axes {axes}, got shape {tuple(tensor.shape)}")
    if tensor.numel() == 0:
        raise ValueError(f"{name} is empty: shape {tuple(tensor.shape)} for the axes {axes}")


def check_pattern(pattern: Tensor) -> None:
    """Refuse what can't be an attention pattern."""
    check_axes("pattern", pattern, "batch head query key")


def check_norm_weight(norm_weight: Tensor | None, W_O: Tensor) -> None:
    """Refuse a norm's scale that does not fit the output projection."""
    if norm_weight is None:
        raise ValueError(
            'output="normed" needs norm_weight, the d_model scale of the norm after attention'
        )
    check_axes("norm_weight", norm_weight, "d_model")
    if tuple(norm_weight.shape) != (W_O.shape[2],):
        raise ValueError(
            f"norm_weight has shape {tuple(norm_weight.shape)}; it must be d_model ({W_O.shape[2]},), as W_O has it"
        )


def check_layer(pattern: Tensor, v: Tensor, W_O: Tensor) -> None:
    """Refuse tensors that can't be one attention layer, naming the argument and its shape."""
    check_pattern(pattern)
    check_axes("v", v, "batch key kv_head d_head")
    check_axes("W_O", W_O, "head d_head d_model")
    check_devices(pattern=pattern, v=v, W_O=W_O)
    batch, n_head, _, n_key = pattern.shape
    if tuple(v.shape[:2]) != (batch, n_key):
        raise ValueError(
            f"v has shape {tuple(v.shape)}, but pattern {tuple(pattern.shape)} needs batch {batch} and {n_key} keys"
            + (" (a KV cache? only full forwards are supported)" if v.shape[1] < n_key else "")
        )
    if n_head % max(1, v.shape[2]) or v.shape[2] == 0:
        raise ValueError(
            f"v has {v.shape[2]} kv heads, which does not divide the {n_head} heads of pattern"
        )
    if W_O.shape[0] != n_head or W_O.shape[1] != v.shape[3]:
        raise ValueError(
            f"W_O has shape {tuple(W_O.shape)}; it must be head d_head d_model with {n_head} heads (pattern) and "
            f"d_head {v.shape[3]} (v)"
        )


def kv_bias(b_V: Tensor | None, v: Tensor, W_O: Tensor) -> Tensor:
    """The value bias per kv head, from one per kv head or one per query head.

    Raises:
        ValueError: none, another shape, or query heads that share a value but not its bias.
    """
    if b_V is None:
        raise ValueError('value_bias="remove" needs b_V, the value bias (kv_head d_head)')
    check_axes("b_V", b_V, "kv_head d_head")
    n_kv, d_head = v.shape[2:]
    if W_O.shape[0] > n_kv and tuple(b_V.shape) == (W_O.shape[0], d_head):
        check_numbers("b_V", b_V, "query heads that share a value must share its bias")
        groups = b_V.reshape(n_kv, -1, d_head)
        if not torch.equal(groups, groups[:, :1].expand_as(groups)):
            raise ValueError(
                "b_V differs between query heads that share a value: give one bias per kv head"
            )
        b_V = groups[:, 0]
    if tuple(b_V.shape) != (n_kv, d_head):
        raise ValueError(
            f"b_V has shape {tuple(b_V.shape)}; it must be kv_head d_head {(n_kv, d_head)}"
        )
    return b_V.to(v.device, work_dtype(v))
