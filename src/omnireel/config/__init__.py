"""Typed settings: declared once in specs, merged once in `resolve`, each with the place it came from."""

from omnireel.config.flags import add_fields, add_settings, converted, given, given_settings, sampling_params
from omnireel.config.groups import GROUPS, Group, Specs, all_settings, engine_settings, owners
from omnireel.config.project import engine_arguments
from omnireel.config.resolve import ResolvedConfig, StageConfig, merge, resolve
from omnireel.config.schema import deploy_schema
from omnireel.config.sources import Source
from omnireel.config.spec import AccelerationSpec, AttentionFlags, ModelSpec, RunSpec, ServerSpec
from omnireel.config.values import Setting, convert, settings_of

__all__ = [
    "GROUPS",
    "AccelerationSpec",
    "AttentionFlags",
    "Group",
    "ModelSpec",
    "ResolvedConfig",
    "RunSpec",
    "ServerSpec",
    "Setting",
    "Source",
    "Specs",
    "StageConfig",
    "add_fields",
    "add_settings",
    "all_settings",
    "convert",
    "converted",
    "deploy_schema",
    "engine_arguments",
    "engine_settings",
    "given",
    "given_settings",
    "merge",
    "owners",
    "resolve",
    "sampling_params",
    "settings_of",
]
