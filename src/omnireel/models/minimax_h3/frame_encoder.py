"""The video VAE's encoder with channels innermost from the first convolution to the last, and one pass over memory before each:
the norm, SiLU, margins and zeros of the past are written where the convolution reads them.

Letters: B batch, C channels, T frames, H height, W width, K frames that a convolution sees.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from omnireel.layers.kernels.frames import FrameKernels, ScaleShift, Window
from omnireel.models.minimax_h3.video_autoencoder import CausalConv3d, DownBlock, Downsample, Encoder, ResnetBlock

ALIGNED_CHANNELS = 8
"""Matrix units take this many channels at once; pixels have three, and are filled up with zeros."""


class FrameEncoder:
    """Computes what `Encoder` does, in one type. Values differ by where half precision rounds: here a norm and SiLU round once.

    Args:
        encoder: whose weights are taken, copied.
        dtype: of weights and values.
        kernels: the passes between convolutions.
        is_flat: convolutions over single frames that hold the earlier ones as channels, in place of ones over time.

    Raises:
        ValueError: the encoder does not mirror its edges.
    """

    def __init__(self, encoder: Encoder, *, dtype: torch.dtype, kernels: FrameKernels, is_flat: bool) -> None:
        convolutions = [module for module in encoder.modules() if isinstance(module, CausalConv3d)]
        if any(conv.mode != "reflect" for conv in convolutions):
            raise ValueError("edges that are not mirrored")
        self._encoder, self._kernels, self._dtype = encoder, kernels, dtype
        make = _Flat if is_flat else _Deep
        self._convolutions: dict[CausalConv3d, Callable[[Tensor, ScaleShift | None], Tensor]] = {
            conv: make(conv, dtype, kernels) if conv.kernel_size[0] > 1 else _pointwise(conv, dtype)
            for conv in convolutions
        }

    @property
    def dtype(self) -> torch.dtype:
        """What it takes and gives."""
        return self._dtype

    def __call__(self, x_BCTHW: Tensor) -> Tensor:
        """[B,3,T,H,W] to [B,2C,Tl,Hl,Wl]."""
        encoder = self._encoder
        missing = -x_BCTHW.shape[1] % ALIGNED_CHANNELS
        x = F.pad(x_BCTHW.permute(0, 2, 3, 4, 1), (0, missing)).contiguous()
        x = self._convolutions[encoder.conv_in](x, None)
        added: Tensor | None = None
        for level in encoder.down_blocks:
            assert isinstance(level, DownBlock)
            for resnet in level.resnets:
                assert isinstance(resnet, ResnetBlock)
                x, added = self._resnet(resnet, x, added)
            for step in level.downsamplers or ():
                x = x if added is None else x.add_(added)
                added = None
                assert isinstance(step, Downsample)
                x = self._convolutions[step.conv](x, None)
        norm = self._kernels.group_norm(x, encoder.norm_out, added)
        out: Tensor = self._convolutions[encoder.conv_out](x, norm).permute(0, 4, 1, 2, 3)
        return out

    def _resnet(self, resnet: ResnetBlock, x: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
        """A block without its last sum, which is left to the pass that reads it: x, and what is still to be added."""
        h = self._convolutions[resnet.conv1](x, self._kernels.group_norm(x, resnet.norm1, added))
        h = self._convolutions[resnet.conv2](h, self._kernels.group_norm(h, resnet.norm2))
        return h, x if resnet.conv_shortcut is None else self._convolutions[resnet.conv_shortcut](x, None)


class _Deep:
    """A convolution over time and space."""

    def __init__(self, conv: CausalConv3d, dtype: torch.dtype, kernels: FrameKernels) -> None:
        past = conv.kernel_size[0] - 1
        self._kernels, self._stride = kernels, conv.stride
        self._window = Window(taps=1, past=past, stride=1, margins=conv.margins)
        weight = _aligned(conv.weight).to(dtype)
        self._weight, self._bias = weight.to(memory_format=torch.channels_last_3d), _bias(conv, dtype)

    def __call__(self, x_BTHWC: Tensor, norm: ScaleShift | None) -> Tensor:
        """[B,T,H,W,C] to the same of the next."""
        padded = self._kernels.windows(x_BTHWC, self._window, norm).permute(0, 4, 1, 2, 3)
        out = F.conv3d(padded, self._weight, self._bias, stride=self._stride)
        return out.permute(0, 2, 3, 4, 1).contiguous()


class _Flat:
    """The same as a convolution over space."""

    def __init__(self, conv: CausalConv3d, dtype: torch.dtype, kernels: FrameKernels) -> None:
        taps = conv.kernel_size[0]
        time, *self._stride = conv.stride
        self._kernels = kernels
        self._window = Window(taps=taps, past=taps - 1, stride=time, margins=conv.margins)
        weight = _aligned(conv.weight).to(dtype).transpose(1, 2).flatten(1, 2)
        self._weight, self._bias = weight.contiguous(memory_format=torch.channels_last), _bias(conv, dtype)

    def __call__(self, x_BTHWC: Tensor, norm: ScaleShift | None) -> Tensor:
        """[B,T,H,W,C] to the same of the next."""
        beside = self._kernels.windows(x_BTHWC, self._window, norm)
        frames = beside.flatten(0, 1).permute(0, 3, 1, 2)
        out = F.conv2d(frames, self._weight, self._bias, stride=self._stride)
        out = out.permute(0, 2, 3, 1).contiguous()
        return out.view(*beside.shape[:2], *out.shape[1:])


def _pointwise(conv: CausalConv3d, dtype: torch.dtype) -> Callable[[Tensor, ScaleShift | None], Tensor]:
    """A convolution of one place: a matrix product."""
    weight, bias = conv.weight.flatten(1).to(dtype), _bias(conv, dtype)
    return lambda x_BTHWC, norm: F.linear(x_BTHWC, weight, bias)


def _aligned(weight: Tensor) -> Tensor:
    """With zeros for input channels that fill up, [O,C,K,k,k]."""
    return F.pad(weight, (0, 0, 0, 0, 0, 0, 0, -weight.shape[1] % ALIGNED_CHANNELS))


def _bias(conv: CausalConv3d, dtype: torch.dtype) -> Tensor | None:
    return None if conv.bias is None else conv.bias.to(dtype)
