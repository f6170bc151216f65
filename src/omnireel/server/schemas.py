"""What answers look like, as the OpenAPI document tells it. Field names are those of the OpenAI API where it has them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field


class ErrorFacts(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None = None
    code: str


class ErrorBody(BaseModel):
    """Every answer that is an error."""

    error: ErrorFacts


class VideoError(BaseModel):
    """Why a job failed."""

    code: str
    message: str


class Video(BaseModel):
    """A job that makes a clip. Times are seconds since 1970; seed, num_frames, size and seconds are what was settled."""

    id: str
    object: Literal["video"] = "video"
    model: str
    prompt: str
    status: Literal["queued", "in_progress", "completed", "failed", "cancelled"]
    progress: int = Field(ge=0, le=100)
    created_at: int
    started_at: int | None = None
    completed_at: int | None = None
    expires_at: int | None = None
    seconds: str
    size: str
    quality: str | None = None
    error: VideoError | None = None
    remixed_from_video_id: str | None = None
    seed: int
    num_frames: int
    fps: float
    num_inference_steps: int
    task: str
    user: str | None = None
    media_type: str = "video/mp4"
    file_name: str
    queue_position: int | None = None
    queue_time_s: float | None = None
    inference_time_s: float | None = None
    stage_durations: dict[str, float] | None = None
    peak_memory_mb: float | None = None
    metrics: dict[str, Any] | None = None


class VideoList(BaseModel):
    """A page of jobs."""

    object: Literal["list"] = "list"
    data: list[Video]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Deleted(BaseModel):
    """What is no more."""

    id: str
    object: str
    deleted: Literal[True] = True


class File(BaseModel):
    """An uploaded file."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str


class FileList(BaseModel):
    """Every uploaded file."""

    object: Literal["list"] = "list"
    data: list[File]
    has_more: bool = False


class Model(BaseModel):
    """A name that requests may give."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "omnireel"
    root: str
    tasks: list[str]


class ModelList(BaseModel):
    """What is served."""

    object: Literal["list"] = "list"
    data: list[Model]


class AdapterList(BaseModel):
    """The adapters that are loaded."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]


class Health(BaseModel):
    """Whether requests are run, why not and what to do then, and what waits."""

    status: Literal["ok", "starting", "recovering", "asleep", "stopping", "failed"]
    reason: str | None = None
    hint: str | None = None
    queued: int
    running: int


class Alive(BaseModel):
    """Whether a restart would help."""

    status: Literal["ok", "failed"]


class Version(BaseModel):
    """The server's version."""

    version: str


class Profiled(BaseModel):
    """Whether a profile is under way; the files of the one that has ended, by name."""

    is_profiling: bool
    files: list[str] = []


class Slept(BaseModel):
    """Whether the model is in memory."""

    is_sleeping: bool
