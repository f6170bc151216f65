"""Triton kernels between the convolutions of a video encoder: statistics of a norm in one pass, and the norm, SiLU, margins and
earlier frames of the next convolution's input in another. Run in Triton's interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from omnireel.layers.kernels.frames import ScaleShift, Window, scale_shift

if TYPE_CHECKING:
    from torch import Tensor, nn

_TILE = 8192
_TURNS = 8


@triton.jit
def _moments(
    x_ptr, y_ptr, mean_ptr, spread_ptr, pixels, chunks,
    CHANNELS: tl.constexpr, CHANNEL_BLOCK: tl.constexpr, PIXEL_BLOCK: tl.constexpr, TURNS: tl.constexpr, HAS_ADD: tl.constexpr,
):  # fmt: skip
    """A chunk of one frame's pixels a program: x += y where HAS_ADD; each channel's mean, and sum of squares around it."""
    program = tl.program_id(0).to(tl.int64)
    frame, chunk = program // chunks, program % chunks
    channel = tl.arange(0, CHANNEL_BLOCK)[None, :]
    is_channel = channel < CHANNELS
    first = chunk * PIXEL_BLOCK * TURNS
    base = frame * pixels * CHANNELS
    # Around a value of the frame itself sums of squares keep their digits.
    pivot = tl.load(x_ptr + base + first * CHANNELS + channel, mask=is_channel, other=0.0).to(tl.float32)
    total = tl.zeros([1, CHANNEL_BLOCK], tl.float32)
    squares = tl.zeros([1, CHANNEL_BLOCK], tl.float32)
    for turn in range(TURNS):
        pixel = first + turn * PIXEL_BLOCK + tl.arange(0, PIXEL_BLOCK)[:, None]
        inside = (pixel < pixels) & is_channel
        place = base + pixel * CHANNELS + channel
        x = tl.load(x_ptr + place, mask=inside, other=0.0)
        if HAS_ADD:
            y = tl.load(y_ptr + place, mask=inside, other=0.0)
            x = (x.to(tl.float32) + y.to(tl.float32)).to(x.dtype)
            tl.store(x_ptr + place, x, mask=inside)
        around = tl.where(inside, x.to(tl.float32) - pivot, 0.0)
        total += tl.sum(around, axis=0)[None, :]
        squares += tl.sum(around * around, axis=0)[None, :]
    count = tl.minimum(pixels - first, PIXEL_BLOCK * TURNS).to(tl.float32)
    mean = total / count
    out = program * CHANNELS + channel
    tl.store(mean_ptr + out, pivot + mean, mask=is_channel)
    tl.store(spread_ptr + out, squares - total * mean, mask=is_channel)


@triton.jit
def _windows(
    x_ptr, scale_ptr, shift_ptr, out_ptr, frames, height, width, out_frames, out_height, out_width, before, stride,
    CHANNELS: tl.constexpr, CHANNEL_BLOCK: tl.constexpr, PIXEL_BLOCK: tl.constexpr, TAPS: tl.constexpr, PAST: tl.constexpr,
    HAS_NORM: tl.constexpr,
):  # fmt: skip
    """Pixels of one row, margins included, of one frame a program: read and normed once, written for each tap that sees them."""
    program = tl.program_id(0).to(tl.int64)
    row, at = program % out_height, program // out_height
    frame, sample = at % frames, at // frames
    column = tl.program_id(1) * PIXEL_BLOCK + tl.arange(0, PIXEL_BLOCK)[:, None]
    channel = tl.arange(0, CHANNEL_BLOCK)[None, :]
    is_channel = channel < CHANNELS
    inside = (column < out_width) & is_channel
    y = tl.abs(row - before)
    y = tl.where(y >= height, 2 * height - 2 - y, y)
    x = tl.abs(column - before)
    x = tl.where(x >= width, 2 * width - 2 - x, x)
    value = tl.load(x_ptr + ((at * height + y) * width + x) * CHANNELS + channel, mask=inside, other=0.0)
    if HAS_NORM:
        scale = tl.load(scale_ptr + at * CHANNELS + channel, mask=is_channel, other=0.0)
        shift = tl.load(shift_ptr + at * CHANNELS + channel, mask=is_channel, other=0.0)
        wide = value.to(tl.float32) * scale + shift
        value = (wide / (1.0 + tl.exp(-wide))).to(value.dtype)
    frame_size = out_height * out_width * (TAPS * CHANNELS)
    base = out_ptr + sample * out_frames * frame_size + (row * out_width + column) * (TAPS * CHANNELS) + channel
    for tap in tl.static_range(TAPS):
        seen = frame + PAST - tap
        target = seen // stride
        is_seen = (seen % stride == 0) & (target < out_frames)
        tl.store(base + target * frame_size + tap * CHANNELS, value, mask=inside & is_seen)
        # What lies before the first frame is written by that one.
        for target in tl.static_range(PAST):
            is_before = (frame == 0) & (target * stride + tap < PAST) & (target < out_frames)
            nothing = tl.zeros([PIXEL_BLOCK, CHANNEL_BLOCK], value.dtype)
            tl.store(base + target * frame_size + tap * CHANNELS, nothing, mask=inside & is_before)


@dataclass(frozen=True, slots=True)
class FusedFrames:
    """See `FrameKernels`. Frames must be dense."""

    def group_norm(self, x_BTHWC: Tensor, norm: nn.GroupNorm, add: Tensor | None = None) -> ScaleShift:
        """See `FrameKernels`."""
        frames, pixels, channels = (
            x_BTHWC.shape[:2].numel(), x_BTHWC.shape[2:4].numel(), x_BTHWC.shape[4]
        )  # fmt: skip
        block = triton.next_power_of_2(channels)
        pixel_block = max(1, _TILE // block)
        size = pixel_block * _TURNS
        chunks = triton.cdiv(pixels, size)
        mean, spread = x_BTHWC.new_empty(2, frames, chunks, channels, dtype=torch.float32).unbind()
        _moments[(frames * chunks,)](
            _dense(x_BTHWC), x_BTHWC if add is None else _dense(add), mean, spread, pixels, chunks,
            CHANNELS=channels, CHANNEL_BLOCK=block, PIXEL_BLOCK=pixel_block, TURNS=_TURNS, HAS_ADD=add is not None,
            num_warps=8,
        )  # fmt: skip
        last = pixels - (chunks - 1) * size
        count = torch.full((chunks, 1, 1), float(size), device=x_BTHWC.device)
        count[-1] = float(last)
        grouped = mean.view(frames, chunks, norm.num_groups, -1)
        whole = pixels * grouped.shape[-1]
        mean_FG = (grouped * count).sum((1, 3)) / whole
        between = ((grouped - mean_FG[:, None, :, None]).square() * count).sum((1, 3))
        within = spread.view_as(grouped).sum((1, 3))
        return scale_shift(mean_FG, (within + between) / whole, norm)

    def windows(self, x_BTHWC: Tensor, window: Window, norm: ScaleShift | None = None) -> Tensor:
        """See `FrameKernels`."""
        batch, frames, height, width, channels = x_BTHWC.shape
        before, after = window.margins
        shape = batch, window.num_frames(frames), height + before + after, width + before + after
        out = x_BTHWC.new_empty(*shape, window.taps * channels)
        scale, shift = (x_BTHWC, x_BTHWC) if norm is None else norm
        block = triton.next_power_of_2(channels)
        pixel_block = max(1, _TILE // 2 // block)
        grid = (batch * frames * shape[2], triton.cdiv(shape[3], pixel_block))
        _windows[grid](
            _dense(x_BTHWC), scale, shift, out, frames, height, width, *shape[1:], before, window.stride,
            CHANNELS=channels, CHANNEL_BLOCK=block, PIXEL_BLOCK=pixel_block, TAPS=window.taps, PAST=window.past,
            HAS_NORM=norm is not None, num_warps=4,
        )  # fmt: skip
        return out


def _dense(x: Tensor) -> Tensor:
    if not x.is_contiguous():
        raise ValueError(f"frames must be dense with their channels innermost, got strides {x.stride()}")
    return x
