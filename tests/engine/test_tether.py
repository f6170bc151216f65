"""A worker that its engine cannot tell anything any more ends with it all the same, and not with a thread of it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from tests.support.processes import alive, until

from omnireel.engine.tether import Starter, tie

TIED = "import os, sys, time; sys.path[:] = {path!r}; from omnireel.engine.tether import tie; tie({parent}); print('tied', flush=True); time.sleep(60)"
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties processes")


def tied(parent: str) -> list[str]:
    return [sys.executable, "-c", TIED.format(path=sys.path, parent=parent)]


def launch() -> subprocess.Popen[str]:
    process = subprocess.Popen(tied(str(os.getpid())), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "tied\n"
    return process


@linux
def test_one_whose_parent_was_gone_before_it_was_tied_ends_at_once():
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    assert subprocess.run(tied(str(gone.pid)), timeout=20, check=False).returncode == 1


@linux
def test_one_that_another_program_starts_for_its_parent_goes_on():
    shell = ["/bin/sh", "-c", '"$@" & wait $!', "sh", *tied(str(os.getpid()))]
    with subprocess.Popen(shell, stdout=subprocess.PIPE, text=True, start_new_session=True) as between:
        assert between.stdout is not None
        try:
            assert between.stdout.readline() == "tied\n"
        finally:
            os.killpg(between.pid, signal.SIGKILL)


@linux
def test_a_program_without_such_a_call_is_tied_by_its_socket_alone(monkeypatch):
    def no_library(name):
        raise OSError("no dynamic loading here")

    monkeypatch.setattr(ctypes, "CDLL", no_library)
    tie(os.getppid())


@linux
def test_a_stopped_one_ends_when_its_parent_is_killed():
    code = (
        "import subprocess, sys, time; one = subprocess.Popen([sys.executable, '-c', sys.argv[1].replace('PARENT', "
        "str(__import__('os').getpid()))], stdout=subprocess.PIPE); one.stdout.readline(); print(one.pid, flush=True); "
        "time.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, tied("PARENT")[2]], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(pid, signal.SIGSTOP)
        parent.kill()
        until(lambda: not alive(pid), 10)
    finally:
        parent.kill()
        parent.communicate()


@linux
def test_it_does_not_end_with_the_thread_that_asked_for_it():
    starter: Starter[subprocess.Popen[str]] = Starter()
    made: list[subprocess.Popen[str]] = []
    asking = [threading.Thread(target=lambda: made.append(starter.start(launch))) for _ in range(2)]
    try:
        for one in asking:
            one.start()
        for one in asking:
            one.join()
        time.sleep(0.2)
        assert [process.poll() for process in made] == [None, None]
    finally:
        for process in made:
            process.kill()
            process.communicate()


def test_who_asks_is_told_what_went_wrong_and_the_next_one_is_started():
    starter: Starter[int] = Starter()
    with pytest.raises(FileNotFoundError):
        starter.start(lambda: subprocess.call(["/no/such/program"]))
    assert starter.start(lambda: 3) == 3


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_has_a_thread_of_its_own():
    starter: Starter[int] = Starter()
    starter.start(os.getpid)
    starter._lock.acquire()
    pid = os.fork()
    if not pid:
        os._exit(0 if starter.start(os.getpid) == os.getpid() else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_other_systems_are_left_alone(monkeypatch):
    asked: list[object] = []
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", asked.append)
    # Else it would end this process.
    tie(1)
    assert not asked
