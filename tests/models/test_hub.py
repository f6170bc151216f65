"""Repositories of a hub: what is asked for, and what its refusals say. The hub's client is replaced, nothing is fetched."""

from __future__ import annotations

import errno
import shutil
import sys
import types
from fnmatch import fnmatch
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import errors
from tests.support.mini import MINI
from tests.support.native_h3 import write_native
from tests.support.tiny_h3 import write_checkpoint

from omnireel.errors import BadCheckpoint, BadSetting, DownloadFailed, MissingPackage, UnknownModel
from omnireel.models.discover import find_checkpoint
from omnireel.models.hub import Hub, is_repository
from omnireel.models.minimax_h3.layout import resolve_layout


class FakeHub:
    """A repository on disk; links what the patterns ask for into a folder, as the real cache does."""

    def __init__(self, source: Path, cache: Path) -> None:
        self.source, self.cache = source, cache
        self.asked: list[dict[str, object]] = []

    def snapshot_download(self, repository: str, **options: object) -> str:
        self.asked.append({"repository": repository, **options})
        patterns = options["allow_patterns"]
        assert isinstance(patterns, list)
        for file in self.source.rglob("*"):
            name = str(file.relative_to(self.source))
            if file.is_file() and any(fnmatch(name, pattern) for pattern in patterns):
                place = self.cache / name
                place.parent.mkdir(parents=True, exist_ok=True)
                if not place.exists():
                    place.symlink_to(file)
        return str(self.cache)

    def files(self) -> set[str]:
        return {path.relative_to(self.cache).parts[0] for path in self.cache.rglob("*") if not path.is_dir()}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    def make(source: Path) -> FakeHub:
        fake = FakeHub(source, tmp_path / "cache")
        monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot_download)
        return fake

    return make


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("published"))


def test_a_repository_is_found_by_its_index_and_then_fetched(hub):
    fake = hub(MINI)
    found = find_checkpoint("someone/mini", hub=Hub(revision="v1"))
    assert (found.name, found.facts.name) == ("mini", "minimax_h3")
    assert [call["revision"] for call in fake.asked] == ["v1", "v1"]
    assert all("/" not in pattern or "*" not in pattern for pattern in fake.asked[0]["allow_patterns"])
    assert resolve_layout(found).tasks == ("t2va", "fl2va", "ref2va")


def test_code_and_pickles_are_never_fetched(hub):
    fake = hub(MINI)
    find_checkpoint("someone/mini")
    assert {"*.py", "*.bin", "*.pkl"} <= set(fake.asked[-1]["ignore_patterns"])


@pytest.mark.parametrize(
    ("task", "missing"),
    [("t2va", "transformer_ref"), ("fl2va", "transformer_ref"), ("ref2va", "transformer"), ("combined", None)],
)
def test_one_task_fetches_one_dit(hub, published, task, missing):
    fake = hub(published)
    find_checkpoint("someone/h3", task_type=task)
    assert {"vae", "audio_vae", "text_encoder", "tokenizer"} <= fake.files()
    assert ({"transformer", "transformer_ref"} - fake.files()) == ({missing} if missing else set())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "absent"),
    [("t2va", "Ref2VA/transformer"), ("ref2va", "FL2VA/transformer"), ("combined", "Ref2VA/text_encoder")],
)
def test_native_partitions_are_fetched_as_far_as_needed(hub, published, tmp_path, task, absent):
    fake = hub(write_native(published, tmp_path / "native"))
    found = find_checkpoint("someone/h3", task_type=task)
    assert not (fake.cache / absent).exists()
    assert all(folder.is_dir() for folder in resolve_layout(found).denoisers.values())


def test_one_task_asks_for_nothing_of_the_other_partition(hub, published, tmp_path):
    fake = hub(write_native(published, tmp_path / "native"))
    found = find_checkpoint("someone/h3", task_type="Ref2VA")
    assert found.index["_minimax_h3"]["partition"] == "ref2va"
    assert fake.files() == {"Ref2VA"}
    assert not [pattern for call in fake.asked for pattern in call["allow_patterns"] if "FL2VA" in pattern]


def test_nothing_is_fetched_for_an_unknown_task(hub, published):
    fake = hub(published)
    with pytest.raises(BadSetting, match="t2va"):
        find_checkpoint("someone/h3", task_type="t2v")
    assert fake.files() == {"modular_model_index.json"}


