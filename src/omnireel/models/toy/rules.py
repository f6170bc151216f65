"""What the toy takes: the fields of a real model, checked as one checks them, on a smaller scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from omnireel.errors import InvalidRequest
from omnireel.models import checks
from omnireel.models.protocol import Checkpoint
from omnireel.request import DiffusionSamplingParams, GenerationRequest, MediaFacts, Workload

T = TypeVar("T")

FPS = 24.0
MAX_SECONDS = 10.0
FAILURES = ("encode", "prepare", "decode", "oom", "client")
"""Values of `extra_args={"fail": ...}`: the stage that fails, how, or "step:N"; followed by "@R" on rank R alone."""

HEADS = 12
"""Any number of ranks that divides it may share the toy's three numbers; more than three have some without any."""


def shared_heads(checkpoint: Checkpoint) -> int:
    """See `ModelFacts.shared_heads`."""
    return HEADS


def admit(request: GenerationRequest, checkpoint: Checkpoint, media: Sequence[MediaFacts] = ()) -> Workload:
    """See `Admit`. extra_args: `step_seconds` slows each step down, `fail` makes a stage fail (see FAILURES)."""
    asked = request.sampling
    _refuse_unused(asked)
    if request.media:
        raise InvalidRequest("media", len(request.media), "this model takes no media")
    height = checks.whole("height", _or(asked.height, 32), 8, 1024, multiple=2)
    width = checks.whole("width", _or(asked.width, 48), 8, 1024, multiple=2)
    num_frames = _frames(asked)
    points = checks.whole("num_inference_steps", _or(asked.num_inference_steps, 5), 2, 200)
    return Workload(
        request_id=request.request_id,
        task=checks.one_of("task", _or(asked.task, "t2va"), ("t2va",)),
        prompt=checks.prompt_text(request.prompt),
        media=(),
        height=height,
        width=width,
        num_frames=num_frames,
        fps=FPS,
        num_inference_steps=points,
        num_steps=points - 1,
        seed=checks.seed_or_random(asked.seed),
        output_type=checks.one_of("output_type", asked.output_type, ("frames", "latent")),
        settings=_settings(asked),
        batch_key=(height, width, num_frames),
        cost=float(num_frames * height * width * points),
        output=request.output,
        timeout_seconds=request.timeout_seconds,
    )


def _refuse_unused(asked: DiffusionSamplingParams) -> None:
    """What would change nothing is refused rather than dropped."""
    given = {
        "aspect_ratio": asked.aspect_ratio,
        "short_edge": asked.short_edge,
        "flow_shift": asked.flow_shift,
        "audio_flow_shift": asked.audio_flow_shift,
        "guidance_scale": asked.guidance_scale,
        "guidance_scale_2": asked.guidance_scale_2,
        "true_cfg_scale": asked.true_cfg_scale,
        "negative_prompt": asked.negative_prompt,
    }
    for name, value in given.items():
        if value is not None:
            raise InvalidRequest(name, value, "the toy has no use for it")
    if asked.fps not in (None, FPS):
        raise InvalidRequest("fps", asked.fps, "the toy makes 24 frames a second")
    checks.one_of("generator_device", _or(asked.generator_device, "cpu"), ("cpu",))
    checks.whole("num_outputs_per_prompt", _or(asked.num_outputs_per_prompt, 1), 1, 1)


def _frames(asked: DiffusionSamplingParams) -> int:
    if asked.num_frames is None and asked.seconds is not None:
        return round(checks.number("seconds", asked.seconds, 1 / FPS, MAX_SECONDS) * FPS)
    return checks.whole("num_frames", _or(asked.num_frames, 24), 1, round(MAX_SECONDS * FPS))


def _settings(asked: DiffusionSamplingParams) -> dict[str, object]:
    given = {} if asked.extra_args is None else asked.extra_args
    extra = checks.no_unknown("extra_args", given, ("step_seconds", "fail"))
    failure = extra.get("fail")
    where, _, rank = failure.partition("@") if isinstance(failure, str) else (failure, "", "")
    is_known = where in FAILURES or (isinstance(where, str) and where.startswith("step:") and where[5:].isdecimal())
    if failure is not None and not (is_known and (rank.isdecimal() or failure == where)):
        allowed = f"it must be step:N, {' or '.join(FAILURES)}; with @R on rank R alone"
        raise InvalidRequest("extra_args.fail", failure, allowed)
    seconds = checks.number("extra_args.step_seconds", extra.get("step_seconds", 0.0), 0, 60)
    return {"step_seconds": seconds, "fail": failure}


def _or(value: T | None, default: T) -> T:
    return default if value is None else value
