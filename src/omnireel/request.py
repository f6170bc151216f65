"""The shared types of a request's way from prompt to file; what only one model knows is not here.

Everything is frozen and holds plain data or numpy arrays, so that any of it may be logged, compared and sent to another
process. Shape letters: T frames, H height, W width, C channels, N samples.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    FramesU8: TypeAlias = npt.NDArray[np.uint8]
    WaveF32: TypeAlias = npt.NDArray[np.float32]

MAX_SEED = 2**63 - 1


def setting(  # noqa: PLR0913  each is a fact of a setting, and all but two are rare
    default: Any,
    help: str,  # noqa: A002
    *,
    unit: str = "",
    choices: tuple[str, ...] = (),
    metavar: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    aliases: tuple[str, ...] = (),
    stages: tuple[str, ...] | None = None,
    pending: str = "",
    idle: tuple[Any, ...] = (),
    is_secret: bool = False,
) -> Any:
    """A dataclass field that flags, YAML keys, schema, docs and `config show` are generated from.

    Args:
        default: the value when nobody says anything; None means "the model's or backend's own default".
        help: one line in the present tense, without a full stop.
        unit: printed behind the value: "s", "px", "frames/s".
        choices: the allowed words; empty for any.
        metavar: how the value is written in help text.
        minimum, maximum: the bounds of what makes sense whatever the model; None for any. above: a bound that is itself
            not allowed.
        aliases: other names that mean the same; "!name" for a switch that means the opposite.
        stages: execution types ("ar", "generation", "diffusion") that have it; None for those of its whole spec.
        pending: what does not exist yet, as a noun; any value but the default and those of `idle` is then an error.
        is_secret: never shown, neither by `config show` nor in errors.
        idle: values of a pending setting that say what happens anyway.
    """
    metadata = {
        "help": help, "unit": unit, "choices": choices, "metavar": metavar, "minimum": minimum, "maximum": maximum,
        "above": above, "aliases": aliases, "stages": stages, "pending": pending, "idle": idle,
        "is_secret": is_secret,
    }  # fmt: skip
    return field(default=default, metadata=metadata)


class MediaKind(StrEnum):
    """What a file given with a request holds."""

    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRef:
    """A file given with a request, not opened yet. `name` is what errors call it, never its path.

    `role` is the model's word for what it is for ("first_frame", "last_frame", "reference"); the order of a request's media
    is part of its meaning. start_seconds: where a clip or recording begins.
    """

    kind: MediaKind
    role: str
    source: Path | bytes
    name: str
    start_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaFacts:
    """What a medium is, before it is decoded. `container` and the codecs are FFmpeg's or Pillow's names in lower case.

    width, height: pixels as shown; fps: average frames a second; seconds: length, 0 where the file does not tell.
    """

    kind: MediaKind
    role: str = ""
    name: str = ""
    container: str = ""
    size_bytes: int = 0
    width: int = 0
    height: int = 0
    fps: float = 0.0
    seconds: float = 0.0
    video_codec: str = ""
    audio_codec: str = ""
    channels: int = 0
    sample_rate_hz: int = 0

    @property
    def has_sound(self) -> bool:
        """True when there is an audio stream."""
        return self.sample_rate_hz > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPlan:
    """How a model's rules want one medium prepared; None leaves as it is.

    size: (width, height) of each frame, by Lanczos; fit: "stretch" its axes apart, or "cover" and crop the middle;
    fps: time grid of a clip; max_frames: frames of a clip that are kept; max_seconds: sound that is kept, at its own rate.
    """

    size: tuple[int, int] | None = None
    fit: str = "stretch"
    fps: float | None = None
    max_frames: int | None = None
    max_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaInput:
    """Decoded media of a request; the medium keeps its rate beside it. Order and `role` mean what they do in `MediaRef`.

    frames: uint8 [T,H,W,3] RGB, T = 1 for a picture; wave: float32 [C,N] in [-1,1], C is 1 or 2.
    """

    kind: MediaKind
    role: str
    frames: FramesU8 | None = None
    fps: float | None = None
    wave: WaveF32 | None = None
    sample_rate_hz: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffusionSamplingParams:
    """How to sample. None everywhere means "what the model would choose"; each model's rules check the values."""

    height: int | None = setting(None, "height of the clip", unit="px")
    width: int | None = setting(None, "width of the clip", unit="px")
    aspect_ratio: str | None = setting(None, "shape of the picture when height and width are not given", metavar="W:H")
    short_edge: int | None = setting(
        None, "length of the shorter side when height and width are not given; the model's own when absent", unit="px"
    )
    num_frames: int | None = setting(None, "frames to make, raised to the next count that the model can decode")
    seconds: float | None = setting(None, "length of the clip; used when num_frames is not given", unit="s")
    fps: float | None = setting(None, "frames per second", unit="frames/s")
    num_inference_steps: int | None = setting(
        None, "points of the noise schedule (N points are N - 1 evaluations of the model)"
    )
    seed: int | None = setting(None, "seed of all random draws; random when absent, and told with the result")
    generator_device: str | None = setting(None, "where random numbers are drawn", choices=("cpu",))
    flow_shift: float | None = setting(None, "shift of the video noise schedule")
    audio_flow_shift: float | None = setting(None, "shift of the audio noise schedule")
    guidance_scale: float | None = setting(None, "classifier-free guidance, for models that take it")
    guidance_scale_2: float | None = setting(None, "guidance of the second expert, for models that have one")
    true_cfg_scale: float | None = setting(None, "true classifier-free guidance, for models that take it")
    negative_prompt: str | None = setting(None, "what should not be shown, for models that take it")
    task: str | None = setting(None, "what the model is asked to do; told from the inputs when absent")
    num_outputs_per_prompt: int | None = setting(None, "clips to make; the i-th uses seed + i")
    output_type: str = setting("frames", "what is returned", choices=("frames", "latent"))
    extra_args: Mapping[str, Any] | None = setting(
        None, "more fields by name; a model may know some that are not listed here", metavar="JSON"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec:
    """What happens with the clip: where it goes and what travels with it."""

    path: Path | None = setting(None, "file to write", metavar="FILE")
    recipe: bool = setting(True, "write the recipe that makes the clip again into the file")
    preview_every: int = setting(0, "make a preview picture after every this many steps (0: none)", unit="steps")


def new_request_id() -> str:
    """A fresh id: "req_" and 32 hexadecimal digits."""
    return f"req_{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """A part of what one stage hands to the next: named arrays, or none at the end."""

    tensors: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    is_last: bool = False


class Receiver(Protocol):
    """Where the parts arrive, in order."""

    def receive(self, timeout_seconds: float) -> Handover | None:
        """The next part; None when none came in that time.

        Raises:
            ConnectionError: who hands over is gone.
        """
        ...

    def close(self) -> None:
        """Nothing more is wanted."""
        ...


class Inbox(Protocol):
    """The address of a stage's input. Each `open` gives every part from the first on."""

    def open(self) -> Receiver:
        """Connects.

        Raises:
            ConnectionError: nobody is there.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One thing asked for, as the user said it; nothing is checked against a model yet.

    priority: requests of a lower number run first, those of an equal one in order of arrival.
    tensors: named arrays of the stages before, in a pipeline of several; inbox: where such arrays arrive while the request runs.
    Neither is ever a user's.
    """

    prompt: str
    media: tuple[MediaRef | MediaInput, ...] = ()
    sampling: DiffusionSamplingParams = field(default_factory=DiffusionSamplingParams)
    output: OutputSpec = field(default_factory=OutputSpec)
    timeout_seconds: float | None = None
    tensors: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    priority: int = 0
    inbox: Inbox | None = None
    request_id: str = field(default_factory=new_request_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A request after the model's rules: every choice is settled, nothing is left to a default.

    height, width, num_frames: 0 where no picture is made. tensors, inbox: see GenerationRequest.

    media: prepared as the plans say, one plan each; empty until they are loaded. num_steps counts evaluations of the model. `batch_key` is equal for requests that may be stepped together;
    `cost` estimates the work in FLOP for the scheduler. `settings` holds what only the model reads, as plain data, and
    together with the other fields is what a recipe stores.
    """

    request_id: str
    task: str
    prompt: str
    media: tuple[MediaInput, ...]
    height: int
    width: int
    num_frames: int
    fps: float
    num_inference_steps: int
    num_steps: int
    seed: int
    output_type: str
    settings: Mapping[str, Any]
    batch_key: tuple[Any, ...]
    cost: float
    output: OutputSpec
    media_plans: tuple[MediaPlan, ...] = ()
    timeout_seconds: float | None = None
    tensors: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    inbox: Inbox | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent:
    """One evaluation of the model is done. `index` counts from 1 to `total`; preview: uint8 [H,W,3] or None.

    progress: the normalised timestep that was evaluated, from 1 (noise) towards 0; None where a model has none.
    stage: the name of the stage that did it, in a pipeline of several; `index` and `total` then count over all of them.
    chunk: what the stage hands on already; only between stages.
    """

    request_id: str
    index: int
    total: int
    seconds: float
    progress: float | None = None
    preview: FramesU8 | None = None
    stage: str = ""
    chunk: Mapping[str, npt.NDArray[Any]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaOutput:
    """What a pipeline or a stage of one made. frames: uint8 [T,H,W,3] RGB; wave: float32 [C,N] in [-1,1].

    With output_type "latent" frames and wave are None and `latents` holds named arrays instead: float32, or what one stage
    hands to the next.
    """

    frames: FramesU8 | None = None
    fps: float | None = None
    wave: WaveF32 | None = None
    sample_rate_hz: int | None = None
    latents: Mapping[str, npt.NDArray[Any]] | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that makes a clip again: plain data, written into the file as JSON.

    `sampling` holds the settled values by field name of DiffusionSamplingParams; `frames_digest` is the SHA-256 of the
    uint8 frames in row-major order, `wave_digest` that of the float32 little-endian samples. `media` has kind, role and digest
    of each medium as the model read it; the media themselves are not in it.
    """

    model: str
    weights_digest: str
    prompt: str
    sampling: Mapping[str, Any]
    engine: Mapping[str, Any]
    versions: Mapping[str, str]
    frames_digest: str
    wave_digest: str
    media: tuple[Mapping[str, str], ...] = ()
    schema: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A finished file. `digest` is the SHA-256 of its bytes."""

    path: Path
    mime: str
    size_bytes: int
    digest: str
    seconds: float
