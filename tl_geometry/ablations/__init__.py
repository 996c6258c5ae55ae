"""Take something out of a run: forward hooks that edit values, attention weights or heads, and check themselves."""

from tl_geometry.ablations.entries import mask_entries
from tl_geometry.ablations.heads import remove_heads
from tl_geometry.ablations.mixing import mix_pattern
from tl_geometry.ablations.sinks import (
    remove_sinks,
    replace_sink_values,
    rescale_sink_values,
    zero_sink_values,
)
from tl_geometry.ablations.tokens import mask_tokens

__all__ = [
    "mask_entries",
    "mask_tokens",
    "mix_pattern",
    "remove_heads",
    "remove_sinks",
    "replace_sink_values",
    "rescale_sink_values",
    "zero_sink_values",
]
