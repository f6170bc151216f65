"""What the toy takes."""

from __future__ import annotations

from omnireel.errors import InvalidRequest
from omnireel.models import checks
from omnireel.models.protocol import Checkpoint
from omnireel.request import GenerationRequest, Workload

FPS = 24.0
FAILURES = ("encode", "prepare", "decode", "oom", "client")
"""Values of `extra_args={"fail": ...}`: the stage that fails, how, or "step:N"."""


def admit(request: GenerationRequest, checkpoint: Checkpoint) -> Workload:
    """See `Admit`. extra_args: `step_seconds` slows each step down, `fail` makes a stage fail (see FAILURES)."""
    asked = request.sampling
    extra = dict(asked.extra_args or {})
    checks.no_unknown("extra_args", extra, ("step_seconds", "fail"))
    if request.media:
        raise InvalidRequest("media", len(request.media), "this model takes no media")
    if asked.fps not in (None, FPS):
        raise InvalidRequest("fps", asked.fps, "this model makes 24 frames a second")
    if asked.num_frames is None and asked.seconds is not None:
        num_frames = round(checks.number("seconds", asked.seconds, 1 / FPS, 10) * FPS)
    else:
        num_frames = checks.whole("num_frames", 24 if asked.num_frames is None else asked.num_frames, 1, 240)
    height = checks.whole("height", 32 if asked.height is None else asked.height, 8, 1024, multiple=2)
    width = checks.whole("width", 48 if asked.width is None else asked.width, 8, 1024, multiple=2)
    points = checks.whole(
        "num_inference_steps", 5 if asked.num_inference_steps is None else asked.num_inference_steps, 2, 200
    )
    return Workload(
        request_id=request.request_id,
        task=checks.one_of("task", asked.task or "t2va", ("t2va",)),
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
        settings={
            "step_seconds": checks.number("extra_args.step_seconds", extra.get("step_seconds", 0.0), 0, 60),
            "fail": _failure(extra.get("fail")),
        },
        batch_key=(height, width, num_frames),
        cost=float(num_frames * height * width * points),
        output=request.output,
        timeout_seconds=request.timeout_seconds,
    )


def _failure(value: object) -> str | None:
    if value is None or value in FAILURES or (isinstance(value, str) and value.removeprefix("step:").isdigit()):
        return None if value is None else str(value)
    raise InvalidRequest("extra_args.fail", value, f"it must be step:N, {' or '.join(FAILURES)}")
