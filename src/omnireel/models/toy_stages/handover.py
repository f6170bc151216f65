"""What each stage of `toy_story` is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from omnireel.request import GenerationRequest, MediaOutput


def words_alone(request: GenerationRequest, outputs: Mapping[int, MediaOutput]) -> GenerationRequest:
    """The request as it is."""
    return request


def tensors(request: GenerationRequest, outputs: Mapping[int, MediaOutput]) -> GenerationRequest:
    """The request with the arrays of the stage before, once there are any."""
    found = next((output.latents for output in outputs.values() if output.latents), {})
    return replace(request, tensors=found)
