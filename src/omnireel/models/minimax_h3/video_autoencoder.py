"""The video VAE: a causal 3-D convolutional encoder and a decoder of transformer blocks, tile by tile and clip by clip.

Parameters are named as in the diffusers checkpoint. Letters: B batch, C channels, T frames, H height, W width (of pixels or
latents), S tokens, A heads, D channels of a head, E width of the decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from omnireel.models.minimax_h3.blending import fade_, stitch_clips
from omnireel.models.minimax_h3.sizes import read_sizes
from omnireel.models.minimax_h3.tiling import (
    MIN_OVERLAP_PIXELS,
    TILE_PIXELS,
    ClipRules,
    CutPlan,
    Job,
    TileRules,
    plan_decode,
    plan_encode,
)
from omnireel.models.minimax_h3.video_decoder import Decoder

if TYPE_CHECKING:
    from omnireel.attention import AttentionBackend

Prepare = Callable[[Tensor], Tensor]
"""Tiles of bytes to tiles of normalised pixels, place by place."""


class Encodes(Protocol):
    """What makes moments [B,2C,Tl,Hl,Wl] of pixels [B,3,T,H,W]."""

    @property
    def dtype(self) -> torch.dtype:
        """Of what it takes and gives."""
        ...

    def __call__(self, x_BCTHW: Tensor, /) -> Tensor:
        """Encodes one batch of tiles."""
        ...


KEEP_FLOAT32 = frozenset({"encoder", "quant_conv", "norm1", "norm2", "norm_out", "scale1", "scale2"})
"""Parts of a name whose weights stay float32 when the rest is bfloat16. Source: the reference's bfloat16 load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoVaeConfig:
    """Sizes of the video VAE, by their diffusers names; what is written here is the released one."""

    in_channels: int = 3
    out_channels: int = 3
    latent_channels: int = 24
    block_out_channels: tuple[int, ...] = (128, 256, 256, 512, 512, 1024)
    layers_per_block: int = 2
    spatial_downsample_factors: tuple[int, ...] = (2, 2, 2, 2, 1, 1)
    temporal_downsample_factors: tuple[int, ...] = (1, 2, 2, 1, 1, 1)
    norm_num_groups: int = 32
    norm_eps: float = 1e-6
    spatial_padding_mode: str = "reflect"
    decoder_num_layers: int = 36
    decoder_num_attention_heads: int = 32
    decoder_attention_head_dim: int = 64
    decoder_num_register_tokens: int = 4
    decoder_ffn_mult: int = 4
    decoder_rope_theta: float = 100.0
    decoder_rope_dim_ratio: float = 0.75
    decoder_norm_eps: float = 1e-5
    clip_length: int = 17
    token_drop: int = 3
    latents_mean: tuple[float, ...] = (0.0,) * 24
    latents_std: tuple[float, ...] = (1.0,) * 24

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> VideoVaeConfig:
        """The sizes in a checkpoint's `config.json`; keys that begin with an underscore are passed over.

        Raises:
            ValueError: a key is unknown, or has a value that no such VAE can have; the text names it.
        """
        made = read_sizes(cls, config, may_be_zero=("token_drop", "decoder_num_register_tokens"))
        levels = len(made.block_out_channels)
        for key, factors in (
            ("spatial_downsample_factors", made.spatial_downsample_factors),
            ("temporal_downsample_factors", made.temporal_downsample_factors),
        ):
            if len(factors) != levels or not levels:
                raise ValueError(f"{key} must have as many numbers as block_out_channels, {levels}, got {factors}")
        if made.spatial_padding_mode not in MARGINS:
            modes = ", ".join(MARGINS)
            raise ValueError(f"spatial_padding_mode must be one of {modes}, got {made.spatial_padding_mode!r}")
        if made.decoder_rope_dim_ratio > 1:
            raise ValueError(f"decoder_rope_dim_ratio must be at most 1, got {made.decoder_rope_dim_ratio}")
        if left := int(made.decoder_attention_head_dim * made.decoder_rope_dim_ratio) % 6:
            raise ValueError(
                f"decoder_rope_dim_ratio must turn a multiple of 6 channels of a head, {left} are left over"
            )
        if made.token_drop >= made.clips.latents_per_clip:
            raise ValueError(f"token_drop must be less than the {made.clips.latents_per_clip} latents of a clip")
        return made

    @property
    def spatial_ratio(self) -> int:
        """Pixels of an edge to one latent."""
        return prod(self.spatial_downsample_factors)

    @property
    def clips(self) -> ClipRules:
        """How time is cut."""
        ratio = prod(self.temporal_downsample_factors)
        return ClipRules(clip_length=self.clip_length, token_drop=self.token_drop, ratio=ratio)


