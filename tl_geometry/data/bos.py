"""Whether a beginning-of-sequence token opens every window, and who decided so."""

from dataclasses import dataclass
from typing import Any

from tl_geometry.data.limits import vocabulary_size

__all__ = ["BosRule", "bos_id", "resolve_bos"]


@dataclass(frozen=True)
class BosRule:
    """The decision about the bos token, with a sentence that says where it came from.

    Example: ``BosRule(prepend=False, rule="prepend_bos=False was given: ...")``.
    """

    prepend: bool
    rule: str


def bos_id(model: Any) -> int | None:
    """The id of the tokenizer's bos token, or None where the vocabulary has no such token.

    Example: ``bos_id(model)`` is 50256 for GPT-2.

    A tokenizer can name a bos token that its vocabulary does not hold (a fallback name that
    would be cut into pieces), or that the model cannot embed; that counts as none.
    """
    tokenizer = getattr(model, "tokenizer", None)
    name = getattr(tokenizer, "bos_token", None)
    number = getattr(tokenizer, "bos_token_id", None)
    if tokenizer is None or name is None or number is None:
        return None
    size = vocabulary_size(model)
    if size is not None and number >= size:
        return None
    pieces = list(tokenizer(name, add_special_tokens=False)["input_ids"])
    return int(number) if pieces == [number] else None


def resolve_bos(model: Any, prepend_bos: bool | None) -> BosRule:
    """Decide whether bos opens every window of text.

    Example: ``resolve_bos(model, None).rule`` tells what the model's own setting says.

    ``None`` follows ``model.cfg.default_prepend_bos``, which HookedTransformer and
    TransformerBridge both obey in ``to_tokens``; where it is missing TransformerLens prepends.
    Whether the tokenizer adds bos by itself (``cfg.tokenizer_prepends_bos``) plays no part: texts
    are tokenised without special tokens, so there is exactly one bos or none.

    Raises TypeError if `prepend_bos` is not True, False or None, and ValueError if it is True
    and there is no bos token to prepend.
    """
    if prepend_bos is not None and not isinstance(prepend_bos, bool):
        raise TypeError(f"prepend_bos must be True, False or None, got {prepend_bos!r}")
    if prepend_bos is False:
        return BosRule(False, "prepend_bos=False was given: no bos token is added")
    number = bos_id(model)
    if prepend_bos is True:
        if number is None:
            raise ValueError(
                f"prepend_bos=True, but {_what_is_missing(model)}; "
                "pass prepend_bos=False, or token ids that begin with the token you want"
            )
        return BosRule(True, f"prepend_bos=True was given: {_opens(model, number)}")
    default = getattr(getattr(model, "cfg", None), "default_prepend_bos", None)
    if default is None:
        setting = "the model has no cfg.default_prepend_bos, and TransformerLens prepends then"
    else:
        setting = f"the model's own setting is cfg.default_prepend_bos={bool(default)}"
    if default is not None and not default:
        return BosRule(False, f"{setting}: no bos token is added")
    if number is None:
        return BosRule(False, f"{setting}, but {_what_is_missing(model)}: no bos token is added")
    return BosRule(True, f"{setting}: {_opens(model, number)}")


def _opens(model: Any, number: int) -> str:
    return f"bos {model.tokenizer.bos_token!r} (id {number}) opens every window"


def _what_is_missing(model: Any) -> str:
    if getattr(model, "tokenizer", None) is None:
        return "the model has no tokenizer"
    return "the tokenizer has no bos token that is one token of its vocabulary"
