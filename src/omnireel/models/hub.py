"""Checkpoints from a model hub: only the files that a service needs, resumed where a download broke off.

Files are data: weights in safetensors, configs in JSON. Code in a repository is not downloaded and never run.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omnireel.errors import DownloadFailed, MissingPackage

logger = logging.getLogger(__name__)

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_DISK: Mapping[int, str] = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota is used up",
    errno.EACCES: "permission denied",
    errno.EROFS: "it is read-only",
}
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

    try:
        folder = huggingface_hub.snapshot_download(
            repository, revision=hub.revision, allow_patterns=list(patterns), ignore_patterns=list(_CODE)
        )
    except Exception as error:
        # Besides its own errors the client lets through those of the libraries that it carries bytes with.
        problem, hint = _explained(error, hub)
        raise DownloadFailed(repository, problem, hint=hint) from error
    return Path(str(folder))


def _explained(error: Exception, hub: Hub) -> tuple[str, str]:
    """What went wrong with the hub, and what to do; the client's own words may hold paths and addresses, so they stay out."""
    from huggingface_hub import constants, errors

    look = "look at the network and at HF_ENDPOINT, or give a directory; a download that broke off goes on where it was"
    if isinstance(error, errors.LocalEntryNotFoundError):
        if constants.HF_HUB_OFFLINE:
            hint = "unset HF_HUB_OFFLINE to download them, or give a directory"
            return "its files are not all on this disk, and HF_HUB_OFFLINE forbids to fetch them", hint
        return "the hub cannot be reached, and its files are not all on this disk", look
    # The first that fits: a gated repository is a kind of missing one to the client.
    told: tuple[tuple[type[Exception], str, str], ...] = (
        (
            errors.GatedRepoError,
            "it is gated, and this user has no access",
            "accept its terms on the hub's page, then log in with: hf auth login",
        ),
        (
            errors.RepositoryNotFoundError,
            "there is no such repository",
            "look at the name; for a private repository log in with: hf auth login",
        ),
        (errors.RevisionNotFoundError, f"it has no revision {hub.revision!r}", "look at --revision"),
        (errors.DisabledRepoError, "it is disabled on the hub", "give a directory or another repository"),
        (errors.HFValidationError, "this can be no repository", "its name is an owner, a slash and a name"),
    )
    for kind, problem, hint in told:
        if isinstance(error, kind):
            return problem, hint
    disk = _DISK.get(error.errno or 0) if isinstance(error, OSError) else None
    if disk is not None:
        return f"the cache cannot be written ({disk})", "make room, or set HF_HOME to another disk"
    return f"the hub cannot be reached ({type(error).__name__})", look


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
