"""The synthetic tasks against their rules, read literally: tables, distributions, samples, losses."""

import inspect
import math
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from literal.tasks import LiteralBackcopy, copy_paste_target
from scipy.stats import chi2, chi2_contingency

import tl_geometry.data
from tl_geometry.data import CopyPaste, bigram_backcopy, copy_paste, demo_corpora
from tl_geometry.data.bigram_table import count_bigrams, load_bigram_table, table_as_json

PROSE = demo_corpora()["demo-prose"]
LITERAL = LiteralBackcopy(PROSE)
# Chances of a false alarm; the seeds are fixed, so it is raised in every run or in none.
RARE = 1e-4


def chi_square(observed: Counter[int], probabilities: list[float]) -> tuple[float, int]:
    """Pearson's statistic and its degrees of freedom; cells that expect less than 5 are joined."""
    n = sum(observed.values())
    expected = [n * p for p in probabilities]
    assert not any(observed[k] for k, e in enumerate(expected) if e == 0), "the impossible happened"
    large = [k for k, e in enumerate(expected) if e >= 5]
    small = [k for k, e in enumerate(expected) if 0 < e < 5]
    statistic = sum((observed[k] - expected[k]) ** 2 / expected[k] for k in large)
    rest = sum(expected[k] for k in small)
    if rest >= 5:
        return statistic + (sum(observed[k] for k in small) - rest) ** 2 / rest, len(large)
    return statistic, max(len(large) - 1, 0)


def test_the_table_is_counted_from_the_texts() -> None:
    """The file is what the command writes, and what dictionaries of characters count."""
    table = load_bigram_table()
    folder = Path(tl_geometry.data.__file__).parent
    assert (folder / "bigram_counts.json").read_text("utf-8") == table_as_json(count_bigrams(PROSE))
    assert list(table.labels) == ["<bos>", *LITERAL.alphabet]
    assert [table.labels[token] for token in table.triggers] == LITERAL.triggers == ["e", "t", "a"]
    assert table.counts.tolist() == LITERAL.counts()
    assert table.counts.shape == (65, 65)


def test_a_table_needs_enough_characters() -> None:
    with pytest.raises(ValueError, match="texts: 2 different characters, 64 are needed"):
        count_bigrams(["abba"])
    characters = "".join(chr(65 + k) for k in range(64))
    with pytest.raises(ValueError, match=r"texts: nothing follows \['\\x80'\]"):
        count_bigrams([characters])


def test_backcopy_names() -> None:
    task = bigram_backcopy()
    assert (task.bos, task.vocab, task.triggers, task.seed) == (0, 65, (2, 3, 4), 0)
    assert task.labels == load_bigram_table().labels


def test_backcopy_distribution_follows_the_rule_on_any_row() -> None:
    """Drawn rows, and rows of random ids: triggers in series, behind bos, a second bos."""
    task = bigram_backcopy(3)
    anything = torch.randint(65, (4, 40), generator=torch.Generator().manual_seed(0))
    anything[0, 1:4] = torch.tensor(task.triggers)
    anything[1, 5] = anything[:, 0] = task.bos
    tokens = torch.cat([task.sample(4, 40), anything])
    found = task.next_token_distribution(tokens)
    assert found.shape == (8, 40, 65)
    for row, distribution in zip(tokens.tolist(), found, strict=True):
        literal = [LITERAL.next_distribution(row[: end + 1]) for end in range(40)]
        torch.testing.assert_close(distribution, torch.tensor(literal), rtol=1e-6, atol=0)


def test_backcopy_samples_keep_the_rule() -> None:
    task = bigram_backcopy(1)
    tokens = task.sample(64, 100)
    assert tokens.dtype == torch.int64
    assert (tokens[:, 0] == task.bos).all()
    assert (tokens[:, 1:] != task.bos).all()
    trigger = task.is_trigger(tokens)
    assert trigger.tolist() == [
        [token in task.triggers for token in row] for row in tokens.tolist()
    ]
    assert trigger.float().mean() > 0.1
    assert not trigger[:, 1].any()
    assert not (trigger[:, 1:] & trigger[:, :-1]).any()
    copies = tokens[:, 2:][trigger[:, 1:-1]]
    assert torch.equal(copies, tokens[:, :-2][trigger[:, 1:-1]])


def test_backcopy_samples_have_the_exact_distribution() -> None:
    """Chi-square of the token after each other one, pooled over 51,000 draws, and of the first."""
    rows = bigram_backcopy(2).sample(400, 128).tolist()
    after: dict[int, Counter[int]] = {}
    for row in rows:
        for last, token in pairwise(row):
            if last == 0 or LITERAL.alphabet[last - 1] not in LITERAL.triggers:
                after.setdefault(last, Counter())[token] += 1
    total, freedom = 0.0, 0
    for last, observed in after.items():
        statistic, cells = chi_square(observed, LITERAL.next_distribution([0, last][last == 0 :]))
        total, freedom = total + statistic, freedom + cells
    assert freedom > 300
    assert RARE < chi2.sf(total, freedom) < 1 - RARE


