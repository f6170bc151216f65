"""The first weights of mini-h3: drawn from a seed, and arranged so that a clip can be looked at and listened to.

Random weights alone make a mosaic and a hum. So a few of them are set by hand, and the rest are drawn small around them:

- the DiT's picture and sound rows look hard at the words, from where they stand, so that the words tint the clip smoothly;
- the picture decoder first averages latents around the first and the last frame of each patch, then around its four
  corners, and its patches are the straight mixture of these eight: neighbours agree where they meet;
- the sound decoder is a bank of sines, harmonics of the 40 latents a second, each as loud as one mixture of latents.

Draws are uniform and made one tensor at a time, so equal seeds give equal bits on every processor.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

MEDIA = {"video": 0, "text": 1, "audio": 2}
PICTURE_GRID = (7, 8, 14)
"""Latents (time, height, width) that the decoder sees at once at the default canvas."""

# Channels of the picture decoder: latents; the colours at both ends of a patch in time; those at its corners, for both ends;
# then all these with the other sign, for the last norm takes a token's mean away. The last two channels hold a constant,
# so large that the norms divide all tokens by nearly the same.
LATENTS, ENDS, CORNERS = slice(0, 24), slice(24, 30), slice(30, 54)
CONSTANT, ADDED = 100.0, 1000.0
LAYER_SCALE, QUIET = 0.5, 0.0005

NOTES = tuple((slow, fast) for fast in (1, 2) for slow in range(-2, 3))
"""A note's frequency in 40 Hz and in 200 Hz, which add up: 120, 160, ... 480 Hz."""


class Draw:
    """Tensors of mean 0 and variance 1 from a seed and the name of a component, so that components do not depend on each other."""

    def __init__(self, seed: int, name: str) -> None:
        self._generator = torch.Generator().manual_seed(seed ^ zlib.crc32(name.encode()))

    def __call__(self, *shape: int) -> Tensor:
        """float64 of the shape."""
        return (torch.rand(shape, generator=self._generator, dtype=torch.float64) - 0.5) * math.sqrt(12)


