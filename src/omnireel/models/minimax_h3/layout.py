"""Where the parts of a checkpoint lie: side by side, as diffusers publishes them, or in the native partitions FL2VA and Ref2VA.

Only folders are looked at here; what is in them is read when they are loaded. A service of one task never looks into the
other partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnireel.errors import BadCheckpoint, BadSetting
from omnireel.models.protocol import Checkpoint
from omnireel.weights.index import read_json

T2VA, FL2VA, REF2VA = "t2va", "fl2va", "ref2va"
START_TASKS = ("auto", "combined", T2VA, FL2VA, REF2VA)

DENOISER, REFERENCE_DENOISER = "transformer", "transformer_ref"
SHARED = ("text_encoder", "tokenizer", "processor", "vae", "audio_vae")
SCHEDULERS: Mapping[str, str] = {"video": "scheduler", "audio": "audio_scheduler"}
SIDE_BY_SIDE = (DENOISER, REFERENCE_DENOISER, *SHARED, *SCHEDULERS.values())
NATIVE_NAMES: Mapping[str, str] = {"vae": "video_vae"}

FIRST_PARTITION, REFERENCE_PARTITION = "FL2VA", "Ref2VA"
NATIVE_BLOCK = "_minimax_h3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The folders of a service. denoisers: by the name of the diffusers layout, one or both.

    index: the native block `_minimax_h3` of the partition that shared parts come from; empty in the diffusers layout.
    """

    denoisers: Mapping[str, Path]
    shared: Mapping[str, Path]
    schedulers: Mapping[str, Path]
    tasks: tuple[str, ...]
    is_native: bool
    index: Mapping[str, Any]

    def denoiser_of(self, task: str) -> str:
        """Which DiT runs a task; of a service with one, that one."""
        wanted = REFERENCE_DENOISER if task == REF2VA else DENOISER
        return wanted if wanted in self.denoisers else next(iter(self.denoisers))


def resolve_layout(checkpoint: Checkpoint) -> Layout:
    """The folders of a checkpoint for the task that the service was started with.

    Raises:
        BadSetting: there is no such start-up task.
        BadCheckpoint: the folders of that task are not there.
    """
    task = checkpoint.task_type.lower()
    if task not in START_TASKS:
        raise BadSetting("task_type", checkpoint.task_type, "task setting", f"it must be {' or '.join(START_TASKS)}")
    root = checkpoint.path
    if root is None:
        raise BadCheckpoint(checkpoint.name, "has no files")
    if root.name in (FIRST_PARTITION, REFERENCE_PARTITION) and (root / "model_index.json").is_file():
        return _native(root.parent, _own_task(task, root.name))
    folders = {name: _folder(root, name, checkpoint.index) for name in SIDE_BY_SIDE}
    if folders[DENOISER].is_dir() or folders[REFERENCE_DENOISER].is_dir() or not _partitions(root):
        return _side_by_side(folders, task)
    return _native(root, task)


def _folder(root: Path, name: str, index: Mapping[str, Any]) -> Path:
    """Where a component lies: in the folder of its name, else in the subfolder that the pipeline index tells."""
    entry = index.get(name)
    options = entry[2] if isinstance(entry, list) and len(entry) > 2 and isinstance(entry[2], dict) else {}
    told = options.get("subfolder")
    if not told or (root / name).is_dir():
        return root / name
    if not isinstance(told, str) or Path(told).is_absolute() or ".." in Path(told).parts:
        raise BadCheckpoint("pipeline index", "names no folder inside of it", key=f"{name}.subfolder", found=repr(told))
    return root / told


def _own_task(task: str, partition: str) -> str:
    """A partition that is named itself is all that is served, unless more was asked for."""
    if task != "auto":
        return task
    return REF2VA if partition == REFERENCE_PARTITION else FL2VA


def _side_by_side(folders: Mapping[str, Path], task: str) -> Layout:
    both = DENOISER, REFERENCE_DENOISER
    names = _wanted(task, both, [name for name in both if folders[name].is_dir()])
    return Layout(
        denoisers={name: folders[name] for name in names},
        shared={name: folders[name] for name in SHARED},
        schedulers={medium: folders[name] for medium, name in SCHEDULERS.items()},
        tasks=_tasks(names),
        is_native=False,
        index={},
    )


def _native(root: Path, task: str) -> Layout:
    partitions = dict(zip((DENOISER, REFERENCE_DENOISER), (FIRST_PARTITION, REFERENCE_PARTITION), strict=True))
    names = _wanted(
        task, (DENOISER, REFERENCE_DENOISER), [name for name, folder in partitions.items() if _has(root, folder)]
    )
    blocks = {name: _native_block(root / partitions[name]) for name in names}
    home = root / partitions[names[0]]
    return Layout(
        denoisers={name: root / partitions[name] / "transformer" for name in names},
        shared={name: home / NATIVE_NAMES.get(name, name) for name in SHARED},
        schedulers={},
        tasks=tuple(task for name in names for task in _partition_tasks(blocks[name], name)),
        is_native=True,
        index=blocks[names[0]],
    )


def _wanted(task: str, both: tuple[str, str], found: list[str]) -> tuple[str, ...]:
    """The DiTs of a start-up task; "auto" takes what is there, the others insist."""
    first, reference = both
    insisted = {T2VA: (first,), FL2VA: (first,), REF2VA: (reference,), "combined": both}.get(task)
    if insisted is None:
        return tuple(found) or (first,)
    return insisted


def _tasks(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(task for name in names for task in ((REF2VA,) if name == REFERENCE_DENOISER else (T2VA, FL2VA)))


def _native_block(partition: Path) -> Mapping[str, Any]:
    """What a partition's index says of itself.

    Raises:
        BadCheckpoint: it says that it is another partition.
    """
    shown = f"{partition.name}/model_index.json"
    if not partition.is_dir():
        raise BadCheckpoint(
            partition.name, "the partition's folder is missing", hint="choose another --task-type, or download it"
        )
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
    default = _tasks((name,))
    said = block.get("tasks", default)
    return tuple(task for task in default if task in said) if isinstance(said, list | tuple) else default


def _partitions(root: Path) -> list[str]:
    return [name for name in (FIRST_PARTITION, REFERENCE_PARTITION) if _has(root, name)]


def _has(root: Path, name: str) -> bool:
    return (root / name).is_dir()


def download_patterns(task_type: str, has_root_index: bool) -> tuple[str, ...]:
    """Files of a repository that a start-up task needs: of the diffusers layout where its root has an index, else of native
    partitions, whose shared parts come from one. Nothing of a partition that is not served.
    """
    task = task_type.lower()
    if not has_root_index:
        if task in (T2VA, FL2VA, REF2VA):
            return (f"{REFERENCE_PARTITION if task == REF2VA else FIRST_PARTITION}/*",)
        own = (f"{REFERENCE_PARTITION}/{name}" for name in ("model_index.json", "transformer/*"))
        return (f"{FIRST_PARTITION}/*", *own)
    denoisers = _wanted(task, (DENOISER, REFERENCE_DENOISER), [DENOISER, REFERENCE_DENOISER])
    folders = (*SHARED, *SCHEDULERS.values(), *denoisers)
    return ("modular_model_index.json", "model_index.json", *(f"{folder}/*" for folder in folders))
