"""What the stages of `prompt_rewrite` are asked: the words alone, then the whole request with other words."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from omnireel.request import DiffusionSamplingParams, GenerationRequest, MediaOutput

logger = logging.getLogger(__name__)

OPTIONS = "rewrite"
"""The key of a request's extra_args that holds what is for the rewriter."""


def words_alone(request: GenerationRequest, outputs: Mapping[int, MediaOutput]) -> GenerationRequest:
    """The prompt, the seed, and the options of the rewriter."""
    options = (request.sampling.extra_args or {}).get(OPTIONS)
    sampling = DiffusionSamplingParams(seed=request.sampling.seed, extra_args=options)
    return replace(request, media=(), sampling=sampling)


def rewritten(request: GenerationRequest, outputs: Mapping[int, MediaOutput]) -> GenerationRequest:
    """The request with the new prompt, once it is known; a model that had nothing to say leaves the user's own."""
    extra = {name: value for name, value in (request.sampling.extra_args or {}).items() if name != OPTIONS}
    words = (outputs[0].text or "").strip() if outputs else ""
    if outputs and not words:
        logger.warning("the rewriter gave no words, so the prompt stays as it is")
    return replace(
        request, prompt=words or request.prompt, sampling=replace(request.sampling, extra_args=extra or None)
    )
