"""README's table of architectures is that of the matrix, which ``analysis/test_architectures.py`` asserts."""

from __future__ import annotations

import pytest
from zoo.architectures import CONFIGS, HOOKED_CONFIGS
from zoo.matrix import LINES, MATRIX, runs
from zoo.table import BEGIN, END, README, table, written


def test_the_table_is_up_to_date():
    text = README.read_text()
    assert written(text) == text, "run: PYTHONPATH=tests:. python -m zoo.table"


def test_writing_it_changes_nothing_else():
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert written(text) == f"before\n{BEGIN}\n{table()}\n{END}\nafter\n"
    with pytest.raises(ValueError, match="has no lines"):
        written("nothing")


def test_every_architecture_of_the_zoo_stands_in_it():
    known = [entry.arch for entry in MATRIX]
    assert len(known) == len(set(known))
    assert set(known) == set(CONFIGS) | set(HOOKED_CONFIGS)
    lines = table().splitlines()
    assert len(lines) == 2 + len(known)
    assert len({line.count("|") for line in lines}) == 1


def test_every_run_that_the_table_names_is_made_on_some_line():
    for entry in MATRIX:
        assert set(entry.hooked) <= set(LINES["hooked"])
        assert set(entry.bridge) <= set(LINES["bridge"])
        assert entry.hooked or entry.bridge
    assert len(list(runs())) > 20
