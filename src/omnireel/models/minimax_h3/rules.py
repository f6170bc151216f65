"""What MiniMax-H3 takes: a request becomes a workload in which every choice is settled, or an error that says what fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from omnireel.errors import InvalidRequest
from omnireel.models import checks
from omnireel.models.minimax_h3 import limits as geometry
from omnireel.models.minimax_h3 import tasks
from omnireel.models.minimax_h3.facts import FACTS
from omnireel.models.minimax_h3.layout import resolve_layout
from omnireel.models.minimax_h3.limits import FPS, MAX_SECONDS, MIN_SECONDS, Limits
from omnireel.models.protocol import Checkpoint
from omnireel.request import DiffusionSamplingParams, GenerationRequest, MediaFacts, MediaPlan, Workload

MAX_STEPS = 200
MAX_SHIFT = 1000.0
MAX_SHORT_EDGE = 4096
TEXT_ROWS_GUESS = 128
"""Text rows that the cost estimate counts with; the true number is known only to the tokenizer."""

_EXTRA_NAMES: Mapping[str, str] = {
    "task": "task",
    "aspect_ratio": "aspect_ratio",
    "short_edge": "short_edge",
    "duration": "seconds",
    "flow_shift": "flow_shift",
    "audio_flow_shift": "audio_flow_shift",
    "num_frames": "num_frames",
    "num_inference_steps": "num_inference_steps",
    "seed": "seed",
}
"""Names that clients send as extra parameters, and the fields that they mean."""

_GUIDANCE = ("guidance_scale", "guidance_scale_2", "true_cfg_scale")


def admit(request: GenerationRequest, checkpoint: Checkpoint, media: Sequence[MediaFacts] = ()) -> Workload:
    """See `Admit`."""
    asked = _with_extra(request.sampling)
    _refuse_guidance(asked)
    if asked.fps is not None and asked.fps != FPS:
        raise InvalidRequest("fps", asked.fps, f"MiniMax-H3 makes {FPS} frames a second")
    if asked.generator_device not in (None, "cpu"):
        raise InvalidRequest(
            "generator_device", asked.generator_device, "noise is drawn on the cpu, as the reference does"
        )
    checks.whole(
        "num_outputs_per_prompt", 1 if asked.num_outputs_per_prompt is None else asked.num_outputs_per_prompt, 1, 1
    )
    task = tasks.infer_task(asked.task, media, served_tasks(checkpoint))
    limits = Limits.of(checkpoint, task)
    height, width = _size(asked, limits, _shape_of(media) if task == tasks.FL2VA else None)
    num_frames = _frames(asked, limits, task)
    _check_rows(height, width, num_frames)
    points = _points(asked.num_inference_steps, limits)
    return Workload(
        request_id=request.request_id,
        task=task,
        prompt=checks.prompt_text(request.prompt),
        media=(),
        height=height,
        width=width,
        num_frames=num_frames,
        fps=float(FPS),
        num_inference_steps=points,
        num_steps=points - 1,
        seed=checks.seed_or_random(asked.seed),
        output_type=checks.one_of("output_type", asked.output_type, ("frames", "latent")),
        settings={
            "flow_shift": _shift("flow_shift", asked.flow_shift, limits.shifts["video"]),
            "audio_flow_shift": _shift("audio_flow_shift", asked.audio_flow_shift, limits.shifts["audio"]),
        },
        batch_key=(task, height, width, num_frames),
        cost=(points - 1) * _flop_per_step(geometry.packed_rows(height, width, num_frames) + TEXT_ROWS_GUESS),
        output=request.output,
        media_plans=_plans(task, media, (width, height), num_frames, limits),
        timeout_seconds=request.timeout_seconds,
    )


def served_tasks(checkpoint: Checkpoint) -> tuple[str, ...]:
    """What the service was started for and its partitions can do: references need a DiT of their own."""
    return FACTS.tasks if checkpoint.path is None else resolve_layout(checkpoint).tasks


def _plans(
    task: str, media: Sequence[MediaFacts], size: tuple[int, int], num_frames: int, limits: Limits
) -> tuple[MediaPlan, ...]:
    if task == tasks.FL2VA:
        return tasks.keyframe_plans(media, size)
    return tasks.reference_plans(media, num_frames, limits) if task == tasks.REF2VA else ()


def _shape_of(media: Sequence[MediaFacts]) -> tuple[int, int]:
    """(width, height) of the keyframe that settles the canvas."""
    first = media[tasks.ordered_keyframes(media)[0]]
    return first.width, first.height


def _with_extra(asked: DiffusionSamplingParams) -> DiffusionSamplingParams:
    """The plain fields with `extra_args` folded in; a field may be given in one of the two places only."""
    if asked.extra_args is None:
        return asked
    extra = checks.no_unknown("extra_args", asked.extra_args, tuple(_EXTRA_NAMES))
    for key, value in extra.items():
        if value is not None and not isinstance(value, str | int | float):
            raise InvalidRequest(f"extra_args.{key}", value, "it must be a text or a number")
        name = _EXTRA_NAMES[key]
        given = {item.name: getattr(asked, item.name) for item in fields(asked)}[name]
        if value is not None and given is not None and given != value:
            raise InvalidRequest(f"extra_args.{key}", value, f"{name} was given too, as {given!r}; give one of them")
    named = {_EXTRA_NAMES[key]: value for key, value in extra.items() if value is not None}
    return replace(asked, extra_args=None, **named)


def _refuse_guidance(asked: DiffusionSamplingParams) -> None:
    why = "MiniMax-H3 has its guidance distilled in and runs once a step"
    values = {item.name: getattr(asked, item.name) for item in fields(asked)}
    for name in _GUIDANCE:
        if values[name] is not None and values[name] != 1:
            raise InvalidRequest(name, values[name], f"{why}; leave it out or give 1")
    if asked.negative_prompt is not None:
        raise InvalidRequest("negative_prompt", "...", f"{why}, so there is nothing that a negative prompt could steer")


def _size(asked: DiffusionSamplingParams, limits: Limits, shape: tuple[int, int] | None) -> tuple[int, int]:
    """(height, width): as given, else by the named ratio, else by a keyframe's shape, else 16:9."""
    if asked.height is None and asked.width is None:
        limits = _with_short_edge(asked.short_edge, limits)
        if asked.aspect_ratio is None and shape is not None:
            return geometry.canvas(*shape, limits)
        ratio = "16:9" if asked.aspect_ratio is None else asked.aspect_ratio
        checks.one_of("aspect_ratio", ratio, tuple(geometry.ASPECT_RATIOS))
        return geometry.canvas(*geometry.ASPECT_RATIOS[ratio], limits)
    if asked.height is None or asked.width is None:
        missing = "height" if asked.height is None else "width"
        raise InvalidRequest(missing, None, "height and width are given together, or neither")
    for name, value in (("aspect_ratio", asked.aspect_ratio), ("short_edge", asked.short_edge)):
        if value is not None:
            raise InvalidRequest(name, value, "height and width were given, which settle it")
    highest = geometry.MAX_ROWS * geometry.CANVAS_MULTIPLE
    height = checks.whole("height", asked.height, 32, highest, multiple=geometry.CANVAS_MULTIPLE)
    width = checks.whole("width", asked.width, 32, highest, multiple=geometry.CANVAS_MULTIPLE)
    if not geometry.MIN_RATIO <= width / height <= geometry.MAX_RATIO:
        raise InvalidRequest("size", f"{width}x{height}", "width to height must lie between 1:4 and 4:1")
    return height, width


