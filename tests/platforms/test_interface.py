"""Finding a device by a user's words."""

from __future__ import annotations

import pytest

from omnireel.errors import BadSetting, UnsupportedDevice
from omnireel.platforms import DeviceTraits, all_platforms, find_device, find_platform
from omnireel.platforms.accelerator import Accelerator


def test_the_processor_comes_last():
    assert [platform.name for platform in all_platforms()][-1] == "cpu"


def test_auto_finds_one_that_is_available():
    assert find_platform("auto").available()


def test_a_device_is_found_by_name_and_index():
    assert find_device("cpu:0")[0].name == "cpu"


def test_a_device_of_another_machine_need_not_be_here():
    platform, index = find_device("cuda:1", is_here=False)
    assert (platform.name, index) == ("cuda", 1)
    assert find_device("auto", is_here=False)[0].available()
    with pytest.raises(BadSetting, match="known are"):
        find_device("cudaa", is_here=False)


@pytest.mark.parametrize("text", ["", "cpu:", "cpu:x", "1", "cuda:-1"])
def test_words_that_are_no_device_are_refused(text):
    with pytest.raises(BadSetting, match="device"):
        find_device(text)


def test_an_unknown_platform_names_the_nearest():
    with pytest.raises(BadSetting, match="known are auto") as raised:
        find_platform("cudaa")
    assert "'cuda'" in raised.value.hint


def test_an_index_past_the_last_device_is_refused():
    with pytest.raises(UnsupportedDevice, match="need cpu:3, have 1 device"):
        find_device("cpu:3")


def test_a_platform_that_is_not_here_says_why():
    absent = next((platform for platform in all_platforms() if not platform.available()), None)
    if absent is not None:
        with pytest.raises(UnsupportedDevice, match=rf"need a {absent.name} device, have none \(.*torch"):
            find_platform(absent.name)


class Plugged(Accelerator):
    """A kind of device of another package."""

    name = torch_name = "plugged"
    traits = DeviceTraits(collectives="gloo", visible_devices="", is_run_on_hardware=False)

    def why_not(self) -> str:
        return ""


class Second(Plugged):
    """Another one, that takes the place of a built-in one."""

    name = "musa"


def plug(monkeypatch, *kinds: type[Plugged]) -> None:
    monkeypatch.setattr("omnireel.platforms.entry_points", lambda group: [Entry(kind) for kind in kinds])


class Entry:
    """What an installed package declares."""

    def __init__(self, kind: type[Plugged]) -> None:
        self._kind = kind

    def load(self) -> Plugged:
        return self._kind()


def test_a_platform_of_another_package_wins_and_is_said_to_be_new(monkeypatch, caplog):
    plug(monkeypatch, Plugged)
    assert find_platform("auto").name == "plugged"
    assert "never run on" in caplog.text


def test_a_plugged_in_platform_takes_the_place_of_its_namesake(monkeypatch):
    plug(monkeypatch, Second)
    assert [type(item).__name__ for item in all_platforms() if item.name == "musa"] == ["Second"]


def test_of_two_kinds_of_device_the_user_chooses(monkeypatch):
    plug(monkeypatch, Plugged, Second)
    with pytest.raises(BadSetting, match="this machine has plugged and musa"):
        find_platform("auto")
    assert find_platform("musa").available()
