"""What a file of this room gives to be a command: COMMAND, found by folder listing.

Such a file imports nothing heavy at its top: all of them are imported for every call, also for `--help`. What runs a
model is imported inside `run`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One word after `omnireel`.

    `run` gives the exit code, prints data through `show`, and raises OmniReelError for what a user can understand; a
    signal reaches it as KeyboardInterrupt.
    """

    name: str
    summary: str
    add_flags: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    usage: str = "[flags]"
    description: str = ""
