"""Lines of code by room against their budgets; more than a budget and 15 % fails. `make size` shows the table.

A room that is not in the table has no budget, so it fails until its place is decided.

Code lines are lines that hold a token other than a comment, a docstring or white space.
"""

from __future__ import annotations

import ast
import io
import statistics
import sys
import tokenize
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "omnireel"
BUDGETS = {
    "__init__.py": 60, "errors.py": 280, "request.py": 250, "api.py": 300, "cli": 1350, "server": 2600, "bench": 1000,
    "engine": 3700, "config": 1600, "models": 500, "attention": 1700, "layers": 1300, "acceleration": 700, "residency": 900,
    "parallel": 1000, "weights": 900, "media": 900, "platforms": 500, "observe": 600,
}  # fmt: skip
MODEL_BUDGETS = {
    "models/toy": 200,
    "models/toy_stages": 250,
    "models/prompt_rewriter": 250,
    "models/diffusers_adapter": 600,
    "models/minimax_h3": 4000,
}
"""Code of a model counts by itself, not for the room."""
SLACK_PERCENT = 15
MAX_FILE_LINES, MAX_FUNCTION_LINES = 500, 60
LONG_FILE_LINES = 700
"""Transformers and kernels may be longer than other files, and so may their forward functions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """One line of the table."""

    name: str
    files: int
    lines: int
    budget: int
    longest: str
    longest_lines: int

    @property
    def is_over(self) -> bool:
        """Whether the room has outgrown its budget."""
        return 100 * self.lines > (100 + SLACK_PERCENT) * self.budget


def main() -> int:
    """Prints the table; 1 when something is over its budget."""
    rooms = measure()
    print(f"{'room':<20} {'files':>5} {'lines':>6} {'budget':>6}  longest function")
    for room in rooms:
        mark = "  OVER" if room.is_over else ""
        print(
            f"{room.name:<20} {room.files:>5} {room.lines:>6} {room.budget:>6}  {room.longest_lines} {room.longest}{mark}"
        )
    print(f"{'all':<20} {sum(room.files for room in rooms):>5} {sum(room.lines for room in rooms):>6}")
    lengths = sorted(length for path in SOURCE.rglob("*.py") for length, _ in function_lengths(path)) or [0]
    print(
        f"functions: median {statistics.median(lengths):g} lines, nine in ten at most {lengths[len(lengths) * 9 // 10]}"
    )
    problems = too_long()
    for problem in problems:
        print(problem)
    return int(bool(problems) or any(room.is_over for room in rooms))


def measure() -> list[Room]:
    """Every room that exists, in order of name."""
    budgets = BUDGETS | MODEL_BUDGETS
    found: dict[str, list[Path]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).parts
        model = "/".join(parts[:2])
        found.setdefault(model if model in MODEL_BUDGETS else parts[0], []).append(path)
    rooms = []
    for name, paths in sorted(found.items()):
        functions = [entry for path in paths for entry in function_lengths(path)]
        length, where = max(functions, default=(0, ""))
        rooms.append(
            Room(
                name=name,
                files=len(paths),
                lines=sum(code_lines(path) for path in paths),
                budget=budgets.get(name, 0),
                longest=where,
                longest_lines=length,
            )
        )
    return rooms


def too_long() -> list[str]:
    """Files and functions over their limits, a sentence each."""
    problems = []
    for path in sorted(SOURCE.rglob("*.py")):
        shown, lines = path.relative_to(SOURCE), len(path.read_text().splitlines())
        may_be_long = path.stem == "transformer" or "kernels" in shown.parts
        limit = LONG_FILE_LINES if may_be_long else MAX_FILE_LINES
        if lines > limit:
            problems.append(f"{shown}: {lines} lines, at most {limit}")
        problems += [
            f"{shown}: {where} has {length} lines, at most {MAX_FUNCTION_LINES}"
            for length, where in function_lengths(path)
            if length > MAX_FUNCTION_LINES and not (may_be_long and where.endswith(" forward"))
        ]
    return problems


def code_lines(path: Path) -> int:
    """Lines that hold code."""
    text = path.read_text()
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - _docstring_lines(text))


def _docstring_lines(text: str) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def function_lengths(path: Path) -> list[tuple[int, str]]:
    """(lines without the docstring, "file name") of every function."""
    found = []
    text = path.read_text()
    told = _docstring_lines(text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = set(range(node.lineno, (node.end_lineno or node.lineno) + 1)) - told
            found.append((len(inside), f"{path.name} {node.name}"))
    return found


if __name__ == "__main__":
    sys.exit(main())
