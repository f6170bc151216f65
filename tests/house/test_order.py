"""Order in the tree: sizes, tests that mirror the source, documents that are current, words that do not belong."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "omnireel"

UNMIRRORED = {
    "attention/backends/__init__.py": "empty",
    "cli/__main__.py": "two lines, run by the end-to-end tests",
    "cli/command.py": "a dataclass",
    "cli/session.py": "run by the tests of generate and reproduce",
    "cli/version.py": "run by the tests of main",
    "config/groups.py": "run by the tests of spec and resolve",
    "config/planned.py": "dataclasses, run by the tests of spec and resolve",
    "engine/connectors/__init__.py": "a protocol",
    "engine/executors/__init__.py": "a protocol",
    "engine/journey.py": "run by the tests of staged",
    "models/protocol.py": "protocols and dataclasses",
    "models/minimax_h3/facts.py": "data, read by the tests of discover",
    "models/minimax_h3/layout.py": "tests/parity/test_layouts.py",
    "models/minimax_h3/native.py": "tests/parity/test_layouts.py",
    "models/minimax_h3/packing.py": "tests/parity/test_packing.py",
    "models/minimax_h3/schedule.py": "tests/parity/test_schedule.py",
    "models/prompt_rewriter/facts.py": "data, read by the tests of discover",
    "models/toy/facts.py": "data, read by the tests of discover",
    "models/toy_stages/facts.py": "data, read by the tests of discover",
    "parallel/member.py": "a dataclass, run by the tests of ranks and group",
    "request.py": "dataclasses",
    "server/bodies.py": "data, read by the tests of app",
    "server/run.py": "tests/e2e/test_serve.py",
    "server/runs.py": "tests/e2e/test_serve.py",
    "server/schemas.py": "what answers look like, seen by the tests of videos",
    "server/service.py": "run by the tests of videos",
}
"""Source files without a test file of their own name, and why."""


def tool(name: str) -> ModuleType:
    """A script of tools/ as a module; dataclasses need it to be findable by name."""
    spec = importlib.util.spec_from_file_location(f"tool_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


def test_no_room_has_outgrown_its_budget():
    module = tool("size")
    assert not [room.name for room in module.measure() if room.is_over]
    assert not module.too_long()


def test_generated_pages_are_current():
    pages = tool("docs").pages()
    stale = [name for name, text in pages.items() if (ROOT / "docs" / "reference" / name).read_text() != text]
    assert not stale, "run make docs"


def test_tests_mirror_the_source():
    missing = []
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE)
        if str(place) in UNMIRRORED or place.name == "__init__.py":
            continue
        if not (ROOT / "tests" / place.parent / f"test_{place.name.lstrip('_')}").is_file():
            missing.append(str(place))
    assert not missing


def test_exceptions_from_mirroring_are_real_files():
    assert not [name for name in UNMIRRORED if not (SOURCE / name).is_file()]


@pytest.mark.parametrize("suffix", [".py", ".md", ".sh", ".toml"])
def test_files_but_tests_are_plain_ascii(suffix):
    tracked = subprocess.run(["git", "ls-files", f"*{suffix}"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = [name for name in tracked.stdout.split() if not name.startswith("tests/")]
    odd = [name for name in names if not (ROOT / name).read_bytes().isascii()]
    assert not odd


def test_links_in_documents_lead_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [(page, target) for page in pages for target in re.findall(r"\]\(([^)#]+)\)", page.read_text())]
    broken = [target for page, target in links if "://" not in target and not (page.parent / target).exists()]
    assert not broken
