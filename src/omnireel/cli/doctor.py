"""`omnireel doctor`: what this machine has, and whether `omnireel generate` can run on it.

Exit code 0 when it can; 3 when it cannot, with every reason.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from omnireel.cli import show
from omnireel.cli.command import Command
from omnireel.cli.version import own_version
from omnireel.config import ModelSpec, compat, settings_of
from omnireel.errors import OmniReelError, SetupError

_NEEDED = ("torch", "transformers", "safetensors", "av", "numpy", "pillow", "prometheus_client", "rich")
_UNPROVEN = " (omnireel was not run on such hardware)"
_OPTIONAL = {
    "pillow_heif": "reading HEIC and HEIF pictures",
    "ray": "workers on several machines (--distributed-executor-backend ray)",
    "setproctitle": "processes that ps and py-spy show by model, stage and rank",
}


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--compat", action="store_true", help="print the features that cannot go together, and why")


def _run(arguments: argparse.Namespace) -> int:
    if arguments.compat:
        _print_compat(as_json=arguments.json)
        return 0
    report = _report()
    if arguments.json:
        show.data(report)
    else:
        _print(report)
    return SetupError.exit_code if report["problems"] else 0


def _print_compat(*, as_json: bool) -> None:
    rows = [
        {
            "features": [pair.first.name, pair.second.name],
            "settings": [list(pair.first.settings), list(pair.second.settings)],
            "why": pair.why,
            "is_available": not (pair.first.is_pending or pair.second.is_pending),
        }
        for pair in compat.TABLE
    ]
    if as_json:
        show.data({"pairs": rows})
        return
    show.table(
        [("feature", "not with", "can be set", "why")]
        + [
            (pair.first.name, pair.second.name, "yes" if row["is_available"] else "not yet", pair.why)
            for pair, row in zip(compat.TABLE, rows, strict=True)
        ]
    )


def _report() -> dict[str, Any]:
    versions = {name: _version(name) for name in _NEEDED}
    problems = [f"the package {name} is not installed" for name in _NEEDED if versions[name] is None]
    report: dict[str, Any] = {
        "versions": {"python": platform.python_version(), "omnireel": own_version(), **versions},
        "machine": f"{platform.platform()} {platform.machine()}",
        "optional_packages": {
            name: {"installed": importlib.util.find_spec(name) is not None, "for": use}
            for name, use in _OPTIONAL.items()
        },
    }
    # What follows imports those packages: without them there is no more to find out.
    if not problems:
        try:
            report |= {
                "platforms": _platforms(),
                "attention_backends": _backends(),
                "speed": _speed(),
                "encoders": _encoders(),
            }
        except (ImportError, OSError) as error:
            problems.append(f"a package is broken: {error}")
        else:
            problems += _problems(report)
    return {**report, "problems": problems}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _platforms() -> list[dict[str, Any]]:
    from omnireel.platforms import all_platforms

    return [
        {
            "name": item.name,
            "available": item.available(),
            "why_not": item.why_not(),
            "run_on_hardware": item.traits.is_run_on_hardware,
            "devices": [
                {
                    "index": device.index,
                    "name": device.name,
                    "capability": device.capability,
                    "total_bytes": device.total_bytes,
                    "free_bytes": item.free_memory_bytes(device.index),
                }
                for device in (item.devices() if item.available() else ())
            ],
        }
        for item in all_platforms()
    ]


def _place() -> tuple[str, str]:
    """Platform and capability of the device that would be taken."""
    from omnireel.platforms import all_platforms

    platform = next((item for item in all_platforms() if item.available()), None)
    devices = platform.devices() if platform else ()
    return platform.name if platform else "no device", devices[0].capability if devices else ""


def _speed() -> list[dict[str, Any]]:
    """What `auto` means there for each switch, and why."""
    from omnireel.acceleration import Acceleration
    from omnireel.acceleration.spec import AUTO

    platform_name, capability = _place()
    verdicts = {name: Acceleration().verdict(name, platform_name, capability) for name in AUTO}
    return [{"name": name, "is_on": told.is_on, "why": told.why} for name, told in verdicts.items()]


def _backends() -> list[dict[str, Any]]:
    """Each with why it cannot serve here, on the device that would be taken."""
    from omnireel.attention import Place, all_backends, why_unavailable

    platform_name, capability = _place()
    place = Place(platform=platform_name, capability=capability)
    return [
        {
            "name": item.name,
            "platforms": item.can.platforms,
            "run_on_hardware": item.can.is_run_on_hardware,
            "why_not": why_unavailable(item, place),
        }
        for item in all_backends()
    ]


def _encoders() -> dict[str, bool]:
    from omnireel.media.encode import ENCODERS, has_encoder

    return {name: has_encoder(name) for name in ENCODERS}


def _problems(report: dict[str, Any]) -> list[str]:
    from omnireel.models.discover import find_checkpoint

    problems = [f"PyAV has no {name} encoder" for name, has_it in report["encoders"].items() if not has_it]
    if not any(item["available"] for item in report["platforms"]):
        problems.append("there is no device to run on")
    default = next(item.default for item in settings_of(ModelSpec) if item.name == "model")
    try:
        find_checkpoint(default)
    except OmniReelError as error:
        problems.append(f"the default model {default} cannot be served: {error.message}")
    return problems


def _print(report: dict[str, Any]) -> None:
    show.table([(name, found or "not installed") for name, found in report["versions"].items()])
    show.line(f"\n{report['machine']}")
    for item in report.get("platforms", ()):
        unproven = "" if item["run_on_hardware"] else _UNPROVEN
        show.line(f"{item['name']}: {'available' if item['available'] else item['why_not']}{unproven}")
        for device in item["devices"]:
            free, total = device["free_bytes"] / 2**30, device["total_bytes"] / 2**30
            name = f"{device['name']} {device['capability']}".strip()
            show.line(f"  {item['name']}:{device['index']}  {name}, {free:.1f} of {total:.1f} GiB free")
    _print_parts(report)
    for problem in report["problems"]:
        show.line(f"problem: {problem}")
    show.line("generate cannot run here" if report["problems"] else "generate can run here")


def _print_parts(report: dict[str, Any]) -> None:
    rows = [
        (
            "attention",
            item["name"],
            (item["why_not"] or "available") + ("" if item["run_on_hardware"] else " (not run on hardware)"),
        )
        for item in report.get("attention_backends", ())
    ]
    rows += [
        ("speed, auto", item["name"], f"{'on' if item['is_on'] else 'off'}: {item['why']}")
        for item in report.get("speed", ())
    ]
    rows += [("encoder", name, "available" if has else "missing") for name, has in report.get("encoders", {}).items()]
    rows += [
        ("optional", name, ("installed, for " if item["installed"] else "not installed, for ") + item["for"])
        for name, item in report["optional_packages"].items()
    ]
    show.line("")
    show.table(rows)
    show.line("")


COMMAND = Command(
    name="doctor",
    summary="tell what this machine has and whether generate can run",
    add_flags=_add_flags,
    run=_run,
    description="Tells what this machine has. Exit code 0: generate can run; 3: it cannot, with every reason.",
)
