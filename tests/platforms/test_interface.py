"""Finding a device by a user's words."""

from __future__ import annotations

import pytest

from omnireel.errors import BadSetting, UnsupportedDevice
from omnireel.platforms import all_platforms, find_device, find_platform


def test_the_processor_comes_last():
    assert [platform.name for platform in all_platforms()][-1] == "cpu"


def test_auto_finds_one_that_is_available():
    assert find_platform("auto").available()


def test_a_device_is_found_by_name_and_index():
    assert find_device("cpu:0")[0].name == "cpu"


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
