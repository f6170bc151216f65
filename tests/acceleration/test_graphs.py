import logging

import pytest
import torch

from omnireel.acceleration.graphs import Graphs


class Device:
    """Records as a device does: a replay reads and writes the memory of the recording, whatever the caller has by now."""

    def __init__(self, failure=None):
        self.recorded, self.replayed, self._failure = 0, 0, failure

    def capture(self, call):
        if self._failure is not None:
            raise self._failure
        self.recorded += 1
        outputs = call()

        def replay():
            self.replayed += 1
            for output, fresh in zip(outputs, call(), strict=True):
                output.copy_(fresh)
            return outputs

        return replay


def total(*inputs):
    return (sum(inputs), inputs[0] * 2)


def draw(rows=3):
    return [torch.rand(rows), torch.rand(rows)]


def test_the_first_calls_are_run_as_they_are_and_later_ones_replayed():
    device = Device()
    graphs = Graphs(device.capture, after=2)
    for _ in range(5):
        inputs = draw()
        made = graphs.run("a", total, inputs)
        for one, other in zip(made, total(*inputs), strict=True):
            assert torch.equal(one, other)
    assert (device.recorded, device.replayed) == (1, 3)


def test_outputs_are_the_callers_own():
    graphs = Graphs(Device().capture, after=0)
    inputs = draw()
    first = graphs.run("a", total, inputs)
    kept = [output.clone() for output in first]
    graphs.run("a", total, draw())
    assert all(torch.equal(one, other) for one, other in zip(first, kept, strict=True))


def test_inputs_are_left_alone():
    graphs = Graphs(Device().capture, after=0)
    inputs = draw()
    before = [tensor.clone() for tensor in inputs]
    graphs.run("a", total, inputs)
    assert all(torch.equal(one, other) for one, other in zip(inputs, before, strict=True))


def test_other_keys_shapes_and_types_have_graphs_of_their_own():
    device = Device()
    graphs = Graphs(device.capture, after=0)
    graphs.run("a", total, draw())
    graphs.run("b", total, draw())
    graphs.run("a", total, draw(4))
    graphs.run("a", total, [tensor.double() for tensor in draw()])
    assert device.recorded == 4


def test_the_graphs_of_the_last_calls_are_kept():
    device = Device()
    graphs = Graphs(device.capture, size=2, after=0)
    for key in ("a", "b", "a", "c", "a", "b"):
        graphs.run(key, total, draw())
    assert device.recorded == 4


def test_what_was_seen_does_not_pile_up():
    graphs = Graphs(Device().capture, size=1, after=5)
    for key in range(100):
        graphs.run(key, total, draw())
    assert len(graphs._seen) <= 16


def test_what_cannot_be_recorded_is_told_once_and_run_as_it_is(caplog):
    graphs = Graphs(Device(RuntimeError("operation not permitted when stream is capturing")).capture, after=0)
    inputs = draw()
    with caplog.at_level(logging.WARNING, logger="omnireel"):
        for _ in range(3):
            assert torch.equal(graphs.run("a", total, inputs)[0], total(*inputs)[0])
    assert len(caplog.records) == 1
    assert "not permitted" in caplog.text


def test_memory_that_runs_out_is_an_error():
    graphs = Graphs(Device(torch.OutOfMemoryError("CUDA out of memory")).capture, after=0)
    with pytest.raises(torch.OutOfMemoryError):
        graphs.run("a", total, draw())
