"""Triton kernels: each reads its inputs once and writes its output once, and rounds where the plain spelling does.

They are bound by memory, so block sizes are whatever covers a row; registers hold one row (or the heads of one row) a
program. Offsets of rows are 64-bit: a packed projection of a long clip has more than 2^31 values.
Run on one NVIDIA H200, where each agreed with the plain spelling, and in Triton's interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

    from omnireel.layers.kernels.contract import Kernels
    from omnireel.layers.modulation import TableRows
    from omnireel.layers.norm import RMSNorm
    from omnireel.layers.rotary import RotaryTable

_SWIGLU_BLOCK = 2048
_GATHER_BLOCK = 1024


@triton.jit
def _norm_modulate(
    x_ptr, y_ptr, gate_ptr, out_ptr, weight_ptr, scale_ptr, shift_ptr, index_ptr,
    num_rows, gate_stride, scale_stride, shift_stride, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, HAS_GATE: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """One row a program: x += y * gate where HAS_GATE, then out = norm(x) * scale + shift where HAS_NORM."""
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    table_row = tl.load(index_ptr + program % num_rows).to(tl.int64)
    place = program * WIDTH + column
    x = tl.load(x_ptr + place, mask=inside, other=0.0)
    kind = x.dtype
    if HAS_GATE:
        y = tl.load(y_ptr + place, mask=inside, other=0.0)
        gate = tl.load(gate_ptr + table_row * gate_stride + column, mask=inside, other=0.0)
        gated = (y.to(tl.float32) * gate.to(tl.float32)).to(kind)
        x = (x.to(tl.float32) + gated.to(tl.float32)).to(kind)
        tl.store(x_ptr + place, x, mask=inside)
    if HAS_NORM:
        wide = x.to(tl.float32)
        inverse = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / WIDTH + eps)
        weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scale_ptr + table_row * scale_stride + column, mask=inside, other=0.0).to(tl.float32)
        shift = tl.load(shift_ptr + table_row * shift_stride + column, mask=inside, other=0.0).to(tl.float32)
        normed = (wide * inverse * weight).to(kind).to(tl.float32)
        scaled = (normed * scale).to(kind).to(tl.float32)
        tl.store(out_ptr + place, (scaled + shift).to(kind), mask=inside)


@triton.jit
def _norm_rotate(
    x_ptr, weight_ptr, cos_ptr, sin_ptr, num_rows, batch_stride, row_stride, eps,
    HEADS: tl.constexpr, HEAD_BLOCK: tl.constexpr, DIM: tl.constexpr, DIM_BLOCK: tl.constexpr,
    PAIRS: tl.constexpr,
):  # fmt: skip
    """One row a program: all its heads are normed and their first 2 * PAIRS channels turned, in place."""
    program = tl.program_id(0).to(tl.int64)
    row = program % num_rows
    base = x_ptr + (program // num_rows) * batch_stride + row * row_stride
    head = tl.arange(0, HEAD_BLOCK)[:, None]
    column = tl.arange(0, DIM_BLOCK)[None, :]
    inside = (head < HEADS) & (column < DIM)
    x = tl.load(base + head * DIM + column, mask=inside, other=0.0)
    kind = x.dtype
    wide = x.to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=1) / DIM + eps)[:, None]
    weight = tl.load(weight_ptr + column, mask=column < DIM, other=0.0).to(tl.float32)
    out = (wide * inverse * weight).to(kind)
    if PAIRS > 0:
        is_first = column < PAIRS
        is_turned = column < 2 * PAIRS
        partner = tl.where(is_first, column + PAIRS, tl.where(is_turned, column - PAIRS, column))
        other = tl.load(base + head * DIM + partner, mask=inside, other=0.0).to(tl.float32)
        other_weight = tl.load(weight_ptr + partner, mask=column < DIM, other=0.0).to(tl.float32)
        angle = row * PAIRS + tl.where(is_first, column, column - PAIRS)
        cos = tl.load(cos_ptr + angle, mask=is_turned, other=1.0).to(tl.float32)
        sin = tl.load(sin_ptr + angle, mask=is_turned, other=0.0).to(tl.float32)
        beside = ((other * inverse * other_weight).to(kind).to(tl.float32) * sin).to(kind).to(tl.float32)
        along = (out.to(tl.float32) * cos).to(kind).to(tl.float32)
        turned = (along + tl.where(is_first, -beside, beside)).to(kind)
        out = tl.where(is_turned, turned, out)
        # Every thread must have read its channels and their partners before one of them is written over.
        tl.debug_barrier()
    tl.store(base + head * DIM + column, out, mask=inside)


@triton.jit
def _scale_add_norm(x_ptr, y_ptr, scale_ptr, weight_ptr, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """One row a program: x += y * scale, then norm(x) where y was."""
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    place = tl.program_id(0).to(tl.int64) * WIDTH + column
    x = tl.load(x_ptr + place, mask=inside, other=0.0)
    y = tl.load(y_ptr + place, mask=inside, other=0.0)
    scale = tl.load(scale_ptr + column, mask=inside, other=0.0).to(tl.float32)
    x = (x.to(tl.float32) + (y.to(tl.float32) * scale).to(x.dtype).to(tl.float32)).to(x.dtype)
    tl.store(x_ptr + place, x, mask=inside)
    wide = x.to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / WIDTH + eps)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + place, (wide * inverse * weight).to(y.dtype), mask=inside)


@triton.jit
def _swiglu(fused_ptr, out_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """A block of one row: value * SiLU(gate), the gate's activation rounded as a tensor of its own would be."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    value = tl.load(fused_ptr + row * (2 * WIDTH) + column, mask=inside, other=0.0)
    gate = tl.load(fused_ptr + row * (2 * WIDTH) + WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    active = (gate / (1.0 + tl.exp(-gate))).to(value.dtype).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + column, (value.to(tl.float32) * active).to(value.dtype), mask=inside)


