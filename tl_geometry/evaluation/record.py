"""What a result says about its model."""

from __future__ import annotations

from typing import Any

from tl_geometry.analysis.results import model_provenance
from tl_geometry.hooks import doctor

__all__ = ["model_record"]


def model_record(model: Any) -> dict[str, Any]:
    """Attributes of a result: versions, model, weight processing, and the doctor's ``warnings``."""
    diagnosis = doctor(model, edits=False)
    return {
        **model_provenance(model, diagnosis.processing),
        "warnings": list(diagnosis.warnings),
    }
