"""Where a value came from, in words that a person can act on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The place that settled a value. `name` is the flag, the variable or "file:line", empty for a default.

    Kinds in order of precedence, the weakest first; "rule" is a default that depends on the stage or its platform.
    """

    kind: Literal["default", "rule", "topology", "environment", "deploy", "flag", "stage flag"]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()


DEFAULT = Source(kind="default")
