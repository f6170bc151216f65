"""A class that a setting names is found in installed code alone, and what is wrong with one is told."""

from __future__ import annotations

import sys

import pytest

from omnireel.engine.custom import class_named
from omnireel.engine.worker import Worker

CODE = """
from omnireel.engine.worker import Worker
class Own(Worker): pass
class Other: pass
thing = 3
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package beside a checkpoint that holds code too."""
    site, checkpoint = tmp_path / "site", tmp_path / "checkpoint"
    for folder in (site / "own_workers", checkpoint / "shipped"):
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
        (folder / "kinds.py").write_text(CODE)
    (site / "own_workers" / "broken.py").write_text("import no_such_library")
    (checkpoint / "modeling.py").write_text(f"raise SystemExit('this was run'){CODE}")
    monkeypatch.syspath_prepend(str(checkpoint))
    monkeypatch.syspath_prepend(str(site))
    yield checkpoint
    for name in [name for name in sys.modules if name.partition(".")[0] in ("own_workers", "shipped", "modeling")]:
        del sys.modules[name]


def test_a_class_of_an_installed_package_is_found(installed):
    assert class_named("own_workers.kinds.Own", Worker, installed).__name__ == "Own"
    assert class_named("omnireel.engine.worker.Worker", Worker) is Worker
    assert class_named("", Worker, installed) is Worker


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("no_such_package.Own", "no module no_such_package is installed"),
        ("own_workers.nothing.Own", "no module own_workers.nothing is installed"),
        ("own_workers.kinds.Ownn", "own_workers.kinds has no Ownn; did you mean Own?"),
        ("own_workers.kinds.Other", "it must be a subclass of omnireel.engine.worker.Worker"),
        ("own_workers.kinds.thing", "it must be a subclass of"),
        ("own_workers.broken.Own", "cannot be imported .ModuleNotFoundError: No module named 'no_such_library'"),
        ("own_workers.kinds.Own.Inner", "cannot be imported"),
        ("modeling.Own", "no code of a checkpoint is ever run"),
        ("shipped.kinds.Own", "no code of a checkpoint is ever run"),
    ],
)
def test_what_is_wrong_with_another_is_told(installed, name, problem):
    with pytest.raises(ValueError, match=problem):
        class_named(name, Worker, installed)


def test_links_out_of_a_checkpoint_and_folders_above_it_are_seen_through(installed, tmp_path, monkeypatch):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "abc").write_text("raise SystemExit('this was run')")
    (installed / "linked.py").symlink_to(tmp_path / "blobs" / "abc")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("linked.Own", "checkpoint.modeling.Own"):
        with pytest.raises(ValueError, match="no code of a checkpoint"):
            class_named(name, Worker, installed)
