"""Hover texts of maps, with what they have in common written once: it is most of a large page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

_BLANK = ": not available"
_BREAK = "<br>"


def factored(texts: Sequence[Sequence[str]]) -> dict[str, Any] | None:
    """Hover texts `name: words rest` per row and column in parts, or None where they are of another form.

    Example:
        >>> parts = factored([["L0H0: share 0.5", "L0H1: share 0.25"], ["L1H0: not available", "L1H1: share 1"]])
        >>> parts["rows"], parts["columns"], parts["words"], parts["rest"]
        (['L0H', 'L1H'], ['0', '1'], ': share ', [['0.5', '0.25'], [None, '1']])

    `page.js` puts them together again: row, column, then words and rest, or the blank. Line breaks
    are newlines in the rest.
    """
    if not texts or not texts[0] or any("\n" in text for row in texts for text in row):
        return None
    names = [[text.partition(": ")[0] for text in row] for row in texts]
    rows = [_common(row) if len(row) > 1 else row[0] for row in names]
    columns = [name.removeprefix(rows[0]) for name in names[0]]
    if any(
        name != start + end
        for row, start in zip(names, rows, strict=True)
        for name, end in zip(row, columns, strict=True)
    ):
        return None
    ends = [
        [text.removeprefix(name) for text, name in zip(*pair, strict=True)]
        for pair in zip(texts, names, strict=True)
    ]
    words = _common([end for row in ends for end in row if end != _BLANK])
    rest = [
        [None if end == _BLANK else end.removeprefix(words).replace(_BREAK, "\n") for end in row]
        for row in ends
    ]
    return {"rows": rows, "columns": columns, "words": words, "blank": _BLANK, "rest": rest}


def _common(texts: Sequence[str]) -> str:
    """The beginning that all texts share."""
    if not texts:
        return ""
    first, last = min(texts), max(texts)
    same = (a == b for a, b in zip(first, last, strict=False))
    return first[: sum(1 for _ in takewhile(bool, same))]
