"""A process is called what it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
from omnireel.observe.title import set_title
if {is_missing}: sys.modules["setproctitle"] = None
set_title("toy", "stage 1", "rank 0")
print(open("/proc/self/cmdline").read())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("is_missing", [False, True])
def test_arguments_are_replaced_by_what_the_process_is(is_missing):
    command = [sys.executable, "-c", CODE.format(is_missing=is_missing), "a secret prompt"]
    seen = subprocess.run(command, capture_output=True, text=True, check=True, timeout=50).stdout
    assert ("secret" in seen) == is_missing
    assert ("omnireel: toy stage 1 rank 0" in seen) != is_missing
