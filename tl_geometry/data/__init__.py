"""Text and token ids, from wherever they come, as batches of windows for an analysis."""

from tl_geometry.data.batches import Batch, BatchStream, BosRule, resolve_bos, token_batches
from tl_geometry.data.bigram_backcopy import BigramBackcopy, bigram_backcopy
from tl_geometry.data.copy_paste import CopyPaste, copy_paste
from tl_geometry.data.corpora import demo_corpora
from tl_geometry.data.sources import load_texts

__all__ = [
    "Batch",
    "BatchStream",
    "BigramBackcopy",
    "BosRule",
    "CopyPaste",
    "bigram_backcopy",
    "copy_paste",
    "demo_corpora",
    "load_texts",
    "resolve_bos",
    "token_batches",
]