def stored_dtype(key: str, default: torch.dtype) -> torch.dtype:
    """The type of the tensor named `key` when the VAE as a whole is kept in `default`."""
    return torch.float32 if KEEP_FLOAT32.intersection(key.split(".")) else default


class VideoAutoencoder(nn.Module):
    """Pixels are RGB in [0,1], normalised as ImageNet's are; latents are the posterior's, before any statistics.

    It is made on the meta device, whatever the default device is, and a loader places it.

    Args:
        backend: computes the decoder's attention.
        tile: edge of a tile and least overlap of two, in pixels.
    """

    def __init__(
        self, config: VideoVaeConfig, *, backend: AttentionBackend, tile: tuple[int, int] | None = None
    ) -> None:
        super().__init__()
        self.config = config
        edge, overlap = tile or (TILE_PIXELS, MIN_OVERLAP_PIXELS)
        self._tiles = TileRules(ratio=config.spatial_ratio, edge=edge, min_overlap=overlap)
        with torch.device("meta"):
            self.encoder = Encoder(config)
            self.quant_conv = nn.Conv3d(2 * config.latent_channels, 2 * config.latent_channels, 1)
            self.post_quant_conv = nn.Conv3d(config.latent_channels, config.latent_channels, 1)
            self.decoder = Decoder(config, backend=backend)

    def encode_moments(
        self,
        video_BCTHW: Tensor,
        *,
        tile_batch: int = 1,
        prepare: Prepare | None = None,
        encoder: Encodes | None = None,
        is_trimmed: bool = False,
    ) -> Tensor:
        """Mean and log-variance of the posterior, [B,2C,Tl,Hl,Wl]. A single frame gives one latent frame; of more, clips of 17
        are encoded by themselves, the last one filled up with its last frame. encoder: to use instead of the own one. is_trimmed:
        as in `plan_encode`.
        """
        plan = self.encode_plan(*video_BCTHW.shape[2:], is_trimmed=is_trimmed)
        tiles = self.encode_tiles(video_BCTHW, plan, plan.jobs, tile_batch=tile_batch, prepare=prepare, encoder=encoder)
        moments = torch.cat(list(stitch_clips(tiles, plan)), dim=2)
        dropped = self.config.token_drop if plan.last_extent == plan.step > 1 else 0
        return moments[:, :, : moments.shape[2] - dropped]

    def decode_clips(
        self, latents_BCTHW: Tensor, *, tile_batch: int = 1, tiles: Iterable[Tensor] | None = None
    ) -> Iterator[Tensor]:
        """Pixels [B,3,t,H,W], a piece at a time in order: 17 frames a clip, and what the last clip overlaps. tiles: those of
        `decode_tiles` for all jobs, where others make them.
        """
        plan = self.decode_plan(*latents_BCTHW.shape[2:])
        tiles = self.decode_tiles(latents_BCTHW, plan, plan.jobs, tile_batch=tile_batch) if tiles is None else tiles
        yield from self.join_clips(stitch_clips(tiles, plan), latents_BCTHW.shape[2])

    def decode(self, latents_BCTHW: Tensor, *, tile_batch: int = 1) -> Tensor:
        """All pieces of `decode_clips` together, [B,3,T,H,W]."""
        return torch.cat(list(self.decode_clips(latents_BCTHW, tile_batch=tile_batch)), dim=2)

    def encode_plan(self, frames: int, height: int, width: int, *, is_trimmed: bool = False) -> CutPlan:
        """The pieces of so many pixels."""
        return plan_encode(self.config.clips, self._tiles, frames, height, width, is_trimmed=is_trimmed)

    def decode_plan(self, frames: int, height: int, width: int) -> CutPlan:
        """The pieces of so many latents."""
        return plan_decode(self.config.clips, self._tiles, frames, height, width)

    def encode_tiles(
        self, video_BCTHW: Tensor, plan: CutPlan, jobs: Sequence[Job], *, tile_batch: int = 1,
        prepare: Prepare | None = None, encoder: Encodes | None = None,
    ) -> Iterator[Tensor]:  # fmt: skip
        """Moments of each job's tile, in the order of `jobs`; `tile_batch` of them are computed at once.

        `prepare` makes pixels of what the video holds, tile by tile, so that a long clip need not be there as float.
        """
        encode = encoder or self.encoder
        dtype, out_dtype = encode.dtype, self.quant_conv.weight.dtype
        for cut in _batches(video_BCTHW, plan, jobs, tile_batch):
            tiles = cut if prepare is None else prepare(cut)
            yield from self.quant_conv(encode(tiles.to(dtype)).to(out_dtype)).split(len(video_BCTHW))

    def decode_tiles(
        self, latents_BCTHW: Tensor, plan: CutPlan, jobs: Sequence[Job], *, tile_batch: int = 1
    ) -> Iterator[Tensor]:
        """Pixels of each job's tile, in the order of `jobs`; `tile_batch` of them are computed at once.

        A tile's pixels depend on its latents alone, so jobs may be spread over devices: `stitch_clips` takes the tiles in
        the order of the plan, and `join_clips` what that makes.
        """
        dtype = self.post_quant_conv.weight.dtype
        rows, columns = plan.source
        table = self.decoder.rotary((plan.extent, rows.length, columns.length), latents_BCTHW.device)
        for tiles in _batches(latents_BCTHW, plan, jobs, tile_batch):
            yield from self.decoder(self.post_quant_conv(tiles.to(dtype)), table).split(len(latents_BCTHW))

    def join_clips(self, clips: Iterable[Tensor], num_latents: int) -> Iterator[Tensor]:
        """Decoded clips, one after another, as pieces [B,3,t,H,W]; a clip is written over.

        Frames that two clips show go over from the first to the second; what repeated latents made is cut off.
        """
        rules = self.config.clips
        chunk, left = rules.latents_per_clip * rules.ratio, rules.frames_of(num_latents)
        tail: Tensor | None = None
        for clip in clips:
            piece = clip[:, :, rules.lead : chunk]
            if tail is not None:
                fade_(piece, tail, rules.overlap_frames, dim=2)
            tail = clip[:, :, chunk + rules.lead :]
            yield piece[:, :, :left]
            left -= min(left, piece.shape[2])
        if left and tail is not None:
            yield tail[:, :, :left]


