"""Text and token ids, from wherever they come, as batches of windows for an analysis."""

from tl_geometry.data.batches import Batch, BatchStream, BosRule, resolve_bos, token_batches
from tl_geometry.data.corpora import demo_corpora
from tl_geometry.data.sources import load_texts

__all__ = [
    "Batch",
    "BatchStream",
    "BosRule",
    "demo_corpora",
    "load_texts",
    "resolve_bos",
    "token_batches",
]
