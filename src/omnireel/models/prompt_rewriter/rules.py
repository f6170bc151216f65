"""What may be asked of the rewriter, and which files of a repository it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omnireel.errors import InvalidRequest
from omnireel.models import checks
from omnireel.models.protocol import Checkpoint
from omnireel.request import GenerationRequest, MediaFacts, Workload

INSTRUCTION = (
    "Rewrite what the user asks for as one paragraph that describes a short clip: who or what is seen, what happens, the "
    "place, the light, the camera, and what is heard. Keep every fact. Answer with the paragraph alone."
)
MAX_NEW_TOKENS = 256
OPTIONS = ("max_new_tokens", "temperature", "instruction")


def admit(request: GenerationRequest, checkpoint: Checkpoint, media: Sequence[MediaFacts] = ()) -> Workload:
    """See `Admit`. extra_args: `max_new_tokens`, `temperature` (0: the likeliest word each time), and `instruction`, what the
    model is told to do with the prompt.
    """
    if request.media:
        raise InvalidRequest("media", len(request.media), "the rewriter reads words alone")
    given = {} if request.sampling.extra_args is None else request.sampling.extra_args
    asked = checks.no_unknown("extra_args.rewrite", given, OPTIONS)
    tokens = checks.whole("extra_args.rewrite.max_new_tokens", asked.get("max_new_tokens", MAX_NEW_TOKENS), 1, 8192)
    temperature = checks.number("extra_args.rewrite.temperature", asked.get("temperature", 0.0), 0, 10)
    return Workload(
        request_id=request.request_id,
        task="rewrite",
        prompt=checks.prompt_text(request.prompt),
        media=(),
        height=0,
        width=0,
        num_frames=0,
        fps=1.0,
        num_inference_steps=tokens,
        num_steps=tokens,
        seed=checks.seed_or_random(request.sampling.seed),
        output_type="text",
        settings={"temperature": temperature, "instruction": _instruction(asked)},
        batch_key=("rewrite",),
        cost=float(tokens),
        output=request.output,
        timeout_seconds=request.timeout_seconds,
    )


def download_patterns(task_type: str, index: Mapping[str, Any]) -> tuple[str, ...]:
    """Weights, configs and tokenizer."""
    return ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")


def _instruction(asked: Mapping[str, Any]) -> str:
    said = asked.get("instruction", INSTRUCTION)
    if not isinstance(said, str):
        raise InvalidRequest("extra_args.rewrite.instruction", said, "it must be a text")
    return said
