"""Weights into modules, strictly: every tensor exactly once, checked by header before the first byte of data is read.

Tensors are views of the file's memory map and are cast or moved one at a time, so a component is never in memory twice;
on a CPU without a cast the map itself is the weight.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils.weak import WeakIdKeyDictionary

from omnireel.errors import BadCheckpoint
from omnireel.weights.index import ComponentFiles, TensorEntry

M = TypeVar("M", bound=nn.Module)

Take = Callable[[torch.Tensor], torch.Tensor]
"""A stored tensor to one weight: a view or a copy, told by shapes alone (it is tried without data)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One weight of a stored tensor: the module's name for it, and how it is taken out."""

    name: str
    take: Take


Rename = Callable[[str], str | tuple[Part, ...] | None]
"""A stored key to the module's name for it, or to the parts it holds; None for a key that is known and not wanted."""

DtypeOf = Callable[[str, torch.dtype], torch.dtype]
"""The module's name and the stored type to the type that is wanted."""

DeviceOf = Callable[[str], torch.device]

TORCH_DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I64": torch.int64, "I32": torch.int32,
    "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip

_OTHER_LAYOUT = "these look like the weights of another model, or of the same model under other names"


@dataclass(frozen=True, slots=True)
class _Planned:
    """Where a weight comes from."""

    entry: TensorEntry
    take: Take


def same_key(key: str) -> str:
    """The rename of a checkpoint whose keys are the module's own names."""
    return key


def stored_type(_: str, stored: torch.dtype) -> torch.dtype:
    """The type rule that keeps what the file has."""
    return stored


