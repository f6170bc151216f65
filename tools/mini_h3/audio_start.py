"""Starts mini-h3's audio VAE from a linear transform that already works, so that training has only to refine it.

Where a clip's tone is whole periods to a latent, 25 ms of sound lie near a space of few dimensions. The principal axes of
such pieces are written into the convolutions: strided ones take the wave apart into phases, a cosine transform and the axes
make latents of it, and the decoder does the same backwards. Branches that a straight path does not need start small.
Letters: N samples, C channels, K kernel.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from tools.mini_h3.architecture import AUDIO_VAE
from torch import Tensor, nn

BRANCH_SCALE = 0.02
"""Of what a residual branch adds at first."""
NOISE = 1e-3
"""Of weights that would be zero: weight normalisation has no direction for those."""
STEADY = 30.0
"""What two spare channels hold before the layer norm of the projection, so that loudness survives it."""


def start(model: Any, pieces: Tensor) -> None:
    """Writes the transform into `model`, an `AutoencoderKLMiniMaxH3Audio` with the sizes of mini-h3.

    pieces: float32 [pieces,800] of sound, each where a latent begins.
    """
    width, latents = AUDIO_VAE["latent_dim"], 32
    axes, spread = principal_axes(pieces, width - 2)
    with torch.no_grad():
        for module in model.modules():
            _quiet(module)
        _start_encoder(model, axes, spread)
        _start_decoder(model, axes[:latents], spread[:latents])


def principal_axes(pieces: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Rows of unit length [count,800] and how much pieces spread along each [count]; no mean is taken off."""
    moments = pieces.T @ pieces / len(pieces)
    values, vectors = torch.linalg.eigh(moments.double())
    return vectors.flip(1)[:, :count].T.float(), values.flip(0)[:count].clamp_min(1e-8).sqrt().float()


def cosine_blocks(count: int, size: int) -> Tensor:
    """The `count` lowest rows of the orthonormal cosine transform of `size` samples, [count,size]."""
    places = (torch.arange(size, dtype=torch.float64) + 0.5) * math.pi / size
    rows = torch.cos(torch.arange(count, dtype=torch.float64)[:, None] * places) * math.sqrt(2 / size)
    rows[0] /= math.sqrt(2)
    return rows.float()


def _quiet(module: Any) -> None:
    kind = type(module).__name__
    if kind == "MiniMaxH3AudioResidualUnit":
        module.block[3].weight_g.mul_(BRANCH_SCALE)
    elif kind == "MiniMaxH3AudioAMPBlock":
        for conv in module.convs2:
            conv.weight_g.mul_(BRANCH_SCALE)
    elif kind == "MiniMaxH3AudioSnake1d":
        module.alpha.fill_(0.02)
    if isinstance(module, (nn.Conv1d, nn.Linear)) and module.bias is not None:
        module.bias.zero_()


