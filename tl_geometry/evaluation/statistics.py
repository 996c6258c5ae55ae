"""Intervals over documents: a bootstrap of ratios of sums, paired across whatever is compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64, Int64
from numpy.typing import NDArray

from tl_geometry.arguments import confidence_level

__all__ = ["Bootstrap", "Estimate"]


@dataclass(frozen=True)
class Estimate:
    """A value (or an array of them) and the ends of its interval; NaN ends where none can be given."""

    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


class Bootstrap:
    """Resamples of the documents, the same for everything that is asked of one instance.

    >>> nll, targets = np.array([[20.0, 33.0, 8.0]]), np.array([10, 15, 5])
    >>> boot = Bootstrap(targets, seed=0)
    >>> boot.value(nll)                                     # 61 / 30 nats a token
    array([2.03333333])
    >>> boot.estimate(nll), boot.estimate(nll + 1.0, baseline=nll)

    The mean NLL is the ratio sum_d nll_d / sum_d targets_d; a resample draws as many documents with
    replacement, and intervals are percentiles over resamples. Since all share the resamples,
    differences are paired: what is common to both sides cancels. Any function of means has an
    interval too: apply it to :meth:`samples` and hand the outcome to :meth:`interval`.

    Args:
        targets: number of targets of each document.
        resamples: how many.
        confidence: coverage of the interval, 0.95 by default.
        seed: of the resampling.

    Raises:
        ValueError: no document, a document without a target, or options out of range.
    """

    def __init__(
        self,
        targets: Int64[NDArray[np.int64], " document"],
        *,
        resamples: int = 2000,
        confidence: float = 0.95,
        seed: int = 0,
    ) -> None:
        if len(targets) == 0 or bool((targets < 1).any()):
            raise ValueError(
                f"targets must be at least 1 in each of one or more documents, got {targets}"
            )
        if resamples < 1:
            raise ValueError(f"resamples must be at least 1, got {resamples}")
        n = len(targets)
        self.targets = targets.astype(np.float64)
        self.confidence = confidence_level(confidence)
        self.draws = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)

    def value(
        self, nll: Float64[NDArray[np.float64], "*any document"]
    ) -> Float64[NDArray[np.float64], "*any"]:
        """Mean NLL in nats per target."""
        return np.asarray(nll.sum(-1) / self.targets.sum())

    def samples(
        self, nll: Float64[NDArray[np.float64], "*any document"]
    ) -> Float64[NDArray[np.float64], "resample *any"]:
        """Mean NLL of each resample."""
        sums = np.moveaxis(nll @ self.draws.T, -1, 0)
        counts = self.draws @ self.targets
        return np.asarray(sums / counts.reshape(-1, *(1,) * (nll.ndim - 1)))

    def interval(
        self, samples: Float[NDArray[np.float64], "resample *any"]
    ) -> tuple[Float[NDArray[np.float64], "*any"], Float[NDArray[np.float64], "*any"]]:
        """Both ends of the percentile interval; NaN where there is a single document."""
        if len(self.targets) == 1:
            unknown = np.full(samples.shape[1:], np.nan)
            return unknown, unknown.copy()
        tail = (1 - self.confidence) / 2
        low, high = np.quantile(samples, (tail, 1 - tail), axis=0)
        return np.asarray(low), np.asarray(high)

    def estimate(
        self,
        nll: Float64[NDArray[np.float64], "*any document"],
        *,
        baseline: Float64[NDArray[np.float64], " document"] | None = None,
        perplexity: bool = False,
    ) -> Estimate:
        """Mean NLL with its interval, or the difference to a baseline on the same documents.

        Args:
            baseline: per document; its mean is subtracted, resample by resample.
            perplexity: exp of the mean NLL in place of it (the difference is that of perplexities).
        """
        if baseline is None:
            value, samples = self.value(nll), self.samples(nll)
            if perplexity:
                value, samples = np.exp(value), np.exp(samples)
        else:
            # From the documents' differences, so that what is equal differs by exactly 0.
            value, samples = self.value(nll - baseline), self.samples(nll - baseline)
            if perplexity:
                base = np.exp(self.samples(baseline)).reshape(-1, *(1,) * (nll.ndim - 1))
                value = np.exp(self.value(baseline)) * np.expm1(value)
                samples = base * np.expm1(samples)
        return Estimate(np.asarray(value), *self.interval(samples))
