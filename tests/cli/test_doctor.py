"""`omnireel doctor`."""

import json
import re
from importlib.metadata import PackageNotFoundError

import pytest

from omnireel.config import compat


@pytest.fixture
def report(omnireel):
    """What a healthy machine says of itself."""
    return json.loads(omnireel("doctor", "--json").out)


def test_versions_and_devices_are_told(report):
    cpu = next(item for item in report["platforms"] if item["name"] == "cpu")
    assert report["versions"]["torch"]
    assert cpu["available"]
    assert cpu["devices"][0]["free_bytes"] > 0


def test_every_backend_says_whether_it_can_run(report):
    states = {item["name"]: item["why_not"] for item in report["attention_backends"]}
    assert states["TORCH_SDPA"] is None


def test_what_auto_means_here_is_told_with_the_reason(report, omnireel):
    told = {item["name"]: item for item in report["speed"]}
    assert told["modulation_tables"]["is_on"]
    assert not told["fused_kernels"]["is_on"]
    assert told["fused_kernels"]["why"] == "not measured on cpu"
    assert re.search(r"^speed, auto +fused_kernels +off: not measured on cpu$", omnireel("doctor").out, re.MULTILINE)


def test_encoders_and_optional_packages_are_told(report):
    assert report["encoders"] == {"libx264": True, "aac": True}
    assert report["optional_packages"]["pillow_heif"]["for"]


def test_a_healthy_machine_can_generate(omnireel):
    ended = omnireel("doctor")
    assert ended.code == 0
    assert ended.out.endswith("generate can run here\n")


def test_a_missing_package_is_a_problem_and_the_rest_is_still_told(omnireel, monkeypatch):
    def version(name):
        if name == "av":
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr("omnireel.cli.doctor.version", version)
    ended = omnireel("doctor")
    assert ended.code == 3
    assert "problem: the package av is not installed" in ended.out
    assert re.search(r"^torch +1\.0$", ended.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [
        ("omnireel.media.encode.ENCODERS", ("h266_of_tomorrow",), "PyAV has no h266_of_tomorrow encoder"),
        ("omnireel.platforms.all_platforms", lambda: (), "there is no device to run on"),
    ],
)
def test_what_generate_needs_is_a_problem_when_missing(omnireel, monkeypatch, place, value, problem):
    monkeypatch.setattr(place, value)
    ended = omnireel("doctor", "--json")
    assert ended.code == 3
    assert problem in json.loads(ended.out)["problems"]


def test_a_broken_package_is_a_problem(omnireel, monkeypatch):
    def broken():
        raise ImportError("libcudart.so.12")

    monkeypatch.setattr("omnireel.platforms.all_platforms", broken)
    assert "a package is broken: libcudart.so.12" in omnireel("doctor").out


def test_pairs_that_cannot_go_together_are_told_with_their_reason(omnireel):
    pairs = json.loads(omnireel("doctor", "--compat", "--json").out)["pairs"]
    text = omnireel("doctor", "--compat").out
    assert len(text.splitlines()) == 1 + len(pairs) == 1 + len(compat.TABLE)
    assert all(pair["why"] in text for pair in pairs)
    assert {pair["is_available"] for pair in pairs} == {True, False}
