"""What is installed is what is used, and each of its versions was tested."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDED = [Requirement(text) for text in PROJECT["dependencies"]]
EXTRAS = [Requirement(text) for texts in PROJECT["optional-dependencies"].values() for text in texts]
PINS = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
)
DISTRIBUTIONS = {"PIL": "pillow", "yaml": "pyyaml"}
"""Modules whose distribution has another name."""
THROUGH_OTHERS = {"python-multipart"}
"""What others import for us where it is installed: starlette reads forms with it."""


def top_level_imports(path: Path) -> set[str]:
    """First names of what is imported when the module is."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_what_modules_import_is_a_dependency_and_the_reverse():
    files = (ROOT / "src").rglob("*.py")
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text()))]
    anywhere = {node.module.partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    anywhere |= {alias.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    needed = {canonicalize_name(item.name) for item in NEEDED}
    # Triton comes with torch where there are cards; its file is imported only where it is there.
    top = {name for path in (ROOT / "src").rglob("*.py") for name in top_level_imports(path)} - {"triton"}
    own = {"omnireel", *sys.stdlib_module_names}
    assert {canonicalize_name(DISTRIBUTIONS.get(name, name)) for name in top - own} <= needed
    assert needed - THROUGH_OTHERS <= {canonicalize_name(DISTRIBUTIONS.get(name, name)) for name in anywhere}


def test_constraints_are_exact_versions_in_order_and_name_no_place():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert not [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", line)]
    names = [canonicalize_name(name) for name in PINS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("requirement", [*NEEDED, *EXTRAS], ids=str)
def test_every_dependency_has_a_tested_version_within_its_range(requirement):
    pins = {canonicalize_name(name): version for name, version in PINS.items()}
    assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)])
