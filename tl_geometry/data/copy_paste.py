"""Copy-paste: a labelling task in which flagged tokens need their neighbour and others do not."""

import math
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from tl_geometry.arguments import whole_number
from tl_geometry.data.tasks import SequenceTask

__all__ = ["CopyPaste", "CopyPasteKind", "copy_paste"]

CopyPasteKind = Literal["hard", "soft"]


class CopyPaste(SequenceTask):
    """Rows of tokens, each with a content and a flag, to be labelled with contents.

    Example: ``copy_paste(kind="soft").sample(32, 64)``. See :func:`copy_paste`.
    """

    def __init__(
        self, seed: int, kind: CopyPasteKind, contents: int, flag_probability: float | int
    ) -> None:
        if kind not in get_args(CopyPasteKind):
            raise ValueError(f"kind must be 'hard' or 'soft', got {kind!r}")
        if not 0 <= flag_probability <= 1:
            raise ValueError(f"flag_probability must be between 0 and 1, got {flag_probability!r}")
        self.contents = whole_number("contents", contents, 2)
        super().__init__(seed, vocab=1 + 2 * contents)
        self.kind = kind
        self.flag_probability = flag_probability

    def sample(self, batch: int, length: int) -> Int64[Tensor, "batch length"]:
        """Draw rows of tokens, bos first, on the CPU.

        >>> copy_paste().sample(2, 4).shape
        torch.Size([2, 4])

        Raises:
            ValueError: ``batch`` or ``length`` is less than 1.
        """
        shape = (whole_number("batch", batch, 1), whole_number("length", length, 1))
        content = torch.randint(self.contents, shape, generator=self.generator)
        flag = torch.rand(shape, generator=self.generator) < self.flag_probability
        flag[:, 1:2] = False  # bos has no content that could be copied
        tokens = 1 + flag * self.contents + content
        tokens[:, 0] = self.bos
        return tokens

    def is_flagged(self, tokens: Int64[Tensor, "batch pos"]) -> Bool[Tensor, "batch pos"]:
        """Where the content of the position before is called for.

        >>> task.is_flagged(tokens).float().mean()
        """
        self.check_tokens(tokens)
        return tokens > self.contents

    def target_distribution(
        self, tokens: Int64[Tensor, "batch pos"]
    ) -> Float[Tensor, "batch pos content"]:
        """The exact distribution of the label at each position.

        >>> task.target_distribution(tokens)[:, 1:].sum(-1)  # ones

        bos has no label: position 0 is NaN, and so is its loss. Rows without a token have no labels.

        Raises:
            ValueError: a row does not begin with bos, holds bos again or an id outside the
                vocabulary, or is flagged at position 1.
        """
        flagged = self.is_flagged(tokens)
        if bool((tokens[:, 1:] == self.bos).any()):
            raise ValueError("tokens: bos has no content and stands at position 0 only")
        if bool(flagged[:, 1:2].any()):
            raise ValueError("tokens: position 1 must not be flagged, bos has nothing to copy")
        content = (tokens - 1) % self.contents
        own = torch.nn.functional.one_hot(content, self.contents).to(torch.float32)
        rest = own if self.kind == "soft" else torch.full_like(own, 1 / self.contents)
        labels = torch.where(flagged[..., None], own.roll(1, dims=1), rest)
        labels[:, :1] = math.nan
        return labels

    def target(self, tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos content"]:
        """The distribution of the label, as :meth:`target_distribution`."""
        return self.target_distribution(tokens)


def copy_paste(
    seed: int = 0,
    kind: CopyPasteKind = "hard",
    *,
    contents: int = 32,
    flag_probability: float | int = 0.3,
) -> CopyPaste:
    """The task on which a head is switched off with a sink or with its own diagonal.

    >>> task = copy_paste(kind="soft")
    >>> tokens = task.sample(8, 64)
    >>> task.excess_loss(logits, tokens)[:, 1:].mean()

    x_0 is bos (id 0); every other token is 1 + flag * contents + content, its content uniform, its
    flag set with ``flag_probability`` (never at position 1). A flagged position must be labelled
    with the content of the position before it. An unflagged one has nothing to say (``kind="hard"``:
    the uniform distribution) or says its own content (``kind="soft"``). ``seed`` draws the samples.

    Source: Sukenik et al., arXiv 2605.08453, name such tasks; this one is a reconstruction.

    Raises:
        ValueError: an argument outside its range.
    """
    return CopyPaste(seed, kind, contents, flag_probability)
