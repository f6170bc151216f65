"""What lies between the convolutions of a video encoder, over frames whose channels are innermost.

Letters: B batch, T frames, H height, W width, C channels, K taps, F all frames of a batch. A convolution over 3 frames is one
over single frames that hold what it looks back at beside them: K * C channels, the earliest frame first.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

ScaleShift: TypeAlias = tuple[Tensor, Tensor]
"""float32 [F,C] each: a group norm as one product and one sum a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What a convolution reads of frames: frame k of the result holds, for tap j, frame k * stride + j - past, zeros before the
    first one; and one more place (mirrored) at the edges that have a margin, before and behind.
    """

    taps: int
    past: int
    stride: int
    margins: tuple[int, int]

    def num_frames(self, frames: int) -> int:
        """Frames of the result."""
        return (frames + self.past - self.taps) // self.stride + 1


class FrameKernels(Protocol):
    """One spelling."""

    def group_norm(self, x_BTHWC: Tensor, norm: torch.nn.GroupNorm, add: Tensor | None = None) -> ScaleShift:
        """The norm of each frame by itself, after `x += add`."""
        ...

    def windows(self, x_BTHWC: Tensor, window: Window, norm: ScaleShift | None = None) -> Tensor:
        """[B,T',H',W',K*C], with SiLU after the norm when there is one; edges that are mirrored have two places at least."""
        ...


@dataclass(frozen=True, slots=True)
class PlainFrames:
    """See `FrameKernels`."""

    def group_norm(self, x_BTHWC: Tensor, norm: torch.nn.GroupNorm, add: Tensor | None = None) -> ScaleShift:
        """See `FrameKernels`."""
        if add is not None:
            x_BTHWC.add_(add)
        frames, pixels = x_BTHWC.shape[:2].numel(), x_BTHWC.shape[2:4].numel()
        grouped = x_BTHWC.reshape(frames, pixels, norm.num_groups, -1).float()
        variance_FG, mean_FG = torch.var_mean(grouped, dim=(1, 3), correction=0)
        return scale_shift(mean_FG, variance_FG, norm)

    def windows(self, x_BTHWC: Tensor, window: Window, norm: ScaleShift | None = None) -> Tensor:
        """See `FrameKernels`."""
        batch, frames, height, width, channels = x_BTHWC.shape
        if norm is not None:
            scale, shift = (part.view(batch, frames, 1, 1, channels) for part in norm)
            x_BTHWC = F.silu(x_BTHWC.float() * scale + shift).to(x_BTHWC.dtype)
        rows, columns = (mirrored(size, window.margins, x_BTHWC.device) for size in (height, width))
        wide = x_BTHWC.index_select(2, rows).index_select(3, columns)
        early = wide.new_zeros(batch, window.past, *wide.shape[2:])
        line = torch.cat([early, wide], dim=1)
        count = window.num_frames(frames)
        taps = [line[:, tap : tap + (count - 1) * window.stride + 1 : window.stride] for tap in range(window.taps)]
        return torch.cat(taps, dim=-1)


def scale_shift(mean_FG: Tensor, variance_FG: Tensor, norm: torch.nn.GroupNorm) -> ScaleShift:
    """A norm's statistics and weights as what a value is multiplied with and what is added."""
    each = norm.num_channels // norm.num_groups
    inverse, mean = ((variance_FG + norm.eps).rsqrt(), mean_FG)
    scale = inverse.repeat_interleave(each, dim=1) * norm.weight.float()
    return scale, norm.bias.float() - mean.repeat_interleave(each, dim=1) * scale


def mirrored(size: int, margins: tuple[int, int], device: torch.device) -> Tensor:
    """Places along an edge with its margins."""
    before, after = margins
    places = [1] * before + list(range(size)) + [size - 2] * after
    return torch.tensor(places, device=device)


def frame_kernels(device: torch.device) -> FrameKernels:
    """Triton's where they run, else the plain ones."""
    if device.type == "cpu":
        return PlainFrames()
    made: FrameKernels = importlib.import_module("omnireel.layers.kernels.fused_frames").FusedFrames()
    return made
