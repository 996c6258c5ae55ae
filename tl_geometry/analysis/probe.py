"""The probe: accumulators fed by hooks, one layer at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
import xarray as xr
from torch import Tensor

from tl_geometry.analysis.accumulator import Accumulator
from tl_geometry.analysis.batch_masks import BatchMasks
from tl_geometry.analysis.defaults import default_measures
from tl_geometry.analysis.ledger import Ledger
from tl_geometry.analysis.results import assemble, kept_heads, model_provenance
from tl_geometry.hooks import AttentionSite, Doctor, attention_sites, doctor, select_sites
from tl_geometry.hooks.capture import FwdHook, capture_hooks
from tl_geometry.hooks.padding import pad_embedding
from tl_geometry.hooks.post_norm import post_norm_scale
from tl_geometry.measures.checks import one_of
from tl_geometry.measures.frame import OutputFrame
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.layer import Output, ValueBias
from tl_geometry.measures.masks import SinkRule
from tl_geometry.measures.scaling import work_dtype

__all__ = ["Probe"]

Mask = Tensor | None


class Probe:
    """Measures a model through its own hooks: no cache, one layer in memory at a time.

    >>> probe = Probe(model, [Contributions(), Regimes(), Sinks()])
    >>> model.run_with_hooks(tokens, fwd_hooks=probe.hooks())
    >>> probe.result()                                  # xarray.Dataset, dims layer, head, ...

    Run as many batches as you like before asking for the result. The hooks read only, and work
    beside your own hooks and ablations: put the edits first in ``fwd_hooks``, so that the probe
    reads what they leave. Every row of a batch is one document of the statistics.

    Args:
        model: a HookedTransformer or TransformerBridge.
        measures: accumulators; by default contributions, regimes, sinks and separability.
        sink: which keys are sinks (:func:`tl_geometry.measures.masks.resolve_sinks`).
        layers: labels of the layers to measure.
        heads: list of (layer, head); the other heads are NaN in the result.
        on_unsupported: ``"raise"`` on a layer whose attention can't be taken apart, or ``"skip"``
            it with the reason.
        value_bias: ``"remove"`` subtracts the layers' b_V from the hooked values.
        output: ``"normed"`` measures contributions after the norm that some models put behind the
            attention.
        diagnosis: a :func:`tl_geometry.doctor` result of this model, if at hand already; else one
            short forward is run.

    Raises:
        ValueError: an unsupported layer (with its reason), an unknown layer or head, an accumulator
            that is in use.
    """

    def __init__(
        self,
        model: Any,
        measures: Sequence[Accumulator] | None = None,
        *,
        sink: SinkRule = "first",
        layers: Iterable[int | str] | None = None,
        heads: Iterable[tuple[int | str, int]] | None = None,
        on_unsupported: Literal["raise", "skip"] = "raise",
        value_bias: ValueBias = "as_hooked",
        output: Output = "raw",
        diagnosis: Doctor | None = None,
    ) -> None:
        one_of("on_unsupported", on_unsupported, ("raise", "skip"))
        one_of("value_bias", value_bias, ("as_hooked", "remove"))
        one_of("output", output, ("raw", "normed"))
        heads = None if heads is None else list(heads)
        if layers is None and heads is not None:
            layers = list(dict.fromkeys(layer for layer, _ in heads))
        candidates = select_sites(attention_sites(model), layers)
        labels = [site.layer for site in candidates]
        self.diagnosis = diagnosis or doctor(model, edits=False, layers=labels)
        self.reports = {report.layer: report for report in self.diagnosis.layers}
        refused = {
            label: self.reports[label].reason
            for label in labels
            if not self.reports[label].supported
        }
        if refused and (on_unsupported == "raise" or len(refused) == len(candidates)):
            label, reason = next(iter(refused.items()))
            more = f" (and {len(refused) - 1} more layers)" if len(refused) > 1 else ""
            raise ValueError(f"layer {label} can't be measured: {reason}{more}")
        self.model = model
        self.sites = [site for site in candidates if site.layer not in refused]
        self.skipped_layers = refused
        self.sink, self.value_bias, self.output = sink, value_bias, output
        self.measures = default_measures() if measures is None else list(measures)
        n_heads = max(site.n_heads for site in self.sites)
        self._kept_heads = kept_heads(self.sites, heads, self.skipped_layers)
        self._device = self.sites[0].device
        self._ledger = Ledger(self.sites, n_heads, self._device)
        for measure in self.measures:
            measure.bind(len(self.sites), n_heads, self._device)
        self.rows = {site.index: row for row, site in enumerate(self.sites)}
        scales = (
            {site.index: post_norm_scale(site) for site in self.sites} if output == "normed" else {}
        )
        self.norm_weights = {index: scale for index, scale in scales.items() if scale is not None}
        self._frames: dict[int, tuple[Any, OutputFrame]] = {}
        self._pad = pad_embedding(model)
        self._seen = 0

    # -- feeding -----------------------------------------------------------------------------------
    # -------------------

    def hooks(
        self,
        attention_mask: Mask = None,
        *,
        decoder_attention_mask: Mask = None,
        documents: Sequence[int] | None = None,
    ) -> list[FwdHook]:
        """Forward hooks for one batch.

        >>> model.run_with_hooks(tokens, attention_mask=mask, fwd_hooks=probe.hooks(attention_mask=mask))

        Args:
            attention_mask: ``batch pos``, non-zero at real tokens, as the model gets it. Without
                one, padding that the model masks by itself (texts padded on the left) or appends
                (on the right) is found and left out.
            decoder_attention_mask: the same for the decoder of an encoder-decoder model.
            documents: numbers of the rows within the corpus, which seed random controls; by default
                they are counted on.

        Raises:
            ValueError: a mask that is not ``batch pos``, or a row without a real token.
        """
        masks = BatchMasks(attention_mask, decoder_attention_mask, self._pad)
        hooks = capture_hooks(self.model, self.sites, _Batch(self, masks, documents).consume)
        return [("hook_embed", masks.look), *hooks] if masks.looks_at_embeddings else hooks

    def read(
        self, cache: Any, attention_mask: Mask = None, *, decoder_attention_mask: Mask = None
    ) -> None:
        """Take in a batch from an ``ActivationCache`` (or dict of hook names) that is at hand already.

        >>> _, cache = model.run_with_cache(tokens)
        >>> probe.read(cache)

        Raises:
            ValueError: a layer's pattern, v or z is missing; or as for :meth:`hooks`.
        """
        masks = BatchMasks(attention_mask, decoder_attention_mask, self._pad)
        batch = _Batch(self, masks, None)
        cached = set(cache.keys())
        if masks.looks_at_embeddings and "hook_embed" in cached:
            masks.look(cache["hook_embed"], None)
        for site in self.sites:
            names = (site.pattern_hook, site.v_hook, site.z_hook)
            missing = [name for name in names if name not in cached]
            if missing:
                raise ValueError(
                    f"the cache has no {', '.join(missing)}: cache these hooks too, or restrict layers="
                )
            pattern, v, z = (cache[name] for name in names)
            if pattern.ndim == 3:  # a cache whose batch dimension was removed
                pattern, v, z = pattern[None], v[None], z[None]
            with torch.no_grad():
                batch.consume(site, pattern, v, z)

    def number_documents(self, n: int, given: Sequence[int] | None) -> Sequence[int]:
        """Numbers of the rows of a batch within the corpus: as given, or counted on."""
        if given is not None and len(given) != n:
            raise ValueError(f"documents names {len(given)} rows, but the batch has {n}")
        self._seen += n
        return range(self._seen - n, self._seen) if given is None else given

    def frame(self, site: AttentionSite) -> OutputFrame:
        """The factored output projection of a layer, kept while the layer's weights stay the same."""
        key = [(id(p), None if p.is_inference() else p._version) for p in site.module.parameters()]
        held = self._frames.get(site.index)
        if held is None or held[0] != key:
            dtype = work_dtype(site.W_O)
            held = (
                key,
                OutputFrame.of(site.W_O.detach(), self.norm_weights.get(site.index), dtype),
            )
            self._frames[site.index] = held
        return held[1]

    def take(
        self, row: int, geometry: AttentionGeometry, z: Tensor, v: Tensor, *, pads_found: bool
    ) -> None:
        """Hand one layer to the checks and to every accumulator."""
        if row == 0:
            real = geometry.rows.any(1).sum()
            total = geometry.pattern.shape[0] * geometry.n_queries
            self._ledger.count(geometry.pattern.shape[0], real, (total - real) * int(pads_found))
        self._ledger.update(row, geometry, z, v)
        for measure in self.measures:
            measure.update(row, geometry)

    # -- results -----------------------------------------------------------------------------------
    # -------------------

    def result(self) -> xr.Dataset:
        """Everything measured so far, as a dataset with named axes and its provenance in ``attrs``.

        Raises:
            RuntimeError: no forward has run, or a layer's hooks never fired.
            ValueError: the activations can't be trusted (NaN, hidden keys attended, z unequal
                pattern @ v); the message names the layer.
        """
        self.check()
        counts = self._ledger.compute()
        attrs = model_provenance(self.model, self.diagnosis.processing) | {
            "sink": self.sink.tolist() if isinstance(self.sink, Tensor) else self.sink,
            "value_bias": self.value_bias,
            "output": self.output,
            "documents": int(counts["documents"]),
            "tokens": int(counts["tokens"]),
            "rows": int(counts["rows"].max()),
            "measures": {type(measure).__name__: measure.settings for measure in self.measures},
            "skipped_layers": {str(label): reason for label, reason in self.skipped_layers.items()},
            "skipped_rows": {
                "padding found without a mask": int(counts["padding"]),
                "sink hidden by the window (rows of all layers)": int(
                    counts["hidden_sink_rows"].sum()
                ),
            },
            "warnings": list(self.diagnosis.warnings),
        }
        labels = [site.layer for site in self.sites]
        return assemble(self.measures, labels, self._kept_heads, attrs)

    def check(self) -> None:
        """Raise if what was seen so far can't be trusted; :meth:`result` does the same."""
        self._ledger.verify(self.sites[0].dtype)

    def reset(self) -> None:
        """Forget all batches."""
        for metric in (self._ledger, *self.measures):
            metric.reset()
        self._ledger.fired = [0] * len(self.sites)
        self._seen = 0


