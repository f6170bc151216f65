"""Platforms: what a kind of device can do and how to ask it. One file a kind; the first available one is the default."""

from __future__ import annotations

import importlib
import pkgutil
import re

from omnireel.errors import BadSetting, UnsupportedDevice, nearest
from omnireel.platforms.interface import DeviceInfo, Platform

__all__ = ["DeviceInfo", "Platform", "all_platforms", "find_device", "find_platform"]

_SPELLING = re.compile(r"([a-z]+)(?::(\d+))?")


def all_platforms() -> tuple[Platform, ...]:
    """Every platform that has a file, accelerators first, the CPU last."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "interface")
    found = [importlib.import_module(f"{__name__}.{name}").PLATFORM for name in names]
    return tuple(sorted(found, key=lambda platform: platform.name == "cpu"))


def find_platform(name: str) -> Platform:
    """The platform of that name; "auto" gives the first that is available.

    Raises:
        BadSetting: there is no such platform.
        UnsupportedDevice: it is not available here.
    """
    platforms = {platform.name: platform for platform in all_platforms()}
    if name == "auto":
        return next(platform for platform in platforms.values() if platform.available())
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


def find_device(text: str) -> tuple[Platform, int]:
    """A user's words for a device ("auto", "cpu", "cuda", "cuda:1") as platform and index.

    Raises:
        BadSetting: the words are no device.
        UnsupportedDevice: there is no such device here.
    """
    match = _SPELLING.fullmatch(text.lower())
    if match is None:
        raise BadSetting("device", text, "device setting", "write auto, a platform's name, or name:index")
    platform, index = find_platform(match[1]), int(match[2] or 0)
    count = len(platform.devices())
    if index >= count:
        raise UnsupportedDevice(f"{platform.name}:{index}", f"{count} device{'' if count == 1 else 's'}")
    return platform, index
