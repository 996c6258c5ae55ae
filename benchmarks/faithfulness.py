"""``python -m benchmarks.faithfulness``: the order of the importances on SmolLM2 in the scopes besides the default.

The first 256 tokens of eight texts, four of each demo corpus, with 5 and 20 % of the entries
removed. Writes ``docs/faithfulness.json`` with the AOPC of every importance and the paired differences
of neighbours in the papers' order, each with its 95 % interval over documents. Takes about half an
hour on two cores; an interrupted run goes on where it was (``out/faithfulness-SCOPE.json``). With scopes as
arguments only these are run, so that several processes can share the work; then run it without.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import xarray as xr

from tl_geometry import faithfulness
from tl_geometry.data import demo_corpora, token_batches
from tl_geometry.measures.selection import Scope
from tl_geometry.models import load_model

TEXTS = 4
N_CTX = 256
FRACTIONS = (0.05, 0.2)
SCOPES: tuple[Scope, ...] = ("row", "head", "layer", "token")
ORDER = ("random", "attention", "value_weighted", "value_weighted_normalized", "contribution")
DIRECTIONS = ("comprehensiveness", "sufficiency")


def documents(model: Any) -> list[Any]:
    """The opening tokens of each text."""
    rows = []
    for texts in demo_corpora(max_texts=TEXTS).values():
        for text in texts:
            batch = next(iter(token_batches([text], model, n_ctx=N_CTX, max_documents=1)))
            rows.append(batch.tokens[0])
    return rows


def figures(ds: xr.Dataset) -> list[dict[str, Any]]:
    """AOPC and steps of the order, one record for each mode, ranking and direction."""
    records = []
    for mode in ds.mode.values:
        for ranking in ds.ranking.values:
            for direction in DIRECTIONS:
                cell = ds.sel(mode=mode, ranking=ranking)
                name = f"aopc_{direction}"
                record = {"mode": str(mode), "ranking": str(ranking), "direction": direction}
                record["aopc"] = {kind: interval(cell.sel(importance=kind), name) for kind in ORDER}
                record["steps"] = {
                    f"{b} - {a}": interval(cell.sel(importance=b, other=a), f"{name}_difference")
                    for a, b in pairwise(ORDER)
                }
                records.append(record)
    return records


def interval(ds: xr.Dataset, name: str) -> list[float]:
    """Value and both ends, in nats per token."""
    return [round(float(ds[name + end]), 4) for end in ("", "_low", "_high")]


def main() -> None:
    model = load_model("smollm2", backend="hooked", processing=False)
    rows = documents(model)
    out = Path("out")
    out.mkdir(exist_ok=True)
    found: dict[str, Any] = {}
    for scope in sys.argv[1:] or SCOPES:
        ds = faithfulness(
            model,
            rows,
            modes=("intra", "inter"),
            fractions=FRACTIONS,
            scope=scope,
            n_ctx=N_CTX,
            checkpoint=out / f"faithfulness-{scope}.json",
            resume=True,
        )
        found[scope] = figures(ds)
        print(f"{scope}: done", flush=True)
    if set(found) == set(SCOPES):
        about = {
            "command": "python -m benchmarks.faithfulness",
            "model": "SmolLM2-135M-Instruct, HookedTransformer, weights as they are, float32",
            "documents": ds.attrs["documents"],
            "tokens": ds.attrs["tokens"],
            "fractions": FRACTIONS,
            "units": "nats per token: value, lower and upper end of the 95 % interval over documents",
            "scopes": found,
        }
        text = json.dumps(about, indent=1) + "\n"
        Path("docs/faithfulness.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
