"""The first signal stops in order, and handlers are put back. The second one is in tests/e2e: it ends the process."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from omnireel.cli.interrupts import Interrupts, check, deferred


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_stops_the_program_where_it_is(signum, code):
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signum)
        assert interrupts.exit_code == code


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_that_was_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_was_swallowed_is_raised_between_phases():
    with Interrupts():
        check()
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            check()
    check()


def test_the_exit_code_stays_that_of_the_signal_when_it_came_inside_of_exec():
    program = """
import os, signal, sys
from omnireel.cli.interrupts import Interrupts
with Interrupts() as interrupts:
    try:
        exec("os.kill(os.getpid(), signal.SIGTERM)")
    except KeyboardInterrupt:
        pass
sys.exit(interrupts.exit_code)
"""
    ended = subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": os.pathsep.join(sys.path)}, check=False)
    assert ended.returncode == 143


def test_a_deferred_block_is_finished_before_the_program_stops():
    done = []

    def work():
        with deferred():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("all of it")

    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            work()
        assert interrupts.exit_code == 143
    assert done == ["all of it"]


def test_a_deferred_block_without_handlers_is_a_block():
    with deferred():
        pass
