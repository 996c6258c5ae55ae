"""Rows, verdicts, ratios and the command line of the benchmarks."""

from __future__ import annotations

import json
import math
import time

import pytest

from benchmarks import __main__ as command, resident
from benchmarks.harness import Sample, at_least, at_most, ratios, write_json


@pytest.mark.parametrize(
    ("row", "value", "ok"),
    [(at_most, 2, True), (at_most, 2.01, False), (at_least, 2, True), (at_least, 1.99, False)],
)
def test_verdicts(row, value, ok):
    found = row("a row", value, 2, "detail")
    assert found.ok is ok
    assert str(found).startswith("a row")
    assert str(found).endswith("  ok" if ok else "  MISS")
    assert "\n" not in str(found)


@pytest.mark.parametrize("row", [at_most, at_least])
def test_nan_is_a_miss(row):
    assert not row("a row", math.nan, 2, "").ok


def test_json_is_a_list_of_four_keys(tmp_path):
    path = tmp_path / "bench.json"
    write_json([at_most("a", 1.23456, 2, "x"), at_least("b", 1, 2, "y")], path)
    assert json.loads(path.read_text()) == [
        {"name": "a", "value": 1.2346, "bar": 2, "ok": True},
        {"name": "b", "value": 1, "bar": 2, "ok": False},
    ]


def test_samples():
    sample = Sample((3.0, 1.0, 2.5))
    assert sample.median == 2.5
    assert str(sample) == "1.00..3.00 over 3 rounds"
    assert ((sample - 1) / 2 * 10).values == (10.0, 0.0, 7.5)


class Clock:
    """Time that passes only where a run says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def run(self, seconds):
        def advance():
            self.now += next(seconds)

        return advance


def test_ratios_are_to_the_base_before_and_after(monkeypatch):
    """The machine halves its speed between the two neighbours of the second run."""
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    base = clock.run(iter([2.0, 2.0, 2.0, 4.0]))
    runs = {"a": clock.run(iter([5.0, 5.0])), "b": clock.run(iter([9.0, 9.0]))}
    found = ratios(base, runs, rounds=1)
    assert found["a"].values == (2.5,)
    assert found["b"].values == (3.0,)


def test_short_runs_are_called_several_times(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    calls = []

    def short():
        calls.append(1)
        clock.now += 0.03

    def base():
        clock.now += 0.5

    found = ratios(base, {"short": short}, rounds=2)
    assert (
        len(calls) == 2 + 2 * 4
    )  # two to see how long it takes, then 0.1 s or more in every round
    assert found["short"].values == pytest.approx((0.06, 0.06))


def test_the_command_prints_one_row_per_line_and_says_whether_all_is_well(
    monkeypatch, tmp_path, capsys
):
    good, bad = at_most("good", 1, 2, "x"), at_least("bad", 1, 2, "y")
    monkeypatch.setattr(
        command, "GROUPS", {"one": lambda rounds: [good], "two": lambda rounds: [good, bad]}
    )
    monkeypatch.setattr(command.torch, "set_num_threads", lambda n: None)
    out = tmp_path / "bench.json"
    assert command.main(["--rows", "one", "--out", str(out)]) == 0
    assert len(json.loads(out.read_text())) == 1
    capsys.readouterr()
    assert command.main(["--rows", "two", "--rounds", "3", "--out", str(out)]) == 1
    head, *lines = capsys.readouterr().out.splitlines()
    assert lines == [str(good), str(bad)]
    assert "2 threads" in head
    assert [row["ok"] for row in json.loads(out.read_text())] == [True, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "contributions,fast"], "there is no 'fast'; names are contributions,"),
        (["--rounds", "0"], "must be at least 1"),
        (["--threads", "0"], "must be at least 1"),
    ],
)
def test_wrong_options_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit) as refused:
        command.parsed(arguments)
    assert refused.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.skipif(
    not resident.peak_can_be_reset(), reason="only Linux can reset the peak of a running process"
)
def test_the_peak_of_a_run_is_what_it_adds(monkeypatch):
    held = {}

    def big():
        held["x"] = bytearray(64 * 2**20)
        held.clear()

    monkeypatch.setattr(resident, "scenario_run", lambda name, n_ctx: big if n_ctx > 128 else list)
    peak = resident.measured("any", 2048)
    assert 63 < peak.own < 66  # the kernel counts some pages late


def test_an_unknown_scenario_is_refused():
    with pytest.raises(ValueError, match="there is no scenario 'fast'"):
        resident.scenario_run("fast", 16)
