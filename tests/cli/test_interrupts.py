"""The first signal stops in order, and handlers are put back. The second one is in tests/e2e: it ends the process."""

import os
import signal

import pytest

from omnireel.cli.interrupts import Interrupts


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
