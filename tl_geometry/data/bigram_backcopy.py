"""Bigram-Backcopy: a character chain in which some tokens call for a copy."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from tl_geometry.arguments import whole_number
from tl_geometry.data.bigram_table import load_bigram_table
from tl_geometry.data.tasks import SequenceTask

__all__ = ["BigramBackcopy", "bigram_backcopy"]


class BigramBackcopy(SequenceTask):
    """Rows x_0 x_1 ... in which three trigger tokens call for a copy, else a chain of bigrams.

    Example: ``bigram_backcopy().sample(32, 128)``. See :func:`bigram_backcopy`.
    """

    def __init__(self, seed: int) -> None:
        table = load_bigram_table()
        super().__init__(seed, vocab=len(table.labels))
        self.labels = table.labels
        self.triggers = table.triggers
        weights = table.counts.double()
        # Row 0 is the start. No trigger stands there, so that there is something to copy.
        weights[0, list(self.triggers)] = 0.0
        self._chain = weights / weights.sum(1, keepdim=True)
        self._cumulative = weights.cumsum(1) / weights.sum(1, keepdim=True)
        self._is_trigger = torch.zeros(self.vocab, dtype=torch.bool)
        self._is_trigger[list(self.triggers)] = True

    def sample(self, batch: int, length: int) -> Int64[Tensor, "batch length"]:
        """Draw rows of tokens, bos first, on the CPU.

        >>> bigram_backcopy().sample(2, 4).shape
        torch.Size([2, 4])

        Raises:
            ValueError: ``batch`` or ``length`` is less than 1.
        """
        shape = (whole_number("batch", batch, 1), whole_number("length", length, 1))
        tokens = torch.full(shape, self.bos)
        uniform = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        for position in range(1, length):
            last = tokens[:, position - 1]
            # The first token at which the cumulative probability exceeds the uniform number.
            drawn = (self._cumulative[last] <= uniform[:, position, None]).sum(1)
            before = tokens[:, max(position - 2, 0)]
            tokens[:, position] = torch.where(self._is_trigger[last], before, drawn)
        return tokens

    def is_trigger(self, tokens: Int64[Tensor, "batch pos"]) -> Bool[Tensor, "batch pos"]:
        """Where a trigger stands, so that the next token is a copy.

        >>> task.is_trigger(tokens).float().mean()
        """
        self.check_tokens(tokens)
        return self._is_trigger.to(tokens.device)[tokens]

    def next_token_distribution(
        self, tokens: Int64[Tensor, "batch pos"]
    ) -> Float[Tensor, "batch pos vocab"]:
        """The exact distribution of the token after each position, given the row up to there.

        >>> task.next_token_distribution(tokens).sum(-1)  # ones

        Rows that the task never draws are answered by the same rule: a trigger behind a trigger
        copies it, a trigger behind bos copies bos, a later bos starts anew.

        Raises:
            ValueError: a row does not begin with bos, or holds an id outside the vocabulary.
        """
        is_trigger = self.is_trigger(tokens)
        chain = self._chain.float().to(tokens.device)
        copied = torch.nn.functional.one_hot(tokens.roll(1, dims=1), self.vocab)
        return torch.where(is_trigger[..., None], copied.to(chain.dtype), chain[tokens])

    def target(self, tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos vocab"]:
        """The distribution of the next token, as :meth:`next_token_distribution`."""
        return self.next_token_distribution(tokens)


def bigram_backcopy(seed: int = 0) -> BigramBackcopy:
    """The task on which a head is needed at some tokens and must be switched off at the others.

    >>> task = bigram_backcopy()
    >>> tokens = task.sample(8, 64)
    >>> task.excess_loss(model(tokens), tokens).mean()

    x_0 is bos (id 0). x_1 follows the frequencies of the characters, triggers left out. Then
    x_{i+1} = x_{i-1} where x_i is one of ``triggers``; elsewhere it follows x_i as one character
    follows another in the package's own prose. Two triggers never stand side by side, since a copy
    repeats what stood before the first one. The vocabulary (65 ids with bos; ``labels`` are their
    characters), the table of bigrams and the three triggers are fixed; ``seed`` draws the samples.

    Source: Guo et al., arXiv 2410.13835, with our own table.

    Raises:
        ValueError: ``seed`` is negative.
    """
    return BigramBackcopy(seed)
