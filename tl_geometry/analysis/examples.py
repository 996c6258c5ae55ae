"""Documents of a corpus that a result shows in full."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor

from tl_geometry.analysis.probe import Probe
from tl_geometry.analysis.prompt import (
    PromptMode,
    prompt_matrices,
    prompt_tokens,
    token_array,
)
from tl_geometry.data import Batch

__all__ = ["first_tokens", "with_examples"]

EXAMPLE_TOKENS = 64


def first_tokens(batch: Batch) -> dict[int, Tensor]:
    """The first real tokens of each document, by its number."""
    rows = zip(batch.documents, batch.tokens, batch.attention_mask, strict=True)
    return {number: tokens[mask][:EXAMPLE_TOKENS] for number, tokens, mask in rows}


def with_examples(ds: xr.Dataset, model: Any, probe: Probe, examples: list[Tensor]) -> xr.Dataset:
    """Add the matrices of some documents' first tokens; NaN where a query can't see a key."""
    longest = max(len(tokens) for tokens in examples)
    shape = (len(examples), len(probe.sites), ds.sizes["head"], longest, longest)
    modes: tuple[PromptMode, ...] = ("attention", "intra")
    found = {mode: np.full(shape, np.nan, np.float32) for mode in modes}
    words = np.full((len(examples), longest), "", dtype=object)
    reader = probe.reader
    for row, example in enumerate(examples):
        tokens, words[row, : len(example)] = prompt_tokens(model, example, prepend_bos=None)
        one = prompt_matrices(
            model,
            tokens,
            probe.sites,
            probe.diagnosis,
            modes,
            value_bias=reader.value_bias,
            output=reader.output,
        )
        for mode, array in found.items():
            visible = np.where(one.available[:, None], one.by_mode[mode], np.nan)
            array[row, :, : visible.shape[1], : len(example), : len(example)] = visible
    axes = ("example", "layer", "head", "query", "key")
    names = {"attention": "attention", "intra": "contribution weight (intra)"}
    with_examples: xr.Dataset = ds.assign(
        example_tokens=(("example", "token"), token_array(words)),
        example_length=(("example",), np.array([len(tokens) for tokens in examples])),
        example_attention=(
            axes,
            found["attention"],
            {"long_name": names["attention"], "units": "1"},
        ),
        example_contribution=(axes, found["intra"], {"long_name": names["intra"], "units": "1"}),
    )
    return with_examples
