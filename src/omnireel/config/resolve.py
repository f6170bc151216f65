"""Defaults, environment and flags become one frozen config in which every value remembers its source.

Precedence: default < environment < flag. A name that no spec declares is an error, wherever it was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from omnireel.acceleration import Acceleration
from omnireel.attention.spec import AttentionConfig, AttentionSpec
from omnireel.config.sources import DEFAULT, Source
from omnireel.config.spec import AccelerationSpec, AttentionFlags, ModelSpec, RunSpec
from omnireel.config.values import Setting, convert, settings_of
from omnireel.errors import BadSetting, nearest

T = TypeVar("T")

SPECS: tuple[type, ...] = (ModelSpec, AttentionFlags, AccelerationSpec, RunSpec)
PREFIX = "OMNIREEL_"
ALIASES: Mapping[str, str] = {
    "DIFFUSION_ATTENTION_BACKEND": "diffusion_attention_backend",
    "VLLM_OMNI_H3_VALIDATE_FINITE_TENSORS": "validate_finite_tensors",
}
"""Variables of other engines that people have in their start scripts; our own name wins over them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """Every setting of an engine, settled. `sources` has one entry a setting, in order of declaration."""

    model: ModelSpec
    attention: AttentionConfig
    acceleration: Acceleration
    run: RunSpec
    sources: Mapping[str, Source]
    values: Mapping[str, Any]


def engine_settings() -> Mapping[str, Setting]:
    """Every setting of an engine by name, in order of declaration."""
    return {item.name: item for spec in SPECS for item in settings_of(spec)}


def resolve(flags: Mapping[str, Any], environ: Mapping[str, str]) -> ResolvedConfig:
    """One config out of what was said where.

    Args:
        flags: by field name, as text or typed; keywords of `Omni` count as flags.
        environ: the whole environment; only OMNIREEL_* and the names of ALIASES are read, empty ones are as absent.

    Raises:
        BadSetting: a value that its field does not allow, or a name that is no setting.
    """
    known = engine_settings()
    values: dict[str, Any] = {name: item.default for name, item in known.items()}
    sources = dict.fromkeys(known, DEFAULT)
    for name, value, source in (*_from_environment(environ, known), *_from_flags(flags, known)):
        values[name] = _converted(known[name], value, source)
        sources[name] = source
    backend = values["diffusion_attention_backend"]
    return ResolvedConfig(
        model=_filled(ModelSpec, values),
        attention=AttentionConfig(default=None if backend is None else AttentionSpec(backend=backend)),
        acceleration=Acceleration(**{item.name: values[item.name] for item in settings_of(AccelerationSpec)}),
        run=_filled(RunSpec, values),
        sources=sources,
        values=values,
    )


def _from_environment(environ: Mapping[str, str], known: Mapping[str, Setting]) -> Iterator[tuple[str, str, Source]]:
    for variable, name in ALIASES.items():
        if environ.get(variable):
            yield name, environ[variable], Source(kind="environment", name=variable)
    variables = {PREFIX + name.upper(): name for name in known}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or not environ[variable]:
            continue
        source = Source(kind="environment", name=variable)
        if variable not in variables:
            raise _unknown(variable, environ[variable], source, tuple(variables))
        yield variables[variable], environ[variable], source


def _from_flags(flags: Mapping[str, Any], known: Mapping[str, Setting]) -> Iterator[tuple[str, Any, Source]]:
    for name, value in flags.items():
        source = Source(kind="flag", name="--" + name.replace("_", "-"))
        if name not in known:
            raise _unknown(name, value, source, tuple(known))
        yield name, value, source


def _converted(setting: Setting, value: Any, source: Source) -> Any:
    try:
        return convert(setting, value)
    except ValueError as error:
        raise BadSetting(setting.name, value, str(source), str(error)) from None


def _unknown(name: str, value: object, source: Source, valid: tuple[str, ...]) -> BadSetting:
    close = nearest(name, valid)
    hint = f"did you mean {close}?" if close else f"settings are {', '.join(valid)}"
    return BadSetting(name, value, str(source), "there is no such setting", hint=hint)


def _filled(spec: type[T], values: Mapping[str, Any]) -> T:
    return spec(**{item.name: values[item.name] for item in settings_of(spec)})
