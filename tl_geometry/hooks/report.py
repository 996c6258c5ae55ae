"""What the doctor found: one report per layer, and the whole."""

from __future__ import annotations

import html
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from warnings import warn

from tl_geometry.texts import visible

if TYPE_CHECKING:
    import pandas

__all__ = ["SUPPORTED", "Doctor", "LayerReport"]

SUPPORTED = frozenset({"exact", "normed", "scaled"})
"""Verdicts on which measures may be computed; layers with any other are refused."""


@dataclass(frozen=True)
class LayerReport:
    """What one attention layer supports, measured on a short probe.

    `verdict` is one of

    - `"exact"`: pattern @ v = z, and z W_O + b_O is what the layer adds;
    - `"normed"`: the same, but a norm follows before the residual stream;
    - `"scaled"`: the same, times the constant `output_scale`;
    - `"gated"`: z is multiplied by a gate after pattern @ v;
    - `"clipped"`: values are clipped between `hook_v` and the pattern;
    - `"unsupported"`: anything else. `reason` says what was found and what to do.

    Errors are relative to the largest magnitude of z and of the output. `edits` says whether a
    hook that returns a new tensor changes what follows it (None: not probed). `note` holds remarks
    that change nothing in the verdict. `hides_more`: keys that causality and window leave get no weight
    from any head, as if the mask hid more.
    """

    layer: int | str
    name: str
    verdict: str
    reason: str = ""
    note: str = ""
    causal: bool = False
    window: int | None = None
    hides_more: bool = False
    rows_sum_to_one: bool = False
    row_sum_min: float = float("nan")
    decomposition_error: float = float("nan")
    output_error: float = float("nan")
    output_scale: float = 1.0
    edits: Mapping[str, bool | None] = field(
        default_factory=lambda: {"pattern": None, "v": None, "z": None}
    )
    fire_order: tuple[str, ...] = ()

    @property
    def supported(self) -> bool:
        """Whether measures may be computed on this layer."""
        return self.verdict in SUPPORTED


@dataclass(frozen=True)
class Doctor:
    """Reports of all layers of a model, how its weights were processed, and warnings.

    >>> report = doctor(model)
    >>> report.ok
    True
    >>> report.to_dataframe().loc[3, "verdict"]
    'exact'
    """

    layers: tuple[LayerReport, ...]
    processing: Mapping[str, bool | str | None]
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every layer is supported."""
        return all(layer.supported for layer in self.layers)

    def warn(self) -> None:
        """Say the warnings as Python's, at the line outside of this package that led here."""
        frame, level = inspect.currentframe(), 1
        while frame is not None and frame.f_globals.get("__name__", "").startswith("tl_geometry."):
            frame, level = frame.f_back, level + 1
        for text in self.warnings:
            warn(text, UserWarning, stacklevel=level)

    def to_dataframe(self) -> pandas.DataFrame:
        """One row per layer, indexed by its label."""
        import pandas

        rows = []
        for report in self.layers:
            row = {name: getattr(report, name) for name in _COLUMNS}
            row.update({f"edit_{kind}": effect for kind, effect in report.edits.items()})
            row["fire_order"] = " ".join(report.fire_order)
            rows.append({**row, "reason": report.reason, "note": report.note})
        return pandas.DataFrame(
            rows, index=pandas.Index([r.layer for r in self.layers], name="layer")
        )

    def __repr__(self) -> str:
        return "\n".join([*self._head(), "", *_aligned(self._table()), *self._remarks()])

    def _repr_html_(self) -> str:
        def shown(text: str) -> str:
            return f"<bdi>{html.escape(visible(text))}</bdi>"

        header, *body = self._table()
        cells = ["<tr>" + "".join(f"<th>{shown(c)}</th>" for c in header) + "</tr>"]
        cells += ["<tr>" + "".join(f"<td>{shown(c)}</td>" for c in row) + "</tr>" for row in body]
        lines = [f"<div>{shown(line)}</div>" for line in self._head()]
        remarks = [f"<div>{shown(line)}</div>" for line in self._remarks() if line]
        return "\n".join([*lines, "<table>", *cells, "</table>", *remarks])

    def _head(self) -> list[str]:
        good = sum(layer.supported for layer in self.layers)
        facts = ", ".join(f"{name}: {_shown(value)}" for name, value in self.processing.items())
        return [f"{good} of {len(self.layers)} attention layers supported", facts]

    def _table(self) -> list[tuple[str, ...]]:
        header = ("layer", "verdict", "causal", "window", "row sums", "edits that work")
        rows = [
            (
                str(r.layer),
                r.verdict,
                _shown(r.causal),
                "" if r.window is None else str(r.window),
                _row_sums(r),
                _edits(r),
            )
            for r in self.layers
        ]
        return [header, *rows]

    def _remarks(self) -> list[str]:
        grouped: dict[str, list[str]] = {}
        for report in self.layers:
            for text in (report.reason, report.note):
                if text:
                    grouped.setdefault(text, []).append(str(report.layer))
        lines = [f"{_labels(labels)}: {text}" for text, labels in grouped.items()]
        lines += [f"warning: {text}" for text in self.warnings]
        return ["", *lines] if lines else []


_COLUMNS = (
    "name",
    "verdict",
    "causal",
    "window",
    "rows_sum_to_one",
    "row_sum_min",
    "decomposition_error",
    "output_error",
    "output_scale",
)


def _shown(value: object) -> str:
    if value is None:
        return "unknown"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _row_sums(report: LayerReport) -> str:
    if report.row_sum_min != report.row_sum_min:
        return ""
    return "1" if report.rows_sum_to_one else f">= {report.row_sum_min:.3g}"


def _edits(report: LayerReport) -> str:
    if all(effect is None for effect in report.edits.values()):
        return "not probed"
    return ", ".join(kind for kind, effect in report.edits.items() if effect) or "none"


def _labels(labels: list[str]) -> str:
    word = "layer" if len(labels) == 1 else "layers"
    shown = labels if len(labels) <= 6 else [*labels[:4], "...", labels[-1]]
    return f"{word} {', '.join(shown)}"


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
