"""Recorded evaluations, with a device that records as in tests/acceleration/test_graphs.py."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
import pytest
from tests.acceleration.test_graphs import Device
from tests.models.minimax_h3.test_pipeline import context, run

from omnireel.acceleration import Acceleration
from omnireel.errors import UnsupportedDevice
from omnireel.models.discover import load_pipeline
from omnireel.models.minimax_h3 import graphed


class Recording:
    """The CPU as a device that can record."""

    def __init__(self, platform):
        self.recorder, self._platform = Device(), platform
        self.traits = dataclasses.replace(platform.traits, has_graphs=True)

    def __getattr__(self, name):
        return getattr(self._platform, name)

    def capture(self, call, index=0):
        return self.recorder.capture(call)


def built(**speed):
    ordinary = context()
    platform: Any = Recording(ordinary.platform)
    told = dataclasses.replace(ordinary, platform=platform, acceleration=Acceleration(**speed))
    return load_pipeline(told), platform.recorder


@pytest.fixture(scope="module")
def plain():
    return load_pipeline(context())


@pytest.mark.parametrize("tables", ["on", "off"])
def test_replayed_steps_give_the_same_bits_also_for_the_next_request(plain, tables):
    pipeline, device = built(cuda_graphs="on", modulation_tables=tables)
    for sampling in ({"num_inference_steps": 6}, {"num_inference_steps": 6, "seed": 4}):
        made, expected = (run(item, **sampling) for item in (pipeline, plain))
        for name in ("video", "audio"):
            assert np.array_equal(made.latents[name], expected.latents[name])
    assert device.recorded <= 2
    assert device.replayed >= 6


def test_large_clips_are_never_recorded(monkeypatch, plain):
    monkeypatch.setattr(graphed, "MAX_ROWS", 10)
    pipeline, device = built(cuda_graphs="on")
    run(pipeline, num_inference_steps=6)
    assert device.recorded == 0


@pytest.mark.parametrize("speed", [{}, {"cuda_graphs": "off"}, {"cuda_graphs": "on", "enforce_eager": True}])
def test_nothing_is_recorded_where_graphs_are_off(speed):
    pipeline, device = built(**speed)
    run(pipeline, num_inference_steps=6)
    assert device.recorded == 0


def test_a_device_without_graphs_is_refused():
    told = dataclasses.replace(context(), acceleration=Acceleration(cuda_graphs="on"))
    with pytest.raises(UnsupportedDevice, match="record graphs"):
        load_pipeline(told)


def test_ranks_record_nothing(plain):
    told: Any = dataclasses.replace(context(), acceleration=Acceleration(cuda_graphs="on"), ranks=cast("Any", object()))
    evaluate = graphed.evaluations(plain._transformers, told, 0)
    assert all(evaluate[name] == transformer.evaluate for name, transformer in plain._transformers.items())
