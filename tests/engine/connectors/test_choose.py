"""Which connector brings arrays to each stage."""

from __future__ import annotations

import pytest

from omnireel.config import resolve
from omnireel.engine.connectors.choose import build_connectors
from omnireel.errors import BadSetting
from omnireel.models.discover import topology_of


def chosen(is_here=(True, True, True), **flags):
    config = resolve({"pipeline": "toy_story", **flags}, {}, topology=topology_of)
    built = build_connectors(config, is_here)
    for connector in built.values():
        connector.close()
    return {number: type(connector).__name__ for number, connector in built.items()}


def test_arrays_go_with_the_request_unless_they_come_in_parts_or_another_way_is_chosen():
    assert chosen() == {}
    assert chosen(async_chunk=True) == {1: "MemoryConnector", 2: "MemoryConnector"}
    assert chosen(stage_2_stage_connector="TcpConnector") == {2: "TcpConnector"}


def test_parts_for_another_process_go_by_shared_memory():
    assert chosen((True, False, True), async_chunk=True) == {1: "SharedMemoryConnector", 2: "MemoryConnector"}


def test_parts_for_another_machine_go_by_tcp():
    by_ray = {"stage_1_distributed_executor_backend": "ray", "async_chunk": True}
    assert chosen((True, False, True), **by_ray) == {1: "TcpConnector", 2: "MemoryConnector"}
    with pytest.raises(BadSetting, match="may be on another machine"):
        chosen((True, False, True), **by_ray, stage_1_stage_connector="SharedMemoryConnector")


def test_memory_of_this_process_cannot_be_chosen_for_another():
    with pytest.raises(BadSetting, match="stage 2 runs in another process"):
        chosen((True, True, False), stage_2_stage_connector="MemoryConnector")


def test_an_address_of_another_machine_cannot_be_listened_at():
    with pytest.raises(BadSetting, match="connector_host"):
        chosen(stage_connector="TcpConnector", connector_host="192.0.2.1")