def build_empty(factory: Callable[[], M]) -> M:
    """A module of somebody else's class whose parameters hold no memory yet, while its buffers are real.

    Buffers that a class computes when it is made (filters, frequencies) would be lost on the meta device. Weights that the
    class shares between two places stay one. The random state is left alone: nothing is drawn for a weight without memory.
    """
    owner = threading.get_ident()
    emptied = WeakIdKeyDictionary()

    def empty(_: nn.Module, __: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or parameter.is_meta or threading.get_ident() != owner:
            return None
        if parameter not in emptied:
            emptied[parameter] = nn.Parameter(parameter.detach().to("meta"), requires_grad=False)
        replaced: nn.Parameter = emptied[parameter]
        return replaced

    # torch takes what the hook gives back for the parameter, though its annotation says that nothing is.
    hook = register_module_parameter_registration_hook(cast("Callable[..., None]", empty))
    try:
        with torch.device("cpu"):
            return factory()
    finally:
        hook.remove()


def load_component(
    module: nn.Module,
    files: ComponentFiles,
    *,
    device: torch.device,
    rename: Rename = same_key,
    dtype_of: DtypeOf = stored_type,
    device_of: DeviceOf | None = None,
) -> None:
    """Fills a module whose parameters are on the meta device; afterwards none takes gradients and all are on `device`.

    A weight that the module shares between several places is filled from any one of its names and stays shared.

    Args:
        module: built under `torch.device("meta")` or by `build_empty`.
        files: what the component's folder holds.
        device: where every parameter and buffer ends.
        rename: see `Rename`; two stored keys may not get one name.
        dtype_of: see `DtypeOf`; integer tensors keep their type.
        device_of: by the module's name, where a weight ends instead.

    Raises:
        BadCheckpoint: a tensor is missing, not expected, given twice, of another shape or another kind of type.
    """
    wanted = dict(module.state_dict(keep_vars=True))
    places = _places(wanted)
    plan = _plan(files, wanted, {name: names[0] for names in places for name in names}, rename)
    names_of = {names[0]: names for names in places}
    with torch.no_grad():
        for shard, entries in _by_shard(plan):
            place = device_of or (lambda _: device)
            for name, tensor in _read(files.shown(shard), shard, entries, device_of=place, dtype_of=dtype_of):
                _put(module, names_of[name], tensor)
        _place_rest(module, device)
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        if value.is_meta:
            raise BadCheckpoint(files.folder.name, "leaves a buffer without a value", key=name)


def _places(wanted: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """The names of each tensor: more than one where the module shares it."""
    places: dict[int, list[str]] = {}
    for name, tensor in wanted.items():
        places.setdefault(id(tensor), []).append(name)
    return list(places.values())


def _plan(
    files: ComponentFiles, wanted: Mapping[str, torch.Tensor], first_name: Mapping[str, str], rename: Rename
) -> dict[str, _Planned]:
    """The stored tensor of each first name, with all that headers can tell checked."""
    plan: dict[str, _Planned] = {}
    unexpected: list[TensorEntry] = []
    for key, entry in files.tensors.items():
        for part in _parts(rename(key)):
            if part.name not in wanted:
                unexpected.append(entry)
                continue
            name = first_name[part.name]
            if name in plan:
                raise BadCheckpoint(
                    files.shown(entry.file), "gives a weight twice", key=key, found=f"also {plan[name].entry.key}"
                )
            _check_entry(files, entry, part, wanted[name])
            plan[name] = _Planned(entry, part.take)
    missing = {name: wanted[name] for name in dict.fromkeys(first_name.values()) if name not in plan}
    _check_complete(files, missing, unexpected)
    return plan


def _parts(renamed: str | tuple[Part, ...] | None) -> tuple[Part, ...]:
    if renamed is None:
        return ()
    return (Part(name=renamed, take=_whole),) if isinstance(renamed, str) else renamed


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _check_entry(files: ComponentFiles, entry: TensorEntry, part: Part, wanted: torch.Tensor) -> None:
    try:
        shape = part.take(torch.empty(entry.shape, device="meta")).shape
    except (RuntimeError, IndexError):
        # It cannot even be cut as the layout says.
        shape = None
    if shape != wanted.shape:
        is_part = "" if part.take is _whole else f" as part {part.name}"
        raise BadCheckpoint(
            files.shown(entry.file), "has a tensor of another shape", key=entry.key,
            expected=f"{list(wanted.shape)}{is_part}", found=str(list(entry.shape)),
        )  # fmt: skip
    stored = TORCH_DTYPES.get(entry.dtype)
    if stored is None or stored.is_floating_point != wanted.is_floating_point():
        kind = "a floating-point type" if wanted.is_floating_point() else "an integer type"
        raise BadCheckpoint(
            files.shown(entry.file), "has a tensor of another type", key=entry.key, expected=kind, found=entry.dtype
        )


def _check_complete(files: ComponentFiles, missing: Mapping[str, torch.Tensor], unexpected: list[TensorEntry]) -> None:
    one = len(files.shards) == 1
    if missing:
        where = files.shown(files.shards[0]) if one else files.folder.name
        both = f"; {len(unexpected)} others are not expected" if unexpected else ""
        raise BadCheckpoint(
            where, f"lacks {_counted(len(missing))}{'' if one else f' in its {len(files.shards)} files'}{both}",
            key=_few(list(missing)),
            expected=f"shape {list(next(iter(missing.values())).shape)}" if len(missing) == 1 else "",
            found=_few([entry.key for entry in unexpected]) or "nothing of that name",
            hint=_OTHER_LAYOUT if unexpected else "",
        )  # fmt: skip
    if unexpected:
        raise BadCheckpoint(
            files.shown(unexpected[0].file), f"has {_counted(len(unexpected))} that the model does not know",
            key=_few([entry.key for entry in unexpected]), hint=_OTHER_LAYOUT,
        )  # fmt: skip


def _counted(number: int) -> str:
    return f"{number} tensor{'' if number == 1 else 's'}"


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _by_shard(plan: Mapping[str, _Planned]) -> Iterator[tuple[Path, list[tuple[str, _Planned]]]]:
    shards: dict[Path, list[tuple[str, _Planned]]] = {}
    for name, planned in plan.items():
        shards.setdefault(planned.entry.file, []).append((name, planned))
    for shard, entries in shards.items():
        # In the order of the file, so that a disk reads forward.
        yield shard, sorted(entries, key=lambda pair: pair[1].entry.offset)


def _read(
    shown: str, shard: Path, entries: list[tuple[str, _Planned]], *, device_of: DeviceOf, dtype_of: DtypeOf
) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor, one at a time: what the caller has put away is all that stays in memory."""
    try:
        with safe_open(shard, framework="pt", device="cpu") as handle:
            for name, planned in entries:
                tensor = planned.take(handle.get_tensor(planned.entry.key)).contiguous()
                dtype = dtype_of(name, tensor.dtype) if tensor.is_floating_point() else tensor.dtype
                yield name, tensor.to(device=device_of(name), dtype=dtype)
    except (OSError, SafetensorError) as error:
        # The headers were sound a moment ago: the disk fails, or somebody is writing the file.
        raise BadCheckpoint(shown, f"cannot be read ({error})") from None


def _put(module: nn.Module, names: list[str], tensor: torch.Tensor) -> None:
    parameter = nn.Parameter(tensor, requires_grad=False)
    for name in names:
        owner_path, _, leaf = name.rpartition(".")
        owner = module.get_submodule(owner_path)
        if leaf in owner._parameters:
            owner._parameters[leaf] = parameter
        else:
            owner._buffers[leaf] = tensor


def _place_rest(module: nn.Module, device: torch.device) -> None:
    """Buffers that no file holds were computed when the module was made; they go where the weights are."""
    for owner in module.modules():
        for leaf, buffer in owner._buffers.items():
            if buffer is not None and not buffer.is_meta and buffer.device != device:
                owner._buffers[leaf] = buffer.to(device)