def test_backcopy_samples_are_those_of_the_literal_sampler() -> None:
    """Two samplers, one table: tokens late in the row, where every mistake has piled up."""
    source = random.Random(5)
    slow = Counter(t for _ in range(150) for t in LITERAL.sample(32, source)[12:])
    fast = Counter(bigram_backcopy(5).sample(1500, 32)[:, 12:].flatten().tolist())
    common = [token for token, count in slow.items() if count >= 10]
    assert len(common) > 25
    # Neighbours in a row depend on each other, which widens the statistic a little.
    result = chi2_contingency([[slow[t] for t in common], [fast[t] for t in common]])
    assert result.pvalue > RARE


@pytest.mark.parametrize("make", [bigram_backcopy, copy_paste])
def test_seeds(make) -> None:
    task, again, other = make(seed=4), make(seed=4), make(seed=5)
    first, second = task.sample(3, 20), task.sample(3, 20)
    assert not torch.equal(first, second)
    assert torch.equal(
        torch.stack([again.sample(3, 20), again.sample(3, 20)]), torch.stack([first, second])
    )
    assert not torch.equal(first, other.sample(3, 20))
    assert task.sample(2, 1).tolist() == [[0], [0]]
    if make is bigram_backcopy:
        assert torch.equal(
            task.next_token_distribution(first), other.next_token_distribution(first)
        )


def test_backcopy_losses() -> None:
    """Optimum by hand; excess of a perfect and of a bad model; and what chance draws agrees."""
    task = bigram_backcopy(7)
    tokens = task.sample(400, 64)
    target = task.next_token_distribution(tokens)
    optimum = task.optimal_loss(tokens)
    trigger = task.is_trigger(tokens)
    assert (optimum[trigger] == 0).all()
    row = tokens[0].tolist()
    by_hand = [
        -sum(p * math.log(p) for p in LITERAL.next_distribution(row[: k + 1]) if p)
        for k in range(64)
    ]
    torch.testing.assert_close(optimum[0], torch.tensor(by_hand), rtol=1e-5, atol=1e-6)
    assert task.excess_loss(target.log(), tokens).abs().max() < 1e-6
    noisy = target.log().clamp(min=-20) + 0.3 * torch.randn(
        target.shape, generator=torch.Generator().manual_seed(1)
    )
    cross_entropy = torch.nn.functional.cross_entropy(
        noisy.flatten(0, 1), target.flatten(0, 1), reduction="none"
    )
    excess = task.excess_loss(noisy, tokens)
    torch.testing.assert_close(
        excess, cross_entropy.view_as(optimum) - optimum, rtol=1e-4, atol=1e-5
    )
    drawn = -target[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0].log()
    per_row = (drawn - optimum[:, :-1]).mean(1)
    assert per_row.mean().abs() < 4 * per_row.std() / len(per_row) ** 0.5


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_copy_paste_targets(kind) -> None:
    task = copy_paste(2, kind, contents=5)
    assert (task.bos, task.vocab, task.contents, task.kind) == (0, 11, 5, kind)
    tokens = task.sample(20, 30)
    found = task.target_distribution(tokens)
    optimum = task.optimal_loss(tokens)
    flagged = task.is_flagged(tokens)
    assert found.shape == (20, 30, 5)
    assert found[:, 0].isnan().all()
    assert optimum[:, 0].isnan().all()
    for row, distribution in zip(tokens.tolist(), found, strict=True):
        literal = copy_paste_target(row, kind, 5)
        torch.testing.assert_close(distribution[1:], torch.tensor(literal[1:]))
    free = optimum[:, 1:][~flagged[:, 1:]]
    torch.testing.assert_close(free, torch.full_like(free, 5).log() * (kind == "hard"))
    assert (optimum[flagged] == 0).all()
    assert task.excess_loss(found.log(), tokens)[:, 1:].abs().max() < 1e-6
    uniform = task.excess_loss(torch.zeros(20, 30, 5), tokens)[:, 1:]
    torch.testing.assert_close(uniform, torch.tensor(5.0).log() - optimum[:, 1:])


