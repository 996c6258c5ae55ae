"""Padding anywhere, rows of very different lengths, bos as pad: every document gives what it gives alone.

Compared are the numbers of each document and layer before they are averaged, so that no error hides in
a mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from analysis_data.reference import assert_equal, soften, tokens

from tl_geometry import Costs, Probe, Smoothing, Switches, analyze
from tl_geometry.analysis.accumulator import Accumulator
from tl_geometry.analysis.defaults import default_measures
from tl_geometry.analysis.ledger import Ledger

LENGTHS = (40, 1, 2, 3, 19, 7)
WIDTH = 44
KINDS = ("left", "right", "both", "gaps")
BOS = 0  # the pad's id, too


def documents() -> list[torch.Tensor]:
    """Documents that open with bos; the shortest is nothing else."""
    rows = [tokens(1, n, seed=n)[0] for n in LENGTHS]
    for row in rows:
        row[0] = BOS
    return rows


def places(kind: str, n: int) -> list[int]:
    """Where the tokens of a document stand in its row."""
    free = WIDTH - n
    if kind == "gaps":  # in front, between almost any two tokens, and behind
        return [1 + k + (k * (free - 2)) // n for k in range(n)]
    before = {"left": free, "right": 0, "both": free // 2}[kind]
    return list(range(before, before + n))


def batch_of(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """All documents in one batch, padded with the bos token, and the mask."""
    ids, mask = torch.full((len(LENGTHS), WIDTH), BOS), torch.zeros(len(LENGTHS), WIDTH).long()
    for row, document in enumerate(documents()):
        ids[row, places(kind, len(document))] = document
        mask[row, places(kind, len(document))] = 1
    return ids, mask


def test_the_batches_are_what_they_should_be():
    for kind in KINDS:
        ids, mask = batch_of(kind)
        assert mask.sum(-1).tolist() == list(LENGTHS)
        for row, document in enumerate(documents()):
            assert torch.equal(ids[row][mask[row].bool()], document)
    first = [batch_of(kind)[1].argmax(-1).tolist() for kind in ("left", "right", "gaps")]
    assert first == [[WIDTH - n for n in LENGTHS], [0] * 6, [1] * 6]
    gaps = batch_of("gaps")[1][4]
    assert len(gaps.nonzero()) == 19
    assert (gaps[1:] != gaps[:-1]).sum() > 20


class Seen:
    """What the accumulators were told of each document, and the sinks of each layer."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[str, str, int], torch.Tensor] = {}
        self.sinks: list[torch.Tensor] = []


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    seen = Seen()
    add, update = Accumulator._add, Ledger.update

    def keep(self: Any, layer: int, n_heads: int, measured: dict[str, Any]) -> None:
        for name, values in measured.items():
            seen.numbers[type(self).__name__, name, layer] = values.double()
        add(self, layer, n_heads, measured)

    def look(self: Any, layer: int, geometry: Any, z: Any, v: Any) -> None:
        seen.sinks.append(geometry.sinks)
        update(self, layer, geometry, z, v)

    with monkeypatch.context() as patch:
        patch.setattr(Accumulator, "_add", keep)
        patch.setattr(Ledger, "update", look)
        yield seen


def measures() -> list[Accumulator]:
    """The six of the default, and in their costly forms those that have one, and costs."""
    given = [m for m in default_measures() if not isinstance(m, Switches)]
    switches = Switches(halfspace=True, halfspace_tokens=12)
    return [*given, switches, Smoothing(halfspace=True, halfspace_tokens=12), Costs(tokens=3)]


@pytest.fixture
def build(backend, request):
    return lambda **options: soften(request.getfixturevalue(f"tiny_{backend}")(**options))


ALONE: dict[tuple[str, torch.dtype], list[Seen]] = {}


def alone(model, backend, dtype, monkeypatch) -> list[Seen]:
    """Each document by itself; the same for all kinds of padding."""
    if (backend, dtype) not in ALONE:
        found = []
        for row, ids in enumerate(documents()):
            with watched(monkeypatch) as seen:
                probe = Probe(model, measures())
                model.run_with_hooks(ids[None], fwd_hooks=probe.hooks(documents=[row]))
            found.append(seen)
        ALONE[backend, dtype] = found
    return ALONE[backend, dtype]


