"""A deploy file: settings for all stages at its top, and for single ones below `stages`, each with its line.

pipeline: prompt_rewrite        # which stages there are; without it one, the model
dtype: bfloat16                 # for every stage that has it
stages:
  - stage_id: 0
    devices: "0"
    parallel_config: {tensor_parallel_size: 2}
    engine_extras: {seed: 3}    # wins over what stands beside it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from omnireel.config.sources import Source
from omnireel.config.written import Said, said
from omnireel.errors import BadSetting, SetupError

MAX_BYTES, MAX_NODES, MAX_DEPTH = 2**20, 100_000, 50
EXTRAS = "engine_extras"
_TOPOLOGY_OWNS = ("final_output", "final_output_type", "is_comprehension")
"""Names that older files have among the extras; they are told in code now, and ignored there."""

_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")

Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployStage:
    """What a file says of one stage; `extras` win over `fields`."""

    source: Source
    name: str | None
    fields: tuple[Said, ...]
    extras: tuple[Said, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deploy:
    """What a file says; stages are by number."""

    wide: tuple[Said, ...] = ()
    stages: Mapping[int, DeployStage] = field(default_factory=dict)


def read_deploy(path: Path) -> Deploy:
    """The file's settings as they are written; whether they are allowed is for `resolve` to say.

    Raises:
        SetupError: it cannot be read, or is no YAML.
        BadSetting: it is not of the form above, a key stands twice, or a stage does.
    """
    document, lines = _document(path)

    def source(keys: Keys) -> Source:
        return Source(kind="deploy", name=f"{path}:{lines.get(keys, 1)}")

    stages: dict[int, DeployStage] = {}
    entries = document.pop("stages", None) or []
    if not isinstance(entries, list):
        raise BadSetting("stages", entries, str(source(("stages",))), "it must be a list of stages")
    for index, entry in enumerate(entries):
        number, stage = _stage(entry, index, lambda keys, index=index: source(("stages", str(index), *keys)))
        if number in stages:
            raise BadSetting("stage_id", number, str(stage.source), f"stage {number} stands there already")
        stages[number] = stage
    return Deploy(wide=tuple(said(document, source)), stages=stages)


def _stage(entry: Any, index: int, source: Any) -> tuple[int, DeployStage]:
    if not isinstance(entry, dict):
        raise BadSetting(f"stages[{index}]", entry, str(source(())), "it must be a mapping of settings")
    fields = dict(entry)
    number, name, extras = fields.pop("stage_id", index), fields.pop("name", None), fields.pop(EXTRAS, None) or {}
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise BadSetting("stage_id", number, str(source(("stage_id",))), "it must be a whole number, at least 0")
    if not isinstance(extras, dict):
        raise BadSetting(EXTRAS, extras, str(source((EXTRAS,))), "it must be a mapping of settings")
    kept = {key: value for key, value in extras.items() if key not in _TOPOLOGY_OWNS}
    return number, DeployStage(
        source=source(()),
        name=None if name is None else str(name),
        fields=tuple(said(fields, source)),
        extras=tuple(said(kept, lambda keys: source((EXTRAS, *keys)))),
    )


def _document(path: Path) -> tuple[dict[str, Any], dict[Keys, int]]:
    """The file as plain data, and the line of each value by the keys that lead to it."""
    hint = "give the YAML file of a deployment"
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SetupError(f"{path}: the file is larger than {MAX_BYTES // 2**20} MiB", hint=hint)
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SetupError(f"{path}: the deploy file cannot be read ({error.strerror})", hint=hint) from None
    except UnicodeDecodeError:
        raise SetupError(f"{path}: the deploy file is no text in UTF-8", hint=hint) from None
    lines: dict[Keys, int] = {}
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        found = {} if root is None else _plain(loader, root, (), lines, path)
    except (RecursionError, ValueError):
        raise SetupError(
            f"{path}: the deploy file is nested too deeply, or holds a date that is none", hint=hint
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = getattr(error, "problem", None) or str(error)
        raise SetupError(f"{where}: the deploy file is no YAML ({problem})", hint=hint) from None
    finally:
        loader.dispose()
    if not isinstance(found, dict):
        raise BadSetting("deploy_config", found, f"{path}:1", "it must hold a mapping of settings")
    return found, lines


def _plain(loader: yaml.SafeLoader, node: yaml.Node, keys: Keys, lines: dict[Keys, int], path: Path) -> Any:
    line = node.start_mark.line + 1
    lines.setdefault(keys, line)
    if len(lines) > MAX_NODES or len(keys) > MAX_DEPTH:
        # Aliases of aliases can mean more values than fit into memory.
        problem = f"the deploy file holds more than {MAX_NODES} values, or is nested deeper than {MAX_DEPTH}"
        raise SetupError(f"{path}:{line}: {problem}", hint="write fewer aliases")
    if isinstance(node, yaml.ScalarNode):
        return loader.construct_object(node)
    if node.tag not in _TAGS:
        raise BadSetting(keys[-1] if keys else "file", node.tag, f"deploy {path}:{line}", "it must be plain data")
    if isinstance(node, yaml.SequenceNode):
        return [_plain(loader, item, (*keys, str(k)), lines, path) for k, item in enumerate(node.value)]
    _check_keys(loader, node, path)
    # What is merged in stands before the mapping's own keys, which win.
    loader.flatten_mapping(node)
    found: dict[str, Any] = {}
    for key, value in node.value:
        name = str(loader.construct_object(key))
        # Of the key: a mapping's or a list's own line is that of its first entry.
        lines[*keys, name] = key.start_mark.line + 1
        found[name] = _plain(loader, value, (*keys, name), lines, path)
    return found


def _check_keys(loader: yaml.SafeLoader, node: yaml.MappingNode, path: Path) -> None:
    """Raises where a key stands twice. Keys of a mapping that aliases share may have been merged into it before."""
    first: dict[Any, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise BadSetting("key", key.id, f"deploy {path}:{line}", "the name of a setting must be a word")
        is_own = node.start_mark.index <= key.start_mark.index < node.end_mark.index
        if is_own and first.setdefault(key.value, line) != line:
            again = value.value if isinstance(value, yaml.ScalarNode) else f"a {value.id}"
            allowed = f"the same name stands in line {first[key.value]} already"
            raise BadSetting(key.value, again, f"deploy {path}:{line}", allowed)
