"""A deploy file is read with its lines; what is no such file is a clear error."""

import pytest

from omnireel.config.deploy import read_deploy
from omnireel.errors import BadSetting, SetupError


def read(tmp_path, text):
    path = tmp_path / "deploy.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_deploy(path)


def lines(items):
    return {item.shown: int(item.source.name.rpartition(":")[2]) for item in items}


def test_each_value_has_its_line(tmp_path):
    deploy = read(
        tmp_path,
        """\
pipeline: three
dtype: float32
parallel-config:
  tensor_parallel_size: 1
  ring: 1
stages:
- devices: "0,1"
  name: a
- stage_id: 2
  engine_extras:
    seed: 3
    final_output: true
  num-threads: 4
""",
    )
    assert lines(deploy.wide) == {
        "pipeline": 1,
        "dtype": 2,
        "parallel_config.tensor_parallel_size": 4,
        "parallel_config.ring": 5,
    }
    assert list(deploy.stages) == [0, 2]
    assert lines(deploy.stages[0].fields) == {"devices": 7}
    assert lines(deploy.stages[2].fields) == {"num_threads": 13}
    assert lines(deploy.stages[2].extras) == {"seed": 11}
    assert (deploy.stages[0].name, deploy.stages[2].name) == ("a", None)


def test_anchors_and_merged_mappings_work(tmp_path):
    deploy = read(tmp_path, "stages:\n- &base {num_threads: 2, dtype: auto}\n- {<<: *base, dtype: float32}\n")
    assert {item.name: item.value for item in deploy.stages[1].fields} == {"num_threads": 2, "dtype": "float32"}
    again = read(tmp_path, "stages:\n- &a {seed: 1}\n- &b {<<: *a, seed: 2}\n- *b\n- {<<: *b, seed: 3}\n")
    assert [item.value for stage in again.stages.values() for item in stage.fields] == [1, 2, 2, 3]


@pytest.mark.parametrize("text", ["", "# nothing\n", "stages:\n", "stages: []\n"])
def test_an_empty_file_says_nothing(tmp_path, text):
    assert read(tmp_path, text).wide == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1\nb: 2\n", "deploy.yaml:2: the deploy file is no YAML"),
        ("- a\n", "it must hold a mapping"),
        ("dtype: auto\ndtype: float32\n", "the same name stands in line 1 already"),
        ("stages: 3\n", "it must be a list of stages"),
        ("stages:\n- 3\n", "it must be a mapping of settings"),
        ("stages:\n- stage_id: x\n", "it must be a whole number"),
        ("stages:\n- stage_id: true\n", "it must be a whole number"),
        ("stages:\n- stage_id: 0\n- stage_id: 0\n", "stage 0 stands there already"),
        ("stages:\n- engine_extras: 3\n", "it must be a mapping of settings"),
        ("a: &a [*a]\n", "nested deeper"),
        ("[" * 5000, "nested too deeply"),
        ("a: 2001-99-99\n", "holds a date that is none"),
        ("a: !!python/object:os.system {}\n", "it must be plain data"),
        ("a: !!python/name:os.system x\n", "no YAML"),
        ("? [a]\n: 1\n", "must be a word"),
        (b"a: \xff\n", "no text in UTF-8"),
        ("a: 1\n" * 300_000, "larger than 1 MiB"),
    ],
)
def test_what_is_no_deploy_file_is_told(tmp_path, text, words):
    with pytest.raises(SetupError, match=words):
        read(tmp_path, text)


def test_aliases_of_aliases_do_not_fill_the_memory(tmp_path):
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 9)]
    with pytest.raises(SetupError, match="more than 100000 values"):
        read(tmp_path, "\n".join(rows))


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(SetupError, match="No such file"):
        read_deploy(tmp_path / "none.yaml")


def test_a_key_that_stands_twice_names_both_lines(tmp_path):
    with pytest.raises(BadSetting) as caught:
        read(tmp_path, "dtype: auto\nseed: 1\ndtype: float32\n")
    assert "deploy.yaml:3" in caught.value.message
    assert "in line 1 already" in caught.value.message


def test_the_line_of_a_mapping_is_that_of_its_name(tmp_path):
    found = read(tmp_path, "a: 1\ncache_config:\n  b: 2\nlist:\n\n- c\n")
    assert [str(item.source).rpartition(":")[2] for item in found.wide] == ["1", "2", "4"]
