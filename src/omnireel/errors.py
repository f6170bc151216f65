"""Every error a user can meet: code, message, hint, details. Anything else that escapes is a bug.

OmniReelError
  ClientError                 the caller can fix it                   HTTP 4xx, exit 2
    InvalidRequest            a field of the request is not allowed   400
    MediaUnreadable           a given file is not what it should be   400
    NotServed                 no served model can do this             400
    Unauthorized              no key, or a wrong one                  401
    UnknownModel              no such model                           404
    UnknownJob                no such job or file                     404
    TooSlow                   a body does not come                    408
    Conflict                  not in the state that it is in          409
    Expired                   it was kept for its time                410
    TooLarge                  more bytes than are taken               413
    UnsupportedBody           a body of a type that is not read       415
    JobFailed                 asked for what a failed job never made  422
    QueueFull                 the queue is full, come back later      429
    Cancelled                 the caller gave up                      499
  SetupError                  who started the engine can fix it       exit 3
    BadSetting                a setting has a value that is not allowed
    UnownedSettings           a stage does not have these settings
    NotAvailable              a setting of what does not exist yet
    Incompatible              two settings that cannot go together
    MissingPackage            an optional package is needed
    UnsupportedDevice         the device cannot do what was asked
    BadCheckpoint             a weight or config file is not as needed
    DownloadFailed            a repository cannot be downloaded
  EngineError                 neither; retry or restart               HTTP 5xx, exit 4
    OutOfMemory               a request did not fit                   503
    DeadlineExceeded          a request ran past its time             504
    WorkerDied                the process of the model died or hung   503
    RankLost                  processes of one model lost each other  503
    Unavailable               not yet, or not any more                503
    StorageFailed             the disk is full or cannot be written   507
    ConnectorLost             a hand-over between stages broke off    503
    NonFinite                 a tensor holds what is no number        500
    NotReproduced             the same recipe gave other frames       500

Errors cross process borders as data (`to_dict` / `from_dict`), never as pickled exceptions.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name most like `name`, or None when nothing is close."""
    matches = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.6)
    return matches[0] if matches else None


