"""The environment is read as it is now."""

from __future__ import annotations

from omnireel.observe import env


def test_a_variable_is_read(monkeypatch):
    monkeypatch.setenv("OMNIREEL_SEEN", "yes")
    assert env.read("OMNIREEL_SEEN") == "yes"
    assert env.environment()["OMNIREEL_SEEN"] == "yes"


def test_an_absent_or_empty_one_gives_the_default(monkeypatch):
    monkeypatch.setenv("OMNIREEL_SEEN", "")
    assert env.read("OMNIREEL_SEEN", "no") == "no"
    assert env.read("OMNIREEL_ABSENT") is None


def test_a_copy_does_not_change_with_it(monkeypatch):
    before = env.environment()
    monkeypatch.setenv("OMNIREEL_SEEN", "yes")
    assert "OMNIREEL_SEEN" not in before
