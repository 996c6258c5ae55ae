"""What measuring needs in memory: resident peaks of whole runs, and live tensors counted."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import tl_geometry as tlg
from benchmarks.counting import LiveBytes, around, peak_of_hooks
from benchmarks.harness import Row, at_most
from benchmarks.resident import MIB, peak_of
from benchmarks.setting import smollm2, windows
from tl_geometry.analysis.defaults import default_measures
from tl_geometry.hooks import attention_sites

A_FEW = 3
"""How many scalars per document, layer and head may stay."""


def memory(rounds: int) -> Iterator[Row]:
    """The default measures at full length, in units of one layer's pattern ``batch head T T`` of float32.

    Resident: the peak of a run with hooks less that of a plain forward, both without logits, whose size would
    hide everything. Where the plain forward holds more at another moment than the hooks and the model
    together, part of what the hooks need does not show; the second row counts it wherever it comes, in two layers.
    """
    n_ctx, site = 2048, attention_sites(smollm2())[0]
    unit = site.n_heads * n_ctx * n_ctx * 4
    base, full = peak_of("plain", n_ctx), peak_of("default", n_ctx)
    extra = full.highest - base.highest
    name = f"default measures, T={n_ctx}: extra resident peak / one layer's pattern"
    detail = f"{full.highest:.0f} - {base.highest:.0f} MiB, pattern {unit / MIB:.0f} MiB"
    yield at_most(name, extra * MIB / unit, 4.0, detail)
    probe = tlg.Probe(smollm2(), default_measures(stream=True), layers=[0, 1])
    counted = peak_of_hooks(smollm2(), windows(n_ctx).tokens, probe.hooks(), stop_at_layer=2)
    name = f"default measures, T={n_ctx}: peak of the hooks' live tensors / one layer's pattern"
    yield at_most(name, counted / unit, 4.0, f"{counted / MIB:.0f} MiB")


def layers(rounds: int) -> Iterator[Row]:
    """How the peak of the hooks' live tensors grows with the number of layers that are measured.

    The factored output projections, which a probe keeps as it would weights, exist since a first run.
    """
    model, tokens = smollm2(), windows(256).tokens
    labels = [site.layer for site in attention_sites(model)]
    peaks = {}
    for n in (len(labels) // 3, len(labels)):
        probe = tlg.Probe(model, default_measures(stream=True), layers=labels[:n])
        for _ in range(2):
            peaks[n] = peak_of_hooks(model, tokens, probe.hooks(), stop_at_layer=n)
    (few, low), (many, high) = peaks.items()
    name = (
        f"default measures, T=256: growth of the hooks' peak, {few} to {many} layers, bytes a layer"
    )
    yield at_most(name, (high - low) / (many - few), 0.0, f"{low / MIB:.2f}, {high / MIB:.2f} MiB")


def documents(rounds: int) -> Iterator[Row]:
    """What is kept of each document after its batch, in float64 scalars per document, layer and head."""
    model, batch = smollm2(), windows(128, 2)
    probe = tlg.Probe(model, default_measures(stream=True))
    live, kept = LiveBytes(), []
    with torch.no_grad():
        for _ in range(3):
            hooks = probe.hooks(attention_mask=batch.attention_mask)
            model.run_with_hooks(batch.tokens, fwd_hooks=around(hooks, live), return_type=None)
            del hooks
            kept.append(live.now)
    n_documents = (len(kept) - 1) * len(batch.documents)
    places = sum(site.n_heads for site in attention_sites(model))
    scalars = (kept[-1] - kept[0]) / (8 * n_documents * places)
    name = "default measures, T=128: scalars kept per document, layer and head"
    yield at_most(name, scalars, A_FEW, f"{kept[0]} bytes after 2 documents, {kept[-1]} after 6")
