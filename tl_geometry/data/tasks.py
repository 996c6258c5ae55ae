"""What the synthetic tasks share: seeded samples, and the loss of the best possible model."""

from abc import ABC, abstractmethod
from typing import final

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from tl_geometry.data.limits import whole_number

__all__ = ["SequenceTask"]


class SequenceTask(ABC):
    """A source of token rows that knows what should be predicted at every position.

    ``seed`` draws the samples and nothing else; every call of ``sample`` goes on from the last one.
    """

    bos: int = 0

    def __init__(self, seed: int, vocab: int) -> None:
        self.seed = whole_number("seed", seed, 0)
        self.vocab = vocab
        self.generator = torch.Generator().manual_seed(seed)

    @abstractmethod
    def sample(self, batch: int, length: int) -> Int64[Tensor, "batch length"]:
        """Draw ``batch`` rows of ``length`` tokens, bos first, on the CPU."""

    @abstractmethod
    def target(self, tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos outcome"]:
        """The exact distribution to be predicted at each position."""

    @final
    def optimal_loss(self, tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos"]:
        """Cross-entropy of the best possible prediction at each position, in nats.

        >>> task.optimal_loss(tokens).mean()

        It is the entropy of the target: no model can do better in expectation.
        """
        entropy: Tensor = torch.special.entr(self.target(tokens)).sum(-1)
        return entropy

    @final
    def excess_loss(
        self,
        logits: Float[Tensor, "batch pos outcome"],
        tokens: Int64[Tensor, "batch pos"],
    ) -> Float[Tensor, "batch pos"]:
        """How much worse than the best possible prediction the logits are, in nats.

        >>> task.excess_loss(model(tokens), tokens).mean()

        The Kullback-Leibler divergence of softmax(logits) from the target: 0 for a perfect model,
        infinite where it rules out what may happen. In float32, in float64 for such logits.
        """
        target = self.target(tokens)
        logits = logits.to(torch.promote_types(logits.dtype, target.dtype))
        surprise = torch.where(target == 0, 0.0, target * logits.log_softmax(-1))
        return -surprise.sum(-1) - self.optimal_loss(tokens)

    @final
    def check_tokens(self, tokens: Int64[Tensor, "batch pos"]) -> None:
        """Raise ValueError for rows that do not begin with bos or hold unknown tokens."""
        if tokens.ndim != 2 or tokens.dtype != torch.int64:
            raise ValueError(
                f"tokens must be int64 of shape (batch, pos), got {tokens.dtype} of shape "
                f"{tuple(tokens.shape)}"
            )
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.vocab:
            raise ValueError(
                f"tokens must be between 0 and {self.vocab - 1}, got {int(tokens.min())} to "
                f"{int(tokens.max())}"
            )
        if bool((tokens[:, :1] != self.bos).any()):
            raise ValueError(f"tokens: every row must begin with bos (id {self.bos})")
