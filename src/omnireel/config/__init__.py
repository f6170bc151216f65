"""Typed settings: declared once in `spec`, merged once in `resolve`, each with the place it came from."""

from omnireel.config.flags import add_fields, converted, given, sampling_params
from omnireel.config.resolve import ResolvedConfig, engine_settings, resolve
from omnireel.config.sources import Source
from omnireel.config.spec import AccelerationSpec, AttentionFlags, ModelSpec, RunSpec
from omnireel.config.values import Setting, convert, settings_of

__all__ = [
    "AccelerationSpec",
    "AttentionFlags",
    "ModelSpec",
    "ResolvedConfig",
    "RunSpec",
    "Setting",
    "Source",
    "add_fields",
    "convert",
    "converted",
    "engine_settings",
    "given",
    "resolve",
    "sampling_params",
    "settings_of",
]