def fill(model: nn.Module, draw: Draw) -> None:
    """Draws every weight so that signals keep their size: gains near one, biases near nothing, layer scales near a half."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            leaf, noise = name.rsplit(".", 1)[-1], draw(*parameter.shape)
            if leaf in ("scale1", "scale2"):
                parameter.copy_(0.5 + 0.05 * noise)
            elif leaf == "weight_g":
                parameter.copy_(1.0 + 0.05 * noise)
            elif parameter.ndim == 1:
                parameter.copy_((1.0 if leaf == "weight" else 0.0) + 0.05 * noise)
            else:
                parameter.copy_(noise / math.sqrt(parameter[0].numel()))


def attend_to_words(transformer: Any, draw: Draw, *, share: float, shift: float, sharpness: float) -> None:
    """Gives queries of media and keys of words a common part, in channels that positions do not turn.

    share: of a query's or key's length, the part that is common. shift: how far the tags lie apart in the stream. sharpness: what
    the products of queries and keys are multiplied with.
    """
    config = transformer.config
    hidden, size = config.hidden_size, config.attention_head_dim
    still = torch.zeros(size, dtype=torch.float64)
    still[6 * config.rope_freq_dim :] = 1 / math.sqrt(size - 6 * config.rope_freq_dim)
    weight = math.sqrt(share / (1 - share)) * math.sqrt(size)
    with torch.no_grad():
        for block in transformer.transformer_blocks:
            table = block.adaln_proj.linear
            table.weight.mul_(0.2)
            bias = table.bias.view(3, 6, hidden)
            tags = draw(3, hidden)
            bias[:, 0] = shift * tags
            bias[:, 2], bias[:, 5] = 0.5, 0.5
            media, words = tags[MEDIA["video"]] + tags[MEDIA["audio"]], tags[MEDIA["text"]]
            rows = still.repeat(config.num_attention_heads)
            length = shift * hidden
            block.attn.norm_q.weight.mul_(sharpness)
            block.attn.to_q.weight.add_(weight * torch.outer(rows, media) / length)
            block.attn.to_k.weight.add_(weight * torch.outer(rows, words) / length)


def smooth_picture(vae: Any, draw: Draw, *, gain: float, kept_mean: float, tint: tuple[float, float, float]) -> None:
    """Makes the decoder a low-pass filter with seamless patches; see the channels it uses at the top.

    gain: of the mixture of latents that becomes a colour. kept_mean: the share of a window's mean that stays, for what all
    latents have in common says little and would flood the picture. tint: red, green and blue that are added everywhere.
    """
    decoder = vae.decoder
    hidden = decoder.proj_in.out_features
    with torch.no_grad():
        _hush(vae, draw)
        first, second = (block.attn for block in decoder.transformer_blocks)
        # What the norms make of the value one.
        early, late = (math.sqrt(hidden / 2) / constant for constant in (CONSTANT, CONSTANT + ADDED))
        # The token of zeros gets its constant here: without one, a norm would blow up the little it holds.
        first.to_out[0].bias[-2:] = 2 * torch.tensor([ADDED, -ADDED])
        mix = draw(3, LATENTS.stop) / math.sqrt(LATENTS.stop) / early
        time, height, width = PICTURE_GRID
        # Half a patch away, in the decoder's coordinates, in which a window is two wide.
        _look(first, [(-1 / time, 0.0, 0.0), (1 / time, 0.0, 0.0), None, None], widths=(1.0, 2.3, 2.3))
        for end in range(2):
            _carry(first, end, LATENTS, mix, _part(ENDS, end, 3))
            _carry(first, 2, LATENTS, (kept_mean - 1) * mix, _part(ENDS, end, 3))
        _look(second, [(0.0, y / height, x / width) for y in (-1, 1) for x in (-1, 1)], widths=(3.0, 1.3, 1.3))
        for corner in range(4):
            _carry(second, corner, ENDS, torch.eye(6) / late, _part(CORNERS, corner, 6))
        decoder.proj_out.weight.copy_(gain / late * _patches(decoder))
        decoder.proj_out.bias.copy_(torch.tensor(tint).repeat_interleave(decoder.proj_out.out_features // 3))


def _hush(vae: Any, draw: Draw) -> None:
    """Leaves of a drawn decoder only what passes latents into their channels, and a whisper of the rest."""
    decoder, one = vae.decoder, torch.eye(LATENTS.stop)
    constant = torch.tensor([CONSTANT, -CONSTANT])
    vae.post_quant_conv.weight.copy_(one[:, :, None, None, None])
    vae.post_quant_conv.bias.zero_()
    decoder.proj_in.weight.mul_(QUIET)[LATENTS].add_(one)
    decoder.proj_in.weight[_mirrored(LATENTS)].sub_(one)
    decoder.proj_in.bias.mul_(QUIET)[-2:] = constant
    decoder.register_tokens.copy_(QUIET * draw(*decoder.register_tokens.shape))
    decoder.register_tokens[..., -2:] = constant
    for block in decoder.transformer_blocks:
        block.norm1.weight.fill_(1)
        block.scale1.fill_(LAYER_SCALE)
        for linear in (block.attn.to_q, block.attn.to_k, block.attn.to_v, block.attn.to_out[0]):
            linear.weight.mul_(QUIET)
            linear.bias.mul_(QUIET)
        for value in (block.ff.net[2].weight, block.ff.net[2].bias):
            free = value[_mirrored(CORNERS).stop : -2]
            free.sub_(free.mean(0))
            value[: _mirrored(CORNERS).stop].mul_(QUIET)
            value[-2:] = 0
    decoder.norm_out.weight.fill_(1)
    decoder.norm_out.bias.zero_()


def _part(channels: slice, index: int, size: int) -> slice:
    return slice(channels.start + index * size, channels.start + (index + 1) * size)


def _mirrored(channels: slice) -> slice:
    return slice(channels.start + CORNERS.stop, channels.stop + CORNERS.stop)


def _look(
    attention: Any, offsets: Sequence[tuple[float, float, float] | None], *, widths: tuple[float, float, float]
) -> None:
    """Lets each head look at a place beside its own, by constant queries and keys; None looks everywhere alike.

    Of each axis one frequency is used, the fastest that does not come round within a window. widths: the larger the
    narrower, relative to the other axes; queries and keys are normed.
    """
    size = attention.dim_head
    pairs = int(size * 0.75) // 2
    per_axis = pairs // 3
    frequency = 2 * math.pi * 100 ** (-1 / per_axis)
    for head, offset in enumerate(offsets):
        query, key = torch.zeros(size), torch.zeros(size)
        if offset is None:
            query[-1] = key[-1] = 1.0
        for axis, shift in enumerate(offset or ()):
            pair, length = axis * per_axis + 1, math.sqrt(widths[axis])
            query[pair], query[pair + pairs] = (
                length * math.cos(frequency * shift),
                length * math.sin(frequency * shift),
            )
            key[pair] = length
        attention.to_q.bias[head * size : (head + 1) * size] += query
        attention.to_k.bias[head * size : (head + 1) * size] += key


def _carry(attention: Any, head: int, source: slice, weight: Tensor, target: slice) -> None:
    """Lets a head carry `weight` times the source channels to the target channels."""
    count = weight.shape[0]
    place = slice(head * attention.dim_head, head * attention.dim_head + count)
    attention.to_v.weight[place, source] = weight.to(torch.float32)
    attention.to_out[0].weight[target, place] = torch.eye(count) / LAYER_SCALE
    attention.to_out[0].weight[_mirrored(target), place] = -torch.eye(count) / LAYER_SCALE


def _patches(decoder: Any) -> Tensor:
    """The weight [pixels, channels] that mixes the eight colours of a patch, each the more the nearer a pixel is to it."""
    frames, size = decoder.patch_size_t, decoder.patch_size
    late, low = (torch.arange(frames) + 0.5) / frames, (torch.arange(size) + 0.5) / size
    times, edges = torch.stack([1 - late, late]), torch.stack([1 - low, low])
    nearness = torch.einsum("at,by,cx->bcatyx", times, edges, edges)
    weight = torch.zeros(decoder.proj_out.in_features, 3, frames, size, size)
    weight[CORNERS] = torch.einsum("ntyx,cd->ncdtyx", nearness.flatten(0, 2), torch.eye(3)).flatten(0, 1)
    return weight.flatten(1).T


def sing(audio_vae: Any, draw: Draw, *, gain: float) -> None:
    """Makes the sound decoder a bank of sines. gain: of their sum, in the wave.

    The first upsampler, five samples to a latent, turns each note's loudness by a multiple of 40 Hz; the second, five
    samples to one of those, by a multiple of 200 Hz; the rest draw straight lines between samples.
    """
    decoder = audio_vae.decoder
    with torch.no_grad():
        ramp = 1 - (torch.arange(7) - 3).abs() / 4
        _set(decoder.conv_pre, draw, draw(*decoder.conv_pre.weight_v.shape[:2], 1) / 8 * ramp / ramp.sum())
        first, second, *rest = (up[0] for up in decoder.ups)
        place = torch.arange(9) - 2
        rise = 1 - (torch.arange(9) - 4).abs() / 5
        turns, carriers = torch.zeros_like(first.weight_v), torch.zeros_like(second.weight_v)
        for note, (slow, fast) in enumerate(NOTES):
            turn, carrier = 2 * math.pi * slow / 5 * place, 2 * math.pi * fast / 5 * place
            turns[note, 2 * note], turns[note, 2 * note + 1] = rise * turn.cos(), rise * turn.sin()
            carriers[2 * note, note], carriers[2 * note + 1, note] = rise * carrier.cos(), -rise * carrier.sin()
            carriers[2 * note : 2 * note + 2] /= fast
        _set(first, draw, turns)
        _set(second, draw, carriers)
        for up in rest:
            lines = torch.zeros_like(up.weight_v)
            for channel in range(lines.shape[0]):
                lines[channel, channel % lines.shape[1]] = torch.tensor([0.25, 0.75, 0.75, 0.25])
            _set(up, draw, lines)
        for block in decoder.resblocks:
            for convolution in block.convs2:
                convolution.weight_g.mul_(0.02)
                convolution.bias.mul_(0.02)
        decoder.activation_post.act.beta.fill_(2)
        _set(decoder.conv_post, draw, gain * torch.eye(7)[3].expand_as(decoder.conv_post.weight_v))


def _set(convolution: Any, draw: Draw, weight: Tensor) -> None:
    """A weight-normed convolution's direction and length, from a plain weight and a whisper; its bias nothing."""
    whole = weight + 1e-4 * draw(*convolution.weight_v.shape)
    convolution.weight_v.copy_(whole)
    convolution.weight_g.copy_(whole.flatten(1).norm(dim=1)[:, None, None])
    if convolution.bias is not None:
        convolution.bias.zero_()
