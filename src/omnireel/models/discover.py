"""Finding models: every folder here with a `facts.py`, and packages that offer one under the entry point group.

Looking for a model reads small files only; nothing of a model is imported but its facts until it is built.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import omnireel.models
from omnireel.errors import BadCheckpoint, SetupError, UnknownModel
from omnireel.models import checks
from omnireel.models.hub import Hub, is_repository, snapshot
from omnireel.models.protocol import Checkpoint, ModelFacts
from omnireel.models.topology import SINGLE_DIFFUSION, Topology
from omnireel.weights.index import read_json

if TYPE_CHECKING:
    from omnireel.models.protocol import Admit, BuildContext, Pipeline
    from omnireel.request import GenerationRequest, MediaFacts, Workload

logger = logging.getLogger(__name__)

_NEWEST = Hub()
ENTRY_POINT_GROUP = "omnireel.models"
INDEX_NAMES = ("modular_model_index.json", "model_index.json")


def all_facts() -> tuple[ModelFacts, ...]:
    """The facts of every model, ordered by name.

    Raises:
        SetupError: two models claim one name, built-in checkpoint or architecture.
    """
    found = sorted((*_inside(), *_outside()), key=lambda facts: facts.name)
    claims = [("name", facts.name) for facts in found]
    claims += [("built-in model", name) for facts in found for name in facts.builtin]
    claims += [("architecture", name) for facts in found for name in facts.architectures]
    for (kind, name), count in Counter(claims).items():
        if count > 1:
            where = ", ".join(
                facts.pipeline for facts in found if name in (facts.name, *facts.builtin, *facts.architectures)
            )
            raise SetupError(f"{count} models claim the {kind} {name!r}: {where}", hint="remove the package of one")
    return tuple(found)


def topology_of(pipeline: str | None) -> Topology:
    """The pipeline of that name, as the models tell it; the model alone for None.

    Raises:
        ValueError: there is none; with those that there are.
    """
    if pipeline is None:
        return SINGLE_DIFFUSION
    known = {topology.name: topology for facts in all_facts() for topology in facts.topologies}
    if pipeline not in known:
        raise ValueError(f"it must be {' or '.join(sorted(known))}")
    return known[pipeline]


def find_checkpoint(
    name: str, *, task_type: str = "auto", hub: Hub = _NEWEST, architecture: str | None = None
) -> Checkpoint:
    """The checkpoint that a user means: a built-in name, a directory with a pipeline index in it or in a partition, or a
    repository of a hub, of which the files that the start-up task needs are downloaded.

    architecture: of the model that is to run it, where a pipeline's stage says so; its files then need no pipeline index.

    Raises:
        UnknownModel: it is none of them.
        DownloadFailed: it looks like a repository and cannot be had.
        BadCheckpoint: the directory has no readable index, or one of a model that is not served.
        BadSetting: the model cannot be started for this task.
    """
    found = _found(name, task_type, hub) if architecture is None else _of_stage(name, architecture, task_type, hub)
    words = found.facts.task_types
    return replace(found, task_type=checks.start_task(found.facts.name, task_type, words)) if words else found


def _found(name: str, task_type: str, hub: Hub) -> Checkpoint:
    known = tuple(facts for facts in all_facts() if not facts.is_stage)
    for facts in known:
        if name in facts.builtin:
            path = facts.builtin[name]
            return Checkpoint(
                name=name,
                facts=facts,
                path=path,
                index={} if path is None else read_pipeline_index(path),
                task_type=task_type,
            )
    path = _path(name)
    if path is not None and path.is_dir():
        return _from_directory(path, known, task_type)
    if is_repository(name) and (path is None or not path.exists()):
        return _from_repository(name, known, task_type, hub)
    builtin = [name for facts in known for name in facts.builtin]
    raise UnknownModel(name, builtin, hint=_hint(name, path))


def _of_stage(name: str, architecture: str, task_type: str, hub: Hub) -> Checkpoint:
    facts = next((facts for facts in all_facts() if architecture in facts.architectures), None)
    if facts is None:
        raise SetupError(f"no model answers to {architecture}", hint="install the package that brings it")
    if name in facts.builtin:
        return Checkpoint(name=name, facts=facts, path=facts.builtin[name], task_type=task_type)
    path = _path(name)
    if path is not None and path.is_dir():
        return Checkpoint(name=path.resolve().name, facts=facts, path=path.resolve(), task_type=task_type)
    if facts.downloads and is_repository(name) and (path is None or not path.exists()):
        folder = snapshot(name, imported(facts.downloads)(task_type, {}), hub)
        return Checkpoint(name=name.rpartition("/")[2], facts=facts, path=folder, task_type=task_type)
    raise UnknownModel(
        name, facts.builtin, hint=f"the stage of {facts.name} needs a model of its own: --stage-N-model DIR"
    )


def admit(request: GenerationRequest, checkpoint: Checkpoint, media: Sequence[MediaFacts] = ()) -> Workload:
    """The request after the rules of the checkpoint's model; no weights are needed. See `Admit`.

    Raises:
        InvalidRequest: naming the field, the value and what is allowed.
    """
    rules: Admit = imported(checkpoint.facts.rules)
    return replace(rules(request, checkpoint, media), tensors=request.tensors, inbox=request.inbox)


def load_pipeline(context: BuildContext) -> Pipeline[Any, Any]:
    """The model with its weights, ready to run.

    Raises:
        BadCheckpoint: a file is missing, cut short or does not fit.
    """
    kind: type[Pipeline[Any, Any]] = imported(context.checkpoint.facts.pipeline)
    return kind.build(context)


def read_pipeline_index(folder: Path) -> dict[str, Any]:
    """The pipeline index of a checkpoint directory; the modular one first, for a repository may hold both.

    Raises:
        BadCheckpoint: there is none, or it cannot be read.
    """
    return next(_indexes(folder, folder.name))


def _indexes(folder: Path, shown: str) -> Iterator[dict[str, Any]]:
    if not folder.is_dir():
        raise BadCheckpoint(shown, "the folder is missing", hint="choose another --task-type, or download it")
    names = [name for name in INDEX_NAMES if _has_index(folder) and (folder / name).is_file()]
    if not names:
        raise BadCheckpoint(
            shown,
            "has no pipeline index",
            expected=" or ".join(INDEX_NAMES),
            hint="give the directory that holds one, with the components in folders beside it",
        )
    for name in names:
        yield read_json(folder / name)


def _has_index(folder: Path) -> bool:
    try:
        return any((folder / name).is_file() for name in INDEX_NAMES)
    except OSError:
        # It may not be looked into.
        return False


def _partitions_of(task_type: str, known: tuple[ModelFacts, ...]) -> tuple[str, ...]:
    """Partitions that a start-up task may open: its own alone where it has one, else all of them."""
    named = [entry for facts in known for entry in facts.partitions.items()]
    own = tuple(folder for folder, tasks in named if task_type.lower() in tasks)
    return own or tuple(folder for folder, _ in named)


def _home_of_index(path: Path, known: tuple[ModelFacts, ...], task_type: str) -> Path:
    """The directory itself, or a partition in it where it has no index; the other one beside it if the task needs that."""
    wanted = _partitions_of(task_type, known)
    if _has_index(path):
        is_other = path.name not in wanted and any(path.name in facts.partitions for facts in known)
        return path.parent / wanted[0] if is_other else path
    has_partitions = any((path / name).is_dir() for facts in known for name in facts.partitions)
    absent = path / wanted[0] if has_partitions else path
    return next((path / name for name in wanted if _has_index(path / name)), absent)


def _from_directory(path: Path, known: tuple[ModelFacts, ...], task_type: str, name: str = "") -> Checkpoint:
    """The checkpoint in a directory; `name` is what it is called, the directory's own name if empty."""
    # A link keeps the name that its owner gave it.
    name = name or (path.name if path.name not in ("", "..") else path.resolve().name)
    home = _home_of_index(path.resolve(), known, task_type)
    architectures = []
    for index in _indexes(home, name if home == path.resolve() else home.name):
        architectures.append(index.get("_class_name"))
        for facts in known:
            if architectures[-1] in facts.architectures:
                return Checkpoint(name=name, facts=facts, path=path.resolve(), index=index, task_type=task_type)
    raise BadCheckpoint(
        name,
        "is of a pipeline that is not served",
        key="_class_name",
        expected=", ".join(served for facts in known for served in facts.architectures),
        found=", ".join(repr(found) for found in architectures),
        hint="omnireel models lists what can be served",
    )


