"""CircuitsVis views of one text: attention beside the signed contribution weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from tl_geometry.texts import visible
from tl_geometry.views import results
from tl_geometry.views.maps import CW, nice_limit
from tl_geometry.views.null_sinks import matrix_note
from tl_geometry.views.page import rounded
from tl_geometry.views.parts import Figure
from tl_geometry.views.results import Values, number

MAX_TOKENS = 64  # CircuitsVis draws a cell in about 75 microseconds
MAX_HEADS = 12
EXAMPLE_TOKENS = 40
BY_DISTANCE = 3
_EXAMPLE = ("example_tokens", "example_length", "example_attention", "example_contribution")
POSITIVE, NEGATIVE = "#123f80", "#a34a08"


@dataclass(frozen=True)
class ShownHead:
    """A head that is shown, and why.

    Args:
        layer: Position on the layer axis.
        head: Position on the head axis.
        name: Its name, `L5H3`.
        reason: Which part of the rule chose it.
    """

    layer: int
    head: int
    name: str
    reason: str


def heads_figure(
    figure_id: str,
    tokens: Sequence[str],
    names: Sequence[str],
    attention: Values,
    contribution: Values,
    *,
    mode: str = "intra",
    max_tokens: int = MAX_TOKENS,
) -> Figure:
    """Attention and contribution weights of some heads, side by side, on one colour scale.

    Example:
        >>> rows = np.array([[[1.0, np.nan], [0.4, 0.6]]])
        >>> heads_figure("a", ["<s>", "hi"], ["L0H0"], rows, rows).data["limit"]
        1.0

    c_ij = <o_i, alpha_ij v_j> / |o_i|^2 (arXiv 2606.07604); entries that are NaN stay blank.

    Args:
        figure_id: Unique within the page.
        tokens: Strings of the queries, which are the keys as well.
        names: One for each head.
        attention: Head, query, key.
        contribution: Head, query, key; signed.
        mode: "intra" (share of the head's output) or "inter" (share of the layer's).
        max_tokens: Further tokens are cropped, with a note.

    Raises:
        ValueError: when shapes, tokens and names do not fit together, or there is no head.
    """
    expected = (len(names), len(tokens), len(tokens))
    for argument, array in (("attention", attention), ("contribution", contribution)):
        if array.shape != expected:
            raise ValueError(
                f"{argument} has shape {array.shape}, but {len(names)} names and "
                f"{len(tokens)} tokens need (head, query, key) = {expected}"
            )
    if not names or not tokens:
        raise ValueError(f"got {len(names)} heads and {len(tokens)} tokens, need one at least")
    notes = [note for note in (matrix_note(attention, names),) if note]
    shown = min(len(tokens), max_tokens)
    attention, contribution = attention[:, :shown, :shown], contribution[:, :shown, :shown]
    limit = _limit(attention, contribution)
    owner = "the head's" if mode == "intra" else "the layer's"
    if shown < len(tokens):
        notes.append(f"Cropped to the first {shown} of {len(tokens)} tokens.")
    return Figure(
        id=figure_id,
        kind="heads",
        title="Attention beside contribution weights",
        label=(
            f"Two matrices, query by key, for each of the heads {', '.join(names)}: "
            f"attention, and contribution weights in colours that show the sign"
        ),
        height=430 + 40 * ((len(names) - 1) // 6),
        data={
            "names": [_front_cut(visible(name)) for name in names],
            "tokens": [_short(token) for token in tokens[:shown]],
            "limit": limit,
            "positive": POSITIVE,
            "negative": NEGATIVE,
            "panels": [
                {"title": "Attention", "values": rounded(attention, 3)},
                {"title": f"Contribution to {owner} output", "values": rounded(contribution, 3)},
            ],
        },
        reading=(
            "Rows are the tokens that look, columns the tokens looked at. Both panels share one "
            f"scale: white is 0, the deepest blue is {limit:g} or more, the deepest brown "
            f"-{limit:g} or less (the token works against {owner} output). Hover over a head to "
            "see it in both panels, click to keep it."
        ),
        source=CW + (" (inter-head)" if mode == "inter" else ""),
        notes=notes,
    )


def has_examples(ds: xr.Dataset) -> bool:
    """Whether the run kept the matrices of a text."""
    return all(name in ds for name in _EXAMPLE) and ds.sizes.get("example", 0) > 0


def example_matrices(ds: xr.Dataset, example: int = 0) -> tuple[list[str], Values, Values]:
    """Tokens, attention and contribution (layer head query key) of a kept text, padding cut."""
    length = int(ds["example_length"].values[example])
    tokens = [str(token) for token in ds["example_tokens"].values[example][:length]]
    order = ("layer", "head", "query", "key")
    both = [
        ds[name].isel(example=example).transpose(*order).values[..., :length, :length]
        for name in ("example_attention", "example_contribution")
    ]
    return tokens, both[0], both[1]


def chosen_heads(ds: xr.Dataset, example: int = 0) -> list[ShownHead]:
    """The heads worth showing, by a fixed rule.

    The three whose contribution weights differ most from attention over the whole run (in the
    text itself, if the run has no such measure), then of each regime the head with the largest
    margin that is not among them.

    Example:
        >>> [choice.name for choice in chosen_heads(ds)]  # doctest: +SKIP
        ['L5H3', 'L2H0', 'L7H1', 'L0H4', 'L9H2', 'L3H3']
    """
    _, attention, contribution = example_matrices(ds, example)
    usable = np.isfinite(attention) & np.isfinite(contribution)
    scope = "on this text"
    if results.measured(ds, "contribution_attention_distance"):
        scope = "over the run"
        distance = results.values(ds, "contribution_attention_distance")
    else:
        distance = mean_distance(attention, contribution)
    drawable = usable.any(axis=(-1, -2))
    names = results.head_names(ds)
    choices: dict[tuple[int, int], ShownHead] = {}
    for i, j in results.strongest(np.where(drawable, distance, np.nan), BY_DISTANCE):
        reason = f"among the largest distances {scope} ({number(distance[i, j])})"
        choices[i, j] = ShownHead(i, j, names[i][j], reason)
    if results.measured(ds, "regime", "regime_margin"):
        labels, margin = results.regimes(ds), results.values(ds, "regime_margin")
        for regime in results.REGIMES:
            open_to = drawable & (labels == regime)
            for taken in choices:
                open_to[taken] = False
            for i, j in results.strongest(np.where(open_to, margin, np.nan), 1):
                reason = f"clearest other {regime} (margin {number(margin[i, j])})"
                choices[i, j] = ShownHead(i, j, names[i][j], reason)
    return list(choices.values())


def mean_distance(attention: Values, contribution: Values) -> Values:
    """Half the summed absolute difference of both, a null sink's included, mean over the queries that have values."""
    difference = np.abs(contribution - attention)
    null = np.abs(1 - np.nansum(attention, axis=-1))  # it contributes nothing
    rows = 0.5 * (np.nansum(difference, axis=-1) + null)
    defined = np.isfinite(difference).any(axis=-1)
    count = defined.sum(axis=-1)
    total = np.where(defined, rows, 0.0).sum(axis=-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def example_figure(ds: xr.Dataset, choices: Sequence[ShownHead], example: int = 0) -> Figure:
    """The chosen heads of a kept text."""
    tokens, attention, contribution = example_matrices(ds, example)
    i, j = [c.layer for c in choices], [c.head for c in choices]
    names = [c.name for c in choices]
    return heads_figure(
        f"example-{example}",
        tokens,
        names,
        attention[i, j],
        contribution[i, j],
        max_tokens=EXAMPLE_TOKENS,
    )


def _limit(attention: Values, contribution: Values) -> float:
    both = np.abs(np.concatenate([attention.ravel(), contribution.ravel()]))
    both = both[np.isfinite(both) & (both > 0)]
    # Beyond 1 lie only rows whose values nearly cancel: they must not make the others pale.
    return min(1.0, nice_limit(float(np.percentile(both, 99)) if both.size else 1.0))


def _front_cut(name: str, most: int = 24) -> str:
    """A name whose end says the most."""
    return name if len(name) <= most else f"…{name[1 - most :]}"


def _short(token: str, most: int = 12) -> str:
    """A token as an axis label: leading spaces shown, long ones cut."""
    text = visible(token).replace(" ", "·")
    return text if len(text) <= most else f"{text[: most - 1]}…"
