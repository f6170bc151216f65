"""Where the parts of a checkpoint lie: side by side, as diffusers publishes them, or in the native partitions FL2VA and Ref2VA.

Only folders and partition indexes are looked at here; weights are read when they are loaded, and their keys tell by themselves
how they are named. A service of one task never looks into the other partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnireel.errors import BadCheckpoint
from omnireel.models import checks
from omnireel.models.minimax_h3.facts import FACTS
from omnireel.models.protocol import Checkpoint
from omnireel.weights.index import read_json

T2VA, FL2VA, REF2VA = "t2va", "fl2va", "ref2va"

DENOISER, REFERENCE_DENOISER = "transformer", "transformer_ref"
SHARED = ("text_encoder", "tokenizer", "processor", "vae", "audio_vae")
SCHEDULERS: Mapping[str, str] = {"video": "scheduler", "audio": "audio_scheduler"}
SIDE_BY_SIDE = (DENOISER, REFERENCE_DENOISER, *SHARED, *SCHEDULERS.values())
TASKS: Mapping[str, tuple[str, ...]] = {DENOISER: (T2VA, FL2VA), REFERENCE_DENOISER: (REF2VA,)}
PARTITIONS: Mapping[str, str] = {DENOISER: "FL2VA", REFERENCE_DENOISER: "Ref2VA"}
"""The native partition that each DiT lies in. A service of both takes all that they share from the first."""
NATIVE_NAMES: Mapping[str, str] = {"vae": "video_vae"}
NATIVE_BLOCK = "_minimax_h3"
MODULAR_CLASS = "MiniMaxH3ModularPipeline"

_MISSING_HINT = "choose another --task-type, or download it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The folders of a service. denoisers: by the name of the diffusers layout, one or both.

    blocks: of each denoiser the native block `_minimax_h3` of its partition; empty in the diffusers layout.
    """

    denoisers: Mapping[str, Path]
    shared: Mapping[str, Path]
    schedulers: Mapping[str, Path]
    tasks: tuple[str, ...]
    is_native: bool
    blocks: Mapping[str, Mapping[str, Any]]

    def denoiser_of(self, task: str) -> str:
        """Which DiT runs a task; of a service with one, that one."""
        wanted = REFERENCE_DENOISER if task == REF2VA else DENOISER
        return wanted if wanted in self.denoisers else next(iter(self.denoisers))

    def block_of(self, task: str) -> Mapping[str, Any]:
        """What the partition that runs a task says of itself; empty in the diffusers layout."""
        return self.blocks.get(self.denoiser_of(task), {})


def resolve_layout(checkpoint: Checkpoint) -> Layout:
    """The folders of a checkpoint for the task that the service was started with.

    Raises:
        BadSetting: there is no such start-up task.
        BadCheckpoint: the folders of that task are not there.
    """
    task = checks.start_task(FACTS.name, checkpoint.task_type, FACTS.task_types)
    root = checkpoint.path
    if root is None:
        raise BadCheckpoint(checkpoint.name, "has no files")
    if root.name in PARTITIONS.values() and (root / "model_index.json").is_file():
        return _native(root.parent, _own_task(task, root.name))
    folders = {name: _folder(root, name, checkpoint.index) for name in SIDE_BY_SIDE}
    has_partitions = any((root / name).is_dir() for name in PARTITIONS.values())
    if any(folders[name].is_dir() for name in PARTITIONS) or not has_partitions:
        return _side_by_side(folders, task, checkpoint.index)
    return _native(root, task)


def _own_task(task: str, partition: str) -> str:
    """A partition that is named itself is all that is served, unless more was asked for."""
    if task != "auto":
        return task
    return REF2VA if partition == PARTITIONS[REFERENCE_DENOISER] else FL2VA


def _denoisers(task: str, offered: Sequence[str]) -> tuple[str, ...]:
    """The DiTs of a start-up task; "auto" means all that the checkpoint offers."""
    both = DENOISER, REFERENCE_DENOISER
    insisted = {T2VA: (DENOISER,), FL2VA: (DENOISER,), REF2VA: (REFERENCE_DENOISER,), "combined": both}
    return insisted.get(task, tuple(offered))


def _folder(root: Path, name: str, index: Mapping[str, Any]) -> Path:
    """Where a component lies: in the folder of its name, else in the subfolder that the pipeline index tells."""
    return root / name if (root / name).is_dir() else root / _subfolder(name, index)


