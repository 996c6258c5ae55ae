"""Texts that a page must show and never obey, as tokens and names."""

from __future__ import annotations

TEXTS = (
    "<script>alert(1)</script>",
    "</script><script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "<!--",
    "]]>",
    "\"'`´“”«»",
    "\\u003cscript\\u003e\\",
    "${window.pwned=1}",
    "{{ 7*7 }}{% raw %}",
    "&lt;b&gt;&amp;&#x3c;",
    "\x00",
    "\x01\x07\x08\x1b[31m\x7f\x9f",
    "\u2028\u2029\r\n\t",
    "\u202egpj.exe\u2066",
    "\u200f\u200e\u061c",
    "a\u200db\u200c\ufeff",
    "\U0001f469\u200d\U0001f52c",
    "\ud83d",
    "\udd2c tail",
    "\ufffd",
    "e\u0301\u0301" + "\u0308" * 40,
    "שלום",
    "مرحبا 123",
    "<b>x" * 2_500,
    "javascript:alert(1)",
    "constructor",
    "__proto__",
    "",
    " ",
)

NAME = " ".join(text for text in TEXTS if len(text) < 100)


class Tokenizer:
    """Stands in for a tokenizer whose vocabulary is these texts and then words."""

    name_or_path = NAME
    bos_token_id, eos_token_id, pad_token_id, unk_token_id = 1, 2, 0, 3
    padding_side, add_bos_token = "right", False

    def decode(self, ids: list[int]) -> str:
        return "".join(TEXTS[i] if i < len(TEXTS) else f"word{i}" for i in map(int, ids))

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [int(word) for word in text.split()]}
