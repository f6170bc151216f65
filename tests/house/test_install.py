"""What make does to a machine, tried with a Python that only writes down what it is asked for."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TARGETS = {"demo", "test", "check", "format", "parity", "size", "docs", "help"}
# Answers for the interpreter, for the environment's interpreter and for the installed command alike. FAILS holds patterns of
# calls that fail; torch can be imported once an install of it went through.
RECORDER = """#!/bin/bash
set -f
echo "$(basename "$0") $*" >>"$RECORD"
for pattern in $FAILS; do case "$*" in $pattern) exit 1 ;; esac; done
case "$*" in
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/omnireel" ;;
    "-m pip install"*torch==*) echo >>"$RECORD.torch" ;;
    *"import torch"*) [ "$(cat "$RECORD.torch" 2>/dev/null | wc -l)" -ge "${IMPORTS_AFTER:-1}" ] ;;
esac
"""


@dataclass
class Machine:
    """A folder with a recording python, and programs that say what the machine is."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, script: str) -> Path:
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(script)
        path.chmod(0o755)
        return path

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=ROOT,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def make(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        python, venv = self.folder / "bin" / "python", self.folder / "venv"
        return self.run("make", f"PYTHON={python}", f"VENV={venv}", *words, **environment)

    def install_torch(self, **environment: str) -> subprocess.CompletedProcess[str]:
        settings = {"PYTHON": str(self.folder / "bin" / "python"), "TORCH_VERSION": "1.2.3", "TORCH_CPU_INDEX": "INDEX"}
        return self.run("bash", "tools/install_torch.sh", **settings, **environment)

    def calls(self, word: str = "") -> list[str]:
        """What was asked for since the last look."""
        record = self.folder / "record"
        lines = record.read_text().splitlines() if record.exists() else []
        record.unlink(missing_ok=True)
        return [line for line in lines if word in line]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """An x86 machine with Linux and without an NVIDIA card."""
    made = Machine(tmp_path)
    made.add("python", RECORDER)
    made.add("nvidia-smi", "#!/bin/sh\nexit 9\n")
    made.add("uname", "#!/bin/sh\n[ $1 = -s ] && echo Linux || echo x86_64\n")
    made.environment |= {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "RECORD": str(tmp_path / "record")}
    return made


def test_help_names_every_target(machine):
    words = [line.split(maxsplit=1) for line in machine.run("make", "help").stdout.splitlines()]
    assert {name for name, _ in words} >= TARGETS


def test_without_a_python_make_says_what_to_install_and_makes_nothing(machine):
    ran = machine.make("demo", "PYTHON=")
    assert ran.returncode != 0
    assert "error: no Python >= 3.11" in ran.stderr
    assert "hint: " in ran.stderr
    assert not (machine.folder / "venv").exists()


def test_a_python_that_is_too_old_is_named_and_makes_nothing(machine):
    ran = machine.make("demo", FAILS="*sys.version_info*")
    assert ran.returncode != 0
    assert f"error: {machine.folder / 'bin' / 'python'} is not Python >= 3.11" in ran.stderr
    assert not (machine.folder / "venv").exists()


def test_demo_makes_the_environment_installs_and_generates(machine):
    ran = machine.make("demo")
    assert ran.returncode == 0, ran.stderr
    calls = machine.calls()
    assert [call.split()[:3] for call in calls if "-m venv" in call] == [["python", "-m", "venv"]]
    assert [call.split()[-1] for call in calls if "pip install" in call][1:] == ["."]
    assert calls[-1].startswith("omnireel generate ")
    assert calls[-1].endswith("-o demo.mp4")


def test_what_did_not_change_is_not_installed_again(machine):
    machine.make("demo")
    machine.calls()
    assert machine.make("demo").returncode == 0
    assert not machine.calls("pip install")


def test_a_changed_project_is_installed_again_and_torch_is_not(machine):
    machine.make("demo")
    machine.calls()
    machine.make("-W", "pyproject.toml", "demo")
    assert [call.split()[-1] for call in machine.calls("pip install")] == ["."]


def test_changed_constraints_are_followed(machine):
    machine.make("demo")
    machine.calls()
    machine.make("-W", "constraints.txt", "demo")
    assert machine.calls("pip install")


def test_an_install_that_failed_is_done_again(machine):
    assert machine.make("demo", FAILS="*pip*install*-e*").returncode != 0
    machine.calls()
    assert machine.make("demo").returncode == 0
    assert machine.calls("-e .")


def broken_python(venv: Path) -> None:
    (venv / "bin" / "python").unlink()


def other_folder(venv: Path) -> None:
    (venv / "place").write_text("/elsewhere\n")


def broken_off(venv: Path) -> None:
    (venv / "place").unlink()


@pytest.mark.parametrize("harm", [broken_python, other_folder, broken_off])
def test_an_environment_that_is_not_sound_is_made_anew(machine, harm):
    machine.make("demo")
    machine.calls()
    harm(machine.folder / "venv")
    assert machine.make("demo").returncode == 0
    calls = machine.calls()
    assert any("-m venv" in call for call in calls)
    assert any("-e ." in call for call in calls)


def test_without_a_card_the_build_without_cuda_is_taken_from_where_pip_looks(machine):
    assert machine.install_torch().returncode == 0
    (call,) = machine.calls("pip install")
    assert "torch==1.2.3+cpu" in call
    assert "INDEX" not in call


def test_where_pip_has_no_build_without_cuda_the_index_for_it_is_asked(machine):
    assert machine.install_torch(FAILS="*constraints.txt?torch==1.2.3+cpu").returncode == 0
    assert "torch==1.2.3+cpu --extra-index-url INDEX" in machine.calls("pip install")[-1]


def test_where_no_index_has_it_the_default_build_is_taken_and_told(machine):
    ran = machine.install_torch(FAILS="*+cpu*")
    assert ran.returncode == 0
    assert "installing the default one" in ran.stdout
    assert machine.calls("pip install")[-1].endswith("torch==1.2.3")


def test_with_a_card_the_default_build_is_taken(machine):
    machine.add("nvidia-smi", "#!/bin/sh\n")
    assert machine.install_torch().returncode == 0
    (call,) = machine.calls("pip install")
    assert call.endswith("torch==1.2.3")


@pytest.mark.parametrize(("system", "processor"), [("Darwin", "arm64"), ("Linux", "aarch64")])
def test_where_the_default_build_has_no_cuda_it_is_taken(machine, system, processor):
    machine.add("uname", f"#!/bin/sh\n[ $1 = -s ] && echo {system} || echo {processor}\n")
    assert machine.install_torch().returncode == 0
    (call,) = machine.calls("pip install")
    assert call.endswith("torch==1.2.3")


def test_a_torch_that_an_interrupted_install_left_is_installed_over(machine):
    assert machine.install_torch(IMPORTS_AFTER="2").returncode == 0
    assert "--force-reinstall" in machine.calls("pip install")[-1]


def test_a_torch_that_cannot_be_installed_fails_with_pips_words(machine):
    assert machine.install_torch(FAILS="*torch==*").returncode != 0