@triton.jit
def _patches(
    latents_ptr, rows_ptr, count, frames, height, width, CHANNELS: tl.constexpr,
    PT: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, TO_ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of values of patch rows, each with its place among the latents [C,T,H,W]."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    pw, rest = place % PW, place // PW
    ph, rest = rest % PH, rest // PH
    pt, rest = rest % PT, rest // PT
    channel, rest = rest % CHANNELS, rest // CHANNELS
    column, rest = rest % (width // PW), rest // (width // PW)
    line, frame = rest % (height // PH), rest // (height // PH)
    source = ((channel * frames + frame * PT + pt) * height + line * PH + ph) * width + column * PW + pw
    if TO_ROWS:
        tl.store(rows_ptr + place, tl.load(latents_ptr + source, mask=inside), mask=inside)
    else:
        tl.store(latents_ptr + source, tl.load(rows_ptr + place, mask=inside), mask=inside)


def _warps(values: int) -> int:
    """Threads so that each holds some 16 to 32 values."""
    return max(1, min(16, triton.next_power_of_2(values) // 1024))


@dataclass(frozen=True, slots=True)
class Fused:
    """See `Kernels`. Streams and projections must be dense in their last dim, and the stream dense altogether."""

    name: str = "fused"

    def norm_modulate(
        self, x_BSH: Tensor, norm: RMSNorm, scale_RH: Tensor, shift_RH: Tensor, rows: TableRows
    ) -> Tensor:
        """See `Kernels`."""
        out_BSH = torch.empty_like(x_BSH)
        _over_rows(x_BSH, None, None, norm, scale_RH, shift_RH, rows, out_BSH)
        return out_BSH

    def gate_add_(self, x_BSH: Tensor, y_BSH: Tensor, gate_RH: Tensor, rows: TableRows) -> None:
        """See `Kernels`."""
        _over_rows(x_BSH, y_BSH, gate_RH, None, None, None, rows, None)

    def gate_add_norm_modulate_(
        self,
        x_BSH: Tensor,
        y_BSH: Tensor,
        gate_RH: Tensor,
        norm: RMSNorm,
        scale_RH: Tensor,
        shift_RH: Tensor,
        rows: TableRows,
    ) -> Tensor:
        """See `Kernels`. The result takes the place of `y_BSH`: a program has read its row before it writes it."""
        y_BSH = y_BSH.contiguous()
        _over_rows(x_BSH, y_BSH, gate_RH, norm, scale_RH, shift_RH, rows, y_BSH)
        return y_BSH

    def norm_rotate(self, x_BSAD: Tensor, norm: RMSNorm, table: RotaryTable | None) -> Tensor:
        """See `Kernels`."""
        batch, num_rows, heads, dim = x_BSAD.shape
        if x_BSAD.stride(3) != 1 or x_BSAD.stride(2) != dim:
            raise ValueError(f"the heads of a row must lie side by side, got strides {x_BSAD.stride()}")
        pairs = 0 if table is None else table.cos.shape[-1]
        cos, sin = (x_BSAD, x_BSAD) if table is None else (table.cos.contiguous(), table.sin.contiguous())
        head_block, dim_block = triton.next_power_of_2(heads), triton.next_power_of_2(dim)
        _norm_rotate[(batch * num_rows,)](
            x_BSAD, norm.weight, cos, sin, num_rows, x_BSAD.stride(0), x_BSAD.stride(1), norm.eps,
            HEADS=heads, HEAD_BLOCK=head_block, DIM=dim, DIM_BLOCK=dim_block, PAIRS=pairs,
            num_warps=_warps(head_block * dim_block),
        )  # fmt: skip
        return x_BSAD

    def scale_add_norm_(self, x_BSH: Tensor, y_BSH: Tensor, scale_H: Tensor, weight_H: Tensor, eps: float) -> Tensor:
        """See `Kernels`."""
        if not x_BSH.is_contiguous():
            raise ValueError(f"the stream must be dense, got strides {x_BSH.stride()}")
        y_BSH = y_BSH.contiguous()
        width = x_BSH.shape[-1]
        block = triton.next_power_of_2(width)
        if x_BSH.numel():
            _scale_add_norm[(x_BSH.shape[:-1].numel(),)](
                x_BSH, y_BSH, scale_H, weight_H, eps, WIDTH=width, BLOCK=block, num_warps=max(4, _warps(block))
            )
        return y_BSH

    def swiglu(self, fused: Tensor) -> Tensor:
        """See `Kernels`."""
        fused = fused.contiguous()
        width = fused.shape[-1] // 2
        out = fused.new_empty(*fused.shape[:-1], width)
        grid = (prod(fused.shape[:-1]), triton.cdiv(width, _SWIGLU_BLOCK))
        if grid[0]:
            _swiglu[grid](fused, out, WIDTH=width, BLOCK=_SWIGLU_BLOCK, num_warps=4)
        return out

    def patchify(self, latents_CTHW: Tensor, patch_size: tuple[int, int, int]) -> Tensor:
        """Latents to rows [N, C*pt*ph*pw], frame by frame, line by line; in a row the channel is slowest."""
        channels = latents_CTHW.shape[0]
        width = channels * prod(patch_size)
        rows = latents_CTHW.new_empty(latents_CTHW.numel() // width, width)
        _patch(latents_CTHW.contiguous(), rows, patch_size, to_rows=True)
        return rows

    def unpatchify(self, rows: Tensor, shape: tuple[int, int, int, int], patch_size: tuple[int, int, int]) -> Tensor:
        """The inverse of `patchify`; `shape` is that of the latents [C,T,H,W]."""
        latents = rows.new_empty(shape)
        _patch(latents, rows.contiguous(), patch_size, to_rows=False)
        return latents


def _over_rows(
    x_BSH: Tensor, y_BSH: Tensor | None, gate_RH: Tensor | None, norm: RMSNorm | None, scale_RH: Tensor | None,
    shift_RH: Tensor | None, rows: TableRows, out_BSH: Tensor | None,
) -> None:  # fmt: skip
    if not x_BSH.is_contiguous():
        raise ValueError(f"the stream must be dense, got strides {x_BSH.stride()}")
    batch, num_rows, width = x_BSH.shape
    block = triton.next_power_of_2(width)
    if not batch * num_rows:
        return
    # A pointer that is not read may be any tensor.
    y, gate, out, scale, shift = (
        x_BSH if one is None else one for one in (y_BSH, gate_RH, out_BSH, scale_RH, shift_RH)
    )
    _norm_modulate[(batch * num_rows,)](
        x_BSH, y.contiguous(), gate, out, x_BSH if norm is None else norm.weight, scale, shift, rows.index,
        num_rows, gate.stride(0), scale.stride(0), shift.stride(0), 0.0 if norm is None else norm.eps,
        WIDTH=width, BLOCK=block, HAS_GATE=gate_RH is not None, HAS_NORM=norm is not None,
        num_warps=_warps(block),
    )  # fmt: skip


def _patch(latents_CTHW: Tensor, rows: Tensor, patch_size: tuple[int, int, int], *, to_rows: bool) -> None:
    channels, frames, height, width = latents_CTHW.shape
    pt, ph, pw = patch_size
    _patches[(triton.cdiv(latents_CTHW.numel(), _GATHER_BLOCK),)](
        latents_CTHW, rows, latents_CTHW.numel(), frames, height, width,
        CHANNELS=channels, PT=pt, PH=ph, PW=pw, TO_ROWS=to_rows, BLOCK=_GATHER_BLOCK,
    )  # fmt: skip


FUSED: Kernels = Fused()
