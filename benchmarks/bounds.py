"""``python -m benchmarks.bounds``: do the bounds on separability hold on every row of a real model?

All rows of all heads of SmolLM2-135M over both demo corpora, windows of 128 tokens: the bounds from
the number of inversions, their equivalences, and the sink-aware certificate. Prints violations (the
bar is none) and how tight the bounds are; exits with 1 on a violation.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

import tl_geometry as tlg
from tl_geometry.data import demo_corpora, token_batches
from tl_geometry.hooks import attention_sites
from tl_geometry.hooks.capture import capture_hooks
from tl_geometry.models import load_model

TOP_N = (1, 2, 4, 8, 16, 32)
SLACK = 1e-5  # float32 rates


class Tally:
    """Counts of violations and sums of bounds, per N."""

    def __init__(self) -> None:
        self.rows = torch.zeros(len(TOP_N), dtype=torch.int64)
        self.broken: dict[str, int] = {}
        self.sums = {
            name: torch.zeros(len(TOP_N), dtype=torch.float64)
            for name in ("F", "inversions", "certificate")
        }

    def __call__(self, site: Any, pattern: Tensor, v: Tensor, z: Tensor) -> None:
        scores = tlg.separability(pattern, v, top_n=TOP_N)
        certified = tlg.sink_aware_certificate(pattern, v, top_n=TOP_N)
        bounds = tlg.inversion_bounds(scores.inversions, TOP_N)
        known = ~scores.f_score.isnan()
        separated = scores.margin > 0
        claims = {
            "precision >= N / (N + G)": scores.precision >= bounds[0] - SLACK,
            "recall >= 1 - G / N": scores.recall >= bounds[1] - SLACK,
            "F >= bound of G": scores.f_score >= bounds[2] - SLACK,
            "G = 0 where margin > 0 and nowhere else": separated == (scores.inversions == 0),
            "F = 1 where margin > 0 and nowhere else": separated == (scores.f_score > 1 - SLACK),
            "certified G >= G": certified.inversions >= scores.inversions,
            "precision >= certificate": scores.precision >= certified.precision - SLACK,
            "recall >= certificate": scores.recall >= certified.recall - SLACK,
            "F >= certificate": scores.f_score >= certified.f_score - SLACK,
        }
        for name, holds in claims.items():
            self.broken[name] = self.broken.get(name, 0) + int((known & ~holds).sum())
        self.rows += known.sum((0, 1, 2))
        for name, values in (
            ("F", scores.f_score),
            ("inversions", bounds[2]),
            ("certificate", certified.f_score),
        ):
            self.sums[name] += values.double().nansum((0, 1, 2))


def main() -> int:
    torch.set_num_threads(2)
    model = load_model("smollm2", backend="hooked", processing=False)
    texts = [text for corpus in demo_corpora().values() for text in corpus]
    tally = Tally()
    hooks = capture_hooks(model, attention_sites(model), tally)
    tokens = 0
    with torch.no_grad():
        for batch in tqdm(token_batches(texts, model, n_ctx=128, batch_size=1)):
            model.run_with_hooks(batch.tokens, return_type=None, fwd_hooks=hooks)
            tokens += batch.tokens.numel()
    print(
        f"{tokens} tokens of both demo corpora, all heads, {int(tally.rows.sum())} rows over N = {TOP_N}"
    )
    for name, count in tally.broken.items():
        print(f"{name:<44} {count:>6} violations  {'ok' if count == 0 else 'MISS'}")
    print("mean F, bound from inversions, certificate:")
    for k, n in enumerate(TOP_N):
        means = [float(values[k] / tally.rows[k]) for values in tally.sums.values()]
        print(f"N = {n:<3} {means[0]:.3f}  {means[1]:.3f}  {means[2]:.4f}")
    return int(any(tally.broken.values()))


if __name__ == "__main__":
    sys.exit(main())
