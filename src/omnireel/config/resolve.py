"""What was said where becomes one frozen config, for the pipeline and for each of its stages.

Precedence, the weakest first: default, rule, topology, environment, deploy file (its top, a stage, a stage's
engine_extras), flag, stage flag. But:

- a topology's omni_kv_config wins over a deploy file's;
- `model` and `tokenizer` as flags are those of the pipeline: a stage that has its own, from topology or file, keeps it;
- what holds for all stages goes to those that have such a setting; what is said of one stage must be a setting of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from omnireel.acceleration import Acceleration
from omnireel.attention.spec import AttentionConfig, AttentionSpec
from omnireel.config import compat
from omnireel.config.attention import attention_config
from omnireel.config.deploy import Deploy, read_deploy
from omnireel.config.groups import GROUPS, Specs, all_settings, engine_settings, names, owners
from omnireel.config.rules import check_degrees, check_values, stage_rules
from omnireel.config.sources import DEFAULT, Source
from omnireel.config.spec import AccelerationSpec
from omnireel.config.values import Setting, convert, settings_of
from omnireel.config.written import Said, said, split_stages
from omnireel.errors import BadSetting, NotAvailable, OmniReelError, UnownedSettings, nearest
from omnireel.models.topology import SINGLE_DIFFUSION, StageFacts, Topology

PREFIX = "OMNIREEL_"
ALIASES: Mapping[str, str] = {
    "DIFFUSION_ATTENTION_BACKEND": "diffusion_attention_backend",
    "VLLM_OMNI_H3_VALIDATE_FINITE_TENSORS": "validate_finite_tensors",
    "VLLM_API_KEY": "api_key",
    "VLLM_OMNI_STORAGE_PATH": "storage_path",
    "VLLM_OMNI_VIDEO_SYNC_TIMEOUT": "video_sync_timeout",
    "VLLM_OMNI_SERVER_STORAGE__FILE_TTL": "file_ttl",
    "VLLM_OMNI_ABORT_TIMEOUT": "abort_timeout",
}
"""Variables of other engines that people have in their start scripts; our own name wins over them."""

_OF_THE_PARENT = ("model", "tokenizer")
_OF_THE_COMMAND = ("deploy_config", "stage_overrides")
"""Settings that say where settings come from, so no file may hold them."""

OnProblem = Callable[[OmniReelError], None]
TopologyOf = Callable[[str | None], Topology]
"""Of the name of a pipeline, None where nobody names one. It raises ValueError, with what is allowed, where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageConfig(Specs):
    """One stage, settled. `values` and `sources` have the settings that a stage of its type has."""

    number: int
    facts: StageFacts
    sources: Mapping[str, Source]
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig(Specs):
    """Every setting of an engine, settled. `sources` has one entry a setting, in order of declaration.

    Of a pipeline of one stage, everything here is that stage's; of several, what holds where a stage says nothing else.
    """

    topology: Topology
    stages: tuple[StageConfig, ...]
    sources: Mapping[str, Source]
    values: Mapping[str, Any]

    def of_stage(self, number: int) -> ResolvedConfig:
        """The config of an engine that runs just this stage: its settings, and those of the pipeline as a whole."""
        stage = self.stages[number]
        return _config(self.topology, (stage,), {**self.values, **stage.values}, {**self.sources, **stage.sources})


def resolve(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    topology: Topology | TopologyOf = SINGLE_DIFFUSION,
    platform: str = "",
    on_problem: OnProblem | None = None,
) -> ResolvedConfig:
    """One config out of what was said where, of which every value can be honoured.

    Args:
        flags: by field name, as text or typed; keywords of `Omni` count as flags. `stage_N_NAME` is for stage N alone.
        environ: the whole environment; only OMNIREEL_* and the names of ALIASES are read, empty ones are as absent.
        topology: the pipeline's stages, or what tells them of the settled `pipeline`.
        platform: the kind of device where it is known and `device` does not say; some defaults depend on it.
        on_problem: is given every problem instead of raising the first; what was wrong then counts as not said.

    Raises:
        BadSetting: a value that its field does not allow, or a name that is no setting.
        UnownedSettings: a stage was given what stages of its type do not have.
        NotAvailable: a value asks for what does not exist yet.
        Incompatible: two values cannot go together.
        SetupError: the deploy file cannot be read.
    """
    report = _once(on_problem or _raise)
    config = merge(flags, environ, topology=topology, platform=platform, on_problem=report)
    for missing in _missing(config):
        report(missing)
    for stage in config.stages:
        check_degrees(stage, report)
        for problem in compat.problems(*_as_run(config, stage)):
            report(problem)
    return config


