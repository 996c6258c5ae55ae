"""``python -m benchmarks.toy``: what the toy's sink is for, and whether other toys have the same.

Measures the toy that ships, trains a second seed and a variant of three layers (ten minutes on one
core; ``--weights a.safetensors b.safetensors`` measures files of ``train_toy`` instead, and keeps
what is known of others), and writes ``docs/toy.json``: losses above the optimum, attention to bos
where the head is idle and where it copies, the value of bos, and what it costs to zero that value
or to take bos out of the pattern.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import tl_geometry as tlg
from tl_geometry.ablations import remove_sinks, zero_sink_values
from tl_geometry.data import BigramBackcopy, bigram_backcopy
from tl_geometry.hooks import attention_sites
from tl_geometry.hooks.capture import capture_hooks
from tl_geometry.models.backends import candidate_backends
from tl_geometry.models.toy import N_CTX, WEIGHTS, toy_from_weights, wrap_toy
from tl_geometry.models.train_toy import EVALUATION_ROWS, EVALUATION_SEED, train_toy

SHIPPED = Path(tlg.models.__file__).parent / WEIGHTS
OUT = Path(__file__).parents[1] / "docs" / "toy.json"
VARIANTS: dict[str, dict[str, Any]] = {
    "1 layer, seed 1": {"seed": 1},
    "3 layers, seed 0": {"layers": 3, "steps": 2_500, "learning_rate": 3e-3},
}


def by_query(values: Tensor, trigger: Tensor) -> dict[str, float]:
    """Means over the queries after which a bigram follows, and over those that call for a copy."""
    kept = torch.ones_like(trigger)
    kept[:, 0] = False  # bos, which can look at nothing but itself
    return {
        "plain": round(values[kept & ~trigger].mean().item(), 5),
        "trigger": round(values[trigger].mean().item(), 5),
    }


@torch.no_grad()
def figures(model: Any, task: BigramBackcopy, tokens: Tensor) -> dict[str, Any]:
    """Everything measured on one model; losses in nats above the optimum."""
    trigger = task.is_trigger(tokens)
    heads: list[dict[str, Any]] = []

    def consume(site: Any, pattern: Tensor, v: Tensor, z: Tensor) -> None:
        found = tlg.sink_geometry(pattern, v, model.blocks[site.layer].attn.W_O)
        means = {
            name: round(getattr(found, name).mean().item(), 4)
            for name in ("norm_ratio", "norm_ratio_model", "cosine_mean", "cosine_mean_model")
        }
        attention = by_query(tlg.sink_rate(pattern)[:, 0], trigger)
        heads.append({"layer": site.layer, "bos_attention": attention, "bos_value": means})

    interventions = {
        "none": [],
        "zero_sink_values": zero_sink_values(model),
        "remove_sinks": remove_sinks(model),
        "remove_sinks_renormalize": remove_sinks(model, renormalize=True),
    }
    losses = {}
    for name, hooks in interventions.items():
        logits = model.run_with_hooks(tokens, fwd_hooks=hooks)
        losses[name] = by_query(task.excess_loss(logits, tokens), trigger)
    model.run_with_hooks(tokens, fwd_hooks=capture_hooks(model, attention_sites(model), consume))
    return {"excess_loss": losses, "heads": heads}


def measured(hf: Any) -> dict[str, Any]:
    """The figures of a toy as ``train_toy`` returns it, on the rows of the evaluation."""
    model = wrap_toy(
        hf,
        backend=candidate_backends("auto")[0],
        processing=False,
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    task = bigram_backcopy(EVALUATION_SEED)
    return figures(model, task, task.sample(EVALUATION_ROWS, N_CTX))


def toys(files: list[Path]) -> Iterator[tuple[str, Any]]:
    yield "shipped: 1 layer, seed 0", toy_from_weights(SHIPPED)
    if files:
        yield from ((file.stem, toy_from_weights(file)) for file in files)
        return
    for name, variant in VARIANTS.items():
        print(f"training {name}")
        yield name, train_toy(**variant)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.toy")
    parser.add_argument("--weights", type=Path, nargs="*", default=[])
    files = parser.parse_args().weights
    found = json.loads(OUT.read_text(encoding="utf-8")) if files and OUT.exists() else {}
    for name, hf in toys(files):
        found[name] = measured(hf)
        print(name)
        for intervention, loss in found[name]["excess_loss"].items():
            print(
                f"  excess loss, {intervention:26} {loss['plain']:.5f}  after triggers {loss['trigger']:.5f}"
            )
        for head in found[name]["heads"]:
            attention, value = head["bos_attention"], head["bos_value"]
            print(
                f"  layer {head['layer']}: attention to bos {attention['plain']:.3f}, from triggers "
                f"{attention['trigger']:.3f}; |v_bos| / median {value['norm_ratio']:.3f}, "
                f"cosine {value['cosine_mean']:+.3f}"
            )
    OUT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {OUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
