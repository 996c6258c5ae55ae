"""The table of architectures in README, made from the matrix that the tests hold.

PYTHONPATH=tests:. python -m zoo.table        # writes it into README.md
"""

from __future__ import annotations

from pathlib import Path

from .matrix import MATRIX, Entry

README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- matrix: begin (python -m zoo.table) -->", "<!-- matrix: end -->"
_HEADER = (
    "architecture", "HookedTransformer", "TransformerBridge", "verdict", "edits that work", "remarks",
)  # fmt: skip


def table() -> str:
    """The table in Markdown; the same whichever TransformerLens is installed."""
    rows = [_HEADER, ("---",) * len(_HEADER), *(_row(entry) for entry in MATRIX)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _row(entry: Entry) -> tuple[str, ...]:
    lines = (", ".join(entry.hooked), ", ".join(entry.bridge))
    edits = "" if entry.arch == "mamba" else _edits(entry)
    return (entry.label, *lines, entry.verdict, edits, entry.remark)


def _edits(entry: Entry) -> str:
    """Edits that every class takes, and those that only one does."""
    everywhere = all(
        entry.edits(kind)["pattern"] for kind in ("hooked", "bridge") if getattr(entry, kind)
    )
    if everywhere:
        return "pattern, v, z"
    return "v, z; pattern not on the bridge" if entry.hooked else "v, z"


def written(text: str) -> str:
    """The text of README with the table in its place."""
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"README.md has no lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    README.write_text(written(README.read_text()))
