"""Where the embedded checkpoint lies."""

from __future__ import annotations

from pathlib import Path

from omnireel.models.minimax_h3 import facts

MINI = Path(facts.__file__).parent / "mini"
