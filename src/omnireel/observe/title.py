"""What `ps`, `top` and `py-spy` call this process."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


def set_title(*words: str) -> None:
    """Names the process "omnireel: WORDS", which also takes its arguments, prompts among them, out of sight.

    Without the package setproctitle (the extra `titles`) nothing happens.
    """
    try:
        import setproctitle
    except ImportError:
        logger.debug("no title for this process: the package setproctitle is not installed")
        return
    setproctitle.setproctitle("omnireel: " + " ".join(words))
