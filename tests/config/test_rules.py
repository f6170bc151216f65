"""Defaults by type of stage and platform; what they do to whole configs is in test_resolve."""

import pytest

from omnireel.config import resolve
from omnireel.config.rules import stage_rules
from omnireel.errors import BadSetting
from omnireel.models.discover import topology_of
from omnireel.models.topology import ExecutionType, StageFacts


def names(kind, platform="", **facts):
    stage = StageFacts(name="a", execution_type=ExecutionType(kind), **facts)
    return {item.name: item.value for item in stage_rules(stage, platform)}


@pytest.mark.parametrize(
    ("kind", "platform", "backend"),
    [
        ("ar", "rocm", "TRITON_ATTN"),
        ("generation", "rocm", "TRITON_ATTN"),
        ("diffusion", "rocm", None),
        ("ar", "cuda", None),
        ("ar", "", None),
    ],
)
def test_language_models_on_rocm_attend_with_triton(kind, platform, backend):
    assert names(kind, platform).get("attention_backend") == backend


def test_only_language_models_that_see_media_are_measured_with_media():
    assert names("ar")["skip_mm_profiling"]
    assert "skip_mm_profiling" not in names("ar", needs_media=True)
    assert "skip_mm_profiling" not in names("diffusion")


@pytest.mark.parametrize("name", ["Own", "own:Own", "own..Own", "../own.Own", "own.1", ""])
def test_what_is_no_name_of_a_class_is_refused_by_its_form(name):
    with pytest.raises(BadSetting, match=r"worker_cls.*package\.module\.Class"):
        resolve({"worker_cls": name}, {})
    assert resolve({"worker_cls": "own.workers.Own"}, {}).process.worker_cls == "own.workers.Own"


def test_a_prompt_that_is_read_whole_is_not_handed_over_in_parts():
    with pytest.raises(BadSetting) as caught:
        resolve({"async_chunk": True, "pipeline": "prompt_rewrite"}, {}, topology=topology_of)
    assert "stage 1 (generate) cannot begin before its input is complete" in caught.value.message
    assert "reads the whole prompt at once" in caught.value.message
    assert "without it" in caught.value.hint


@pytest.mark.parametrize("env", [{"": "x"}, {"A=B": "x"}, {"A": ["x"]}, {"A": None}, {"A": "x\0y"}])
def test_what_no_process_takes_as_a_variable_is_refused(env):
    with pytest.raises(BadSetting, match="env") as told:
        resolve({"env": env}, {})
    assert "['x']" not in told.value.message
