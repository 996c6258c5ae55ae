"""``python -m benchmarks.copy_paste``: how does a head say nothing, with a sink or with its diagonal?

Trains a model of one attention head on the task copy-paste, hard and soft, with and without
LayerNorm, with and without the residual connection around the head, over three seeds, and writes
``docs/copy_paste.json``: where the unflagged and the flagged positions look in the end, and the
loss above the optimum. About ten minutes on one core.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from tl_geometry.data import CopyPaste, copy_paste

D_MODEL, D_HEAD = 64, 32
LENGTH, BATCH, STEPS = 32, 64, 1_000
WARM_UP, LEARNING_RATE, BETAS, WEIGHT_DECAY = 100, 1e-2, (0.9, 0.99), 0.3
SEEDS = (0, 1, 2)
MAJORITY = 0.5  # of the attention: what names a pattern
OUT = Path(__file__).parents[1] / "docs" / "copy_paste.json"


class OneHead(nn.Module):
    """Embedding, one causal attention head with learned positions, unembedding to the contents."""

    def __init__(self, task: CopyPaste, norm: bool, skip: bool) -> None:
        super().__init__()
        self.skip = skip
        self.embed = nn.Embedding(task.vocab, D_MODEL)
        self.position = nn.Embedding(LENGTH, D_MODEL)
        for table in (self.embed, self.position):
            nn.init.normal_(table.weight, std=D_MODEL**-0.5)
        self.norm = nn.LayerNorm(D_MODEL) if norm else nn.Identity()
        self.final_norm = nn.LayerNorm(D_MODEL) if norm else nn.Identity()
        self.query, self.key, self.value = (nn.Linear(D_MODEL, D_HEAD) for _ in range(3))
        self.output = nn.Linear(D_HEAD, D_MODEL)
        self.unembed = nn.Linear(D_MODEL, task.contents)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits ``batch pos content``, pattern ``batch query key``, values ``batch key d_head``."""
        length = tokens.shape[1]
        stream = self.embed(tokens) + self.position.weight[:length]
        x = self.norm(stream)
        scores = self.query(x) @ self.key(x).transpose(1, 2) / math.sqrt(D_HEAD)
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        pattern = scores.masked_fill(later, -torch.inf).softmax(-1)
        v = self.value(x)
        written = self.output(pattern @ v)
        stream = stream + written if self.skip else written
        return self.unembed(self.final_norm(stream)), pattern, v


@dataclass(frozen=True)
class Run:
    """One trained model. Attention is the mean over rows with at least two tokens before them."""

    kind: str
    norm: bool
    skip: bool
    seed: int
    excess_unflagged: float
    excess_flagged: float
    unflagged_to_bos: float
    unflagged_to_self: float
    unflagged_to_previous: float
    flagged_to_previous: float
    bos_value_ratio: float
    pattern: str


def train(kind: str, norm: bool, skip: bool, seed: int) -> Run:
    torch.manual_seed(seed)
    task = copy_paste(seed, kind)
    model = OneHead(task, norm, skip)
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [w for w in weights if w.ndim > 1], "weight_decay": WEIGHT_DECAY},
            {"params": [w for w in weights if w.ndim <= 1], "weight_decay": 0.0},
        ],
        lr=LEARNING_RATE,
        betas=BETAS,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / WARM_UP, (1 + math.cos(math.pi * step / STEPS)) / 2),
    )
    for _ in range(STEPS):
        tokens = task.sample(BATCH, LENGTH)
        target = task.target_distribution(tokens)[:, 1:]
        logits = model(tokens)[0][:, 1:]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(0, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return measure(model, task, norm, skip)


@torch.no_grad()
def measure(model: OneHead, task: CopyPaste, norm: bool, skip: bool) -> Run:
    tokens = copy_paste(task.seed + 1_000, task.kind).sample(256, LENGTH)
    logits, pattern, v = model(tokens)
    excess = task.excess_loss(logits, tokens)[:, 2:]
    flagged = task.is_flagged(tokens)[:, 2:]
    to_self = pattern.diagonal(0, 1, 2)[:, 2:]
    to_previous = pattern.diagonal(-1, 1, 2)[:, 1:]
    to_bos = pattern[:, 2:, 0]
    lengths = v.norm(dim=-1)
    share = {
        "sink": to_bos[~flagged].mean().item(),
        "diagonal": to_self[~flagged].mean().item(),
        "previous": to_previous[~flagged].mean().item(),
    }
    best = max(share, key=share.__getitem__)
    return Run(
        kind=task.kind,
        norm=norm,
        skip=skip,
        seed=task.seed,
        excess_unflagged=excess[~flagged].mean().item(),
        excess_flagged=excess[flagged].mean().item(),
        unflagged_to_bos=share["sink"],
        unflagged_to_self=share["diagonal"],
        unflagged_to_previous=share["previous"],
        flagged_to_previous=to_previous[flagged].mean().item(),
        bos_value_ratio=(lengths[:, 0].mean() / lengths[:, 1:].median()).item(),
        pattern=best if share[best] > MAJORITY else "mixed",
    )


def settings() -> list[tuple[str, bool, bool]]:
    return list(itertools.product(("hard", "soft"), (True, False), (True, False)))


def print_table(runs: list[Run]) -> None:
    print(
        "targets LayerNorm skip  excess loss: unflagged, flagged  to bos  to self  |v_bos|  patterns"
    )
    for kind, norm, skip in settings():
        group = [r for r in runs if (r.kind, r.norm, r.skip) == (kind, norm, skip)]

        def mean(name: str, group: list[Run] = group) -> float:
            return statistics.mean(getattr(run, name) for run in group)

        print(
            f"{kind:8}{'yes' if norm else 'no':10}{'yes' if skip else 'no':6}"
            f"{mean('excess_unflagged'):22.4f}{mean('excess_flagged'):9.4f}"
            f"{mean('unflagged_to_bos'):8.2f}{mean('unflagged_to_self'):9.2f}"
            f"{mean('bos_value_ratio'):9.2f}  {', '.join(run.pattern for run in group)}"
        )


def write(runs: list[Run]) -> None:
    rounded = [
        {k: round(v, 5) if isinstance(v, float) else v for k, v in asdict(run).items()}
        for run in runs
    ]
    lines = ",\n".join(json.dumps(run) for run in rounded)
    OUT.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"wrote {OUT}")


def main() -> int:
    planned = list(itertools.product(settings(), SEEDS))
    runs = [train(*setting, seed) for setting, seed in tqdm(planned, unit="run")]
    print_table(runs)
    write(runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
