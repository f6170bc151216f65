"""What the stages of `toy_story` take: a prompt, a size, and how each of them is to behave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from omnireel.errors import InvalidRequest
from omnireel.models import checks
from omnireel.models.protocol import Checkpoint
from omnireel.request import GenerationRequest, MediaFacts, Workload

FPS = 24.0
NUM_WORDS = 6
STAGES = ("words", "levels", "scene")


def _admit(
    stage: str, request: GenerationRequest, checkpoint: Checkpoint, media: Sequence[MediaFacts] = ()
) -> Workload:
    """See `Admit`. extra_args: `num_words`, how many numbers the prompt becomes; and by the name of a stage what it is to do:
    `step_seconds` slows its steps down, `fail` makes the step of that number fail.
    """
    asked = request.sampling
    if request.media:
        raise InvalidRequest("media", len(request.media), "this pipeline takes no media")
    extra = checks.no_unknown("extra_args", asked.extra_args or {}, ("num_words", *STAGES))
    own = checks.no_unknown(f"extra_args.{stage}", extra.get(stage, {}), ("step_seconds", "fail"))
    num_words = checks.whole("extra_args.num_words", extra.get("num_words", NUM_WORDS), 1, 10_000)
    height = checks.whole("height", 32 if asked.height is None else asked.height, 8, 1024, multiple=2)
    width = checks.whole("width", 48 if asked.width is None else asked.width, 8, 1024, multiple=2)
    num_frames = checks.whole("num_frames", 24 if asked.num_frames is None else asked.num_frames, 1, 240)
    return Workload(
        request_id=request.request_id,
        task="t2va",
        prompt=checks.prompt_text(request.prompt),
        media=(),
        height=height,
        width=width,
        num_frames=num_frames,
        fps=FPS,
        num_inference_steps=num_words,
        num_steps=num_words,
        seed=checks.seed_or_random(asked.seed),
        output_type=checks.one_of("output_type", asked.output_type, ("frames", "latent")),
        settings=_settings(stage, own),
        batch_key=(stage, height, width, num_frames, num_words),
        cost=float(num_words),
        output=request.output,
        timeout_seconds=request.timeout_seconds,
    )


words = partial(_admit, "words")
levels = partial(_admit, "levels")
scene = partial(_admit, "scene")


def _settings(stage: str, own: Mapping[str, Any]) -> dict[str, Any]:
    seconds = checks.number(f"extra_args.{stage}.step_seconds", own.get("step_seconds", 0.0), 0, 60)
    return {"step_seconds": seconds, "fail": checks.whole(f"extra_args.{stage}.fail", own.get("fail", 0), 0, 10_000)}