def test_copy_paste_samples() -> None:
    task = copy_paste(1)
    assert (task.vocab, task.contents, task.flag_probability) == (65, 32, 0.3)
    tokens = task.sample(500, 64)
    flagged = task.is_flagged(tokens)
    assert (tokens[:, 0] == 0).all()
    assert not flagged[:, :2].any()
    n = 500 * 62
    assert abs(flagged[:, 2:].sum() - 0.3 * n) < 4 * (n * 0.3 * 0.7) ** 0.5
    for part in (flagged, ~flagged):  # the content does not depend on the flag
        contents = Counter(((tokens - 1) % 32)[:, 1:][part[:, 1:]].tolist())
        statistic, freedom = chi_square(contents, [1 / 32] * 32)
        assert RARE < chi2.sf(statistic, freedom) < 1 - RARE
    assert copy_paste(1, flag_probability=1).sample(2, 9)[:, 2:].min() > 32


def test_samplers_refuse_what_they_cannot_draw() -> None:
    for task in (bigram_backcopy(), copy_paste()):
        with pytest.raises(ValueError, match="batch must be at least 1, got 0"):
            task.sample(0, 3)
        with pytest.raises(ValueError, match="length must be at least 1, got 0"):
            task.sample(3, 0)
    for make in (bigram_backcopy, copy_paste):
        with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
            make(seed=-1)
    with pytest.raises(ValueError, match="contents must be at least 2, got 1"):
        copy_paste(contents=1)
    with pytest.raises(ValueError, match=r"between 0 and 1, got 1\.5"):
        copy_paste(flag_probability=1.5)


def test_wrong_rows_are_refused() -> None:
    letters, contents = bigram_backcopy(), copy_paste(contents=3)
    with pytest.raises(ValueError, match="every row must begin with bos"):
        letters.next_token_distribution(torch.tensor([[0, 3], [3, 0]]))
    with pytest.raises(ValueError, match="tokens must be between 0 and 64, got 0 to 65"):
        letters.optimal_loss(torch.tensor([[0, 65]]))
    with pytest.raises(ValueError, match="bos has no content"):
        contents.target_distribution(torch.tensor([[0, 1, 0]]))
    with pytest.raises(ValueError, match="position 1 must not be flagged"):
        contents.target_distribution(torch.tensor([[0, 4, 1]]))


def test_wrong_types_are_refused() -> None:
    """By our own messages, which the test run's check of types would forestall."""
    task = bigram_backcopy()
    check = inspect.unwrap(type(task).check_tokens)
    with pytest.raises(ValueError, match=r"got torch.int64 of shape \(2,\)"):
        check(task, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"must be int64 .* got torch.float32 of shape \(1, 2\)"):
        check(task, torch.zeros(1, 2))
    with pytest.raises(ValueError, match="kind must be 'hard' or 'soft', got 'loud'"):
        inspect.unwrap(CopyPaste.__init__)(copy_paste(), 0, "loud", 32, 0.3)


@pytest.mark.parametrize(
    "shape", [(65,), (1,), (6, 65), (1, 6, 65), (3, 1, 65), (3, 6, 64), (3, 5, 65), (3, 6)]
)
def test_logits_of_another_shape_are_refused(shape) -> None:
    """None of them is broadcast to the rows."""
    task = bigram_backcopy()
    tokens = task.sample(3, 6)
    excess_loss = inspect.unwrap(type(task).excess_loss)
    with pytest.raises(ValueError, match=r"logits must be batch pos vocab \(3, 6, 65\)"):
        excess_loss(task, torch.zeros(shape), tokens)


def test_what_is_no_tensor_is_refused() -> None:
    task = bigram_backcopy()
    tokens, excess_loss = task.sample(3, 6), inspect.unwrap(type(task).excess_loss)
    with pytest.raises(TypeError, match=r"logits must be a floating point tensor .* got ndarray"):
        excess_loss(task, np.zeros((3, 6, 65), np.float32), tokens)
    with pytest.raises(TypeError, match=r"logits must be .* got torch\.int64"):
        excess_loss(task, torch.zeros(3, 6, 65).long(), tokens)
    with pytest.raises(TypeError, match=r"tokens must be an int64 tensor \(batch pos\), got list"):
        inspect.unwrap(type(task).check_tokens)(task, tokens.tolist())


@pytest.mark.parametrize("make", [bigram_backcopy, copy_paste])
def test_rows_without_tokens_have_no_targets(make) -> None:
    task = make()
    empty = torch.zeros(2, 0, dtype=torch.long)
    assert task.target(empty).shape[:2] == task.optimal_loss(empty).shape == (2, 0)


def test_seeds_are_whole_numbers_of_64_bits() -> None:
    assert bigram_backcopy(2**64 - 1).sample(1, 3).shape == (1, 3)
    with pytest.raises(
        ValueError, match=r"seed must be less than 2\*\*64, got 18446744073709551616"
    ):
        bigram_backcopy(2**64)
