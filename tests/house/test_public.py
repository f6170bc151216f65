"""What others may rely on: names, versions, errors, package data, and what an import costs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import omnireel
from omnireel.errors import OmniReelError

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "omnireel"

PUBLIC = [
    "AsyncOmni", "DiffusionSamplingParams", "GenerationRequest", "GenerationResult", "MediaInput", "MediaKind",
    "MediaRef", "Omni", "OmniReelError", "OutputSpec", "StepEvent", "__version__",
]  # fmt: skip
NEEDS_TRITON = set((SOURCE / "layers/kernels").glob("fused*.py"))
"""Kernels are compiled from their own text, so their files cannot be read without the compiler; functions import them."""

OPTIONAL = [
    "flash_attn",
    "flashinfer",
    "sageattention",
    "mindiesd",
    "aiter",
    "vllm",
    "ray",
    "bitsandbytes",
    "cache_dit",
    "pillow_heif",
    "modelscope",
    "accelerate",
    "diffusers",
    "setproctitle",
]


def modules_after(code: str) -> set[str]:
    """Modules that a fresh interpreter holds after running `code`."""
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"],
        capture_output=True, text=True, timeout=50, check=True, env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
    )  # fmt: skip
    return set(json.loads(ran.stdout.splitlines()[-1]))


def all_errors(kind: type[OmniReelError] = OmniReelError) -> list[type[OmniReelError]]:
    return [kind] + [error for child in kind.__subclasses__() for error in all_errors(child)]


def test_the_public_names_are_these():
    assert sorted(omnireel.__all__) == PUBLIC == omnireel.__all__


@pytest.mark.parametrize("name", PUBLIC[:-1])
def test_every_public_name_is_there(name):
    assert getattr(omnireel, name).__name__ == name


def test_dir_shows_the_public_names_only():
    assert dir(omnireel) == PUBLIC


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Omnii"):
        _ = omnireel.Omnii


def test_the_version_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    newest = re.search(r"^## \[([\d.]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert project["version"] == omnireel.__version__ == newest[1]


@pytest.mark.parametrize("error", all_errors()[1:])
def test_every_error_has_a_code_of_its_own_a_status_and_an_exit_code(error):
    assert "code" in vars(error)
    assert 400 <= error.http_status < 600
    assert error.exit_code in (2, 3, 4)


def test_error_codes_are_unique():
    codes = [error.code for error in all_errors()]
    assert len(codes) == len(set(codes))


def test_the_error_tree_is_drawn_in_full():
    drawn = re.findall(r"^ *(\w+) ", sys.modules["omnireel.errors"].__doc__ or "", re.MULTILINE)
    assert {error.__name__ for error in all_errors()} <= {*drawn, "OmniReelError"}


def test_importing_the_package_imports_no_torch():
    assert not modules_after("import omnireel") & {"torch", "numpy", "transformers", "diffusers"}


def test_the_commands_help_imports_no_torch():
    loaded = modules_after("from omnireel.cli.main import build_parser; build_parser().format_help()")
    assert not loaded & {"torch", "numpy", "transformers", "diffusers", "av", "PIL"}


@pytest.mark.slow
def test_every_module_imports_without_the_optional_packages():
    names = [
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        for path in sorted(SOURCE.rglob("*.py"))
        if path.stem != "__main__" and path not in NEEDS_TRITON
    ]
    block = f"import sys\nfor name in {OPTIONAL!r}: sys.modules[name] = None\nimport importlib\n"
    loaded = modules_after(block + f"for name in {names!r}: importlib.import_module(name)")
    assert set(names) <= loaded


def test_package_data_stays_small():
    data = [path for path in SOURCE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    assert sum(path.stat().st_size for path in data) <= 25 * 2**20


def test_the_embedded_model_is_part_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "models/*/mini/**/*" in project["tool"]["setuptools"]["package-data"]["omnireel"]
    assert (SOURCE / "models" / "minimax_h3" / "mini" / "modular_model_index.json").is_file()
