"""Where the residual stream of a block can be read, and what its attention reads of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from tl_geometry.hooks.norms import apply_norm
from tl_geometry.hooks.sites import AttentionSite

__all__ = ["StreamPoints", "stream_points"]


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
    points = model.hook_dict
    parent = site.name.rpartition(".")[0]
    before = f"{parent}.hook_resid_pre"
    # A block that norms the sum hands on what comes after the norm.
    after = [f"{parent}.hook_normalized_resid_post", f"{parent}.hook_resid_post"]
    present = [name for name in after if name in points]
    if before not in points or not present:
        raise ValueError(
            f"layer {site.layer}: the model has no {before} and {after[-1]}, so that its residual stream "
            "can't be read; leave the measures of the stream out"
        )
    attended = f"{site.name}.hook_in"
    if attended in points:  # a TransformerBridge
        return StreamPoints(before, present[0], attended, None)
    norm = dict(site.block.named_children()).get("ln1")
    follows = present[0] == after[0] or norm is site.post_norm
    bare = follows or norm is None or isinstance(norm, nn.Identity)
    return StreamPoints(before, present[0], None, None if bare else norm)
