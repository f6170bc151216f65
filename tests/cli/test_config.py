"""`omnireel config show`."""

import json

from omnireel.config import engine_settings


def test_every_setting_is_shown_with_its_source(omnireel, monkeypatch):
    monkeypatch.setenv("OMNIREEL_MAX_QUEUE", "4")
    shown = json.loads(omnireel("config", "show", "--json", "--device", "cpu").out)
    assert list(shown) == list(engine_settings())
    assert shown["max_queue"] == {"value": 4, "source": {"kind": "environment", "name": "OMNIREEL_MAX_QUEUE"}}
    assert shown["device"] == {"value": "cpu", "source": {"kind": "flag", "name": "--device"}}
    assert shown["dtype"] == {"value": "auto", "source": {"kind": "default", "name": ""}}


def test_people_get_a_table(omnireel):
    rows = [row.split() for row in omnireel("config", "show", "--num-threads", "2").out.splitlines()]
    assert rows[0] == ["setting", "value", "source"]
    assert ["num_threads", "2", "flag", "--num-threads"] in rows


def test_verbose_is_log_level_info_unless_a_level_is_typed(omnireel):
    def level(*flags):
        return json.loads(omnireel("config", "show", "--json", *flags).out)["log_level"]["value"]

    assert [level(), level("-v"), level("-v", "--log-level", "debug")] == ["warning", "info", "debug"]


def test_a_bad_setting_is_the_operators_mistake(omnireel, monkeypatch):
    monkeypatch.setenv("OMNIREEL_DEVCE", "cpu")
    ended = omnireel("config", "show")
    assert ended.code == 3
    assert "did you mean OMNIREEL_DEVICE?" in ended.err
