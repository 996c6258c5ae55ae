"""``python -m tl_geometry.models.train_toy``: train the toy on Bigram-Backcopy, and say how good it is.

With its default arguments, ``--out tl_geometry/models/toy.safetensors`` makes the file that ships
with the package: about three minutes on two cores. Rounding differs between machines, and so do
the last digits of the weights.
"""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tqdm.auto import trange

from tl_geometry.data import BigramBackcopy, bigram_backcopy
from tl_geometry.models.toy import N_CTX, new_toy

BATCH = 32
STEPS = 1_500
WARM_UP = 100
LEARNING_RATE = 1e-2
BETAS = (0.9, 0.99)
WEIGHT_DECAY = 0.3  # of the matrices; biases and norms have none
EVALUATION_SEED = 12_345
EVALUATION_ROWS = 128


@dataclass(frozen=True)
class ToyScore:
    """How well a toy solves the task; losses in nats above the optimum, attention to bos per layer.

    ``trigger`` means that the query is a trigger, so that the next token is a copy. bos as a query
    is left out, it has nothing but itself to look at.
    """

    excess_plain: float
    excess_trigger: float
    bos_attention_plain: tuple[float, ...]
    bos_attention_trigger: tuple[float, ...]

    def __str__(self) -> str:
        layers = zip(self.bos_attention_plain, self.bos_attention_trigger, strict=True)
        attention = ", ".join(f"{plain:.3f} / {trigger:.3f}" for plain, trigger in layers)
        return (
            f"excess loss {self.excess_plain:.5f} nats after other tokens, {self.excess_trigger:.5f} "
            f"after triggers; mean attention to bos, per layer: {attention}"
        )


def train_toy(
    layers: int = 1,
    seed: int = 0,
    steps: int = STEPS,
    learning_rate: float = LEARNING_RATE,
    progress: bool = True,
) -> Any:
    """Train a toy from its random beginning; a Hugging Face GPT-2 in eval mode.

    >>> train_toy(steps=20, progress=False)

    AdamW with a warm-up and a cosine schedule on the cross-entropy with the exact distribution of
    the next token. ``seed`` draws the first weights and the rows; torch's global generator is left
    as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = new_toy(layers)
    task = bigram_backcopy(seed)
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [w for w in weights if w.ndim > 1], "weight_decay": WEIGHT_DECAY},
            {"params": [w for w in weights if w.ndim <= 1], "weight_decay": 0.0},
        ],
        lr=learning_rate,
        betas=BETAS,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / WARM_UP, (1 + math.cos(math.pi * step / steps)) / 2),
    )
    model.train()
    bar = trange(steps, desc="training", unit="step", disable=not progress)
    for step in bar:
        tokens = task.sample(BATCH, N_CTX)
        target = task.next_token_distribution(tokens)
        loss = torch.nn.functional.cross_entropy(
            model(tokens).logits.flatten(0, 1), target.flatten(0, 1)
        )
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
        if step % 25 == 0:
            excess = loss.item() - task.optimal_loss(tokens).mean().item()
            bar.set_postfix(excess_nats=f"{excess:.4f}")
    return model.eval()


@torch.no_grad()
def score_toy(
    model: Any, task: BigramBackcopy | None = None, rows: int = EVALUATION_ROWS
) -> ToyScore:
    """Measure a Hugging Face toy on fresh rows, of a seed of their own.

    >>> score_toy(train_toy()).excess_trigger < 0.01
    True
    """
    task = bigram_backcopy(EVALUATION_SEED) if task is None else task
    tokens = task.sample(rows, N_CTX)
    trigger = task.is_trigger(tokens)
    output = model(tokens, output_attentions=True)
    excess = task.excess_loss(output.logits, tokens)
    to_bos = [pattern[:, 0, 1:, 0] for pattern in output.attentions]
    return ToyScore(
        excess_plain=excess[~trigger].mean().item(),
        excess_trigger=excess[trigger].mean().item(),
        bos_attention_plain=tuple(a[~trigger[:, 1:]].mean().item() for a in to_bos),
        bos_attention_trigger=tuple(a[trigger[:, 1:]].mean().item() for a in to_bos),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print the score, write the weights."""
    parser = argparse.ArgumentParser(prog="python -m tl_geometry.models.train_toy")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    parser.add_argument("--out", type=Path, default=Path("toy.safetensors"))
    chosen = parser.parse_args(arguments)
    start = time.perf_counter()
    model = train_toy(chosen.layers, chosen.seed, chosen.steps, chosen.learning_rate)
    seconds = time.perf_counter() - start
    save_file(
        {name: weight.contiguous() for name, weight in model.state_dict().items()}, chosen.out
    )
    size = chosen.out.stat().st_size / 1000
    sys.stdout.write(f"{score_toy(model)}\nwrote {chosen.out}: {size:.0f} kB, {seconds:.0f} s\n")


if __name__ == "__main__":
    main()
