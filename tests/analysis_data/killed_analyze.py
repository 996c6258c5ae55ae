"""Runs of `analyze` that end by a signal or on a full disk: python killed_analyze.py DIRECTORY BACKEND.

Each run is a child of its own, forked before anything is computed, so that the imports are paid once.
Prints, as JSON, for each scene: how its runs ended, how many documents the file held after each, and
the digests of the results.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import sys
from pathlib import Path

import conftest
from analysis_data.forked import forked
from analysis_data.runs import run

from tl_geometry.analysis.store import CHECKPOINT, read_file


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_replace(number, when):
    """SIGKILL at a write of the file: ``"before"`` the new one takes its place, ``"after"``, or half ``"written"``."""
    count, replace = 0, Path.replace

    def replacing(self, target):
        nonlocal count
        count += 1
        if count == number:
            if when == "written":
                content = self.read_bytes()
                self.write_bytes(content[: len(content) // 2])
            if when != "after":
                kill()
            replace(self, target)
            kill()
        return replace(self, target)

    Path.replace = replacing


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def fill_disk():
    """From now on no file grows beyond its first kilobyte."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))


def digest(ds):
    parts = [f"{name} {ds[name].values.tobytes().hex()}" for name in (*ds.data_vars, *ds.coords)]
    attrs = {name: value for name, value in ds.attrs.items() if name != "created"}
    return hashlib.sha256(repr((parts, attrs)).encode()).hexdigest()


def documents(file):
    return read_file(file, CHECKPOINT).attrs["progress"]["documents"] if file.exists() else 0


def child(model, file, prepare=None, **options):
    """How a run in a forked process ends: a signal, an exception, or the digest of its result."""

    def work():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if prepare is not None:
            prepare()
        return digest(run(model, checkpoint=file, checkpoint_every=2, **options))

    status, said = forked(work)
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else said


def scene(model, file, *steps):
    found = []
    for step in steps:
        ended = child(model, file, resume=True, **step)
        found.append([ended, documents(file)])
    return found


def main(directory):
    model = conftest._tiny_hooked() if conftest._has_hooked() else conftest._tiny_bridge()
    go_on = {}
    scenes = {
        "whole": [go_on],
        "killed in a batch": [{"stop": 3, "ending": kill}, {"stop": 2, "ending": kill}, go_on],
        "killed in a write": [
            {"prepare": lambda: kill_at_replace(2, "written")},
            {"prepare": lambda: kill_at_replace(2, "before")},
            {"prepare": lambda: kill_at_replace(1, "after")},
            go_on,
        ],
        "killed at the end": [{"prepare": lambda: kill_at_replace(5, "before")}, go_on, go_on],
        "interrupted": [{"stop": 5, "ending": interrupt}, go_on],
        "full disk": [{"stop": 3}, {"stop": 1, "ending": fill_disk}, go_on],
    }
    found = {}
    for name, steps in scenes.items():
        found[name] = scene(model, directory / f"{name}.ckpt", *steps)
    found["left"] = sorted(path.name for path in directory.iterdir() if path.suffix == ".tmp")
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
