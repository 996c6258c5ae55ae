"""Texts of models and tokenizers, which may hold anything, as something that can be shown."""

from __future__ import annotations

import unicodedata

__all__ = ["visible"]

_READABLE_CONTROLS = {"\n": "⏎", "\t": "⇥"}
# Control, format (bidirectional marks), surrogate, and the separators that break lines.
_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def visible(text: str) -> str:
    r"""Replace characters that would act instead of being read, `\x1b` or a right-to-left mark.

    Example:
        >>> visible("a\nb\u202e")
        'a⏎b\\u202e'
    """
    return "".join(_READABLE_CONTROLS.get(c) or _escaped(c) for c in text)


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in _INVISIBLE:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
