"""What all plotly figures share: colours, font, layout, labels that stay text."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from tl_geometry.texts import visible

# Three lightnesses as well as three hues: told apart without colour vision and in grey print.
REGIME_COLOURS = {"retriever": "#17366b", "mixer": "#e08a1e", "reset": "#a9d0c4"}
INK = "#22262b"
FRAME = "#c9ced6"
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def text(label: str) -> str:
    """Text for plotly, which reads a few HTML tags and entities in its labels."""
    return html.escape(visible(label))


def layout(title: str, *, width: int, height: int) -> dict[str, Any]:
    """Layout of a figure; axes are added by the figure itself."""
    return {
        "template": "none",
        "title": {"text": text(title), "x": 0, "xref": "paper", "font": {"size": 16}},
        "width": width,
        "height": height,
        "font": {"family": _FONT, "size": 13, "color": INK},
        "hoverlabel": {"align": "left", "font": {"family": _FONT, "size": 13}},
        "margin": {"l": 56, "r": 16, "t": 48, "b": 52},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "#ffffff",
    }


def axis(title: str, positions: Sequence[int | float], labels: Sequence[str]) -> dict[str, Any]:
    """A framed axis with ticks at some positions."""
    return {
        "title": {"text": title, "standoff": 8},
        "tickvals": list(positions),
        "ticktext": [text(_short(visible(label))) for label in labels],
        "automargin": True,
        "showgrid": False,
        "zeroline": False,
        "showline": True,
        "mirror": True,
        "linecolor": FRAME,
        "ticks": "",
        "fixedrange": True,
    }


def thinned(title: str, labels: list[str], most: int) -> dict[str, Any]:
    """An axis over the places 0, 1, 2, ... that names `most` of them at most."""
    shown = range(0, len(labels), -(-len(labels) // most))
    return axis(title, shown, [labels[i] for i in shown])


def _short(label: str, most: int = 20) -> str:
    return label if len(label) <= most else f"…{label[1 - most :]}"
