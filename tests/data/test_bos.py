"""The decision about bos, against hand-made tokenizers and against TransformerLens itself."""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from tl_geometry.data.bos import bos_id, resolve_bos


class Letters:
    """One id per letter, a = 10; the name of the bos token may or may not be one token."""

    def __init__(self, name: str | None = "^", number: int | None = 1) -> None:
        self.bos_token, self.bos_token_id = name, number

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        assert add_special_tokens is False
        return {"input_ids": [1 if c == "^" else ord(c) - 87 for c in text]}


def model(tokenizer: Any, **cfg: Any) -> Any:
    return SimpleNamespace(tokenizer=tokenizer, cfg=SimpleNamespace(**cfg))


@pytest.mark.parametrize(
    ("asked", "cfg", "expected", "words"),
    [
        (True, {"default_prepend_bos": False}, True, "prepend_bos=True was given"),
        (False, {"default_prepend_bos": True}, False, "prepend_bos=False was given"),
        (None, {"default_prepend_bos": True}, True, "cfg.default_prepend_bos=True"),
        (None, {"default_prepend_bos": False}, False, "cfg.default_prepend_bos=False"),
        (None, {}, True, "has no cfg.default_prepend_bos"),
        (None, {"default_prepend_bos": None}, True, "has no cfg.default_prepend_bos"),
    ],
)
def test_who_decides(asked: bool | None, cfg: dict, expected: bool, words: str) -> None:
    rule = resolve_bos(model(Letters(), **cfg), asked)
    assert rule.prepend is expected
    assert words in rule.rule
    assert ("bos '^' (id 1) opens every window" in rule.rule) is expected
    assert ("no bos token is added" in rule.rule) is not expected


@pytest.mark.parametrize("tokenizer", [Letters(None, None), Letters("^", None), Letters("xy", 3)])
def test_a_bos_name_that_is_no_token_counts_as_none(tokenizer: Letters) -> None:
    unusable = model(tokenizer, default_prepend_bos=True)
    assert bos_id(unusable) is None
    rule = resolve_bos(unusable, None)
    assert rule.prepend is False
    assert "no bos token that is one token of its vocabulary" in rule.rule
    with pytest.raises(ValueError, match="prepend_bos=True, but the tokenizer has no bos token"):
        resolve_bos(unusable, True)


def test_a_bos_the_model_cannot_embed_counts_as_none() -> None:
    assert bos_id(model(Letters(), d_vocab=1)) is None
    assert bos_id(model(Letters(), d_vocab=2)) == 1


def test_without_tokenizer() -> None:
    bare = model(None, default_prepend_bos=True)
    assert resolve_bos(bare, None).prepend is False
    assert "no tokenizer" in resolve_bos(bare, None).rule
    with pytest.raises(ValueError, match="prepend_bos=True, but the model has no tokenizer"):
        resolve_bos(bare, True)


@pytest.mark.parametrize("wrong", [1, "yes"])
def test_prepend_bos_must_be_a_bool(wrong: Any) -> None:
    unchecked = inspect.unwrap(resolve_bos)  # without the test run's own check of types
    with pytest.raises(TypeError, match=f"prepend_bos must be True, False or None, got {wrong!r}"):
        unchecked(model(Letters()), wrong)


def _same_as_to_tokens(lens: Any) -> None:
    for asked in (None, True, False):
        ids = lens.to_tokens("the cat sat", prepend_bos=asked)[0].tolist()
        assert (ids[0] == lens.tokenizer.bos_token_id) is resolve_bos(lens, asked).prepend


@pytest.mark.hooked
@pytest.mark.parametrize("default", [True, False])
def test_hooked_transformer_would_do_the_same(
    tiny_hooked: Any, tiny_tokenizer: Any, default: bool
) -> None:
    lens = tiny_hooked(tokenizer=tiny_tokenizer, default_prepend_bos=default)
    assert resolve_bos(lens, None).prepend is default
    _same_as_to_tokens(lens)


@pytest.mark.bridge
@pytest.mark.parametrize(("arch", "default"), [("llama", True), ("qwen2", False)])
def test_transformer_bridge_would_do_the_same(
    tiny_bridge: Any, tiny_tokenizer: Any, arch: str, default: bool
) -> None:
    lens = tiny_bridge(arch, tokenizer=tiny_tokenizer)
    assert resolve_bos(lens, None).prepend is default
    _same_as_to_tokens(lens)