def _subfolder(name: str, index: Mapping[str, Any]) -> str:
    """The folder that the pipeline index tells of a component; the component's name where it tells none."""
    entry = index.get(name)
    options = entry[2] if isinstance(entry, list) and len(entry) > 2 and isinstance(entry[2], dict) else {}
    told = options.get("subfolder") or name
    if not isinstance(told, str) or Path(told).is_absolute() or ".." in Path(told).parts:
        raise BadCheckpoint("pipeline index", "names no folder inside of it", key=f"{name}.subfolder", found=repr(told))
    return told


def _listed(index: Mapping[str, Any]) -> tuple[str, ...]:
    """The DiTs that a pipeline index has an entry for."""
    return tuple(name for name in PARTITIONS if isinstance(index.get(name), list))


def _side_by_side(folders: Mapping[str, Path], task: str, index: Mapping[str, Any]) -> Layout:
    offered = _listed(index) or tuple(name for name in PARTITIONS if folders[name].is_dir()) or (DENOISER,)
    names = _denoisers(task, offered)
    for name in names:
        if not folders[name].is_dir():
            raise BadCheckpoint(name, "the component's folder is missing", hint=_MISSING_HINT)
    return Layout(
        denoisers={name: folders[name] for name in names},
        shared={name: folders[name] for name in SHARED},
        schedulers={medium: folders[name] for medium, name in SCHEDULERS.items()},
        tasks=tuple(task for name in names for task in TASKS[name]),
        is_native=False,
        blocks={},
    )


def _native(root: Path, task: str) -> Layout:
    names = _denoisers(task, tuple(PARTITIONS))
    blocks = {name: _native_block(root / PARTITIONS[name]) for name in names}
    home = root / PARTITIONS[names[0]]
    return Layout(
        denoisers={name: root / PARTITIONS[name] / "transformer" for name in names},
        shared={name: home / NATIVE_NAMES.get(name, name) for name in SHARED},
        schedulers={},
        tasks=tuple(task for name in names for task in _partition_tasks(blocks[name], name)),
        is_native=True,
        blocks=blocks,
    )


def _native_block(partition: Path) -> Mapping[str, Any]:
    """What a partition's index says of itself.

    Raises:
        BadCheckpoint: it is not there, or says that it is another partition.
    """
    shown = f"{partition.name}/model_index.json"
    if not partition.is_dir():
        raise BadCheckpoint(partition.name, "the partition's folder is missing", hint=_MISSING_HINT)
    block = read_json(partition / "model_index.json").get(NATIVE_BLOCK, {})
    if not isinstance(block, dict):
        raise BadCheckpoint(shown, "must hold an object", key=NATIVE_BLOCK)
    said = block.get("partition", partition.name.lower())
    if said != partition.name.lower():
        raise BadCheckpoint(
            shown, "is of another partition", key="partition", expected=partition.name.lower(), found=repr(said)
        )
    return block


def _partition_tasks(block: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The tasks that a partition lists, all that it can do when it lists none."""
    said = block.get("tasks", TASKS[name])
    found = tuple(task for task in TASKS[name] if isinstance(said, list | tuple) and task in said)
    if not found:
        raise BadCheckpoint(
            f"{PARTITIONS[name]}/model_index.json", "lists no task of its partition", key="tasks",
            expected=", ".join(TASKS[name]), found=repr(said),
        )  # fmt: skip
    return found


def download_patterns(task_type: str, index: Mapping[str, Any]) -> tuple[str, ...]:
    """Files of a repository that a start-up task needs: of the diffusers layout where the index of its root is of that, else
    of native partitions, whose shared parts come from one. Nothing of a partition that is not served.

    Raises:
        BadSetting: there is no such start-up task.
    """
    task = checks.start_task(FACTS.name, task_type, FACTS.task_types)
    if _listed(index) or index.get("_class_name") == MODULAR_CLASS:
        names = _denoisers(task, _listed(index) or tuple(PARTITIONS))
        folders = (_subfolder(name, index) for name in (*SHARED, *SCHEDULERS.values(), *names))
        return ("modular_model_index.json", "model_index.json", *(f"{folder}/*" for folder in folders))
    first, *others = (PARTITIONS[name] for name in _denoisers(task, tuple(PARTITIONS)))
    own = (f"{partition}/{name}" for partition in others for name in ("model_index.json", "transformer/*"))
    return (f"{first}/*", *own)