def _with_short_edge(asked: int | None, limits: Limits) -> Limits:
    """Another short edge moves the cap on the area with it, so that every ratio keeps its shape."""
    if asked is None:
        return limits
    edge = checks.whole("short_edge", asked, 32, MAX_SHORT_EDGE, multiple=geometry.CANVAS_MULTIPLE)
    area = round(limits.canvas_max_pixels * (edge / limits.canvas_short_edge) ** 2)
    return replace(limits, canvas_short_edge=edge, canvas_max_pixels=area)


def _frames(asked: DiffusionSamplingParams, limits: Limits, task: str) -> int:
    """What was asked for is checked before it is raised to what the VAE can decode: 15 s is allowed and makes 362 frames."""
    least, most = round(MIN_SECONDS * FPS), round(MAX_SECONDS * FPS)
    if asked.num_frames is not None:
        if asked.seconds is not None:
            checks.finite("seconds", asked.seconds)
        return geometry.aligned_frames(checks.whole("num_frames", asked.num_frames, least, most))
    if asked.seconds is not None:
        seconds = checks.number("seconds", asked.seconds, MIN_SECONDS, MAX_SECONDS)
        return geometry.aligned_frames(round(seconds * FPS))
    is_reference = task == tasks.REF2VA
    default = limits.default_reference_num_frames if is_reference else limits.default_num_frames
    return geometry.aligned_frames(default)


def _check_rows(height: int, width: int, num_frames: int) -> None:
    rows = geometry.packed_rows(height, width, num_frames)
    if rows > geometry.MAX_ROWS:
        text = f"{width}x{height}, {num_frames} frames"
        raise InvalidRequest("size", text, f"that is {rows} rows, the model takes {geometry.MAX_ROWS}")


def _points(asked: int | None, limits: Limits) -> int:
    """Points of the schedule; a checkpoint that was distilled to some takes no others."""
    if limits.base_schedule is not None:
        pinned = len(limits.base_schedule)
        return pinned if asked is None else checks.whole("num_inference_steps", asked, pinned, pinned)
    return checks.whole(
        "num_inference_steps", limits.default_num_inference_steps if asked is None else asked, 2, MAX_STEPS
    )


def _shift(field: str, value: float | None, default: float) -> float:
    return default if value is None else checks.number(field, value, 0.01, MAX_SHIFT)


def _flop_per_step(rows: int) -> float:
    """Of the released model: 100 linears of 385 M weights' worth a row, and attention over all pairs of rows."""
    return 38.535168e9 * rows + 1_433_600.0 * rows**2