def test_a_repository_without_an_index_is_named(hub, tmp_path):
    (tmp_path / "empty").mkdir()
    fake = hub(tmp_path / "empty")
    fake.cache.mkdir()
    with pytest.raises(BadCheckpoint, match=r"^h3: has no pipeline index"):
        find_checkpoint("someone/h3")


def test_a_download_that_lacks_a_denoiser_is_noticed(hub, published, tmp_path):
    shutil.copytree(published, tmp_path / "half")
    shutil.rmtree(tmp_path / "half" / "transformer_ref")
    hub(tmp_path / "half")
    with pytest.raises(BadCheckpoint, match=r"transformer_ref: .*missing"):
        resolve_layout(find_checkpoint("someone/h3", task_type="combined"))


def answer(kind: type[Exception]) -> Exception:
    """An error as the client raises it, without the web answer that it usually holds."""
    error = kind.__new__(kind)
    Exception.__init__(error, "secret path")
    return error


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (lambda: answer(errors.GatedRepoError), "gated"),
        (lambda: answer(errors.RepositoryNotFoundError), "no such repository"),
        (lambda: answer(errors.RevisionNotFoundError), "no revision 'v9'"),
        (lambda: answer(errors.HfHubHTTPError), "cannot be reached"),
        (lambda: answer(errors.DisabledRepoError), "disabled"),
        (lambda: errors.HFValidationError("secret"), "can be no repository"),
        (lambda: errors.LocalEntryNotFoundError("secret"), "HF_HUB_OFFLINE forbids"),
        (lambda: ConnectionError("secret"), r"cannot be reached \(ConnectionError\)"),
        (lambda: RuntimeError("secret of a native downloader"), r"cannot be reached \(RuntimeError\)"),
        (lambda: OSError(errno.ENOSPC, "secret"), "the disk is full"),
        (lambda: PermissionError(errno.EACCES, "secret"), "cache cannot be written"),
    ],
)
def test_every_refusal_says_what_to_do(monkeypatch, error, problem):
    def refuse(*_: object, **__: object) -> None:
        raise error()

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(DownloadFailed, match=problem) as raised:
        find_checkpoint("someone/h3", hub=Hub(revision="v9"))
    assert raised.value.hint
    assert raised.value.exit_code == 3
    assert "secret" not in str(raised.value)


def test_without_a_network_what_is_not_on_the_disk_cannot_be_had(monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise errors.LocalEntryNotFoundError("secret")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(DownloadFailed, match="cannot be reached, and its files are not all on this disk"):
        find_checkpoint("someone/h3")


def test_offline_the_cache_is_all_there_is():
    # The tests' own environment is offline, so this is the real client.
    with pytest.raises(DownloadFailed, match="HF_HUB_OFFLINE forbids"):
        find_checkpoint("someone/a-repository-that-is-in-no-cache")


def test_modelscope_needs_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "modelscope", None)
    with pytest.raises(MissingPackage, match="modelscope"):
        find_checkpoint("someone/h3", hub=Hub(is_modelscope=True))


def test_modelscope_is_asked_the_same(monkeypatch, tmp_path):
    fake = FakeHub(MINI, tmp_path / "cache")
    monkeypatch.setitem(sys.modules, "modelscope", types.SimpleNamespace(snapshot_download=fake.snapshot_download))
    assert find_checkpoint("someone/mini", hub=Hub(is_modelscope=True)).facts.name == "minimax_h3"


def test_a_modelscope_failure_is_told(monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("whatever")

    monkeypatch.setitem(sys.modules, "modelscope", types.SimpleNamespace(snapshot_download=fail))
    with pytest.raises(DownloadFailed, match="RuntimeError"):
        find_checkpoint("someone/mini", hub=Hub(is_modelscope=True))


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("MiniMaxAI/MiniMax-H3", True),
        ("a/b", True),
        ("mini-h3", False),
        ("./a", False),
        ("a/b/c", False),
        ("~/a", False),
        ("a/..", False),
    ],
)
def test_repositories_are_told_from_paths(name, answer):
    assert is_repository(name) is answer


def test_a_path_that_is_not_there_is_no_repository():
    with pytest.raises(UnknownModel):
        find_checkpoint("./models/h3")
