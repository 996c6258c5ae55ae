"""What the synthetic tasks share: seeded samples, and the loss of the best possible model."""

from abc import ABC, abstractmethod
from typing import Any, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from tl_geometry.arguments import whole_seed

__all__ = ["SequenceTask"]


class SequenceTask(ABC):
    """A source of token rows that knows what should be predicted at every position.

    ``seed`` draws the samples and nothing else; every call of ``sample`` goes on from the last one.
    """

    bos: int = 0

    def __init__(self, seed: int, vocab: int) -> None:
        self.seed = whole_seed(seed)
        self.vocab = vocab
        self.generator = torch.Generator().manual_seed(self.seed)

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

        Raises:
            TypeError: ``logits`` is no tensor of floating point numbers, or ``tokens`` no tensor.
            ValueError: ``logits`` has not one row per token and one number per outcome.
        """
        target = self.target(tokens)
        _check_logits(logits, target)
        logits = logits.to(torch.promote_types(logits.dtype, target.dtype))
        surprise = torch.where(target == 0, 0.0, target * logits.log_softmax(-1))
        return -surprise.sum(-1) - self.optimal_loss(tokens)

    @final
    def check_tokens(self, tokens: Int64[Tensor, "batch pos"]) -> None:
        """Raise ValueError for rows that do not begin with bos or hold unknown tokens, TypeError for no tensor."""
        if not isinstance(tokens, Tensor):
            raise TypeError(
                f"tokens must be an int64 tensor (batch pos), got {type(tokens).__name__}"
            )
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


def _check_logits(logits: Any, target: Tensor) -> None:
    """Refuse what is no row of scores for each token, before anything is broadcast."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        found = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise TypeError(f"logits must be a floating point tensor (batch pos vocab), got {found}")
    if logits.shape != target.shape:
        raise ValueError(
            f"logits must be batch pos vocab {tuple(target.shape)} for these tokens, got shape "
            f"{tuple(logits.shape)}"
        )
