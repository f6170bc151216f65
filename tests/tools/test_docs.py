"""Generated pages are written, checked and told when they are stale."""

import sys

import pytest

from omnireel.errors import OmniReelError
from tools import docs


@pytest.fixture
def reference(tmp_path, monkeypatch):
    monkeypatch.setattr(docs, "REFERENCE", tmp_path / "reference")
    return tmp_path / "reference"


@pytest.fixture
def run(monkeypatch):
    def run(*words):
        monkeypatch.setattr(sys, "argv", ["docs.py", *words])
        return docs.main()

    return run


def test_what_was_written_is_current(reference, run):
    assert run() == 0
    assert {path.name for path in reference.iterdir()} == {"cli.md", "settings.md", "errors.md", "deploy.schema.json"}
    assert run("--check") == 0


def test_a_stale_page_fails_is_named_and_stays_as_it_is(reference, run, capsys):
    run()
    (reference / "errors.md").write_text("old")
    assert run("--check") == 1
    assert "errors.md" in capsys.readouterr().err
    assert (reference / "errors.md").read_text() == "old"


def test_the_page_of_errors_has_every_code():
    def codes(kind):
        return [child.code for child in kind.__subclasses__()] + [
            code for child in kind.__subclasses__() for code in codes(child)
        ]

    page = docs.pages()["errors.md"]
    assert not [code for code in codes(OmniReelError) if f"| `{code}` |" not in page]


def test_a_bar_in_a_cell_does_not_end_the_cell():
    assert docs._table(("a",), [("x|y",)]).splitlines()[-1] == r"| x\|y |"
