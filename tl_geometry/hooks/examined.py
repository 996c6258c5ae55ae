"""What the doctor said of a model, remembered while the model stays as it was."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from tl_geometry.hooks.capabilities import doctor
from tl_geometry.hooks.judgement import attention_implementation
from tl_geometry.hooks.report import Doctor
from tl_geometry.hooks.sites import AttentionSite

__all__ = ["examined"]

_KNOWN: WeakKeyDictionary[Any, tuple[Hashable, Doctor]] = WeakKeyDictionary()


def examined(model: Any, sites: Sequence[AttentionSite]) -> Doctor:
    """The doctor's report on a model, edits included; its four short forwards run once.

    >>> examined(model, attention_sites(model)) is examined(model, attention_sites(model))
    True

    They run again when the mode, the data type, the head counts or the attention implementation of
    a layer changes. What is found while other hooks are at work in a layer is not remembered.

    Args:
        model: a HookedTransformer or TransformerBridge.
        sites: all of its attention layers.
    """
    state = (
        model.training,
        *((s.n_heads, s.n_kv_heads, s.dtype, attention_implementation(s.module)) for s in sites),
    )
    known = _KNOWN.get(model)
    if known is not None and known[0] == state:
        return known[1]
    report = doctor(model)
    parts = (part for site in sites for part in site.module.modules())
    if not any(getattr(part, "fwd_hooks", ()) for part in parts):
        _KNOWN[model] = (state, report)
    return report