def _missing(config: ResolvedConfig) -> Iterator[NotAvailable]:
    """What is asked for and does not exist yet, each once for whatever stages it is for."""
    asked: dict[tuple[str, Source], Any] = {}
    stages: dict[tuple[str, Source], dict[int, str]] = {}
    own = [(stage.values, stage.sources, {stage.number: str(stage.facts.execution_type)}) for stage in config.stages]
    for values, sources, where in [(config.values, config.sources, {}), *own]:
        for name, value in values.items():
            setting, source = all_settings()[name], sources[name]
            # What a rule settles is the backend's own default, so nobody asked for it.
            if setting.pending and source.kind not in ("default", "rule") and not setting.is_idle(value):
                asked[name, source] = setting.told(value)
                stages.setdefault((name, source), {}).update(where)
    for (name, source), value in asked.items():
        yield NotAvailable(name, value, str(source), all_settings()[name].pending, stages[name, source])


def merge(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    topology: Topology | TopologyOf = SINGLE_DIFFUSION,
    platform: str = "",
    on_problem: OnProblem | None = None,
) -> ResolvedConfig:
    """`resolve` without asking whether what was said exists and goes together."""
    layers = _Layers(_once(on_problem or _raise), flags, environ)
    values, sources = layers.of_all()
    stages = topology if isinstance(topology, Topology) else _told(topology, values, sources, layers.report)
    layers.check_stages(stages)
    platform = platform if values["device"] == "auto" else values["device"].partition(":")[0]
    settled = tuple(
        _stage(number, facts, *layers.of_stage(number, facts, platform)) for number, facts in enumerate(stages.stages)
    )
    if len(settled) == 1:
        values, sources = {**values, **settled[0].values}, {**sources, **settled[0].sources}
    check_values(values, sources, settled, layers.report)
    return _config(stages, settled, values, sources)


