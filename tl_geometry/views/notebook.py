"""Views for a notebook: they show themselves without a network and can be saved as a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import xarray as xr
from torch import Tensor

from tl_geometry.measures.layer import Output, ValueBias
from tl_geometry.views.attention import MAX_HEADS, heads_figure, mean_distance
from tl_geometry.views.page import View, render
from tl_geometry.views.results import Values, head_name, strongest


def regimes(ds: xr.Dataset) -> View:
    """The regime of every head, layer by head, with the shares in the hover.

    Example:
        >>> tlg.views.regimes(ds)  # doctest: +SKIP
        >>> tlg.views.regimes(ds).save_html("regimes.html")  # doctest: +SKIP

    Winner of a row: argmax_j alpha_ij |v_j| (Mudarisov et al., arXiv 2602.01893).

    Raises:
        ValueError: when `ds` holds no regimes.
    """
    from tl_geometry.views.drawings import regime_drawing

    figure = regime_drawing(ds)
    html = render("view.html.j2", [figure], title="Head regimes", figure=figure)
    return View(html, height=figure.height + 200)


def separability(ds: xr.Dataset) -> View:
    """Separability of what the heads select: findings, curves, layers, maps, tables.

    Example:
        >>> tlg.views.separability(ds)  # doctest: +SKIP
        >>> tlg.views.separability(ds).save_html("separability.html")  # doctest: +SKIP

    F_N of the N most attended tokens (Mudarisov et al., arXiv 2602.01893), in [0, 1].

    Raises:
        ValueError: when `ds` holds no `f_score` per layer, head and top_n.
    """
    from tl_geometry.views.curves import require
    from tl_geometry.views.separable import section

    require(ds)
    shown = section(ds)
    html = render("separability.html.j2", shown.figures, title=shown.title, section=shown)
    return View(html, height=900)


def contributions(
    model: Any,
    text: str | Tensor,
    layer: int | str,
    heads: Sequence[int] | None = None,
    mode: Literal["intra", "inter"] = "intra",
    *,
    prepend_bos: bool | None = None,
    value_bias: ValueBias = "as_hooked",
    output: Output = "raw",
) -> View:
    """Attention of a layer's heads on a text, beside their signed contribution weights.

    Example:
        >>> tlg.views.contributions(model, "The cat sat on the mat.", layer=5)  # doctest: +SKIP

    c_ij = <o_i, alpha_ij v_j> / |o_i|^2 (arXiv 2606.07604), without unit. At most 64 tokens are
    drawn, and, unless `heads` are given, the twelve heads whose contribution weights differ most
    from their attention on this text.

    Args:
        model: HookedTransformer or TransformerBridge.
        text: One text, or token ids (`pos` or `1 pos`), taken as they are.
        layer: Label of the layer, as `analyze` gives it.
        heads: Which heads, in this order.
        mode: "intra" (share of the head's output) or "inter" (share of the layer's).
        prepend_bos: Whether a bos token opens the text; by default as the tokenizer is set.
        value_bias: "remove" subtracts the value bias where the model has one.
        output: "normed" measures behind the norm that some models put after attention.

    Raises:
        ValueError: when the layer can't be measured, a head does not exist, or queries and keys
            are different tokens.
    """
    from tl_geometry.analysis.prompt import prompt_matrices, prompt_tokens
    from tl_geometry.hooks import attention_sites, doctor, select_sites

    (site,) = select_sites(attention_sites(model), layer)
    if site.cross:
        raise ValueError(f"layer={layer!r} attends to other tokens than its own: not drawable")
    diagnosis = doctor(model, edits=False, layers=layer)
    if not diagnosis.layers[0].supported:
        raise ValueError(f"layer={layer!r} can't be measured: {diagnosis.layers[0].reason}")
    diagnosis.warn()
    ids, tokens = prompt_tokens(model, text, prepend_bos)
    found = prompt_matrices(
        model,
        ids,
        [site],
        diagnosis,
        (mode, "attention"),
        value_bias=value_bias,
        output=output,
    )
    c, a = (found.by_mode[name][0] for name in (mode, "attention"))
    labels = list(range(site.n_heads))
    chosen, note = _choose(heads, labels, mean_distance(a, c))
    names = [head_name(layer, labels[h]) for h in chosen]
    figure = heads_figure("contributions", tokens, names, a[chosen], c[chosen], mode=mode)
    figure = dataclasses.replace(figure, notes=[*note, *figure.notes])
    title = f"Layer {layer}: attention beside contribution weights"
    return View(render("view.html.j2", [figure], title=title, figure=figure), height=780)


def _choose(
    heads: Sequence[int] | None, labels: list[int], distance: Values
) -> tuple[list[int], list[str]]:
    """Positions of the heads to draw, and a note when some were left out."""
    if heads is not None:
        unknown = [head for head in heads if head not in labels]
        if unknown or not heads:
            raise ValueError(f"heads={list(heads)} must name heads among {labels}")
        return [labels.index(head) for head in heads], []
    if len(labels) <= MAX_HEADS:
        return list(range(len(labels))), []
    farthest = [head for _, head in strongest(distance[None, :], MAX_HEADS)]
    note = (
        f"{len(farthest)} of {len(labels)} heads: those whose contribution weights differ most "
        "from attention on this text."
    )
    return sorted(farthest), [note]