def _batches(source_BCTHW: Tensor, plan: CutPlan, jobs: Sequence[Job], size: int) -> Iterator[Tensor]:
    """The jobs' tiles, several of one shape along the batch."""
    for _, alike in groupby(jobs, plan.extent_of):
        for some in _batched(alike, max(1, size)):
            tiles = [_cut(source_BCTHW, plan, job) for job in some]
            yield tiles[0] if len(tiles) == 1 else torch.cat(tiles)


def _batched(jobs: Iterable[Job], size: int) -> Iterator[tuple[Job, ...]]:
    left = iter(jobs)
    while some := tuple(islice(left, size)):
        yield some


def _cut(source_BCTHW: Tensor, plan: CutPlan, job: Job) -> Tensor:
    (rows, columns), start = plan.source, job.clip * plan.step
    top, left = rows.starts[job.row], columns.starts[job.column]
    extent = plan.extent_of(job)
    tile = source_BCTHW[:, :, start : start + extent, top : top + rows.length, left : left + columns.length]
    missing = extent - tile.shape[2]
    return tile if not missing else torch.cat([tile, tile[:, :, -1:].expand(-1, -1, missing, -1, -1)], dim=2)


MARGINS: Mapping[str, tuple[int, int] | tuple[None, None]] = {
    "reflect": (1, -2), "replicate": (0, -1), "circular": (-1, 0), "constant": (None, None),
}  # fmt: skip
"""By mode, which place along an axis is copied to the one before its first and to the one behind its last."""


class CausalConv3d(nn.Conv3d):
    """A convolution that looks back in time (zeros before the first frame) and around in space (mirrored at the edges).

    Args:
        margins: places added before and after rows and columns, each 0 or 1.
        mode: what they hold, a key of `MARGINS`.
    """

    def __init__(
        self, in_channels: int, out_channels: int, *, size: int, stride: tuple[int, int, int] = (1, 1, 1),
        margins: tuple[int, int] = (0, 0), mode: str = "reflect",
    ) -> None:  # fmt: skip
        super().__init__(in_channels, out_channels, size, stride=stride)
        self.margins, self.mode = margins, mode

    def forward(self, x: Tensor) -> Tensor:
        """[B,C,T,H,W] to [B,C',T',H',W']."""
        return F.conv3d(self._padded(x), self.weight, self.bias, stride=self.stride)

    def _padded(self, x: Tensor) -> Tensor:
        """All padding in one copy: padding space and time one after the other would take three."""
        past, (before, after) = self.kernel_size[0] - 1, self.margins
        if not past:
            return x
        batch, channels, frames, height, width = x.shape
        shape = batch, channels, past + frames, before + height + after, before + width + after
        # Channels innermost where the weights have them so: the copy is made anyway, and the library need not make another.
        is_last = self.weight.is_contiguous(memory_format=torch.channels_last_3d) and not self.weight.is_contiguous()
        layout = torch.channels_last_3d if is_last else torch.contiguous_format
        padded = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout)
        padded[:, :, :past] = 0
        inner = padded[:, :, past:]
        inner[..., before : before + height, before : before + width] = x
        for dim in (-1, -2):
            self._fill_margins(inner, dim)
        return padded

    def _fill_margins(self, x: Tensor, dim: int) -> None:
        before, after = self.margins
        inside = x.narrow(dim, before, x.shape[dim] - before - after)
        if self.mode == "reflect" and before + after and inside.shape[dim] < 2:
            raise ValueError("a single pixel along an edge cannot be mirrored")
        first, last = MARGINS[self.mode]
        for place, copied in [(0, first)] * before + [(-1, last)] * after:
            edge = x.select(dim, place)
            edge.zero_() if copied is None else edge.copy_(inside.select(dim, copied))