class _Layers:
    """Everything that was said, by where."""

    def __init__(self, report: OnProblem, flags: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        self.report = report
        wide, staged = split_stages(flags)
        self._environment = self._known(_from_environment(environ))
        self._flags = self._known(said(wide, lambda keys: _flag(".".join(keys))))
        self._deploy = self._read(environ)
        self._wide = self._known(self._deploy.wide)
        self._staged = dict(self._stage_flags(staged))

    def of_all(self) -> tuple[dict[str, Any], dict[str, Source]]:
        """Values and sources of every setting, stages aside."""
        values: dict[str, Any] = {name: item.default for name, item in all_settings().items()}
        sources = dict.fromkeys(values, DEFAULT)
        for layer in (self._environment, self._wide, self._flags):
            self._apply(layer, values, sources)
        return values, sources

    def of_stage(self, number: int, facts: StageFacts, platform: str) -> tuple[dict[str, Any], dict[str, Source]]:
        """Values and sources of every setting that the stage has."""
        kind = facts.execution_type
        mine = [name for name in all_settings() if kind in owners()[name]]
        values: dict[str, Any] = {name: all_settings()[name].default for name in mine}
        sources = dict.fromkeys(mine, DEFAULT)
        topology = list(said(facts.settings, lambda _: Source(kind="topology", name=facts.name)))
        kv_config = [] if facts.omni_kv_config is None else [
            Said(name="omni_kv_config", shown="omni_kv_config", value=facts.omni_kv_config,
                 source=Source(kind="topology", name=facts.name))
        ]  # fmt: skip
        stage = self._deploy.stages.get(number)
        fields, extras = (stage.fields, stage.extras) if stage else ((), ())
        flags = self._staged.get(number, [])
        self._check_owned({number: kind}, (*topology, *fields, *extras, *flags))
        (own_variables, variables), (own_wide, wide), (own_flags, all_flags) = (
            _parted(layer) for layer in (self._environment, self._wide, self._flags)
        )
        for layer in (
            stage_rules(facts, platform), own_variables, own_wide, own_flags,
            topology, variables, wide, fields, extras, kv_config, all_flags, flags,
        ):  # fmt: skip
            self._apply([item for item in layer if kind in owners().get(item.name, ())], values, sources)
        return values, sources

    def check_stages(self, topology: Topology) -> None:
        """Whether what was said of all is for any stage, and what was said of one is for one that is there."""
        kinds = {number: str(facts.execution_type) for number, facts in enumerate(topology.stages)}
        unowned = [
            item
            for item in (*self._wide, *self._flags)
            if owners()[item.name] and not set(owners()[item.name]) & set(kinds.values())
        ]
        if unowned:
            self.report(_unowned(kinds, unowned))
        for number, stage in self._deploy.stages.items():
            if number not in kinds:
                self.report(_no_stage(number, stage.source, topology))
            elif stage.name is not None and stage.name != topology.stages[number].name:
                allowed = f"stage {number} is called {topology.stages[number].name}"
                self.report(BadSetting("name", stage.name, str(stage.source), allowed))
        for number, items in self._staged.items():
            if number not in kinds:
                source = items[0].source if items else Source(kind="stage flag", name=f"--stage-{number}")
                self.report(_no_stage(number, source, topology))

    def _read(self, environ: Mapping[str, str]) -> Deploy:
        path: Path | None = None
        for layer in (self._environment, self._flags):
            for item in layer:
                path = self._converted(item) if item.name == "deploy_config" else path
        if path is None:
            return Deploy()
        try:
            deploy = read_deploy(path)
        except OmniReelError as error:
            self.report(error)
            return Deploy()
        for item in deploy.wide:
            if item.name in _OF_THE_COMMAND:
                self.report(_bad(item, "a file cannot hold it"))
        return deploy

    def _stage_flags(self, staged: Mapping[int, Mapping[str, Any]]) -> Iterator[tuple[int, list[Said]]]:
        found: dict[int, list[Said]] = {}
        for item in (*self._environment, *self._flags):
            if item.name != "stage_overrides" or not isinstance(overrides := self._converted(item), Mapping):
                continue
            for key, fields in overrides.items():
                if not str(key).isdecimal() or not isinstance(fields, Mapping):
                    # The rest may hold what is secret.
                    odd = replace(item, value=str(key))
                    self.report(_bad(odd, "it must be an object of stage numbers, each with an object of settings"))
                    continue
                number = int(key)
                found.setdefault(number, []).extend(said(fields, _stage_source(number)))
        for number, fields in staged.items():
            found.setdefault(number, []).extend(said(fields, _stage_source(number)))
        yield from found.items()

    def _known(self, items: Iterable[Said]) -> list[Said]:
        """Those that name a setting, each once; the rest are problems."""
        found: dict[str, Said] = {}
        for item in items:
            if not item.name:
                self.report(_unknown(item))
            elif item.name in found and item.source.kind != "environment":
                self.report(_bad(item, f"it is said as {found[item.name].shown} too"))
            elif item.name not in _OF_THE_COMMAND or item.source.kind != "deploy":
                found[item.name] = item
        return list(found.values())

    def _check_owned(self, stages: Mapping[int, str], items: Iterable[Said]) -> None:
        kinds = set(stages.values())
        unowned = [item for item in items if not kinds & set(owners().get(item.name, ()))]
        if unowned:
            self.report(_unowned(stages, unowned))

    def _apply(self, items: Iterable[Said], values: dict[str, Any], sources: dict[str, Source]) -> None:
        for item in items:
            value = self._converted(item)
            if value is not _REFUSED:
                values[item.name], sources[item.name] = value, item.source

    def _converted(self, item: Said) -> Any:
        try:
            value = convert(all_settings()[item.name], item.value)
            if item.name == "diffusion_attention_config" and value is not None:
                attention_config(value)
        except ValueError as error:
            self.report(_bad(item, str(error)))
            return _REFUSED
        return value


_REFUSED = object()


def _parted(layer: Iterable[Said]) -> tuple[list[Said], list[Said]]:
    """What is of the pipeline's model, and the rest."""
    items = list(layer)
    return (
        [item for item in items if item.name in _OF_THE_PARENT],
        [item for item in items if item.name not in _OF_THE_PARENT],
    )


def _from_environment(environ: Mapping[str, str]) -> Iterator[Said]:
    for variable, name in ALIASES.items():
        if environ.get(variable):
            source = Source(kind="environment", name=variable)
            yield Said(name=name, shown=variable, value=environ[variable], source=source)
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and environ[variable]:
            source = Source(kind="environment", name=variable)
            key = variable.removeprefix(PREFIX)
            written = {key.lower() if key.isupper() else variable: environ[variable]}
            for item in said(written, partial(_same, source)):
                yield Said(name=item.name, shown=variable, value=item.value, source=source)


def _same(source: Source, _: tuple[str, ...]) -> Source:
    return source


def _flag(name: str) -> Source:
    return Source(kind="flag", name="--" + name.replace("_", "-"))


def _stage_source(number: int) -> Callable[[tuple[str, ...]], Source]:
    def source(keys: tuple[str, ...]) -> Source:
        dotted = ".".join(str(key) for key in keys).replace("_", "-")
        return Source(kind="stage flag", name=f"--stage-{number}-{dotted}")

    return source


def _bad(item: Said, allowed: str) -> BadSetting:
    setting = all_settings().get(item.name)
    shown = item.value if setting is None else setting.told(item.value)
    return BadSetting(item.name or item.shown, shown, str(item.source), allowed)


def _unknown(item: Said) -> BadSetting:
    is_variable = item.source.kind == "environment"
    valid = [PREFIX + name.upper() if is_variable else name for name in engine_settings()]
    close = nearest(item.shown, valid)
    hint = f"did you mean {close}?" if close else f"settings are {', '.join(valid)}"
    return BadSetting(item.shown, item.value, str(item.source), "there is no such setting", hint=hint)


def _unowned(stages: Mapping[int, str], items: list[Said]) -> UnownedSettings:
    hints = []
    for item in items:
        kinds = owners().get(item.name)
        if kinds:
            hints.append(f"{item.shown} is for stages of type {' or '.join(kinds)}")
        elif kinds is not None:
            hints.append(f"{item.shown} is of the pipeline as a whole")
        elif close := nearest(item.shown.rpartition(".")[2], names()):
            hints.append(f"did you mean {close} by {item.shown}?")
    return UnownedSettings(
        stages, [item.shown for item in items], [str(item.source) for item in items], hint="; ".join(hints)
    )


def _no_stage(number: int, source: Source, topology: Topology) -> BadSetting:
    last = len(topology.stages) - 1
    allowed = f"{topology.name} has stage 0 alone" if last == 0 else f"{topology.name} has stages 0 to {last}"
    stages = ", ".join(f"{k} {facts.name} ({facts.execution_type})" for k, facts in enumerate(topology.stages))
    return BadSetting("stage", number, str(source), allowed, hint=f"stages are {stages}")


def _told(of: TopologyOf, values: Mapping[str, Any], sources: Mapping[str, Source], report: OnProblem) -> Topology:
    try:
        return of(values["pipeline"])
    except ValueError as error:
        report(BadSetting("pipeline", values["pipeline"], str(sources["pipeline"]), str(error)))
        return SINGLE_DIFFUSION


def _once(report: OnProblem) -> OnProblem:
    """Each problem only the first time: what is said of all is looked at for the pipeline, and again for each stage."""
    told: set[str] = set()

    def once(error: OmniReelError) -> None:
        if error.message not in told:
            told.add(error.message)
            report(error)

    return once


def _raise(error: OmniReelError) -> None:
    raise error


def _stage(number: int, facts: StageFacts, values: Mapping[str, Any], sources: Mapping[str, Source]) -> StageConfig:
    return StageConfig(**_specs(values), number=number, facts=facts, values=values, sources=sources)


def _config(
    topology: Topology, stages: tuple[StageConfig, ...], values: Mapping[str, Any], sources: Mapping[str, Source]
) -> ResolvedConfig:
    return ResolvedConfig(**_specs(values), topology=topology, stages=stages, values=values, sources=sources)


def _specs(values: Mapping[str, Any]) -> dict[str, Any]:
    """Each spec of `Specs`, filled; what a stage does not have stays at its default."""
    specs: dict[str, Any] = {name: _filled(group.spec, values) for name, group in GROUPS.items()}
    speed = specs["acceleration_flags"]
    specs["acceleration"] = Acceleration(
        **{item.name: getattr(speed, item.name) for item in settings_of(AccelerationSpec)}
    )
    config = values.get("diffusion_attention_config")
    backend = values.get("diffusion_attention_backend")
    specs["attention"] = AttentionConfig() if config is None else attention_config(config)
    if backend is not None:
        specs["attention"] = AttentionConfig(
            default=AttentionSpec(backend=backend), per_role=specs["attention"].per_role
        )
    return specs


def _as_run(config: ResolvedConfig, stage: StageConfig) -> tuple[dict[str, Any], dict[str, Source]]:
    """Every setting as a stage has it: those of the pipeline as they are, those of other types of stages at their defaults."""
    values, sources = {**config.values, **stage.values}, {**config.sources, **stage.sources}
    for name, kinds in owners().items():
        if kinds and name not in stage.values:
            values[name], sources[name] = all_settings()[name].default, DEFAULT
    return values, sources


def _filled(spec: type, values: Mapping[str, Any]) -> Any:
    def value(item: Setting) -> Any:
        return values.get(item.name, item.default)

    return spec(**{item.name: value(item) for item in settings_of(spec)})
