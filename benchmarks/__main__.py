"""``python -m benchmarks``: print one row per line, write ``bench.json``, exit with 1 on a miss.

SmolLM2-135M as an unprocessed HookedTransformer, float32, two threads. Times are ratios, medians over rounds in which
both sides run next to each other; memory is that of fresh processes, or counted. About ten minutes.

    python -m benchmarks --rows contributions,memory --rounds 3
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks import arithmetic, memory, peers, timings
from benchmarks.harness import Row, write_json
from benchmarks.setting import THREADS, described

GROUPS: dict[str, Callable[[int], Iterator[Row]]] = {
    "contributions": timings.contributions,
    "default": timings.default,
    "growth": timings.growth,
    "separability": timings.separability,
    "masked": timings.masked,
    "sensitivity": timings.sensitivity,
    "memory": memory.memory,
    "layers": memory.layers,
    "documents": memory.documents,
    "cached": peers.cached,
    "norms": peers.norms,
    "zeroing": peers.zeroing,
    "arithmetic": arithmetic.arithmetic,
}


def chosen(names: str) -> list[str]:
    """Groups of rows by name, separated by commas."""
    found = names.split(",")
    unknown = [name for name in found if name not in GROUPS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"there is no {unknown[0]!r}; names are {', '.join(GROUPS)}"
        )
    return found


def parsed(arguments: list[str]) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "--rows", type=chosen, default=list(GROUPS), metavar="A,B", help=", ".join(GROUPS)
    )
    parser.add_argument("--rounds", type=int, default=5, help="of every timing (default 5)")
    parser.add_argument(
        "--threads", type=int, default=THREADS, help=f"of torch (default {THREADS})"
    )
    parser.add_argument("--out", type=Path, default=Path("bench.json"))
    options = parser.parse_args(arguments)
    if min(options.rounds, options.threads) < 1:
        parser.error("--rounds and --threads must be at least 1")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parsed(sys.argv[1:] if arguments is None else arguments)
    torch.set_num_threads(options.threads)
    print(
        f"{described(options.threads)}; medians, lowest..highest of {options.rounds} rounds",
        flush=True,
    )
    rows = []
    for name in options.rows:
        for row in GROUPS[name](options.rounds):
            print(row, flush=True)
            rows.append(row)
    write_json(rows, options.out)
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
