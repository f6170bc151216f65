"""Log lines go to stderr and carry the request and stage that they belong to."""

from __future__ import annotations

import json
import logging
import threading
from datetime import datetime, timedelta

import pytest

from omnireel.observe.log import configure, name_stage, request_scope

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


def test_a_worker_says_its_rank_and_stage(capsys):
    configure("info", rank=1, stage="words")
    LOGGER.info("outside")
    with request_scope("req_1", "denoise"):
        LOGGER.info("inside")
    first, second = capsys.readouterr().err.splitlines()
    assert "omnireel.somewhere [words rank 1]: outside" in first
    assert "omnireel.somewhere [req_1 words.denoise rank 1]: inside" in second


def test_json_lines_have_every_field(capsys):
    configure("info", "json", rank=0)
    with request_scope("req_1", "denoise"):
        LOGGER.warning('took "%d" s', 3, extra={"fields": {"seconds": 3}})
    line = json.loads(capsys.readouterr().err)
    assert datetime.fromisoformat(line.pop("time")).utcoffset() == timedelta(0)
    assert line == {
        "level": "warning",
        "logger": "omnireel.somewhere",
        "message": 'took "3" s',
        "request_id": "req_1",
        "stage": "denoise",
        "rank": 0,
        "fields": {"seconds": 3},
    }


def test_an_error_and_odd_words_stay_one_json_line(capsys):
    configure("info", "json")
    try:
        raise ValueError("two\nlines \u2028")
    except ValueError:
        LOGGER.exception("it failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert "two\nlines \u2028" in json.loads(line)["error"]
    assert json.loads(line).keys().isdisjoint({"request_id", "stage", "rank", "fields"})


def test_a_thread_may_be_of_a_stage(capsys):
    configure("info")

    def work():
        name_stage("words")
        LOGGER.info("outside")
        with request_scope("req_1", "denoise"):
            LOGGER.info("inside")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    LOGGER.info("elsewhere")
    first, second, third = capsys.readouterr().err.splitlines()
    assert "somewhere [words]: outside" in first
    assert "somewhere [req_1 words.denoise]: inside" in second
    assert "somewhere: elsewhere" in third
