"""Dropout that is active right now."""

from __future__ import annotations

from torch import nn

__all__ = ["active_dropout"]


def active_dropout(model: nn.Module) -> str | None:
    """Name of the first place where the model drops something at random, None if there is none.

    >>> active_dropout(model.train())
    'blocks.0._original_component.attn.attn_dropout (p=0.1)'

    In train mode that is every dropout module with p > 0 and every module with a positive number
    named like one (`attention_dropout`, `layerdrop`), as Hugging Face models keep them.
    """
    for name, module in model.named_modules():
        if not module.training:
            continue
        if isinstance(module, nn.modules.dropout._DropoutNd):
            if module.p > 0:
                return f"{name} (p={module.p:g})"
            continue
        for attribute, value in vars(module).items():
            if "drop" in attribute and isinstance(value, float) and value > 0:
                return f"{name}.{attribute} (p={value:g})"
    return None