class _Batch:
    """The way of one batch's layers into the accumulators."""

    def __init__(self, probe: Probe, masks: BatchMasks, documents: Sequence[int] | None) -> None:
        self.probe = probe
        self.masks = masks
        self.given = documents
        self.documents: Sequence[int] = ()
        stacks: dict[str, int] = {}
        for row, site in enumerate(probe.sites):
            if not site.cross:
                stacks.setdefault(
                    str(site.layer).partition(".")[0] if isinstance(site.layer, str) else "", row
                )
        self.first_of_stack = set(stacks.values())

    def consume(self, site: AttentionSite, pattern: Tensor, v: Tensor, z: Tensor) -> None:
        probe = self.probe
        row = probe.rows[site.index]
        report = probe.reports[site.layer]
        if row in self.first_of_stack:
            self.masks.begin(site, report, pattern)
        if row == 0:
            self.documents = probe.number_documents(pattern.shape[0], self.given)
        norm_weight = probe.norm_weights.get(site.index)
        bias = site.b_V if probe.value_bias == "remove" else None
        try:
            geometry = AttentionGeometry(
                pattern,
                v,
                site.W_O.detach(),
                available=self.masks.available(site, report, pattern),
                sink=probe.sink,
                z=z,
                value_bias="as_hooked" if bias is None else "remove",
                b_V=bias,
                output="raw" if norm_weight is None else "normed",
                norm_weight=norm_weight,
                cross=site.cross,
                frame=probe.frame(site),
                masked=True,
                layer=site.index,
                documents=self.documents,
            )
        except ValueError as error:
            raise ValueError(f"layer {site.layer}: {error}") from error
        probe.take(row, geometry, z, v, pads_found=self.masks.found_padding(site))
