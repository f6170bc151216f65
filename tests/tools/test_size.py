"""The tool that counts lines counts what it says, and its exit code tells."""

import pytest

from tools import size

TEXT = '''"""A docstring
of two lines."""

# A comment.
NAMES = (
    "a",
)


def forward():
    """Says what it does."""
    return 1  # and why
'''


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setattr(size, "SOURCE", tmp_path)
    (tmp_path / "errors.py").write_text(TEXT)
    return tmp_path


def statements(number):
    return "".join(f"x{index} = {index}\n" for index in range(number))


def function(number):
    return "def forward():\n" + "".join(f"    x{index} = {index}\n" for index in range(number - 1))


def test_comments_docstrings_and_blank_lines_do_not_count(source):
    assert size.code_lines(source / "errors.py") == 5
    assert size.function_lengths(source / "errors.py") == [(2, "errors.py forward")]


def test_a_tree_within_its_budgets_passes(source, capsys):
    assert size.main() == 0
    assert "errors.py" in capsys.readouterr().out


@pytest.mark.parametrize(("over", "code"), [(0, 0), (1, 1)])
def test_fifteen_in_a_hundred_over_a_budget_is_allowed_and_no_more(source, capsys, over, code):
    lines = int(1.15 * size.BUDGETS["errors.py"]) + over
    (source / "errors.py").write_text(statements(lines))
    assert size.main() == code
    assert ("OVER" in capsys.readouterr().out) == bool(code)


def test_a_room_without_a_budget_fails(source):
    (source / "cellar").mkdir()
    (source / "cellar" / "wine.py").write_text(TEXT)
    assert size.main() == 1


def test_code_of_a_model_counts_for_itself(source):
    folder = source / "models" / "toy"
    folder.mkdir(parents=True)
    (folder / "facts.py").write_text(TEXT)
    assert [room.name for room in size.measure()] == ["errors.py", "models/toy"]


@pytest.mark.parametrize(
    ("name", "lines", "is_allowed"),
    [("rules", 501, False), ("rules", 500, True), ("transformer", 501, True), ("transformer", 701, False)],
)
def test_only_a_transformer_is_longer_than_500_lines(source, name, lines, is_allowed):
    (source / f"{name}.py").write_text(statements(lines))
    assert (not size.too_long()) == is_allowed


@pytest.mark.parametrize(
    ("name", "lines", "is_allowed"), [("rules", 60, True), ("rules", 61, False), ("transformer", 61, True)]
)
def test_only_a_transformers_forward_is_longer_than_60_lines(source, name, lines, is_allowed):
    (source / f"{name}.py").write_text(function(lines))
    assert (not size.too_long()) == is_allowed
