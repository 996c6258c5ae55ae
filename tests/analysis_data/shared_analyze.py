"""Runs of `analyze` in 2 and 3 processes on the CPU: python shared_analyze.py DIRECTORY.

The processes are forked, so that the imports are paid once, and connected as a launcher would. What
each of them gets is written as a file; what each is refused, and how each ends, is printed as JSON.
"""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import accelerate  # noqa: F401 - paid once
import conftest
import torch
from analysis_data.forked import forked_together
from analysis_data.killed_analyze import digest
from analysis_data.runs import corpus, run
from analysis_data.shared_runs import (
    RUNS,
    Counting,
    Drawing,
    Growing,
    Listing,
    Loud,
    options_of,
)

from tl_geometry import Regimes, analyze, save
from tl_geometry.analysis import processes
from tl_geometry.analysis.store import CHECKPOINT, read_file
from tl_geometry.cli import main as command

SECONDS = 150


def refusal(work):
    """What a run is refused with."""
    try:
        work()
    except (ValueError, RuntimeError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def results(model, rank, world, directory):
    """The merged dataset of each run: what each process got, and what it warned of."""
    found = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name, (data, given) in RUNS.items():
            ds = analyze(model, data(), **options_of(given))
            found[name] = digest(ds)
            if rank == 0:
                save(ds, directory / f"{name} {world}.nc")
        run(model, measures=[Loud()])
    return found, sorted({str(w.message) for w in caught if issubclass(w.category, UserWarning)})


def refusals(model, rank, directory):
    """What is not the same in the processes, can't be merged, or fails in one of them alone."""

    def of(data=None, **options):
        return refusal(lambda: run(model, data, **options))

    def broken():
        yield from corpus()[:2]
        if rank:
            raise OSError("the disk of process 1")
        yield from corpus()[2:]

    rows, place = corpus(), directory / ("nowhere" if rank else ".") / "x.ckpt"
    found = {
        "first batch": of(rows[rank:]),
        "last batch": of(rows[: 8 - rank], measures=["regimes"]),
        "settings": of(n_ctx=32 + rank, measures=["regimes"]),
        "weights": refusal(lambda: run(changed(model, rank), measures=["regimes"])),
        "attribute": of(measures=[Counting()]),
        "list": of(measures=[Listing()]),
        "shapes": of(rows[:2], measures=[Growing()]),
        "random": of(measures=[Drawing()]),
        "one place": of(measures=["regimes"], checkpoint=place),
        "data of one": of(broken(), measures=["regimes"]),
        "empty": of([]),
    }
    alone = run(model, rows[: 8 - rank], measures=["regimes"], distributed=False)
    found["alone"] = [alone.attrs["documents"], alone.attrs["processes"]]
    together = run(model, measures=["regimes"], distributed=True)
    found["together"] = [together.attrs["documents"], together.attrs["processes"]]
    if rank == 0:  # the last, since the processes are out of step after it
        processes.ARRIVAL = timedelta(seconds=1)
        found["absent"] = of(measures=["regimes"])
    return found


def changed(model, rank):
    model = copy.deepcopy(model)
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1e-3 * rank
    return model


def documents(path):
    return read_file(path, CHECKPOINT).attrs["progress"]["documents"] if path.exists() else None


def kept(file):
    """Documents up to which each process' file goes, or None."""
    return [documents(path) for path in (file, file.with_name(f"{file.name}.rank1"))]


def ends(model, file, world=2, **each):
    """How each process of a run ends: a signal, an exception, or the digest of its result."""

    def work(rank):
        options = {"measures": [Regimes()], "checkpoint_every": 1, "resume": True}
        options |= {"keep_examples": 6, "checkpoint": file, **each.get(f"rank{rank}", {})}
        prepare = options.pop("prepare", lambda: None)
        prepare()
        return digest(run(model, corpus((9, 14, 5, 9, 11, 12, 13, 7, 8, 8)), **options))

    outcome = forked_together([lambda rank=rank: work(rank) for rank in range(world)], SECONDS)
    return [
        signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else said
        for status, said in outcome
    ]


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def no_result():
    """The first process dies with all measured and merged, before its result is written."""
    from tl_geometry.analysis.checkpoint import RunCheckpoint

    RunCheckpoint.finish = lambda self, ds: kill()


def no_removal():
    """The others die when the first one's result is written."""
    from tl_geometry.analysis.checkpoint import RunCheckpoint

    RunCheckpoint.remove = lambda self: kill()


def endings(model, directory):
    """Runs that are broken in one process and gone on with, step by step."""
    # Five batches: the first process has 0, 2 and 4, the other 1 and 3; Regimes is called twice in each.
    scenes = {
        "whole": [{}],
        "killed in a batch": [{"rank1": {"stop": 3, "ending": kill}}, {}],
        "first one killed": [{"rank0": {"stop": 3, "ending": kill}}, {}, {}],
        "failed": [{"rank1": {"stop": 2}}, {}],
        "killed before the result": [{"rank0": {"prepare": no_result}}, {}],
        "killed after the result": [{"rank1": {"prepare": no_removal}}, {}],
    }
    found = {}
    for name, steps in scenes.items():
        file = directory / f"{name}.ckpt"
        found[name] = [[ends(model, file, **step), kept(file)] for step in steps]
    file = directory / "numbers.ckpt"
    ends(model, file, rank1={"stop": 3, "ending": kill})
    found["three"] = ends(model, file, world=3)
    single = {"measures": [Regimes()], "checkpoint": file, "keep_examples": 6}
    found["single"] = refusal(lambda: run(model, resume=True, **single))
    swapped = [file, Path(f"{file}.rank1")]
    swapped[0].rename(directory / "other"), swapped[1].rename(file)
    (directory / "other").rename(swapped[1])
    found["swapped"] = ends(model, file)
    return found


def commands(model_directory, texts, directory):
    """The command in two processes: how each ends, and what it says."""

    def work(rank, name, *options, prepare=lambda rank: None):
        said = directory / f"{name} {rank}"
        with said.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        prepare(rank)
        common = ["analyze", model_directory, "--text", texts, "--n-ctx", "8", "--batch-size", "1"]
        sys.argv = ["tl-geometry", *common, "--measures", "regimes", *map(str, options)]
        try:
            command()
        except SystemExit as end:
            return str(end.code)

    def both(name, *options, **prepare):
        works = [lambda rank=rank: work(rank, name, *options, **prepare) for rank in range(2)]
        codes = [said for _, said in forked_together(works, SECONDS)]
        return [codes, [(directory / f"{name} {rank}").read_text() for rank in range(2)]]

    def terminated(rank):
        measure, calls = Regimes.measure, []

        def measuring(self, geometry):
            calls.append(geometry)
            if rank == 0 and len(calls) == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            return measure(self, geometry)

        Regimes.measure = measuring

    out, file = directory / "command.nc", directory / "command.ckpt"
    taken = directory / "taken.nc"
    taken.write_text("mine")
    found = {
        "refused": both("refused", "--out", taken),
        "terminated": both("terminated", "--out", out, "--checkpoint", file, prepare=terminated),
        "there": [out.exists(), documents(file)],
        "resumed": both("resumed", "--out", out, "--checkpoint", file, "--resume"),
    }
    return {**found, "taken": taken.read_text()}


def main(directory, model_directory, texts):
    model = conftest._tiny_hooked() if conftest._has_hooked() else conftest._tiny_bridge()
    found = {}
    for world in (2, 3):
        works = [
            lambda rank=rank, world=world: json.dumps(
                [
                    *results(model, rank, world, directory),
                    refusals(model, rank, directory) if world == 2 else {},
                ]
            )
            for rank in range(world)
        ]
        outcome = forked_together(works, SECONDS)
        found[f"{world} processes"] = [said for _, said in outcome]
    found |= endings(model, directory)
    found["commands"] = commands(model_directory, texts, directory)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
