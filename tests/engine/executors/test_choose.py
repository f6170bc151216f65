"""Which executor the settings mean."""

from __future__ import annotations

import pytest

from omnireel.config import resolve
from omnireel.engine.build import worker_specs
from omnireel.engine.executors.choose import build_executors
from omnireel.engine.executors.inline import InlineExecutor
from omnireel.engine.executors.process import ProcessExecutor
from omnireel.errors import Incompatible, NotAvailable


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


def test_what_does_not_exist_yet_is_told():
    with pytest.raises(NotAvailable, match="it needs Ray"):
        kinds(distributed_executor_backend="ray")