def _start_encoder(model: Any, axes: Tensor, spread: Tensor) -> None:
    """Phases of the wave, 32 of them at 1,000 Hz; 64 cosines of 160 samples; 128 axes of 25 ms; the model's width of these."""
    first, *downs, _, last = model.encoder.block
    channels, phases = AUDIO_VAE["encoder_dim"], 1
    weight = torch.zeros(channels, 1, 7)
    weight[0, 0, 3] = 1
    _write(first, weight)
    for down, stride in zip(downs, (2, 4, 4), strict=False):
        conv = down.block[-1]
        weight = torch.zeros(conv.out_channels, conv.in_channels, 2 * stride)
        at = conv.padding[0]
        # Phase p of `phases` at tap t is sample t * phases + p of what one output covers.
        for tap in range(stride):
            for phase in range(phases):
                weight[tap * phases + phase, phase, at + tap] = 1
        phases *= stride
        _write(conv, weight)
    fine, coarse = downs[3].block[-1], downs[4].block[-1]
    cosines = cosine_blocks(fine.out_channels, 5 * phases)
    weight = torch.zeros(fine.out_channels, fine.in_channels, 10)
    weight[:, :phases, fine.padding[0] : fine.padding[0] + 5] = cosines.view(-1, 5, phases).transpose(1, 2)
    _write(fine, weight)
    # An axis in cosines of its five blocks.
    parts = torch.einsum("abn,cn->acb", axes.view(len(axes), 5, -1), cosines)
    weight = torch.zeros(coarse.out_channels, coarse.in_channels, 10)
    weight[: len(axes), :, coarse.padding[0] : coarse.padding[0] + 5] = parts
    _write(coarse, weight)
    weight = torch.zeros(last.out_channels, last.in_channels, 3)
    weight[torch.arange(len(axes)), torch.arange(len(axes)), 1] = 1
    _write(last, weight)
    last.bias[-2], last.bias[-1] = STEADY, -STEADY
    block, width = model.pre_block, last.out_channels
    block.norm1.weight.mul_(1.0)
    block.attn.proj.weight.mul_(BRANCH_SCALE)
    block.mlp.w2.weight.mul_(BRANCH_SCALE)
    size = block.proj.out_features
    block.proj.weight.copy_(NOISE * torch.randn_like(block.proj.weight))
    # The norm divides by the spread of the two steady channels; latents come out with unit spread.
    kept = torch.arange(size)
    block.proj.weight[kept, kept] = STEADY * math.sqrt(2 / width) / spread[:size].clamp_min(0.02 * spread[0])
    for head, gain in ((model.mean_proj, 1.0), (model.logs_proj, 0.0)):
        head.weight.copy_(0.01 * torch.randn_like(head.weight))
        head.weight[kept, kept, 0] += gain
        head.bias.zero_()
    model.logs_proj.bias.fill_(-3.0)


def _start_decoder(model: Any, axes: Tensor, spread: Tensor) -> None:
    """Axes to 128 cosines of 160 samples, to 32 phases, to the wave."""
    decoder, count = model.decoder, len(axes)
    kept = torch.arange(count)
    model.dec_in_proj.weight.copy_(0.01 * torch.randn_like(model.dec_in_proj.weight))
    model.dec_in_proj.weight[kept, kept, 0] = spread.clamp_min(0.02 * spread[0])
    weight = torch.zeros(decoder.conv_pre.out_channels, decoder.conv_pre.in_channels, 7)
    weight[kept, kept, 3] = 1
    _write(decoder.conv_pre, weight)
    ups = [up[0] for up in decoder.ups]
    cosines = cosine_blocks(ups[0].out_channels, 160)
    weight = torch.zeros(ups[0].in_channels, ups[0].out_channels, 9)
    weight[:count, :, 2:7] = torch.einsum("abn,cn->acb", axes.view(count, 5, 160), cosines)
    _write(ups[0], weight)
    phases = 32
    weight = torch.zeros(ups[1].in_channels, ups[1].out_channels, 9)
    weight[:, :phases, 2:7] = cosines.view(-1, 5, phases).transpose(1, 2)
    _write(ups[1], weight)
    for up in ups[2:]:
        weight = torch.zeros(up.in_channels, up.out_channels, 4)
        half = phases // 2
        for tap in range(2):
            for phase in range(half):
                weight[tap * half + phase, phase, 1 + tap] = 1
        phases = half
        _write(up, weight)
    weight = torch.zeros(1, decoder.conv_post.in_channels, 7)
    weight[0, 0, 3] = 1
    _write(decoder.conv_post, weight)
    for module in decoder.modules():
        if type(module).__name__ == "MiniMaxH3AudioSnakeBeta":
            module.alpha.fill_(-2.0)
    decoder.activation_post.act.alpha.fill_(-3.0)


def _write(conv: Any, weight: Tensor) -> None:
    weight = weight + NOISE * torch.randn_like(weight)
    conv.weight_v.copy_(weight)
    conv.weight_g.copy_(weight.flatten(1).norm(dim=1).view_as(conv.weight_g))
    if conv.bias is not None:
        conv.bias.zero_()
