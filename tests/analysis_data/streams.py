"""The residual stream around each block, recorded by hand."""

from __future__ import annotations

from typing import Any

import torch


def stream(model: Any, *inputs: Any, first: Any = (), **arguments: Any) -> dict[Any, torch.Tensor]:
    """By block: the stream before and after it, and what its attention reads, recorded by hand."""
    bridged = "blocks.0.attn.hook_in" in model.hook_dict
    seen = {}

    def keep(x, hook, key):
        seen.setdefault(key, x.detach().clone())

    hooks = list(first)
    for block in range(2):
        names = {"in": "hook_resid_pre", "out": "hook_resid_post"}
        names |= {"attended": "ln1.hook_out"} if bridged else {}
        for kind, name in names.items():
            if f"blocks.{block}.{name}" not in model.hook_dict:
                continue  # OLMo 2 has no norm in front of the attention
            key = (block, kind)
            hooks.append((f"blocks.{block}.{name}", lambda x, hook, key=key: keep(x, hook, key)))
    with torch.no_grad():
        model.run_with_hooks(*inputs, fwd_hooks=hooks, **arguments)
        for block in range(2):
            if not bridged:
                seen[block, "attended"] = model.blocks[block].ln1(seen[block, "in"])
    return seen
