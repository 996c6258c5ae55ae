"""The probe: accumulators fed by hooks, one layer at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
import xarray as xr
from torch import Tensor

from tl_geometry.analysis.accumulator import Accumulator, ResidualStream
from tl_geometry.analysis.batch_masks import BatchMasks
from tl_geometry.analysis.contributions import Contributions
from tl_geometry.analysis.defaults import MeasureName, check_distinct, checked_measures
from tl_geometry.analysis.feed import Feed
from tl_geometry.analysis.ledger import Ledger
from tl_geometry.analysis.reading import LayerReader, named_layer, plain_sink
from tl_geometry.analysis.results import assemble, kept_heads, model_provenance
from tl_geometry.arguments import one_of
from tl_geometry.hooks import AttentionSite, Doctor, attention_sites, doctor, select_sites
from tl_geometry.hooks.capture import capture_hooks
from tl_geometry.hooks.entries import FwdHook
from tl_geometry.hooks.padding import PadToken
from tl_geometry.hooks.stream import stream_points
from tl_geometry.measures.devices import no_autocast
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.layer import Output, ValueBias
from tl_geometry.measures.masks import SinkRule
from tl_geometry.measures.memory import MemoryBudget

__all__ = ["Probe"]


class Probe:
    """Measures a model through its own hooks: no cache, one layer in memory at a time.

    >>> probe = Probe(model, [Contributions(), Regimes(), Sinks()])
    >>> model.run_with_hooks(tokens, fwd_hooks=probe.hooks())
    >>> probe.result()                                  # xarray.Dataset, dims layer, head, ...

    Run as many batches as you like first; every row of a batch is one document of the statistics.
    The hooks read only, and work beside your own hooks and ablations: put the edits first in
    ``fwd_hooks``, so that the probe reads what they leave. Each layer is measured on its own device, and
    the host waits for none; exceptions are ``sink="auto"`` and masks of sinks, whose number has to be
    known (one question per layer), and the half-space conditions and costs, which are computed on
    the host.

    Args:
        model: a HookedTransformer or TransformerBridge.
        measures: accumulators or their names; by default all that read attention alone.
        sink: which keys are sinks (:func:`tl_geometry.measures.masks.resolve_sinks`).
        layers: labels of the layers to measure.
        heads: list of (layer, head); the other heads are NaN in the result.
        on_unsupported: ``"raise"`` on a layer whose attention can't be taken apart, or ``"skip"`` it with the reason.
        value_bias: ``"remove"`` subtracts the layers' b_V from the hooked values.
        output: ``"normed"`` measures contributions after the norm that some models put behind the
            attention.
        memory_budget: bytes, or a text such as ``"500MB"``, for the quadratic temporaries of a layer's measures; by
            default a quarter of what is free. So many queries are worked on at once, one at least.
        diagnosis: a :func:`tl_geometry.doctor` result of this model, if at hand already; else one
            short forward is run. What it warns of is said as a UserWarning and stands in the result.

    Raises:
        ValueError: an unsupported layer (with its reason), an unknown layer or head, an accumulator that is in use.
    """

    def __init__(
        self,
        model: Any,
        measures: Sequence[Accumulator | MeasureName] | Accumulator | MeasureName | None = None,
        *,
        sink: SinkRule = "first",
        layers: Iterable[int | str] | None = None,
        heads: Iterable[tuple[int | str, int]] | None = None,
        on_unsupported: Literal["raise", "skip"] = "raise",
        value_bias: ValueBias = "as_hooked",
        output: Output = "raw",
        memory_budget: MemoryBudget = None,
        diagnosis: Doctor | None = None,
    ) -> None:
        one_of("on_unsupported", on_unsupported, ("raise", "skip"))
        heads = None if heads is None else list(heads)
        if heads is not None and not heads:
            raise ValueError("heads is empty: name at least one (layer, head), or leave it out")
        if layers is None and heads is not None:
            layers = list(dict.fromkeys(layer for layer, _ in heads))
        candidates = select_sites(attention_sites(model), layers)
        labels = [site.layer for site in candidates]
        self.diagnosis = diagnosis or doctor(model, edits=False, layers=labels)
        reasons = {
            report.layer: report.reason for report in self.diagnosis.layers if not report.supported
        }
        refused = {label: reasons[label] for label in labels if label in reasons}
        if refused and (on_unsupported == "raise" or len(refused) == len(candidates)):
            label, reason = next(iter(refused.items()))
            more = f" (and {len(refused) - 1} more layers)" if len(refused) > 1 else ""
            raise ValueError(f"layer {label} can't be measured: {reason}{more}")
        self.diagnosis.warn()
        self.model = model
        self.sites = [site for site in candidates if site.layer not in refused]
        self.skipped_layers = refused
        self.reader = LayerReader(
            model, self.sites, self.diagnosis,
            sink=sink, value_bias=value_bias, output=output, memory_budget=memory_budget,
        )  # fmt: skip
        self.measures = checked_measures(measures)
        self._kept_heads = kept_heads(self.sites, heads, self.skipped_layers)
        self._rows = {site.index: row for row, site in enumerate(self.sites)}
        self._pad = PadToken.of(model)
        self.seen = 0
        self._stream = any(measure.reads_stream for measure in self.measures)
        self.reading: dict[int, object] = {}  # by layer: the feed that began it last
        self._waiting = 0  # layers whose attention was seen and whose residual stream was not
        n_heads, device = self._kept_heads.shape[1], self.sites[0].device
        check_distinct(self.measures)
        for measure in self.measures:
            measure.check_free()
        with torch.inference_mode(False):  # states must outlive an inference block they are made in
            self.ledger = Ledger(self.sites, n_heads, device)
            for measure in self.measures:
                measure.bind(len(self.sites), n_heads, device)

    def hooks(
        self,
        attention_mask: Tensor | None = None,
        *,
        decoder_attention_mask: Tensor | None = None,
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
        self.reader.refresh()
        masks = BatchMasks(self.sites, attention_mask, decoder_attention_mask, self._pad)
        feed = Feed(self, masks, documents)
        stream = feed.stream if self._stream else None
        hooks = capture_hooks(self.model, self.sites, feed, stream, arrive=feed.begin)
        return hooks if masks.hook is None else [(masks.hook, masks.look), *hooks]

    def read(
        self,
        cache: Any,
        attention_mask: Tensor | None = None,
        *,
        decoder_attention_mask: Tensor | None = None,
    ) -> None:
        """Take in a batch from an ``ActivationCache`` (or dict of hook names) that is at hand already.

        >>> _, cache = model.run_with_cache(tokens)
        >>> probe.read(cache)

        Raises:
            ValueError: a layer's pattern, v or z is missing; or as for :meth:`hooks`.
        """
        self.reader.refresh()
        masks = BatchMasks(self.sites, attention_mask, decoder_attention_mask, self._pad)
        feed = Feed(self, masks, None)
        cached = set(cache.keys())
        if masks.hook in cached:
            masks.look(cache[masks.hook])
        for site in self.sites:
            names = (site.pattern_hook, site.v_hook, site.z_hook)
            points = stream_points(self.model, site) if self._stream else None
            stream_names = points.names if points else {}
            missing = [name for name in (*names, *stream_names.values()) if name not in cached]
            if missing:
                raise ValueError(
                    f"the cache has no {', '.join(missing)}: cache these hooks too, or restrict layers="
                )
            pattern, v, z = (cache[name] for name in names)
            if pattern.ndim == 3:  # a cache whose batch dimension was removed
                pattern, v, z = pattern[None], v[None], z[None]
            with torch.no_grad(), no_autocast(pattern.device):
                feed.begin(site)
                feed(site, pattern, v, z)
                if points:
                    seen = {kind: _batched(cache[name]) for kind, name in stream_names.items()}
                    feed.stream(site, seen["before"], seen["after"], points.attention_input(seen))

    def number_documents(self, n: int, given: Sequence[int] | None) -> Sequence[int]:
        """Numbers of the rows of a batch within the corpus: as given, or counted on."""
        if given is not None and len(given) != n:
            raise ValueError(f"documents names {len(given)} rows, but the batch has {n}")
        self.seen += n
        return range(self.seen - n, self.seen) if given is None else given

    def take(
        self,
        site: AttentionSite,
        geometry: AttentionGeometry,
        z: Tensor,
        v: Tensor,
        masks: BatchMasks,
    ) -> None:
        """Hand one layer to the checks and to every accumulator."""
        row = self._rows[site.index]
        if row == 0:
            self.ledger.count(
                geometry.rows.any(1),
                pads_found=masks.found_padding(site),
                unexplained=masks.unexplained,
            )
        self.ledger.update(row, geometry, z, v)
        self._waiting += int(self._stream)
        with named_layer(site):
            for measure in self.measures:
                measure.update(row, geometry)

    def take_stream(self, site: AttentionSite, stream: ResidualStream) -> None:
        """Hand the residual stream around one layer to every accumulator that reads it."""
        row = self._rows[site.index]
        self._waiting -= 1
        self.ledger.update_stream(row, stream)
        with named_layer(site):
            for measure in (m for m in self.measures if m.reads_stream):
                measure.update_stream(row, stream)

    def result(self) -> xr.Dataset:
        """Everything measured so far, as a dataset with named axes and its provenance in ``attrs``.

        Raises:
            RuntimeError: no forward has run, or a layer's hooks never fired.
            ValueError: the activations can't be trusted (NaN, hidden keys attended, z unequal
                pattern @ v); the message names the layer.
        """
        self.check()
        counts = self.ledger.compute()
        undefined = [m.undefined_rows for m in self.measures if isinstance(m, Contributions)]
        attrs = model_provenance(self.model, self.diagnosis.processing) | {
            "sink": plain_sink(self.reader.sink),
            "value_bias": self.reader.value_bias,
            "output": self.reader.output,
            "documents": int(counts["documents"]),
            "tokens": int(counts["tokens"]),
            "rows": int(counts["rows"].max()),
            "measures": {type(measure).__name__: measure.settings for measure in self.measures},
            "skipped_layers": {str(label): reason for label, reason in self.skipped_layers.items()},
            "skipped_rows": {
                "output cancelled (rows of all heads)": sum(int(x.sum()) for x in undefined),
                "padding found without a mask": int(counts["padding"]),
                "sink hidden by the window (rows of all layers)": int(
                    counts["hidden_sink_rows"].sum()
                ),
            },
            "warnings": [*self.diagnosis.warnings, *self._notes()],
        }
        labels = [site.layer for site in self.sites]
        kept = self._kept_heads & (counts["silenced"] == 0).cpu()
        return assemble(self.measures, labels, kept, attrs)

    def _notes(self) -> list[str]:
        notes = self.reader.notes()
        if found := int(self.ledger.padding):
            notes.append(f"{found} positions were taken for padding: no attention_mask was given")
        removed = [
            f"L{self.sites[layer].layer}H{head}"
            for layer, head in self.ledger.silenced.nonzero().tolist()
        ]
        if removed:
            notes.append(
                f"z of {', '.join(removed)} is zero throughout: removed heads are left out"
            )
        return notes

    def check(self) -> None:
        """Raise if what was seen so far can't be trusted; :meth:`result` does the same."""
        self.ledger.verify()
        if self._waiting:
            raise RuntimeError(
                "the residual stream was not seen in every forward, because one of them stopped inside a "
                "block: call probe.reset() and run the batches again"
            )
        if self.ledger.with_sink == 0 and not isinstance(self.reader.sink, str):
            raise ValueError(f"sink={plain_sink(self.reader.sink)} names no token of any document")

    def reset(self) -> None:
        """Forget all batches."""
        with torch.inference_mode(False):
            for metric in (self.ledger, *self.measures):
                metric.reset()
        self.ledger.fired = [0] * len(self.sites)
        self._waiting = 0
        self.seen = 0


def _batched(tensor: Tensor) -> Tensor:
    return tensor[None] if tensor.ndim == 2 else tensor  # a cache without batch dimension