class FrameGroupNorm(nn.GroupNorm):
    """Group norm of each frame by itself."""

    def forward(self, x: Tensor) -> Tensor:
        """[B,C,T,H,W] to the same, laid out frame by frame: whoever pads it copies it anyway."""
        batch, channels, frames, height, width = x.shape
        folded = x.transpose(1, 2).reshape(batch * frames, channels, 1, height, width)
        normed = F.group_norm(folded, self.num_groups, self.weight, self.bias, self.eps)
        return normed.view(batch, frames, channels, height, width).transpose(1, 2)


class ResnetBlock(nn.Module):
    """norm, SiLU, convolution, twice, beside a shortcut."""

    def __init__(self, in_channels: int, out_channels: int, config: VideoVaeConfig) -> None:
        super().__init__()
        groups, eps, mode = config.norm_num_groups, config.norm_eps, config.spatial_padding_mode
        self.norm1 = FrameGroupNorm(groups, in_channels, eps=eps)
        self.conv1 = CausalConv3d(in_channels, out_channels, size=3, margins=(1, 1), mode=mode)
        self.norm2 = FrameGroupNorm(groups, out_channels, eps=eps)
        self.conv2 = CausalConv3d(out_channels, out_channels, size=3, margins=(1, 1), mode=mode)
        self.conv_shortcut = CausalConv3d(in_channels, out_channels, size=1) if in_channels != out_channels else None

    def forward(self, x: Tensor) -> Tensor:
        """[B,C,T,H,W] to [B,C',T,H,W]."""
        h = self.conv1(F.silu(self.norm1(x), inplace=True))
        h = self.conv2(F.silu(self.norm2(h), inplace=True))
        out: Tensor = h.add_(x if self.conv_shortcut is None else self.conv_shortcut(x))
        return out


class Downsample(nn.Module):
    """A strided convolution, mirrored at the right and bottom edges alone."""

    def __init__(self, channels: int, *, time: int, space: int, mode: str) -> None:
        super().__init__()
        margins = (0, int(space == 2))
        self.conv = CausalConv3d(channels, channels, size=3, stride=(time, space, space), margins=margins, mode=mode)

    def forward(self, x: Tensor) -> Tensor:
        """[B,C,T,H,W] to [B,C,T/time,H/space,W/space]."""
        out: Tensor = self.conv(x)
        return out


class DownBlock(nn.Module):
    """One level of the encoder."""

    def __init__(self, in_channels: int, level: int, config: VideoVaeConfig) -> None:
        super().__init__()
        channels = config.block_out_channels[level]
        widths = [in_channels, *[channels] * (config.layers_per_block - 1)]
        self.resnets = nn.ModuleList(ResnetBlock(width, channels, config) for width in widths)
        time, space = config.temporal_downsample_factors[level], config.spatial_downsample_factors[level]
        steps = [Downsample(channels, time=time, space=space, mode=config.spatial_padding_mode)]
        self.downsamplers = nn.ModuleList(steps) if time * space > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """[B,C,T,H,W] to the next level's."""
        for resnet in self.resnets:
            x = resnet(x)
        for step in self.downsamplers or ():
            x = step(x)
        return x


class Encoder(nn.Module):
    """Pixels to moments."""

    def __init__(self, config: VideoVaeConfig) -> None:
        super().__init__()
        widths, mode = config.block_out_channels, config.spatial_padding_mode
        self.conv_in = CausalConv3d(config.in_channels, widths[0], size=3, margins=(1, 1), mode=mode)
        before = (widths[0], *widths[:-1])
        self.down_blocks = nn.ModuleList(DownBlock(before[k], k, config) for k in range(len(widths)))
        self.norm_out = FrameGroupNorm(config.norm_num_groups, widths[-1], eps=config.norm_eps)
        self.conv_out = CausalConv3d(widths[-1], 2 * config.latent_channels, size=3, margins=(1, 1), mode=mode)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.conv_in.weight.dtype

    def forward(self, x: Tensor) -> Tensor:
        """[B,3,T,H,W] to [B,2C,Tl,Hl,Wl]."""
        x = self.conv_in(x)
        for block in self.down_blocks:
            x = block(x)
        out: Tensor = self.conv_out(F.silu(self.norm_out(x), inplace=True))
        return out