def assert_documents_alike(together: Seen, single: list[Seen], tolerance: float) -> None:
    for key, values in together.numbers.items():
        assert len(values) == len(LENGTHS)
        for row, seen in enumerate(single):
            expected = seen.numbers[key][0]
            torch.testing.assert_close(
                values[row], expected, rtol=tolerance, atol=tolerance, equal_nan=True,
                msg=lambda text, key=key, row=row: f"{key}, {LENGTHS[row]} tokens: {text}",
            )  # fmt: skip


def assert_first_tokens(seen: Seen, mask: torch.Tensor) -> None:
    """Each row's sink is its first real token, in every layer."""
    expected = torch.zeros_like(mask, dtype=torch.bool)
    expected[torch.arange(len(mask)), mask.argmax(-1)] = True
    assert len(seen.sinks) == 2
    assert all(torch.equal(sinks[:, 0], expected) for sinks in seen.sinks)


def in_one_batch(model, kind, monkeypatch, *, make=measures, told=True, rows=range(6)) -> Seen:
    rows = list(rows)
    ids, mask = (x[rows] for x in batch_of(kind))
    given = {"attention_mask": mask} if told else {}
    with watched(monkeypatch) as seen:
        probe = Probe(model, make())
        hooks = probe.hooks(**given, documents=rows)
        model.run_with_hooks(ids, attention_mask=mask, fwd_hooks=hooks)
    ds = probe.result()
    assert ds.attrs["tokens"] == mask.sum()
    assert ds.attrs["documents"] == len(rows)
    assert_first_tokens(seen, mask)
    return seen


# A bridge's rows of padding are NaN in float64 where they see no token, so it computes these in
# float32, where ranks of numbers that differ by rounding errors may change places.
RANKED = ("spearman", "halfspace_rank", "value_rank")


def precision(backend: str, kind: str) -> tuple[torch.dtype, float]:
    narrow = backend == "bridge" and kind != "right"
    return (torch.float32, 2e-4) if narrow else (torch.float64, 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_each_document_of_a_padded_batch(build, backend, kind, monkeypatch):
    dtype, tolerance = precision(backend, kind)
    model = build(dtype=dtype)
    together = in_one_batch(model, kind, monkeypatch)
    names = {name for name, _, _ in together.numbers}
    assert names == {"Contributions", "Regimes", "Sinks", "Separability", "Switches", "Smoothing",
                     "Costs"}  # fmt: skip
    if dtype == torch.float32:
        together.numbers = {
            key: x for key, x in together.numbers.items() if not any(r in key[1] for r in RANKED)
        }
    assert_documents_alike(together, alone(model, backend, dtype, monkeypatch), tolerance)


@pytest.mark.parametrize(("kind", "told"), [("both", True), ("left", True), ("left", False)])
def test_bos_with_the_id_of_the_pad(build, backend, kind, told, monkeypatch):
    """Rows are padded with the token that opens them: the mask tells them apart, or what the model masks.

    Without a mask a row that holds nothing but such tokens looks empty, so it is left out.
    """
    dtype, _ = precision(backend, kind)
    model = build(dtype=dtype)
    options = {
        "make": partial(default_measures, stream=True),
        "rows": [row for row, n in enumerate(LENGTHS) if told or n > 1],
    }
    plain = in_one_batch(model, kind, monkeypatch, **options)
    tokenizer = SimpleNamespace(pad_token_id=BOS, bos_token_id=BOS, padding_side="left")
    monkeypatch.setattr(model, "tokenizer", tokenizer)
    found = in_one_batch(model, kind, monkeypatch, told=told, **options)
    for key, values in plain.numbers.items():
        torch.testing.assert_close(found.numbers[key], values, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", ["left", "gaps"])
def test_a_corpus_of_padded_batches_is_that_of_its_documents(build, backend, kind):
    dtype, tolerance = precision(backend, kind)
    model = build(dtype=dtype)
    ids, mask = batch_of(kind)
    options: dict[str, Any] = {"progress": False, "top_n": (1, 2), "prepend_bos": False}
    names = ["contributions", "regimes", "sinks", "separability", "switches", "smoothing"]
    padded = analyze(model, [(ids[:3], mask[:3]), (ids[3:], mask[3:])], names, **options)
    single = analyze(model, documents(), names, batch_size=1, **options)
    assert padded.attrs["documents"] == single.attrs["documents"]
    assert padded.attrs["tokens"] == single.attrs["tokens"]
    if dtype == torch.float32:
        dropped = [name for name in single.data_vars if any(r in name for r in RANKED)]
        padded, single = padded.drop_vars(dropped), single.drop_vars(dropped)
    assert_equal(padded, single, tolerance)
