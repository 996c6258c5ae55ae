"""What became of models of one head on copy-paste: the committed figures, and a small run of our own."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import copy_paste as benchmark
from tl_geometry.data import copy_paste

RUNS = json.loads(benchmark.OUT.read_text(encoding="utf-8"))


def test_every_setting_was_run_on_three_seeds() -> None:
    found = Counter((run["kind"], run["norm"], run["skip"], run["seed"]) for run in RUNS)
    planned = product(("hard", "soft"), (True, False), (True, False), (0, 1, 2))
    assert found == Counter(planned)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: "-".join(map(str, list(run.values())[:4])))
def test_every_run_solved_the_task_and_its_pattern_is_what_its_numbers_say(
    run: dict[str, Any],
) -> None:
    assert max(run["excess_unflagged"], run["excess_flagged"]) < 0.02
    share = {
        "sink": run["unflagged_to_bos"],
        "diagonal": run["unflagged_to_self"],
        "previous": run["unflagged_to_previous"],
    }
    assert sum(share.values()) <= 1 + 1e-4
    best = max(share, key=lambda name: share[name])
    assert run["pattern"] == (best if share[best] > benchmark.MAJORITY else "mixed")
    assert run["flagged_to_previous"] > benchmark.MAJORITY
    # The result: nothing to say ends in a sink, one's own content in the diagonal.
    assert run["pattern"] == {"hard": "sink", "soft": "diagonal"}[run["kind"]]


@pytest.mark.parametrize(("kind", "pattern"), [("hard", "sink"), ("soft", "diagonal")])
def test_a_short_training_shows_the_same(
    kind: str, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "STEPS", 150)
    state = torch.random.get_rng_state()
    try:
        assert benchmark.train(kind, norm=False, skip=True, seed=0).pattern == pattern
    finally:
        torch.random.set_rng_state(state)


@torch.no_grad()
def test_numbers_of_a_run_are_plain_means_over_rows() -> None:
    task = copy_paste(4, "soft")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = benchmark.OneHead(task, norm=True, skip=True)
    found = benchmark.measure(model, task, norm=True, skip=True)
    tokens = copy_paste(1_004, "soft").sample(256, benchmark.LENGTH)
    logits, pattern, v = model(tokens)
    target = task.target_distribution(tokens)
    p = logits.log_softmax(-1)
    sums: dict[str, list[float]] = {}
    for row, words in enumerate(tokens.tolist()):
        for i in range(2, benchmark.LENGTH):
            word = "flagged" if words[i] > 32 else "unflagged"
            loss = -(target[row, i] * p[row, i]).sum()
            least = torch.special.entr(target[row, i]).sum()
            sums.setdefault(f"excess_{word}", []).append(float(loss - least))
            for name, j in (("bos", 0), ("self", i), ("previous", i - 1)):
                sums.setdefault(f"{word}_to_{name}", []).append(float(pattern[row, i, j]))
    for name, values in sums.items():
        if hasattr(found, name):
            assert getattr(found, name) == pytest.approx(np.mean(values), rel=1e-4), name
    lengths = v.norm(dim=-1).numpy()
    # torch's median is the lower of the two middle values.
    expected = lengths[:, 0].mean() / np.sort(lengths[:, 1:].ravel())[lengths[:, 1:].size // 2 - 1]
    assert found.bos_value_ratio == pytest.approx(expected, rel=1e-4)
