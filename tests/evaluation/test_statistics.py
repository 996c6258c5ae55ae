"""Bootstrap intervals of ratios, against loops, closed forms and simulated coverage."""

from __future__ import annotations

import numpy as np
import pytest

from tl_geometry.evaluation import Bootstrap

TARGETS = np.array([10, 3, 25, 8, 14])


def losses(rows=3, seed=0):
    generator = np.random.default_rng(seed)
    return generator.gamma(2.0, 1.0, (rows, len(TARGETS))) * TARGETS


def slow_samples(nll, boot):
    """Each resample written out: documents drawn with replacement, sums over sums."""
    found = []
    for counts in boot.draws:
        chosen = [d for d, times in enumerate(counts) for _ in range(times)]
        found.append(sum(nll[d] for d in chosen) / sum(TARGETS[d] for d in chosen))
    return np.array(found)


def test_the_value_is_a_ratio_of_sums():
    nll = losses()
    boot = Bootstrap(TARGETS)
    np.testing.assert_allclose(boot.value(nll), nll.sum(1) / 60, rtol=1e-15)


def test_resamples_and_intervals_equal_a_loop():
    nll = losses()
    boot = Bootstrap(TARGETS, resamples=300, seed=4, confidence=0.9)
    assert (boot.draws.sum(1) == len(TARGETS)).all()
    found = boot.estimate(nll)
    change = boot.estimate(nll[1:], baseline=nll[0])
    powers = boot.estimate(nll[1:], baseline=nll[0], perplexity=True)
    base = slow_samples(nll[0], boot)
    for row in range(3):
        samples = slow_samples(nll[row], boot)
        ends = np.percentile(samples, [5, 95])
        np.testing.assert_allclose([found.low[row], found.high[row]], ends, rtol=1e-12)
        if row:
            ends = np.percentile(samples - base, [5, 95])
            np.testing.assert_allclose(
                [change.low[row - 1], change.high[row - 1]], ends, rtol=1e-11
            )
            ends = np.percentile(np.exp(samples) - np.exp(base), [5, 95])
            np.testing.assert_allclose(
                [powers.low[row - 1], powers.high[row - 1]], ends, rtol=1e-11
            )
    np.testing.assert_allclose(
        powers.value, np.exp(boot.value(nll[1:])) - np.exp(boot.value(nll[0]))
    )


def test_any_number_of_axes():
    nll = losses(6).reshape(2, 3, len(TARGETS))
    boot = Bootstrap(TARGETS, seed=1)
    whole = boot.estimate(nll, baseline=nll[0, 0])
    assert whole.value.shape == whole.low.shape == whole.high.shape == (2, 3)
    one = boot.estimate(nll[1, 2], baseline=nll[0, 0])
    assert one.low.shape == ()
    np.testing.assert_allclose(one.low, whole.low[1, 2], rtol=1e-12)
    assert whole.value[0, 0] == whole.low[0, 0] == whole.high[0, 0] == 0


def test_what_is_common_to_both_sides_cancels():
    nll = losses()[0]
    boot = Bootstrap(TARGETS)
    change = boot.estimate(nll + 0.25 * TARGETS, baseline=nll)
    np.testing.assert_allclose([change.value, change.low, change.high], 0.25, rtol=1e-12)
    alone = boot.estimate(nll)
    assert alone.high - alone.low > 0.1


def test_seeds():
    nll = losses()
    first, again, other = (Bootstrap(TARGETS, seed=seed).estimate(nll) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.low, again.low)
    assert (first.low != other.low).any()


def test_one_document_has_no_interval():
    boot = Bootstrap(np.array([7]))
    found = boot.estimate(np.array([[3.5], [7.0]]))
    np.testing.assert_array_equal(found.value, [0.5, 1.0])
    assert np.isnan(found.low).all()
    assert np.isnan(found.high).all()


def test_intervals_cover_the_truth_as_often_as_they_say():
    generator = np.random.default_rng(0)
    covered = 0
    for trial in range(400):
        targets = generator.integers(5, 40, 60)
        nll = targets * 2.0 + generator.normal(0, 1, 60) * np.sqrt(targets)
        found = Bootstrap(targets, resamples=400, seed=trial).estimate(nll)
        covered += bool(found.low <= 2.0 <= found.high)
    assert (
        0.91 < covered / 400 < 0.98
    )  # 0.95 within 2.5 standard errors and the bootstrap's own bias


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"targets": np.array([], dtype=np.int64)}, "one or more documents"),
        ({"targets": np.array([3, 0])}, "at least 1"),
        ({"resamples": 0}, "resamples"),
        ({"confidence": 1.0}, "confidence"),
        ({"confidence": 0.0}, "confidence"),
    ],
)
def test_refusals(options, words):
    with pytest.raises(ValueError, match=words):
        Bootstrap(**{"targets": TARGETS, **options})
