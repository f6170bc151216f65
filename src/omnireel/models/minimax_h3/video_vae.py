"""Frames to picture latents and back.

Tiling and chunking are part of what the model was trained with, so they are never switched off. Letters: C channels, T frames,
H height, W width; Tl, Hl, Wl the same of latents.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from omnireel.acceleration import compile_blocks
from omnireel.errors import BadCheckpoint
from omnireel.layers.kernels import PLAIN, TRACEABLE, Kernels
from omnireel.layers.kernels.frames import frame_kernels
from omnireel.models.minimax_h3.frame_encoder import FrameEncoder
from omnireel.models.minimax_h3.frame_mover import Direct, Overlapped
from omnireel.models.minimax_h3.keymap import video_vae_names
from omnireel.models.minimax_h3.limits import COMPRESSION, FRAMES_PER_CHUNK, LATENTS_PER_CHUNK, TAIL_LATENTS
from omnireel.models.minimax_h3.native import video_vae_files
from omnireel.models.minimax_h3.sharding import shared_tiles
from omnireel.models.minimax_h3.video_autoencoder import (
    Encoder,
    Encodes,
    VideoAutoencoder,
    VideoVaeConfig,
    stored_dtype,
)
from omnireel.models.minimax_h3.video_decoder import ROLE
from omnireel.weights import ComponentFiles, load_component

if TYPE_CHECKING:
    from omnireel.attention import AttentionBackend
    from omnireel.parallel import Ranks
    from omnireel.request import FramesU8

logger = logging.getLogger(__name__)

# Pixels inside the VAE are normalised as ImageNet's are.
PIXEL_MEAN = (0.485, 0.456, 0.406)
PIXEL_STD = (0.229, 0.224, 0.225)

ENCODE_SEED = 42

TILE_BATCH = 4
"""Tiles that an accelerator decodes at once: on an H200 a fifth faster than one by one, and the same bits; see
benchmarks/results/h3_references_h200.json. A CPU gains nothing.
"""

SelectBackend = Callable[[str, str, int], "AttentionBackend"]


HALF_TOLERANCE = 1e-2
"""Relative error, by norm, of a posterior's mean that is encoded in half precision or TF32, against float32. Both keep ten bits
of a number; what rounding adds up to grows with the depth of the encoder.
"""


class VideoVae:
    """The video VAE of a checkpoint, on a device.

    Args:
        folder: of the VAE.
        device: where it runs.
        is_mixed: bfloat16 where the reference has it under a bfloat16 load; else all float32.
        select: gives the attention backend for (role, category, head size).
        encode_precision: one of acceleration's ENCODE_PRECISIONS.
        is_compiled: compile the decoder's blocks when they are first used.
        kernels: of the decoder where it is not compiled; where they are fused, half precision is encoded by `FrameEncoder`.
        is_overlapped: frames cross to the host while the next clip is decoded; on an accelerator alone.
    """

    def __init__(
        self,
        folder: Path,
        *,
        device: torch.device,
        is_mixed: bool,
        select: SelectBackend,
        encode_precision: str = "float32",
        is_compiled: bool = False,
        is_overlapped: bool = False,
        kernels: Kernels = PLAIN,
    ) -> None:
        self.files, told = video_vae_files(folder)
        try:
            config = VideoVaeConfig.from_dict(told)
            backend = select(ROLE, "self", config.decoder_attention_head_dim)
            with torch.device("meta"):
                self._vae = VideoAutoencoder(config, backend=backend)
        except ValueError as error:
            raise BadCheckpoint(f"{self.files.folder.name}/config.json", str(error)) from None
        _check_geometry(config, f"{self.files.folder.name}/config.json")
        wanted = torch.bfloat16 if is_mixed else torch.float32
        load_component(
            self._vae,
            self.files,
            device=device,
            rename=video_vae_names(self.files, num_heads=config.decoder_num_attention_heads),
            dtype_of=lambda name, _: stored_dtype(name, wanted),
        )
        self._device = device
        self._precision = encode_precision
        has_passes = kernels is not PLAIN and device.type != "cpu" and config.spatial_padding_mode == "reflect"
        self._half_encoder = _half_encoder(self._vae.encoder, has_passes) if encode_precision == "float16" else None
        self._is_overlapped = is_overlapped and device.type != "cpu"
        if is_compiled:
            self._vae.decoder.use(TRACEABLE)
            compile_blocks(self._vae, ("decoder.transformer_blocks",), name=self.files.folder.name)
        elif kernels is not PLAIN:
            self._vae.decoder.use(kernels)
        self._mean = statistic(self.files, told, "latents_mean", device).view(1, -1, 1, 1, 1)
        self._std = statistic(self.files, told, "latents_std", device).view(1, -1, 1, 1, 1)
        self._pixel_mean = torch.tensor(PIXEL_MEAN, dtype=torch.float32, device=device).view(1, 3, 1, 1, 1)
        self._pixel_std = torch.tensor(PIXEL_STD, dtype=torch.float32, device=device).view(1, 3, 1, 1, 1)

    @property
    def latent_channels(self) -> int:
        """Channels of a latent."""
        return self._vae.config.latent_channels

    @property
    def compression(self) -> int:
        """Pixels of an edge to one latent."""
        return self._vae.config.spatial_ratio

    def encode(self, frames: FramesU8) -> Tensor:
        """uint8 [T,H,W,3] to float32 latents [1,C,Tl,Hl,Wl] as the DiT has them, on the CPU.

        The posterior is drawn from a generator of its own, seeded 42 whatever the request, and rounded to float16, as the
        model was conditioned in training.
        """
        pixels = torch.from_numpy(frames).to(self._device).permute(3, 0, 1, 2)[None]
        moments = self._moments(pixels)
        mean, log_variance = moments.chunk(2, dim=1)
        generator = torch.Generator("cpu").manual_seed(ENCODE_SEED)
        noise = torch.randn(mean.shape, generator=generator, dtype=torch.float32, device="cpu")
        drawn = mean + torch.exp(0.5 * log_variance.clamp(-30.0, 20.0)) * noise.to(mean.device)
        return (drawn.half().float().cpu() - self._mean.cpu()) / self._std.cpu()

    def _moments(self, pixels: Tensor) -> Tensor:
        """In the precision that was asked for; half precision that overflows is done again in float32."""
        encode = partial(self._vae.encode_moments, pixels, prepare=self._normalised)
        if self._half_encoder is not None:
            moments = encode(encoder=self._half_encoder, tile_batch=self._tile_batch, is_trimmed=True)
            if bool(torch.isfinite(moments).all()):
                return moments
            logger.warning("the video encoder overflows in half precision: encoding in float32")
        # In float32 tiles go one by one, as in the reference: of several a library might choose another algorithm.
        has_tf32 = self._precision == "tf32"
        with _convolutions(has_tf32=has_tf32):
            return encode(tile_batch=self._tile_batch if has_tf32 else 1, is_trimmed=has_tf32)

    @property
    def _tile_batch(self) -> int:
        return 1 if self._device.type == "cpu" else TILE_BATCH

    def _normalised(self, levels: Tensor) -> Tensor:
        return levels.float().div(255.0).sub_(self._pixel_mean).div_(self._pixel_std)

    def decode(
        self,
        latents: Tensor,
        *,
        new_frames: Callable[[Sequence[int]], FramesU8] | None = None,
        pause: Callable[[], None] | None = None,
        ranks: Ranks | None = None,
    ) -> FramesU8:
        """float32 latents [1,C,Tl,Hl,Wl] as the DiT has them to uint8 [T,H,W,3].

        Frames become 8-bit as their clip is decoded, so the clip as float, many times its size, is never there.

        Args:
            latents: what to decode.
            new_frames: makes the array of the frames, see BuildContext.
            pause: called before each clip but the first; what it raises ends the decoding.
            ranks: who decode tiles of it too, see `lend`; they pause where tiles are exchanged instead.

        Raises:
            RankLost: one of them is gone.
        """
        clean = self._denormalised(latents)
        rules = self._vae.config.clips
        num_frames = rules.frames_of(latents.shape[2])
        height, width = (self.compression * edge for edge in latents.shape[-2:])
        shape = (num_frames, height, width, 3)
        frames = np.empty(shape, np.uint8) if new_frames is None else new_frames(shape)
        move = Overlapped(frames) if self._is_overlapped else Direct(frames)
        tiles = None if ranks is None else self._shared(clean, ranks, pause)
        for number, piece in enumerate(self._vae.decode_clips(clean, tile_batch=self._tile_batch, tiles=tiles)):
            if pause is not None and number and ranks is None:
                pause()
            unit = (piece.float() * self._pixel_std + self._pixel_mean).clamp_(0, 1)
            move.put(unit.mul_(255).round_().to(torch.uint8)[0].permute(1, 2, 3, 0))
        move.finish()
        return frames

    def lend(self, latents: Tensor, ranks: Ranks, *, pause: Callable[[], None] | None = None) -> None:
        """Decodes this rank's tiles of a clip for the first rank, which decodes the same one.

        Raises:
            RankLost: one of the others is gone.
        """
        for _ in self._shared(self._denormalised(latents), ranks, pause):
            raise AssertionError("only the first rank is given tiles")

    def _shared(self, clean: Tensor, ranks: Ranks, pause: Callable[[], None] | None) -> Iterator[Tensor]:
        plan = self._vae.decode_plan(*clean.shape[2:])
        work = partial(self._vae.decode_tiles, clean, plan, tile_batch=self._tile_batch)
        return shared_tiles(work, plan.jobs, ranks, batch=self._tile_batch, pause=pause)

    def _denormalised(self, latents: Tensor) -> Tensor:
        return latents.to(self._device) * self._std + self._mean


def _half_encoder(encoder: Encoder, has_passes: bool) -> Encodes:
    """A copy in half precision, with one pass over memory before each convolution where there are kernels for it."""
    if not has_passes:
        return copy.deepcopy(encoder).half()
    kernels = frame_kernels(encoder.conv_in.weight.device)
    return FrameEncoder(encoder, dtype=torch.float16, kernels=kernels, is_flat=True)


def exact_float32() -> AbstractContextManager[None]:
    """Within it convolutions on NVIDIA cards keep all of float32: TF32 would move latents past what training had."""
    return _convolutions(has_tf32=False)


def _convolutions(*, has_tf32: bool) -> AbstractContextManager[None]:
    # Said either way, for a program around us may have set either.
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=has_tf32)


def _check_geometry(config: VideoVaeConfig, shown: str) -> None:
    """Refuses a VAE that cuts space or time in other parts than the packed rows are laid out for."""
    rules = config.clips
    found = (config.spatial_ratio, rules.clip_length, rules.latents_per_clip, rules.token_drop)
    drop = LATENTS_PER_CHUNK - TAIL_LATENTS
    expected = (COMPRESSION, FRAMES_PER_CHUNK, LATENTS_PER_CHUNK, drop)
    if found != expected:
        names = "(pixels a latent, frames a clip, latents a clip, latents dropped)"
        raise BadCheckpoint(shown, f"cuts space and time otherwise {names}", expected=str(expected), found=str(found))


def statistic(files: ComponentFiles, config: Mapping[str, Any], key: str, device: torch.device) -> Tensor:
    """A number for each latent channel, float32, from a VAE's config.

    Raises:
        BadCheckpoint: the config does not have as many finite numbers as the VAE has latent channels, or a spread is none.
    """
    values, count = config.get(key), config.get("latent_channels")
    low = 0.0 if key.endswith("_std") else -math.inf
    numbers = values if isinstance(values, list) else []
    usable = all(isinstance(number, int | float) and low < number < math.inf for number in numbers)
    if not usable or len(numbers) != count:
        shown = f"{files.folder.name}/config.json"
        expected = f"{count} {'positive' if low == 0 else 'finite'} numbers"
        raise BadCheckpoint(shown, "lacks the statistics of the latents", key=key, expected=expected)
    return torch.tensor(numbers, dtype=torch.float32, device=device)
