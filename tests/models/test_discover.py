"""Models are found by their facts, checkpoints by name or directory; what is wrong with either is told."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from omnireel.errors import BadCheckpoint, BadSetting, SetupError, UnknownModel
from omnireel.models import discover
from omnireel.models.discover import admit, all_facts, find_checkpoint, topology_of
from omnireel.models.toy.facts import FACTS
from omnireel.request import GenerationRequest

SERVED = "MiniMaxH3ModularPipeline"


@pytest.fixture
def folder(tmp_path):
    """Writes a directory with the given files."""

    def write(**files):
        place = tmp_path / "My-H3"
        place.mkdir()
        for stem, content in files.items():
            text = content if isinstance(content, str) else json.dumps(content)
            (place / f"{stem}.json").write_text(text)
        return place

    return write


@pytest.fixture
def outside(monkeypatch):
    """Pretends that other packages offer models: name -> what loading its entry point gives or raises."""

    class Point(EntryPoint):
        def load(self):
            found = offered[self.name]
            if isinstance(found, Exception):
                raise found
            return found

    offered: dict[str, object] = {}
    monkeypatch.setattr(
        discover, "entry_points", lambda group: [Point(name, f"{name}:FACTS", group) for name in offered]
    )
    return offered


def test_every_model_of_the_package_is_found_in_order():
    assert [facts.name for facts in all_facts()] == [
        "minimax_h3",
        "prompt_rewriter",
        "toy",
        "toy_levels",
        "toy_scene",
        "toy_words",
    ]


def test_looking_for_models_imports_no_torch():
    code = "import sys; from omnireel.models.discover import all_facts; all_facts(); sys.exit('torch' in sys.modules)"
    source = str(Path(discover.__file__).parents[2])
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": source}, check=False).returncode == 0


def test_a_model_of_another_package_is_found(outside):
    outside["mine"] = replace(FACTS, name="mine", builtin={"mine": None})
    assert find_checkpoint("mine").facts.name == "mine"


@pytest.mark.parametrize("broken", [ImportError("no such module"), RuntimeError("import-time crash"), "no facts"])
def test_a_broken_model_of_another_package_is_told_and_the_rest_is_served(outside, caplog, broken):
    outside["bad"] = broken
    outside["mine"] = replace(FACTS, name="mine", builtin={"mine": None})
    assert {"mine", "toy"} <= {facts.name for facts in all_facts()}
    assert "bad" in caplog.text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"builtin": {}}, "name 'toy'"),
        ({"name": "mine"}, "built-in model 'toy'"),
        ({"name": "mine", "builtin": {}, "architectures": (SERVED,)}, f"architecture '{SERVED}'"),
    ],
)
def test_two_models_that_claim_the_same_are_an_error(outside, changes, words):
    outside["mine"] = replace(FACTS, pipeline="mine:Pipeline", **changes)
    with pytest.raises(SetupError, match=f"2 models claim the {words}: .*mine:Pipeline"):
        all_facts()


def test_a_built_in_model_is_found_by_name():
    found = find_checkpoint("mini-h3")
    assert (found.name, found.facts.name) == ("mini-h3", "minimax_h3")
    assert found.path is not None
    assert found.index["_class_name"] in found.facts.architectures


def test_a_model_without_files_has_none():
    found = find_checkpoint("toy")
    assert (found.path, found.index) == (None, {})


@pytest.mark.parametrize("stem", ["model_index", "modular_model_index"])
def test_a_directory_is_known_by_its_index(folder, stem):
    place = folder(**{stem: {"_class_name": SERVED, "more": 1}})
    found = find_checkpoint(str(place))
    assert (found.name, found.facts.name, found.path) == ("My-H3", "minimax_h3", place)
    assert found.index["more"] == 1


def test_of_two_indexes_the_one_that_is_served_counts(folder):
    place = folder(modular_model_index={"_class_name": "ModularPipeline"}, model_index={"_class_name": SERVED})
    assert find_checkpoint(str(place)).index["_class_name"] == SERVED


def test_a_link_keeps_its_own_name(folder, tmp_path):
    place = folder(model_index={"_class_name": SERVED})
    link = tmp_path / "link"
    link.symlink_to(place)
    found = find_checkpoint(str(link))
    assert (found.name, found.path) == ("link", place)


def test_the_working_directory_has_its_name(folder, monkeypatch):
    monkeypatch.chdir(folder(model_index={"_class_name": SERVED}))
    assert find_checkpoint(".").name == "My-H3"


def test_a_home_directory_is_understood(folder, monkeypatch, tmp_path):
    folder(model_index={"_class_name": SERVED})
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_checkpoint("~/My-H3").name == "My-H3"


def test_a_directory_without_an_index_says_what_is_expected(folder):
    with pytest.raises(BadCheckpoint, match=r"My-H3: .*modular_model_index\.json or model_index\.json") as raised:
        find_checkpoint(str(folder(config={})))
    assert "components" in raised.value.hint


@pytest.mark.parametrize("name", ["SomethingElse", None, ["a"], 5])
def test_a_directory_of_another_pipeline_says_what_is_served(folder, name):
    with pytest.raises(BadCheckpoint, match=SERVED) as raised:
        find_checkpoint(str(folder(model_index={"_class_name": name})))
    assert raised.value.details["found"] == repr(name)


@pytest.mark.parametrize(("text", "words"), [("{", "JSON"), ("[1]", "object"), ("", "JSON")])
def test_an_index_that_cannot_be_read_is_told(folder, text, words):
    with pytest.raises(BadCheckpoint, match=f"My-H3/model_index.json.*{words}"):
        find_checkpoint(str(folder(model_index=text)))


@pytest.mark.parametrize("name", ["", "nothing", "\0", "a" * 5000, "~nobody-of-this-name/x", "/no/such/place"])
def test_what_is_neither_is_unknown_and_lists_what_is_known(name):
    with pytest.raises(UnknownModel, match="known here: mini-h3, toy"):
        find_checkpoint(name)


def test_a_near_name_is_suggested():
    with pytest.raises(UnknownModel) as raised:
        find_checkpoint("mini-h4")
    assert "mini-h3" in raised.value.hint


def test_a_file_is_told_to_be_one(folder):
    with pytest.raises(UnknownModel) as raised:
        find_checkpoint(str(folder(model_index={}) / "model_index.json"))
    assert "directory" in raised.value.hint


def test_requests_are_admitted_by_the_rules_of_the_model():
    assert admit(GenerationRequest(prompt="a kite"), find_checkpoint("toy")).prompt == "a kite"


def speaking(**changed):
    """A model of speech, as another package would bring it."""
    return replace(FACTS, **{"name": "qwen3_tts", "builtin": {"tts": None}, **changed})


@pytest.mark.parametrize("written", ["VoiceDesign", "voicedesign"])
def test_a_task_to_start_for_is_spelt_as_its_model_does(outside, written):
    outside["tts"] = speaking(task_types=("CustomVoice", "VoiceDesign", "Base"))
    assert find_checkpoint("tts", task_type=written).task_type == "VoiceDesign"


def test_a_task_that_a_model_does_not_have_is_refused_with_the_models_name_and_the_flag(outside):
    outside["tts"] = speaking(task_types=("CustomVoice", "VoiceDesign", "Base"))
    with pytest.raises(
        BadSetting, match=r"^qwen3_tts --task-type = 'Bass' .* CustomVoice or VoiceDesign or Base"
    ) as told:
        find_checkpoint("tts", task_type="Bass")
    assert told.value.hint == "did you mean Base?"


def test_a_model_without_words_for_it_takes_any_text(outside):
    outside["tts"] = speaking(task_types=())
    assert find_checkpoint("tts", task_type="Sing it").task_type == "Sing it"


def test_pipelines_are_found_by_name():
    assert topology_of(None).name == "diffusion"
    assert [stage.name for stage in topology_of("toy_story").stages] == ["words", "levels", "scene"]
    with pytest.raises(ValueError, match="prompt_rewrite or toy_story"):
        topology_of("toy")


def test_a_stage_may_name_what_runs_it(tmp_path, monkeypatch):
    found = find_checkpoint(str(tmp_path), architecture="PromptRewriter")
    assert (found.facts.name, found.path, found.name) == ("prompt_rewriter", tmp_path, tmp_path.name)
    assert find_checkpoint("toy-words", architecture="ToyWords").path is None
    monkeypatch.setattr(
        discover, "snapshot", lambda name, patterns, hub: tmp_path if "*.safetensors" in patterns else None
    )
    fetched = find_checkpoint("someone/lm", architecture="PromptRewriter")
    assert (fetched.name, fetched.path) == ("lm", tmp_path)


@pytest.mark.parametrize(
    ("name", "architecture", "error"), [("toy", "ToyWords", UnknownModel), ("toy", "Nobody", SetupError)]
)
def test_what_cannot_run_a_stage_is_told(name, architecture, error):
    with pytest.raises(error, match=r"toy-words|no model answers to Nobody"):
        find_checkpoint(name, architecture=architecture)


@pytest.mark.parametrize("name", ["toy-words", "toy-scene"])
def test_what_runs_as_a_stage_only_is_no_model_alone(name):
    with pytest.raises(UnknownModel, match=r"known here: mini-h3, toy$"):
        find_checkpoint(name)
