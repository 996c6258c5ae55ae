"""The random control: which sets it draws, read off from the margins they leave behind.

The margin of a set around its own sum is a number that no other set of the same row has, so a
table of all sets turns margins back into sets.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations, combinations_with_replacement

import numpy as np
import pytest
import torch
from literal import separability as literal

from tl_geometry import separability

KEYS, HIDDEN = 8, (1, 6)
SEEN = tuple(j for j in range(KEYS) if j not in HIDDEN)
N_ROWS = 600


def layer(rows=N_ROWS, heads=1, seed=0):
    """Equal attention on six of eight keys in every row."""
    available = torch.ones(1, rows, KEYS, dtype=torch.bool)
    available[..., HIDDEN] = False
    pattern = available[:, None].double().expand(-1, heads, -1, -1) / len(SEEN)
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(1, KEYS, 1, 3, generator=generator, dtype=torch.float64)
    return {"pattern": pattern, "v": v, "available": available}


def table(v, n, candidates=SEEN, **options):
    """Every set of n candidates with its scores around its own sum."""
    y = v[0, :, 0].numpy() / len(SEEN)
    found = {}
    for chosen in combinations(candidates, n):
        others = [j for j in candidates if j not in chosen]
        found[chosen] = literal.clusters(y, chosen, others, **options)[0]
    return found


def decode(margins, known):
    """The one key of ``known`` whose value is the margin, for each margin."""
    names = list(known)
    numbers = np.array(list(known.values()))
    distance = np.abs(np.asarray(margins)[:, None] - numbers)
    assert (np.sort(distance, 1)[:, 1] > 1e-7).all(), "two sets leave the same margin"
    assert (distance.min(1) < 1e-10).all(), "no set leaves this margin"
    return [names[place] for place in distance.argmin(1)]


def drawn_sets(made, n, **options):
    """One random set of each row."""
    scores = separability(**made, rank_by="random", repeats=1, top_n=n, **options)
    distance = {k: x for k, x in options.items() if k == "distance"}
    sinks = [SEEN[0]] if options.get("exclude_sink") else []
    candidates = tuple(j for j in SEEN if j not in sinks)
    known = table(made["v"], n, candidates, **distance)
    sets = decode(scores.margin[0, 0, :, 0], {k: x.margin for k, x in known.items()})
    for place, chosen in enumerate(sets):
        for name in ("precision", "recall", "f_score", "inversions"):
            found = getattr(scores, name)[0, 0, place, 0].item()
            assert found == pytest.approx(getattr(known[chosen], name))
    return sets


def chi_square(sets, possible):
    counts, expected = Counter(sets), len(sets) / len(possible)
    assert set(counts) <= set(possible)
    return sum((counts[chosen] - expected) ** 2 / expected for chosen in possible)


@pytest.mark.parametrize("options", [{}, {"distance": "cosine"}], ids=str)
@pytest.mark.parametrize("n", [2, 4])
def test_sets_are_uniform_over_the_available_keys(n, options):
    sets = drawn_sets(layer(), n, seed=3, **options)
    # 15 sets: 14 degrees of freedom, exceeded by chance in 1 of 1,000 cases.
    assert chi_square(sets, list(combinations(SEEN, n))) < 36.1


def test_excluded_sinks_are_never_drawn():
    sets = drawn_sets(layer(), 3, exclude_sink=True)
    assert chi_square(sets, list(combinations(SEEN[1:], 3))) < 27.9  # 10 sets


def test_rankings_are_nested():
    made = layer(rows=100)
    small, large = (drawn_sets(made, n, seed=5) for n in (2, 4))
    both = separability(**made, rank_by="random", repeats=1, top_n=(2, 4), seed=5)
    alone = separability(**made, rank_by="random", repeats=1, top_n=4, seed=5)
    assert torch.equal(both.margin[..., 1:], alone.margin)
    assert all(set(two) < set(four) for two, four in zip(small, large, strict=True))


def test_seed_and_generator():
    made = layer(rows=30)

    def draw(**options):
        return separability(**made, rank_by="random", repeats=2, top_n=(2, 3), **options).margin

    assert torch.equal(draw(), draw(seed=0))
    assert not torch.equal(draw(), draw(seed=1))
    generator = torch.Generator().manual_seed(11)
    first, second = draw(generator=generator), draw(generator=generator)
    assert not torch.equal(first, second)
    assert torch.equal(first, draw(generator=generator.manual_seed(11)))
    state = torch.random.get_rng_state()
    draw()
    assert torch.equal(state, torch.random.get_rng_state())


def test_the_control_does_not_look_at_the_attention():
    made = layer(rows=50)
    uneven = made["pattern"] * torch.linspace(1, 2, KEYS, dtype=torch.float64)
    left = separability(**made, rank_by="random", top_n=5, repeats=1)
    right = separability(**{**made, "pattern": uneven}, rank_by="random", top_n=5, repeats=1)
    y = made["v"][0, :, 0].numpy() * uneven[0, 0, 0, :, None].numpy()
    known = {}
    for left_out in SEEN:  # the scores of the same sets under other weights
        chosen = [j for j in SEEN if j != left_out]
        known[tuple(chosen)] = literal.clusters(y, chosen, [left_out])[0].margin
    old = {k: x.margin for k, x in table(made["v"], 5).items()}
    assert decode(right.margin[0, 0, :, 0], known) == decode(left.margin[0, 0, :, 0], old)


def test_mean_and_interval_over_repeats():
    repeats, made = 3, layer(rows=60)
    known = table(made["v"], 2)
    scores = separability(**made, rank_by="random", repeats=repeats, top_n=2, seed=2)
    means = {
        sets: np.mean([known[chosen].margin for chosen in sets])
        for sets in combinations_with_replacement(known, repeats)
    }
    decoded = decode(scores.margin[0, 0, :, 0], means)
    assert len({chosen for sets in decoded for chosen in sets}) == 15
    assert sum(len(set(sets)) > 1 for sets in decoded) > 40  # repeats are not one and the same
    for row, sets in enumerate(decoded):
        for name in ("precision", "recall", "f_score", "inversions"):
            mean = np.mean([getattr(known[chosen], name) for chosen in sets])
            assert getattr(scores, name)[0, 0, row, 0].item() == pytest.approx(mean)
        f_scores = [known[chosen].f_score for chosen in sets]
        low, high = np.quantile(f_scores, [0.025, 0.975])
        assert scores.f_low[0, 0, row, 0].item() == pytest.approx(low)
        assert scores.f_high[0, 0, row, 0].item() == pytest.approx(high)


def test_sixteen_repeats_by_default():
    made = layer(rows=200)
    default = separability(**made, rank_by="random", top_n=(2, 6))
    explicit = separability(**made, rank_by="random", top_n=(2, 6), repeats=16)
    assert torch.equal(default.margin[..., 0], explicit.margin[..., 0])
    for values in (default.f_score, default.f_low, default.f_high):
        assert values.shape == (1, 1, 200, 2)
        assert not values[..., 0].isnan().any()
        assert values[..., 1].isnan().all()  # six keys are all there are
    assert (default.f_low[..., 0] <= default.f_score[..., 0]).all()
    assert (default.f_score[..., 0] <= default.f_high[..., 0]).all()
    expected = np.mean([x.f_score for x in table(made["v"], 2).values()])
    spread = np.std([x.f_score for x in table(made["v"], 2).values()])
    error = spread / (200 * 16) ** 0.5
    assert default.f_score[..., 0].mean().item() == pytest.approx(expected, abs=4 * error)


def test_other_rankings_have_no_interval():
    scores = separability(**layer(rows=2), top_n=2)
    assert scores.f_low is None
    assert scores.f_high is None
