"""Where the residual stream of a block can be read, and what its attention reads of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from tl_geometry.hooks.norms import apply_norm
from tl_geometry.hooks.sites import AttentionSite, attention_sites

__all__ = ["StreamPoints", "has_stream", "stream_points"]


_NORMED = "hook_normalized_resid_post"


@dataclass(frozen=True, eq=False)
class StreamPoints:
    """Hooks around the block of one attention site, and the way to what the attention reads.

    Attributes:
        before, after: hooks of the residual stream at the block's input and output.
        attended: hook of the attention's own input, None where the class has none.
        norm: the norm between ``before`` and the attention, where there is no such hook and there
            is a norm.
    """

    before: str
    after: str
    attended: str | None
    norm: nn.Module | None

    @property
    def names(self) -> dict[str, str]:
        """Hook names by what they show."""
        names = {"before": self.before, "after": self.after}
        return names if self.attended is None else {**names, "attended": self.attended}

    def attention_input(
        self, seen: dict[str, Float[Tensor, "batch pos d_model"]]
    ) -> Float[Tensor, "batch pos d_model"]:
        """What the attention reads, from what the hooks showed."""
        if "attended" in seen:
            return seen["attended"]
        return seen["before"] if self.norm is None else apply_norm(self.norm, seen["before"])


def stream_points(model: Any, site: AttentionSite) -> StreamPoints:
    """Find the residual stream around a site.

    >>> stream_points(model, attention_sites(model)[3]).before
    'blocks.3.hook_resid_pre'

    Raises: ValueError if the block has no hooks of its residual stream.
    """
    before, after = _around(model, site)
    if not (before and after):
        raise ValueError(
            f"layer {site.layer}: the model has no hooks of the residual stream around {site.name}, so that it "
            "can't be read; leave the measures of the stream out"
        )
    attended = f"{site.name}.hook_in"
    if attended in model.hook_dict:  # a TransformerBridge
        return StreamPoints(before, after, attended, None)
    norm = dict(site.block.named_children()).get("ln1")
    follows = after.endswith(_NORMED) or norm is site.post_norm
    bare = follows or norm is None or isinstance(norm, nn.Identity)
    return StreamPoints(before, after, None, None if bare else norm)


def has_stream(model: Any) -> bool:
    """Whether the residual stream can be read around every attention layer."""
    return all(all(_around(model, site)) for site in attention_sites(model))


def _around(model: Any, site: AttentionSite) -> tuple[str, str]:
    """Hooks of the stream before and after a site's block, blank where there are none."""
    parent = site.name.rpartition(".")[0]
    # A block that norms the sum hands on what comes after the norm.
    pair = (("hook_resid_pre",), (_NORMED, "hook_resid_post"))
    found = [
        [f"{parent}.{name}" for name in names if f"{parent}.{name}" in model.hook_dict]
        for names in pair
    ]
    before, after = (names[0] if names else "" for names in found)
    return before, after