def _from_repository(name: str, known: tuple[ModelFacts, ...], task_type: str, hub: Hub) -> Checkpoint:
    """Its index first, which is small and tells the model; then what that model needs for the task."""
    shown = name.rpartition("/")[2]
    small = snapshot(name, INDEX_NAMES, hub)
    has_root_index = _has_index(small)
    if not has_root_index:
        partitions = _partitions_of(task_type, known)
        small = snapshot(name, [f"{folder}/{index}" for folder in partitions for index in INDEX_NAMES], hub)
    found = _from_directory(small, known, task_type, shown)
    if found.facts.downloads:
        patterns = imported(found.facts.downloads)(task_type, found.index if has_root_index else {})
        found = _from_directory(snapshot(name, patterns, hub), known, task_type, shown)
    return found


def _path(name: str) -> Path | None:
    """The name as a path, where it can be one."""
    try:
        path = Path(name).expanduser()
        path.is_dir()
    except (OSError, RuntimeError, ValueError):
        # Too long, in a folder that cannot be read, or of a user who is not there.
        return None
    return path if name else None


def _hint(name: str, path: Path | None) -> str:
    if path is not None and path.is_file():
        return "this is a file; give the checkpoint's directory"
    return ""


def _inside() -> Iterator[ModelFacts]:
    for module in pkgutil.iter_modules(omnireel.models.__path__):
        if module.ispkg:
            found: ModelFacts | tuple[ModelFacts, ...] = importlib.import_module(
                f"omnireel.models.{module.name}.facts"
            ).FACTS
            yield from (found,) if isinstance(found, ModelFacts) else found


def _outside() -> Iterator[ModelFacts]:
    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            facts = point.load()
        except Exception:
            # It is another's code and may raise anything; the models of this package are served all the same.
            logger.exception("the model %s (%s) of another package cannot be loaded", point.name, point.value)
            continue
        if isinstance(facts, ModelFacts):
            yield facts
        else:
            logger.warning("the model %s (%s) of another package offers no ModelFacts", point.name, point.value)


def imported(place: str) -> Any:
    """What a place "module:name" holds; places are told by models, never by requests."""
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found
