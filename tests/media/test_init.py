"""The room's public names, and what importing them costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import omnireel.media

SOURCE = Path(__file__).parents[2] / "src"


def test_public_names_are_sorted_and_there():
    assert omnireel.media.__all__ == sorted(omnireel.media.__all__)
    assert all(hasattr(omnireel.media, name) for name in omnireel.media.__all__)


def test_importing_the_room_needs_no_media_library():
    code = "import omnireel.media, sys, json; print(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(SOURCE)}
    )
    assert not {"av", "PIL", "torch"} & set(json.loads(ran.stdout))