class OmniReelError(Exception):
    """Base of all errors that a user may see; subclasses fix the code, HTTP status and exit code."""

    code: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 4

    def __init__(self, message: str, *, hint: str = "", details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details: dict[str, Any] = dict(details or {})

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a process or HTTP border; `from_dict` is its inverse."""
        return {"code": self.code, "message": self.message, "hint": self.hint, "details": self.details}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> OmniReelError:
        """The error that `to_dict` described; an unknown code gives a plain EngineError."""
        kind = _by_code(OmniReelError).get(data["code"], EngineError)
        error = kind.__new__(kind)
        OmniReelError.__init__(error, data["message"], hint=data["hint"], details=data["details"])
        return error


class ClientError(OmniReelError):
    """The caller can fix it."""

    code = "client_error"
    http_status = 400
    exit_code = 2


class InvalidRequest(ClientError):
    """A field of the request has a value that is not allowed."""

    code = "invalid_request"

    def __init__(self, field: str, value: object, allowed: str, *, hint: str = "") -> None:
        super().__init__(
            f"{field}: {_shown(value)} is not allowed; {allowed}",
            hint=hint,
            details={"field": field, "value": _shown(value), "allowed": allowed},
        )


class MediaUnreadable(ClientError):
    """A picture, clip or recording that cannot be read as one, or lacks what is needed from it."""

    code = "media_unreadable"

    def __init__(self, name: str, problem: str, *, hint: str = "") -> None:
        super().__init__(f"{name}: {problem}", hint=hint, details={"name": name, "problem": problem})


class UnknownModel(ClientError):
    """No model answers to this name."""

    code = "unknown_model"
    http_status = 404

    def __init__(self, model: str, known: Iterable[str], *, hint: str = "") -> None:
        names = sorted(known)
        close = nearest(model, names)
        super().__init__(
            f"unknown model {model!r}" + (f"; known here: {', '.join(names)}" if names else ""),
            hint=hint or (f"did you mean {close!r}?" if close else "give a known name or a checkpoint directory"),
            details={"model": model, "known": names},
        )


class NotServed(ClientError):
    """An endpoint that the served model cannot answer."""

    code = "not_served"

    def __init__(self, model: str, tasks: Iterable[str], served: Iterable[str]) -> None:
        names, able = list(served), list(tasks)
        super().__init__(
            f"{model} cannot do this; it does {', '.join(able)}, and endpoints that it can answer are {', '.join(names)}",
            details={"model": model, "tasks": able, "served": names},
        )


class Unauthorized(ClientError):
    """The server asks for a key, and none or another one came."""

    code = "unauthorized"
    http_status = 401


class UnknownJob(ClientError):
    """No job, or no file, has this id."""

    code = "unknown_job"
    http_status = 404


class TooSlow(ClientError):
    """A request's body does not come."""

    code = "too_slow"
    http_status = 408


class Conflict(ClientError):
    """The thing is there but in another state than this needs."""

    code = "conflict"
    http_status = 409


class Expired(ClientError):
    """A file was kept for its time and is gone."""

    code = "expired"
    http_status = 410


class TooLarge(ClientError):
    """More bytes came than are taken."""

    code = "too_large"
    http_status = 413


class UnsupportedBody(ClientError):
    """A request's body is of a type that is not read."""

    code = "unsupported_body"
    http_status = 415


class JobFailed(ClientError):
    """The result of a job that failed was asked for."""

    code = "job_failed"
    http_status = 422


class QueueFull(ClientError):
    """The waiting line is full."""

    code = "queue_full"
    http_status = 429

    def __init__(self, waiting: int, retry_after_seconds: float) -> None:
        super().__init__(
            f"the queue is full ({waiting} waiting)",
            hint=f"try again in {retry_after_seconds:.0f} s",
            details={"waiting": waiting, "retry_after_seconds": retry_after_seconds},
        )


class Cancelled(ClientError):
    """The request was cancelled by its caller."""

    code = "cancelled"
    http_status = 499

    def __init__(self, request_id: str, where: str) -> None:
        super().__init__(
            f"request {request_id} was cancelled ({where})", details={"request_id": request_id, "where": where}
        )


class SetupError(OmniReelError):
    """Who started the engine can fix it; found before any request is taken."""

    code = "setup_error"
    http_status = 503
    exit_code = 3


class BadSetting(SetupError):
    """A setting has a value that is not allowed; `source` says where the value came from."""

    code = "bad_setting"

    def __init__(self, name: str, value: object, source: str, allowed: str, *, hint: str = "") -> None:
        super().__init__(
            f"{name} = {_shown(value)} (from {source}) is not allowed; {allowed}",
            hint=hint,
            details={"name": name, "value": _shown(value), "source": source, "allowed": allowed},
        )


class UnownedSettings(SetupError):
    """A stage was given settings that stages of its type do not have, or that nobody has."""

    code = "unowned_settings"

    def __init__(
        self, stages: Mapping[int, str], names: Iterable[str], sources: Iterable[str], *, hint: str = ""
    ) -> None:
        unowned = sorted(names)
        shown = ", ".join(f"{number} ({kind})" for number, kind in stages.items())
        subject = f"stage {shown} does" if len(stages) == 1 else f"stages {shown} do"
        super().__init__(
            f"{subject} not have {', '.join(unowned)} (from {', '.join(dict.fromkeys(sources))})",
            hint=hint,
            details={"stages": {str(number): kind for number, kind in stages.items()}, "names": unowned},
        )


class NotAvailable(SetupError):
    """A setting asks for a feature that this version does not have; `stages` are those that it is for, with their types."""

    code = "not_available"

    def __init__(
        self, name: str, value: object, source: str, feature: str, stages: Mapping[int, str] | None = None
    ) -> None:
        found = {str(number): kind for number, kind in (stages or {}).items()}
        shown = ", ".join(f"{number} ({kind})" for number, kind in found.items())
        where = f" for stage{'s' * (len(found) > 1)} {shown}" if found else ""
        super().__init__(
            f"{name} = {_shown(value)} (from {source}) is not available{where}: it needs {feature}, which this version does not have",
            hint=f"leave {name} out",
            details={"name": name, "value": _shown(value), "source": source, "feature": feature, "stages": found},
        )


class Incompatible(SetupError):
    """Two settings that cannot go together; `first` and `second` say what was set and where."""

    code = "incompatible"

    def __init__(self, first: str, second: str, why: str) -> None:
        super().__init__(
            f"{first} cannot go with {second}: {why}",
            hint="leave one of them out; `omnireel doctor --compat` lists every such pair",
            details={"first": first, "second": second, "why": why},
        )


class MissingPackage(SetupError):
    """An optional package is needed for what was chosen."""

    code = "missing_package"

    def __init__(self, package: str, needed_for: str, install: str) -> None:
        super().__init__(
            f"{needed_for} needs the package {package}, which is not installed",
            hint=install,
            details={"package": package, "needed_for": needed_for, "install": install},
        )


class UnsupportedDevice(SetupError):
    """The device that was asked for is not here or cannot do what was asked."""

    code = "unsupported_device"

    def __init__(self, need: str, have: str, *, hint: str = "") -> None:
        super().__init__(f"need {need}, have {have}", hint=hint, details={"need": need, "have": have})


class BadCheckpoint(SetupError):
    """A file of a checkpoint is missing, cut short or not what the model needs."""

    code = "bad_checkpoint"

    def __init__(
        self, file: str, problem: str, *, key: str = "", expected: str = "", found: str = "", hint: str = ""
    ) -> None:
        parts = [f"{file}: {problem}"]
        parts += [f"{label} {text}" for label, text in (("key", key), ("expected", expected), ("found", found)) if text]
        super().__init__(
            ", ".join(parts),
            hint=hint or "download the checkpoint again, or name another one",
            details={"file": file, "problem": problem, "key": key, "expected": expected, "found": found},
        )


class DownloadFailed(SetupError):
    """A repository of a hub cannot be downloaded."""

    code = "download_failed"

    def __init__(self, repository: str, problem: str, *, hint: str = "") -> None:
        super().__init__(f"{repository}: {problem}", hint=hint, details={"repository": repository, "problem": problem})


class EngineError(OmniReelError):
    """Neither the caller nor the operator did wrong; retry or restart."""

    code = "engine_error"


class OutOfMemory(EngineError):
    """A request needed more memory than was free; the engine goes on."""

    code = "out_of_memory"
    http_status = 503

    def __init__(self, where: str, asked_bytes: int | None, free_bytes: int | None) -> None:
        asked = "" if asked_bytes is None else f", asked for {asked_bytes / 2**30:.2f} GiB"
        free = "" if free_bytes is None else f", {free_bytes / 2**30:.2f} GiB free"
        super().__init__(
            f"out of memory in {where}{asked}{free}",
            hint="ask for fewer frames or a smaller size",
            details={"where": where, "asked_bytes": asked_bytes, "free_bytes": free_bytes},
        )


class DeadlineExceeded(EngineError):
    """A request ran past the time it was given."""

    code = "deadline_exceeded"
    http_status = 504

    def __init__(self, request_id: str, timeout_seconds: float, where: str) -> None:
        super().__init__(
            f"request {request_id} ran past its {timeout_seconds:g} s ({where})",
            hint="give it more time, fewer steps or a smaller size",
            details={"request_id": request_id, "timeout_seconds": timeout_seconds, "where": where},
        )


class WorkerDied(EngineError):
    """The process that holds the model died or hung. `last_lines` are the last that it wrote."""

    code = "worker_died"
    http_status = 503

    def __init__(self, worker: str, how: str, last_lines: Iterable[str] = (), *, hint: str = "") -> None:
        lines = list(last_lines)
        said = f"; its last lines: {' | '.join(lines[-3:])}" if lines else ""
        super().__init__(
            f"worker {worker} {how}{said}",
            hint=hint or "send the request again; the worker is started anew",
            details={"worker": worker, "how": how, "last_lines": lines},
        )


class RankLost(EngineError):
    """One of the processes that compute a request together lost the others; whatever ended them is told by them."""

    code = "rank_lost"
    http_status = 503

    def __init__(self, rank: int, what: str) -> None:
        super().__init__(
            f"rank {rank} lost the others: it never {what}",
            hint="send the request again",
            details={"rank": rank, "what": what},
        )


class Unavailable(EngineError):
    """The server is starting, stopping or asleep, or its engine is gone."""

    code = "unavailable"
    http_status = 503


class StorageFailed(EngineError):
    """What must be kept cannot be written: the disk is full, read-only or broken."""

    code = "storage_failed"
    http_status = 507


class ConnectorLost(EngineError):
    """What one stage of a pipeline hands to the next did not arrive."""

    code = "connector_lost"
    http_status = 503

    def __init__(self, how: str) -> None:
        super().__init__(
            f"the hand-over between two stages broke off: {how}",
            hint="send the request again",
            details={"how": how},
        )


class NonFinite(EngineError):
    """A tensor of a request holds NaN or infinity; only looked for when asked to."""

    code = "non_finite"

    def __init__(self, tensor: str, step: int) -> None:
        super().__init__(
            f"{tensor} holds values that are not finite after step {step}",
            hint="look at the weights, the dtype and the attention backend",
            details={"tensor": tensor, "step": step},
        )


class NotReproduced(EngineError):
    """A clip made again from its recipe has other frames than the recipe says."""

    code = "not_reproduced"

    def __init__(self, expected: str, found: str, *, hint: str = "") -> None:
        super().__init__(
            f"the frames differ from the recipe's: expected digest {expected}, found {found}",
            hint=hint,
            details={"expected": expected, "found": found},
        )


def _by_code(kind: type[OmniReelError]) -> dict[str, type[OmniReelError]]:
    found = {kind.code: kind}
    for child in kind.__subclasses__():
        found.update(_by_code(child))
    return found


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
