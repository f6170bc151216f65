"""The house as it stands is the house as it is drawn."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "omnireel"
FILES = sorted(SOURCE.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """First names of every import in a file, wherever it stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.slow
def test_rooms_import_downward_only():
    ran = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"],
        cwd=ROOT, capture_output=True, text=True, timeout=50, check=False, env={"PYTHONPATH": "src", "PATH": ""},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("package", "rooms"),
    [
        ("av", {"media"}),
        ("PIL", {"media", "models"}),
        ("diffusers", set()),
        ("transformers", {"models"}),
        ("rich", {"observe"}),
        ("triton", {"layers"}),
        ("fastapi", {"server"}),
        ("starlette", {"server"}),
        ("uvicorn", {"server"}),
    ],
)
def test_a_package_is_imported_only_by_its_room(package, rooms):
    users = {path.relative_to(SOURCE).parts[0] for path in FILES if package in imported(path)}
    assert users <= rooms


@pytest.mark.parametrize("room", ["errors.py", "request.py", "config", "cli"])
def test_rooms_of_the_surface_do_not_import_torch(room):
    assert not [path for path in FILES if path.relative_to(SOURCE).parts[0] == room and "torch" in imported(path)]


def test_every_room_is_in_the_architecture_and_the_reverse():
    drawn = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE))
    real = {path.stem for path in SOURCE.glob("*.py") if not path.stem.startswith("_")}
    real |= {path.name for path in SOURCE.iterdir() if path.is_dir() and list(path.glob("*.py"))}
    assert drawn == real


def test_the_architecture_stays_short():
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 150


def test_our_own_modules_are_imported_at_the_top():
    inside = []
    for path in FILES:
        if path.parts[-2] == "cli":
            # Commands import what they run when they run it, so that help takes no torch.
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                inside += [
                    f"{path.name}:{child.lineno}"
                    for child in ast.walk(node)
                    if isinstance(child, ast.ImportFrom) and (child.module or "").startswith("omnireel")
                ]
    assert not inside
