"""A recipe is made of a finished request, and becomes a request again."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import torch

from omnireel.errors import MediaUnreadable
from omnireel.media.digest import frames_digest, media_digest, wave_digest
from omnireel.request import DiffusionSamplingParams, GenerationRequest, OutputSpec, Recipe

if TYPE_CHECKING:
    from omnireel.request import MediaOutput, Workload

SCHEMA = 1
_OTHER = "use the version that made the clip"


def build_recipe(
    workload: Workload, output: MediaOutput, *, model: str, weights_digest: str, engine: Mapping[str, Any]
) -> Recipe | None:
    """The recipe of a finished clip; None where there are no frames. `model` is a name, never a path."""
    if output.frames is None:
        return None
    sampling: dict[str, Any] = {
        "height": workload.height,
        "width": workload.width,
        "num_frames": workload.num_frames,
        "fps": workload.fps,
        "num_inference_steps": workload.num_inference_steps,
        "seed": workload.seed,
        "task": workload.task,
    }
    known = {item.name for item in fields(DiffusionSamplingParams)}
    extra = {name: value for name, value in workload.settings.items() if name not in known and value is not None}
    sampling |= {name: value for name, value in workload.settings.items() if name in known}
    if extra:
        sampling["extra_args"] = extra
    return Recipe(
        model=model,
        weights_digest=weights_digest,
        prompt=workload.prompt,
        sampling=sampling,
        engine=dict(engine),
        versions=versions(),
        frames_digest=frames_digest(output.frames),
        wave_digest="" if output.wave is None else wave_digest(output.wave),
        media=tuple(
            {"kind": str(item.kind), "role": item.role, "digest": media_digest(item)} for item in workload.media
        ),
        schema=SCHEMA,
    )


def request_from_recipe(recipe: Recipe, output: OutputSpec) -> GenerationRequest:
    """The request that makes the clip again.

    Raises:
        MediaUnreadable: the recipe is of another schema, or holds what this version does not know. Whether the values
            are right is for the model's rules to say.
    """
    if recipe.schema != SCHEMA:
        raise MediaUnreadable("recipe", f"is of schema {recipe.schema!r}, this version reads {SCHEMA}", hint=_OTHER)
    # A file may hold anything under these names.
    if not isinstance(recipe.sampling, Mapping) or not isinstance(recipe.prompt, str):
        raise MediaUnreadable("recipe", "is damaged")
    unknown = recipe.sampling.keys() - {item.name for item in fields(DiffusionSamplingParams)}
    if unknown:
        names = ", ".join(sorted(unknown))
        raise MediaUnreadable("recipe", f"holds unknown settings {names}", hint=_OTHER)
    sampling = DiffusionSamplingParams(**recipe.sampling)
    return GenerationRequest(prompt=recipe.prompt, sampling=sampling, output=output)


def versions() -> dict[str, str]:
    """Versions that can move a result: omnireel, torch, Python."""
    try:
        own = version("omnireel")
    except PackageNotFoundError:
        own = "source"
    return {"omnireel": own, "torch": str(torch.__version__), "python": platform.python_version()}
