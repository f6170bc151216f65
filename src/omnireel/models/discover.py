"""Finding models: every folder here with a `facts.py`, and packages that offer one under the entry point group.

Looking for a model reads small files only; nothing of a model is imported but its facts until it is built.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import omnireel.models
from omnireel.errors import BadCheckpoint, UnknownModel
from omnireel.models.protocol import Checkpoint, ModelFacts
from omnireel.weights.index import read_json

if TYPE_CHECKING:
    from omnireel.models.protocol import Admit, BuildContext, Pipeline
    from omnireel.request import GenerationRequest, Workload

logger = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "omnireel.models"
INDEX_NAMES = ("modular_model_index.json", "model_index.json")


def all_facts() -> tuple[ModelFacts, ...]:
    """The facts of every model, ordered by name.

    Raises:
        ValueError: two models claim one name, built-in checkpoint or architecture.
    """
    found = sorted((*_inside(), *_outside()), key=lambda facts: facts.name)
    claims = [("name", facts.name) for facts in found]
    claims += [("built-in model", name) for facts in found for name in facts.builtin]
    claims += [("architecture", name) for facts in found for name in facts.architectures]
    for claim in claims:
        if claims.count(claim) > 1:
            raise ValueError(f"two models claim the {claim[0]} {claim[1]!r}")
    return tuple(found)


def find_checkpoint(name: str) -> Checkpoint:
    """The checkpoint that a user means: a built-in name, or a directory with a pipeline index.

    Raises:
        UnknownModel: it is neither.
        BadCheckpoint: the directory has no readable index, or one of a model that is not served.
    """
    known = all_facts()
    for facts in known:
        if name in facts.builtin:
            path = facts.builtin[name]
            return Checkpoint(
                name=name, facts=facts, path=path, index={} if path is None else read_pipeline_index(path)
            )
    path = Path(name).expanduser()
    if path.is_dir():
        return _from_directory(path.resolve(), known)
    builtin = [name for facts in known for name in facts.builtin]
    raise UnknownModel(name, builtin, hint=_hint(name, path))


def admit(request: GenerationRequest, checkpoint: Checkpoint) -> Workload:
    """The request after the rules of the checkpoint's model; no weights are needed.

    Raises:
        InvalidRequest: naming the field, the value and what is allowed.
    """
    rules: Admit = _imported(checkpoint.facts.rules)
    return rules(request, checkpoint)


def load_pipeline(context: BuildContext) -> Pipeline[Any, Any]:
    """The model with its weights, ready to run.

    Raises:
        BadCheckpoint: a file is missing, cut short or does not fit.
    """
    kind: type[Pipeline[Any, Any]] = _imported(context.checkpoint.facts.pipeline)
    return kind.build(context)


def read_pipeline_index(folder: Path) -> dict[str, Any]:
    """The pipeline index of a checkpoint directory; the modular one first, for a repository may hold both."""
    for name in INDEX_NAMES:
        if (folder / name).is_file():
            return read_json(folder / name)
    raise BadCheckpoint(
        folder.name,
        "has no pipeline index",
        expected=" or ".join(INDEX_NAMES),
        hint="give the directory that holds one",
    )


def _from_directory(path: Path, known: tuple[ModelFacts, ...]) -> Checkpoint:
    index = read_pipeline_index(path)
    architecture = index.get("_class_name")
    for facts in known:
        if architecture in facts.architectures:
            return Checkpoint(name=path.name, facts=facts, path=path, index=index)
    served = ", ".join(name for facts in known for name in facts.architectures)
    raise BadCheckpoint(
        path.name, "is of a pipeline that is not served", key="_class_name", expected=served, found=repr(architecture),
        hint="omnireel models lists what can be served",
    )  # fmt: skip


def _hint(name: str, path: Path) -> str:
    if path.is_file():
        return "this is a file; give the checkpoint's directory"
    parts = name.split("/")
    if len(parts) == 2 and all(parts):
        return "download the repository and give its directory"
    return ""


def _inside() -> Iterator[ModelFacts]:
    for module in pkgutil.iter_modules(omnireel.models.__path__):
        if module.ispkg:
            yield importlib.import_module(f"omnireel.models.{module.name}.facts").FACTS


def _outside() -> Iterator[ModelFacts]:
    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            facts = point.load()
        except (ImportError, AttributeError) as error:
            logger.warning("the model %s of another package cannot be loaded: %s", point.name, error)
            continue
        if isinstance(facts, ModelFacts):
            yield facts
        else:
            logger.warning("the model %s of another package has no facts", point.name)


def _imported(place: str) -> Any:
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found
