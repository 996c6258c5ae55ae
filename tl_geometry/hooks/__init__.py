"""The room that knows TransformerLens' hooks: attention sites and what each of them supports."""

from tl_geometry.hooks.capabilities import doctor
from tl_geometry.hooks.report import SUPPORTED, Doctor, LayerReport
from tl_geometry.hooks.sites import AttentionSite, attention_sites, select_sites

__all__ = [
    "SUPPORTED",
    "AttentionSite",
    "Doctor",
    "LayerReport",
    "attention_sites",
    "doctor",
    "select_sites",
]
