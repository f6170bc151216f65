"""A worker's process: what it writes is kept, its end is told in words, and none is left over."""

from __future__ import annotations

import sys

import pytest
from tests.support.processes import alive, children

from omnireel.config import resolve
from omnireel.engine import child as module
from omnireel.engine.child import Child, EarlyChildren, early_children


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("print('one'); print('two')", "exit code 0"),
        ("import sys; print('one'); sys.exit('two')", "exit code 1"),
        ("import os; print('one\\ntwo', flush=True); os.kill(os.getpid(), 9)", "SIGKILL (the kernel"),
    ],
)
def test_its_end_and_its_last_lines_are_told(monkeypatch, capfd, code, words):
    monkeypatch.setattr(module, "_START", code)
    child = Child("0")
    assert child.close(20)
    ended, lines = child.epitaph()
    assert ended.startswith(words)
    assert lines == ("one", "two")
    assert capfd.readouterr().err == "one\ntwo\n"


def test_it_has_the_variables_that_it_was_given(monkeypatch):
    monkeypatch.setattr(module, "_START", "import os; print(os.environ['A'], 'PATH' in os.environ)")
    child = Child("0", {"A": "b"})
    child.close(20)
    assert child.epitaph()[1] == ("b True",)


def test_one_that_does_not_end_is_killed(monkeypatch):
    monkeypatch.setattr(module, "_START", "import time; time.sleep(60)")
    child = Child("0")
    assert not child.close(0.1)
    assert not alive(child.pid)


def test_early_ones_are_taken_once_and_the_rest_end(monkeypatch):
    monkeypatch.setattr(module, "_START", "import time; time.sleep(60)")
    before = children()
    with EarlyChildren(2) as early:
        first, another = early.take("a"), early.take("b")
        third = early.take("c")
        assert len({first.pid, another.pid, third.pid} & (children() - before)) == 3
        for one in (first, another, third):
            one.kill()
            one.close(5)
    with EarlyChildren(2):
        assert len(children() - before) == 2
    assert children() <= before


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        ({}, 1),
        ({"num_replicas": 2, "data_parallel_size": 2}, 4),
        ({"distributed_executor_backend": "uni"}, 0),
        ({"distributed_executor_backend": "mp"}, 1),
        ({"env": {"A": "b"}}, 0),
    ],
)
def test_a_service_starts_as_many_as_it_will_need(monkeypatch, flags, count):
    made: list[int] = []
    monkeypatch.setattr(module, "EarlyChildren", made.append)
    early_children(resolve({"model": "toy", **flags}, {}))
    assert made == [count]


def test_one_that_a_kill_does_not_end_is_not_waited_for(monkeypatch, caplog):
    monkeypatch.setattr(module, "_START", "import time; time.sleep(60)")
    monkeypatch.setattr(module, "_REAP_SECONDS", 0.1)
    child = Child("0")
    kill = child._process.kill
    # As in a driver that hangs.
    monkeypatch.setattr(child._process, "kill", lambda: None)
    assert not child.close(0.1)
    assert child.epitaph()[0] == "was killed and does not end"
    assert "does not end" in caplog.text
    kill()
    child._process.wait(10)


@pytest.mark.parametrize("broken", [None, "closed"])
def test_one_goes_on_when_nobody_reads_what_this_process_says(monkeypatch, tmp_path, broken):
    """More than a pipe holds, to a stderr that is gone."""
    code = "import os; print('x' * 5000); [print('line', k) for k in range(50_000)]; os._exit(7)"
    monkeypatch.setattr(module, "_START", code)
    with (tmp_path / "log").open("w") as closed:
        pass
    monkeypatch.setattr(sys, "stderr", None if broken is None else closed)
    child = Child("0")
    assert child.close(20)
    assert child.epitaph() == ("exit code 7", tuple(f"line {k}" for k in range(49_980, 50_000)))


def test_its_last_lines_are_no_longer_than_can_be_told(monkeypatch):
    monkeypatch.setattr(module, "_START", "print('x' * 100_000)")
    child = Child("0")
    child.close(20)
    assert child.epitaph()[1] == ("x" * 1000,)
