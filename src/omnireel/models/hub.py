"""Checkpoints from a model hub: only the files that a service needs, resumed where a download broke off.

Files are data: weights in safetensors, configs in JSON. Code in a repository is not downloaded and never run.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omnireel.errors import DownloadFailed, MissingPackage

logger = logging.getLogger(__name__)

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_CODE = ("*.py", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """Which hub and revision are asked; None for its own newest."""

    revision: str | None = None
    is_modelscope: bool = False


def is_repository(name: str) -> bool:
    """Whether a name can be that of a repository: an owner, a slash and a name."""
    return _REPOSITORY.fullmatch(name) is not None


def snapshot(repository: str, patterns: Sequence[str], hub: Hub) -> Path:
    """The folder that holds a repository's files of these patterns, downloaded where they are not there yet.

    Raises:
        DownloadFailed: there is no such repository or revision, it is closed to this user, or the hub cannot be reached.
        MissingPackage: the hub's client is not installed.
    """
    logger.info("files of %s (%s) are looked up", repository, hub.revision or "newest revision")
    return (
        _from_modelscope(repository, patterns, hub)
        if hub.is_modelscope
        else _from_hugging_face(repository, patterns, hub)
    )


def _from_hugging_face(repository: str, patterns: Sequence[str], hub: Hub) -> Path:
    import huggingface_hub
    from huggingface_hub import errors

    try:
        folder = huggingface_hub.snapshot_download(
            repository, revision=hub.revision, allow_patterns=list(patterns), ignore_patterns=list(_CODE)
        )
    except errors.GatedRepoError:
        hint = "accept its terms on the hub's page, then log in with: hf auth login"
        raise DownloadFailed(repository, "it is gated, and this user has no access", hint=hint) from None
    except errors.RepositoryNotFoundError:
        hint = "look at the name; for a private repository log in with: hf auth login"
        raise DownloadFailed(repository, "there is no such repository", hint=hint) from None
    except errors.RevisionNotFoundError:
        raise DownloadFailed(repository, f"it has no revision {hub.revision!r}", hint="look at --revision") from None
    except (errors.HFValidationError, errors.EntryNotFoundError, errors.HfHubHTTPError, OSError) as error:
        hint = "look at the network and HF_HUB_OFFLINE, or give a directory; a download that broke off goes on where it was"
        raise DownloadFailed(repository, f"the hub cannot be reached ({type(error).__name__})", hint=hint) from error
    return Path(str(folder))


def _from_modelscope(repository: str, patterns: Sequence[str], hub: Hub) -> Path:
    try:
        from modelscope import snapshot_download
    except ImportError:
        raise MissingPackage("modelscope", "downloading from ModelScope", "pip install modelscope") from None
    try:
        folder = snapshot_download(
            repository, revision=hub.revision, allow_patterns=list(patterns), ignore_patterns=list(_CODE)
        )
    except Exception as error:
        # Its client documents no errors of its own, and whatever it raises means the same here.
        hint = "look at the name, the network and --revision"
        raise DownloadFailed(repository, f"ModelScope gave nothing ({type(error).__name__})", hint=hint) from error
    return Path(str(folder))
