"""Plotly figures of separability: F against N, F by layer, the effect of the sink, guarantees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tl_geometry.measures.certificate import Certificate
from tl_geometry.views import averages, results, style
from tl_geometry.views.averages import Quantity
from tl_geometry.views.figures import value_map
from tl_geometry.views.maps import F_GAIN, F_SCORE, HeadMap
from tl_geometry.views.profiles import profile, profile_traces
from tl_geometry.views.results import Values
from tl_geometry.views.traces import (
    Series,
    against_n,
    along_n,
    graded,
    unit_axis,
)

_SERIES = (
    Series("f_score", "N most attended", "#123f80", "solid", "circle"),
    Series("f_score_no_sink", "sink left out", "#8b2f7f", "dash", "square"),
    Series("f_score_random", "N random (control)", "#6b727c", "dot", "x"),
    Series("inversion_bound", "bound: inversions", "#1d7a6c", "dashdot", "triangle-down"),
    Series("certificate", "bound: certificate", "#a9640a", "longdashdot", "triangle-up"),
)
# Lines need more contrast against white than the areas of the regime map.
_REGIME_LINES = (
    Series("retriever", "retriever", style.REGIME_COLOURS["retriever"], "solid", "circle"),
    Series("mixer", "mixer", "#bd6a05", "dash", "square"),
    Series("reset", "reset", "#3d8b78", "dot", "diamond"),
)
_GUARANTEES = (
    ("f_score", "F", "solid", "circle"),
    ("precision", "precision", "dash", "triangle-up"),
    ("recall", "recall", "dot", "square"),
)
_ENVELOPE_COLOURS = ("#123f80", "#a9640a", "#1d7a6c", "#8b2f7f", "#6b727c")


def f_curves(
    ds: xr.Dataset, *, regime: str | None = None, layer: object | None = None
) -> go.Figure:
    """F against N, mean over heads, with the random control, without the sink, and lower bounds.

    Example:
        >>> f_curves(ds, regime="mixer").show()  # doctest: +SKIP

    F after Mudarisov et al., arXiv 2602.01893. Bands: two standard errors over documents to each
    side, as wide as they can be (`tl_geometry.views.averages`).

    Args:
        ds: A result of `analyze`.
        regime: Only the heads of this regime.
        layer: Only the heads of this layer, by its label.

    Raises:
        ValueError: when `ds` holds no F, no such layer, or no regimes although one is asked for.
    """
    require(ds)
    figure = go.Figure(curve_traces(ds, heads_of(ds, regime=regime, layer=layer)))
    wanted = [str(x) for x in (regime, None if layer is None else f"layer {layer}") if x]
    title = "Separability against N" + "".join(f", {x}" for x in wanted)
    figure.update_layout(
        style.layout(title, width=440, height=420), **against_n(ds, alone_at="bottom")
    )
    figure.update_layout(yaxis=unit_axis())
    return figure


def curve_traces(ds: xr.Dataset, heads: Values) -> list[go.Scatter]:
    """The lines and bands of `f_curves` for the heads that are marked."""
    traces = []
    for series in _held(ds):
        mean = averages.quantity(ds, series.variable).mean(heads)
        traces += along_n(ds, series, mean)
    return traces


def heads_of(ds: xr.Dataset, *, regime: str | None = None, layer: object | None = None) -> Values:
    """Which heads are of a regime and of a layer, layer by head.

    Raises:
        ValueError: when `ds` holds no regimes, or there is no such regime or layer.
    """
    heads = np.ones((ds.sizes["layer"], ds.sizes["head"]), dtype=bool)
    if regime is not None:
        if not results.measured(ds, "regime") or regime not in results.REGIMES:
            held = results.REGIMES if results.measured(ds, "regime") else "none"
            raise ValueError(f"regime={regime!r}, but the regimes of ds are {held}")
        heads &= results.regimes(ds) == regime
    if layer is not None:
        labels = results.layer_labels(ds)
        if str(layer) not in labels:
            raise ValueError(f"layer={layer!r} is not among the layers {labels}")
        heads &= (np.array(labels) == str(layer))[:, None]
    return heads


def layer_profile(ds: xr.Dataset, top_n: int = averages.PREFERRED_SIZE) -> go.Figure:
    """F of every layer at one N, mean over its heads, with control, without the sink, and bounds.

    Example:
        >>> layer_profile(ds, top_n=8).show()  # doctest: +SKIP

    Raises:
        ValueError: when `ds` holds no F, or no N above 1.
    """
    require(ds)
    place = averages.nearest_size(ds, top_n)
    title = f"Separability by layer, N = {averages.sizes(ds)[place]}"
    return profile(ds, title, "F", _by_layer(ds, place)).update_layout(yaxis=unit_axis())


def layer_traces(ds: xr.Dataset, place: int) -> list[go.Scatter]:
    """The lines and bands of `layer_profile` at one place of the axis `top_n`."""
    return profile_traces(ds, _by_layer(ds, place))


def _by_layer(ds: xr.Dataset, place: int) -> list[tuple[Series, Quantity]]:
    return [
        (series, averages.quantity(ds, series.variable).mean_by_layer()[:, place])
        for series in _held(ds)
    ]


def sink_effect_curves(ds: xr.Dataset) -> go.Figure:
    """What leaving out the sink adds to F, against N: mean over the heads of each regime.

    Example:
        >>> sink_effect_curves(ds).show()  # doctest: +SKIP

    Without regimes in `ds`, the mean over all heads.

    Raises:
        ValueError: when `ds` holds no F without the sink.
    """
    require(ds, "f_score", "f_score_no_sink")
    effect = averages.quantity(ds, "f_score_no_sink") - averages.quantity(ds, "f_score")
    traces = []
    if results.measured(ds, "regime"):
        for series in _REGIME_LINES:
            heads = heads_of(ds, regime=series.variable)
            if heads.any():
                traces += along_n(ds, series, effect.mean(heads), f" ({int(heads.sum())})")
    else:
        series = Series("", "all heads", "#123f80", "solid", "circle")
        traces += along_n(ds, series, effect.mean())
    figure = go.Figure(traces)
    figure.update_layout(
        style.layout("What leaving out the sink does", width=440, height=420),
        **against_n(ds, alone_at="top"),
    )
    zero = {"zeroline": True, "zerolinecolor": style.INK, "zerolinewidth": 1}
    figure.update_layout(yaxis=graded("F without the sink − F") | zero)
    return figure


def certificate_envelope(
    certificates: Certificate | Mapping[str, Certificate], top_n: Sequence[int]
) -> go.Figure:
    """The theory's envelope: precision, recall and F that lengths and angles guarantee, against N.

    Example:
        >>> top_n = (1, 2, 4, 8, 16)
        >>> assumed = {"cosine": (-0.2, 0.4), "sink_cosine": (-0.5, 0.0)}
        >>> certificate_envelope({
        ...     f"sink {kappa} times as long": sink_aware_certificate(
        ...         pattern, v, top_n=top_n, sink_norm_ratio=kappa, **assumed)
        ...     for kappa in (0.1, 0.3, 1.0)}, top_n)  # doctest: +SKIP

    With assumed cosines and lengths only the attention weights are the model's own; without them
    the certificate is that of the measured values. The regime is that of Mudarisov et al., arXiv
    2602.01893, the bounds are our reconstruction (:func:`tl_geometry.sink_aware_certificate`).
    Each point is the mean over the rows, of all documents and heads, that have more than N keys.

    Args:
        certificates: One, or up to five by the names that they get in the legend.
        top_n: The sizes N that they were made with.

    Raises:
        ValueError: no certificate or more than five, or `top_n` does not fit them.
    """
    named = {"": certificates} if isinstance(certificates, Certificate) else dict(certificates)
    if not 1 <= len(named) <= len(_ENVELOPE_COLOURS):
        raise ValueError(
            f"certificates must hold between 1 and {len(_ENVELOPE_COLOURS)}, got {len(named)}"
        )
    axis = xr.Dataset(coords={"top_n": list(top_n)})
    traces = []
    for (name, certificate), colour in zip(named.items(), _ENVELOPE_COLOURS, strict=False):
        if certificate.f_score.shape[-1] != len(top_n):
            raise ValueError(
                f"top_n={tuple(top_n)} has {len(top_n)} sizes, but the certificate {name!r} was "
                f"made with {certificate.f_score.shape[-1]}"
            )
        prefix = f"{style.text(name)}: " if name else ""
        for field, word, dash, symbol in _GUARANTEES:
            mean = getattr(certificate, field).double().nanmean((0, 1, 2)).cpu().numpy()
            series = Series(field, prefix + word, colour, dash, symbol)
            traces += along_n(axis, series, Quantity(mean, np.full(mean.shape, np.nan)))
    figure = go.Figure(traces)
    figure.update_layout(
        style.layout("What lengths and angles guarantee", width=560, height=460),
        **against_n(axis, alone_at="bottom"),
    )
    figure.update_layout(yaxis=unit_axis("guaranteed, mean over rows"))
    return figure


def f_map(ds: xr.Dataset, top_n: int = averages.PREFERRED_SIZE) -> go.Figure:
    """F of every head at the N that is nearest to `top_n` (arXiv 2602.01893)."""
    require(ds)
    place = averages.nearest_size(ds, top_n)
    return _at(ds, F_SCORE.at(averages.sizes(ds)[place]), averages.quantity(ds, "f_score"), place)


def f_gain_map(ds: xr.Dataset, top_n: int = averages.PREFERRED_SIZE) -> go.Figure:
    """F of every head above its random control, at the N that is nearest to `top_n`."""
    require(ds, "f_score", "f_score_random")
    place = averages.nearest_size(ds, top_n)
    return _at(ds, F_GAIN.at(averages.sizes(ds)[place]), gain(ds), place)


def gain(ds: xr.Dataset) -> Quantity:
    """F above the random control, per layer, head and N."""
    return averages.quantity(ds, "f_score") - averages.quantity(ds, "f_score_random")


def _at(ds: xr.Dataset, spec: HeadMap, values: Quantity, place: int) -> go.Figure:
    shown = values[:, :, place]
    return value_map(ds, spec, shown.value, shown.error)


def require(ds: xr.Dataset, *names: str) -> None:
    """Refuse a result without these variables per layer, head and N; by default F.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when something is missing.
    """
    results.check_result(ds)
    if not averages.separability_measured(ds, *names):
        held = sorted(str(name) for name in ds.data_vars)
        wanted = " and ".join(repr(name) for name in names or ("f_score",))
        raise ValueError(f"ds holds no {wanted} per layer, head and top_n; it holds {held}")


def _held(ds: xr.Dataset) -> list[Series]:
    return [series for series in _SERIES if averages.separability_measured(ds, series.variable)]
