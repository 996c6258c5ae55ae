"""What a user may pass as data, sorted into texts, rows of token ids and ready-made blocks."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

__all__ = ["Block", "Item", "Row", "TokenData", "count_documents", "read_items"]

TokenData = str | Tensor | Mapping[str, Any] | Iterable[Any]


@dataclass(frozen=True)
class Row:
    """One document of token ids without padding; `name` tells where in the data it stood."""

    tokens: Int64[Tensor, " pos"]
    name: str


@dataclass(frozen=True)
class Block:
    """A ready-made batch; True in `attention_mask` marks real tokens.

    `masked` tells whether the user gave the mask or it is all True for want of one.
    """

    tokens: Int64[Tensor, "batch pos"]
    attention_mask: Bool[Tensor, "batch pos"]
    masked: bool
    name: str


Item = str | Row | Block


def read_items(data: Any) -> Iterator[Item]:
    """Yield the documents and batches in `data`, one at a time and in order.

    Example: ``list(read_items(torch.tensor([[1, 2, 3]])))`` is one Row of three ids.

    `data` itself may be a text, a tensor ``pos`` or ``batch pos`` (its rows are documents), a
    mapping with ``input_ids`` or ``text``, a tuple ``(tokens, mask)`` of two tensors, or an
    iterable of: text, tensor ``pos`` (a document) or ``batch pos`` (a ready batch), a pair
    (tokens, mask), a mapping.

    Raises TypeError for anything else and for tokens that are no integers, ValueError for wrong
    shapes and masks.
    """
    if isinstance(data, (str, Mapping)) or _is_pair(data):
        yield _item(data, "data")
    elif isinstance(data, (Tensor, np.ndarray)):
        tokens = _tokens(data, "data")
        if tokens.ndim == 1:
            yield Row(tokens, "data")
        else:
            yield from (Row(row, f"data[{number}]") for number, row in enumerate(tokens))
    elif isinstance(data, Iterable) and not isinstance(data, (bytes, bytearray)):
        for number, value in enumerate(data):
            yield _item(value, f"data[{number}]")
    else:
        raise TypeError(f"data must be text, token ids or an iterable of them, got {_kind(data)}")


def count_documents(data: Any) -> int | None:
    """How many documents the data holds, where shapes alone tell: token ids, and lists of them.

    Example: ``count_documents([torch.ones(2, 8), torch.ones(8)])`` is 3; for texts it is None.
    """
    if isinstance(data, list):
        counts = [_rows(value, pair=_looks_like_a_pair(value)) for value in data]
        known = [count for count in counts if count is not None]
        return sum(known) if known and len(known) == len(counts) else None
    return _rows(data, pair=_is_pair(data))


def _rows(value: Any, *, pair: bool) -> int | None:
    if isinstance(value, Mapping):
        value = value.get("input_ids")
    elif pair:
        value = value[0]
    if not isinstance(value, (Tensor, np.ndarray)) or value.ndim not in (1, 2):
        return None
    return 1 if value.ndim == 1 else value.shape[0]


def _looks_like_a_pair(value: Any) -> bool:
    """Whether it is [tokens] or [tokens, mask], as a DataLoader makes them of tuples."""
    return (
        isinstance(value, (tuple, list))
        and len(value) in (1, 2)
        and all(isinstance(part, (Tensor, np.ndarray)) for part in value)
    )


def _is_pair(data: Any) -> bool:
    return isinstance(data, tuple) and len(data) == 2 and all(isinstance(x, Tensor) for x in data)


def _item(value: Any, name: str) -> Item:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return _from_mapping(value, name)
    if isinstance(value, (Tensor, np.ndarray)):
        return _from_tokens(value, None, name)
    if _looks_like_a_pair(value):
        return _from_tokens(value[0], value[1] if len(value) == 2 else None, name)
    raise TypeError(
        f"{name} is {_kind(value)}; a document must be a string, a token tensor, a pair "
        "(tokens, attention_mask) or a mapping with 'input_ids' or 'text'"
        " (a list of ids: wrap it in torch.tensor)"
    )


def _from_mapping(value: Mapping[str, Any], name: str) -> Item:
    if "input_ids" in value:
        return _from_tokens(value["input_ids"], value.get("attention_mask"), name)
    if isinstance(value.get("text"), str):
        return str(value["text"])
    raise ValueError(
        f"{name} is a mapping with the keys {list(value)}; it needs 'input_ids' (and "
        "'attention_mask') or a string under 'text'"
    )


def _from_tokens(tokens: Any, mask: Any, name: str) -> Row | Block:
    ids = _tokens(tokens, name)
    if mask is None:
        if ids.ndim == 1:
            return Row(ids, name)
        return Block(ids, torch.ones_like(ids, dtype=torch.bool), masked=False, name=name)
    real = _mask(mask, ids, name)
    if ids.ndim == 2:
        return Block(ids, real, masked=True, name=name)
    if bool(real.all()):
        return Row(ids, name)
    return Block(ids[None], real[None], masked=True, name=name)


def _tokens(value: Any, name: str) -> Int64[Tensor, "..."]:
    try:
        ids = torch.as_tensor(value)
    except (TypeError, ValueError) as error:  # text, None, or lists of different lengths
        raise ValueError(f"{name}: token ids do not form a tensor: {error}") from error
    if ids.numel() and (ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex()):
        raise TypeError(f"{name}: token ids must be integers, got dtype {ids.dtype}")
    if ids.ndim not in (1, 2):
        raise ValueError(
            f"{name}: token ids must have shape (pos) or (batch, pos), got {tuple(ids.shape)}"
        )
    return ids.to(torch.int64)


def _mask(value: Any, ids: Tensor, name: str) -> Bool[Tensor, "..."]:
    mask = torch.as_tensor(value)
    if mask.shape != ids.shape:
        raise ValueError(
            f"{name}: attention_mask has shape {tuple(mask.shape)}, "
            f"but the tokens have shape {tuple(ids.shape)}"
        )
    real = mask.to(torch.bool)
    if not bool((real.to(mask.dtype) == mask).all()):
        raise ValueError(f"{name}: attention_mask must hold only 0 and 1 (or False and True)")
    return real.to(ids.device)


def _kind(value: Any) -> str:
    return f"{value!r}" if value is None else f"of type {type(value).__name__}"
