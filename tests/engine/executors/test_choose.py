"""Which executor the settings mean."""

from __future__ import annotations

import sys

import pytest
from tests.support.standin_ray import StandInRay

from omnireel.config import resolve
from omnireel.engine.build import worker_specs
from omnireel.engine.executors.choose import build_executors
from omnireel.engine.executors.inline import InlineExecutor
from omnireel.engine.executors.process import ProcessExecutor
from omnireel.engine.executors.ray import RayExecutor
from omnireel.errors import BadSetting, Incompatible, MissingPackage


def kinds(default="uni", **flags):
    config = resolve({"model": "toy", "device": "cpu", **flags}, {})
    return [type(one) for one in build_executors(config, worker_specs(config), default=default)]


@pytest.mark.parametrize(
    ("default", "flags", "expected"),
    [
        ("uni", {}, [InlineExecutor]),
        ("mp", {}, [ProcessExecutor]),
        ("mp", {"distributed_executor_backend": "uni"}, [InlineExecutor]),
        ("uni", {"distributed_executor_backend": "mp"}, [ProcessExecutor]),
        ("uni", {"num_replicas": 2}, [ProcessExecutor] * 2),
        ("uni", {"num_replicas": 2, "data_parallel_size": 2}, [ProcessExecutor] * 4),
    ],
)
def test_the_setting_the_callers_default_and_the_number_of_replicas_decide(default, flags, expected):
    assert kinds(default, **flags) == expected


def test_several_replicas_in_one_process_are_refused():
    with pytest.raises(Incompatible, match="2 replicas"):
        kinds(distributed_executor_backend="uni", data_parallel_size=2)


def test_ray_is_chosen_by_either_name_of_the_setting(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", StandInRay())
    assert kinds(distributed_executor_backend="ray", num_replicas=2) == [RayExecutor] * 2
    assert kinds(worker_backend="ray", ray_address="10.0.0.1:6379", ray_resources={"CPU": 2}) == [RayExecutor]


def test_ray_that_is_not_installed_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackage, match="which is not installed"):
        kinds(distributed_executor_backend="ray")


@pytest.mark.parametrize(
    ("flags", "match"),
    [
        ({"ray_address": "ray://10.0.0.1:10001"}, "ray_address.*node of the cluster"),
        ({"ray_resources": {"GPU": -1}}, "ray_resources.*GPU must be a number from 0 on"),
        ({"ray_resources": {"GPU": "one"}}, "ray_resources.*GPU must be a number from 0 on"),
        ({"devices": "0"}, "devices.*Ray chooses"),
        ({"device": "cpu:1"}, "device.*Ray chooses"),
    ],
)
def test_what_ray_does_not_take_is_refused(monkeypatch, flags, match):
    monkeypatch.setitem(sys.modules, "ray", StandInRay())
    with pytest.raises(BadSetting, match=match):
        kinds(distributed_executor_backend="ray", **flags)


@pytest.mark.parametrize(
    ("flags", "match"),
    [
        ({"worker_cls": "no_such_package.Own"}, "worker_cls = 'no_such_package.Own'.*no module no_such_package"),
        ({"worker_cls": "json.JSONDecoder"}, "worker_cls.*subclass of omnireel.engine.worker.Worker"),
        (
            {"worker_cls": "omnireel.engine.worker.Worker", "distributed_executor_backend": "uni"},
            "worker_cls.*processes of their own",
        ),
    ],
)
def test_a_class_of_workers_that_cannot_be_is_refused_before_a_process_starts(flags, match):
    with pytest.raises(BadSetting, match=match):
        kinds(**{"distributed_executor_backend": "mp", **flags})
