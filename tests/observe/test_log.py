"""Log lines go to stderr and carry the request and stage that they belong to."""

from __future__ import annotations

import logging
import threading

import pytest

from omnireel.observe.log import configure, request_scope

LOGGER = logging.getLogger("omnireel.somewhere")


@pytest.fixture(autouse=True)
def _log_as_before():
    logger = logging.getLogger("omnireel")
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield
    logger.handlers, logger.level, logger.propagate = before


def test_lines_from_the_level_up_go_to_stderr(capsys):
    configure("warning")
    LOGGER.info("quiet")
    LOGGER.warning("loud %d", 1)
    seen = capsys.readouterr()
    assert seen.out == ""
    assert "WARNING omnireel.somewhere: loud 1" in seen.err
    assert "quiet" not in seen.err


def test_a_line_carries_request_and_stage(capsys):
    configure("info")
    with request_scope("req_1", "denoise"):
        LOGGER.info("inside")
    LOGGER.info("outside")
    first, second = capsys.readouterr().err.splitlines()
    assert "omnireel.somewhere [req_1 denoise]: inside" in first
    assert "omnireel.somewhere: outside" in second


def test_the_scope_ends_with_an_error_and_gives_the_outer_one_back(capsys):
    configure("info")
    with request_scope("req_1"):
        with pytest.raises(ValueError, match="x"), request_scope("req_2", "encode"):
            raise ValueError("x")
        LOGGER.info("after")
    assert "[req_1]: after" in capsys.readouterr().err


def test_threads_have_scopes_of_their_own(capsys):
    configure("info")
    with request_scope("req_1"):
        thread = threading.Thread(target=LOGGER.info, args=("beside",))
        thread.start()
        thread.join()
    assert "omnireel.somewhere: beside" in capsys.readouterr().err


def test_configuring_again_does_not_double_lines(capsys):
    configure("info")
    configure("info")
    LOGGER.info("once")
    assert capsys.readouterr().err.count("once") == 1
