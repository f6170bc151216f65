"""Seconds, calls and peak memory by part, parts within parts, and counts."""

from __future__ import annotations

import pytest

from omnireel.observe.profile import Profile, count, part


class Device:
    """A clock and a memory that a test moves; `order` remembers who waited."""

    def __init__(self) -> None:
        self.now = 0.0
        self.used = self.peak = 0
        self.waits = 0

    def take(self, mebibytes: int) -> None:
        self.used += mebibytes * 2**20
        self.peak = max(self.peak, self.used)

    def reset(self) -> None:
        self.peak = self.used

    def wait(self) -> None:
        self.waits += 1

    def profile(self, *, is_timed: bool = True) -> Profile:
        return Profile(is_timed=is_timed, synchronize=self.wait, reset_peak=self.reset, peak_bytes=lambda: self.peak)


@pytest.fixture
def device(monkeypatch) -> Device:
    made = Device()
    monkeypatch.setattr("omnireel.observe.profile.time.perf_counter", lambda: made.now)
    return made


def test_parts_are_named_by_the_parts_around_them(device):
    profile = device.profile()
    with profile.watching(), part("decode"):
        device.now += 1
        for _ in range(2):
            with part("video_vae"):
                device.now += 2
    seen = {name: (item.seconds, item.calls) for name, item in profile.parts.items()}
    assert seen == {"decode.video_vae": (4.0, 2), "decode": (5.0, 1)}


def test_each_part_has_the_peak_of_itself_and_what_is_within(device):
    profile = device.profile()
    profile.begin()
    with profile.watching():
        with part("outer"):
            device.take(8)
            device.take(-6)
            with part("small"):
                device.take(1)
                device.take(-1)
            with part("large"):
                device.take(20)
                device.take(-20)
        with part("after"):
            device.take(3)
    peaks = {name: item.peak_memory_mb for name, item in profile.parts.items()}
    assert peaks == {"outer.small": 3, "outer.large": 22, "outer": 22, "after": 5}
    assert profile.peak_bytes == 22 * 2**20


def test_a_part_that_fails_is_measured_and_the_next_has_its_own_name(device):
    profile = device.profile()
    with profile.watching():
        with pytest.raises(ZeroDivisionError), part("first"):
            device.now += 1 / len(profile.parts)
        with part("second"):
            pass
    assert list(profile.parts) == ["first", "second"]
    assert profile.parts["first"].calls == 1


def test_without_timing_counts_are_kept_and_nothing_is_waited_for(device):
    profile = device.profile(is_timed=False)
    with profile.watching(), part("encode"):
        count("prompt_cache_hit")
        count("prompt_cache_hit", 2)
    assert profile.counts == {"prompt_cache_hit": 3}
    assert not profile.parts
    assert not device.waits


def test_outside_of_a_run_nothing_happens(device):
    profile = device.profile()
    with profile.watching():
        pass
    with part("encode"):
        count("prompt_cache_hit")
    assert not profile.parts
    assert not profile.counts
