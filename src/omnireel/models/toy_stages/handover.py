"""What each stage of `toy_story` is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from omnireel.request import GenerationRequest, MediaOutput

if TYPE_CHECKING:
    import numpy.typing as npt

    from omnireel.models.toy_stages.pipeline import ToyStageState

CHUNK_ROWS = 2


def words_alone(request: GenerationRequest, outputs: Mapping[int, MediaOutput]) -> GenerationRequest:
    """The request as it is."""
    return request


def tensors(request: GenerationRequest, outputs: Mapping[int, MediaOutput]) -> GenerationRequest:
    """The request with the arrays of the stage before, once there are any."""
    found = next((output.latents for output in outputs.values() if output.latents), {})
    return replace(request, tensors=found)


def chunk(state: ToyStageState) -> Mapping[str, npt.NDArray[Any]] | None:
    """Rows that have not been handed on, CHUNK_ROWS or more at a time; after the last step what is left."""
    rows = state.made[state.handed :]
    if not rows or (len(rows) < CHUNK_ROWS and state.steps_done < state.num_steps):
        return None
    state.handed = len(state.made)
    return {state.name: np.stack(rows)}
