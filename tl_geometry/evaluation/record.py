"""What a result says about its model, and what a checkpoint must find unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tl_geometry.analysis.results import model_provenance
from tl_geometry.evaluation.weights_digest import weights_digest
from tl_geometry.hooks import doctor

__all__ = ["model_fingerprint", "model_record"]


def model_record(model: Any) -> dict[str, Any]:
    """Attributes of a result: versions, model, weight processing, and the doctor's ``warnings``."""
    diagnosis = doctor(model, edits=False)
    return {
        **model_provenance(model, diagnosis.processing),
        "warnings": list(diagnosis.warnings),
    }


def model_fingerprint(model: Any, record: Mapping[str, Any]) -> dict[str, Any]:
    """What of a model has to be the same where a run goes on, the bits of its parameters included."""
    names = ("tl_geometry", "model_class", "model_dtype", "device")
    return {name: record[name] for name in names} | {"parameters": weights_digest(model)}
