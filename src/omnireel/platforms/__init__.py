"""Platforms: what a kind of device can do and how to ask it. One file a kind; the first available one is the default."""

from __future__ import annotations

import importlib
import logging
import pkgutil
import re
from collections.abc import Iterable
from importlib.metadata import entry_points

from omnireel.errors import BadSetting, UnsupportedDevice, nearest
from omnireel.platforms.interface import DeviceInfo, DeviceTraits, Platform

__all__ = ["DeviceInfo", "DeviceTraits", "Platform", "all_platforms", "find_device", "find_platform"]

logger = logging.getLogger(__name__)

_GROUP = "omnireel.platforms"
_NO_PLATFORMS = ("accelerator", "interface")
"""Files of this folder that are no kind of device."""

_SPELLING = re.compile(r"([a-z]+)(?::(\d+))?")


def all_platforms() -> tuple[Platform, ...]:
    """Every platform, those of other packages (entry points of the group "omnireel.platforms") first, the CPU last.

    One of another package takes the place of a built-in one of its name.
    """
    plugged = {item.name: item for item in (entry.load() for entry in entry_points(group=_GROUP))}
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _NO_PLATFORMS)
    own = [importlib.import_module(f"{__name__}.{name}").PLATFORM for name in names]
    found = [*plugged.values(), *(item for item in own if item.name not in plugged)]
    return tuple(sorted(found, key=lambda platform: platform.name == "cpu"))


def find_platform(name: str) -> Platform:
    """The platform of that name; "auto" gives the one that is available, a plugged-in one before built-in ones.

    Raises:
        BadSetting: there is no such platform, or there are several kinds of device and somebody has to choose.
        UnsupportedDevice: it is not available here.
    """
    platforms = {platform.name: platform for platform in all_platforms()}
    if name == "auto":
        return _only(platform for platform in platforms.values() if platform.available())
    if name not in platforms:
        states = ", ".join(f"{p.name} ({p.why_not()})" if p.why_not() else p.name for p in platforms.values())
        close = nearest(name, platforms)
        hint = f"did you mean {close!r}?" if close else ""
        raise BadSetting("device", name, "device setting", f"known are auto, {states}", hint=hint)
    platform = platforms[name]
    if not platform.available():
        have = f"none ({platform.why_not()})"
        raise UnsupportedDevice(f"a {name} device", have, hint="use --device auto, or another device")
    return platform


def _only(available: Iterable[Platform]) -> Platform:
    """The accelerator that is there, of another package rather than ours; the CPU where there is none."""
    here = list(available)
    accelerators = [item for item in here if item.name != "cpu"]
    plugged = [item for item in accelerators if not type(item).__module__.startswith(__name__)]
    candidates = plugged or accelerators or here
    if len(candidates) > 1:
        names = " and ".join(item.name for item in candidates)
        raise BadSetting("device", "auto", "device setting", f"this machine has {names}, so name the one that is meant")
    if not candidates[0].traits.is_run_on_hardware:
        logger.warning("%s was chosen, which omnireel was never run on; please tell how it goes", candidates[0].name)
    return candidates[0]


def find_device(text: str, *, is_here: bool = True) -> tuple[Platform, int]:
    """A user's words for a device ("auto", "cpu", "cuda", "cuda:1") as platform and index.

    Args:
        text: the words.
        is_here: whether it is a device of this machine; of another one only the name is looked at.

    Raises:
        BadSetting: the words are no device.
        UnsupportedDevice: there is no such device here.
    """
    match = _SPELLING.fullmatch(text.lower())
    if match is None:
        raise BadSetting("device", text, "device setting", "write auto, a platform's name, or name:index")
    if not is_here:
        named = [platform for platform in all_platforms() if platform.name == match[1]]
        return (named or [find_platform(match[1])])[0], int(match[2] or 0)
    platform, index = find_platform(match[1]), int(match[2] or 0)
    count = len(platform.devices())
    if index >= count:
        raise UnsupportedDevice(f"{platform.name}:{index}", f"{count} device{'' if count == 1 else 's'}")
    return platform, index
