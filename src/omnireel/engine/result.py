"""What a caller gets back, and how it becomes a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from omnireel.errors import InvalidRequest
from omnireel.media.encode import write_clip

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from omnireel.observe.profile import PartProfile
    from omnireel.request import Encoded, FramesU8, MediaOutput, Recipe, WaveF32, Workload


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerationResult:
    """A finished request; equal to itself only, for arrays have no single answer.

    stage_durations: seconds by stage (queue, encode, prepare, denoise, decode, mux); a stage that did not run is absent.
    peak_memory_mb: most memory during the request in MiB, of the device, or of the process on a CPU.
    profile: seconds, calls and peak memory of each part of the run, when `enable_diffusion_pipeline_profiler` is on.
    outputs: what else left a pipeline of several stages, by the name of the stage.
    encoded: the file, when the request named one. recipe: what makes the clip again, for output_type "frames".
    """

    workload: Workload
    output: MediaOutput
    recipe: Recipe | None
    stage_durations: Mapping[str, float]
    peak_memory_mb: float
    encoded: Encoded | None = None
    profile: Mapping[str, PartProfile] = field(default_factory=dict)
    outputs: Mapping[str, MediaOutput] = field(default_factory=dict)

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.workload.request_id

    @property
    def seed(self) -> int:
        """The seed that was used, drawn or given."""
        return self.workload.seed

    @property
    def frames(self) -> FramesU8 | None:
        """uint8 [T,H,W,3] RGB; None for output_type "latent"."""
        return self.output.frames

    @property
    def audio(self) -> WaveF32 | None:
        """float32 [C,N] in [-1,1]; None without sound."""
        return self.output.wave

    @property
    def sampling_rate(self) -> int | None:
        """Samples a second of `audio`."""
        return self.output.sample_rate_hz

    @property
    def latents(self) -> Mapping[str, npt.NDArray[np.float32]] | None:
        """Named arrays for output_type "latent"."""
        return self.output.latents

    def save(self, path: str | Path, *, recipe: bool = True) -> Encoded:
        """Writes the clip as MP4; the file appears whole or not at all.

        Raises:
            InvalidRequest: the path cannot be written, or there are no frames to write.
        """
        if self.output.frames is None:
            raise InvalidRequest("output_type", self.workload.output_type, "only frames can be written to a file")
        return write_clip(self.output, Path(path), recipe=self.recipe if recipe else None)
