"""Picture latents to frames.

Tiling and chunking are part of what the model was trained with, so they are never switched off. Letters: T frames, H height,
W width.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from omnireel.errors import BadCheckpoint
from omnireel.weights import ComponentFiles, build_empty, load_component, read_index

if TYPE_CHECKING:
    from omnireel.request import FramesU8

# Pixels inside the VAE are normalised as ImageNet's are.
PIXEL_MEAN = (0.485, 0.456, 0.406)
PIXEL_STD = (0.229, 0.224, 0.225)

ENCODE_SEED = 42

_KEPT_FLOAT32 = frozenset({"encoder", "quant_conv", "norm1", "norm2", "norm_out", "scale1", "scale2"})
"""Parts of a name whose weights stay float32 when the rest is bfloat16."""


class VideoVae:
    """The decoder of the picture.

    Args:
        root: the checkpoint's directory.
        device: where it runs.
        is_mixed: bfloat16 where the reference has it under a bfloat16 load; else all float32.
    """

    def __init__(self, root: Path, *, device: torch.device, is_mixed: bool) -> None:
        from diffusers import AutoencoderKLMiniMaxH3

        self.files = read_index(root / "vae")
        self._device = device
        self._vae: Any = build_empty(lambda: AutoencoderKLMiniMaxH3.from_config(dict(self.files.config)))
        load_component(self._vae, self.files, device=device, dtype_of=_mixed if is_mixed else _float32)
        self._vae.eval()
        self._mean = statistic(self.files, "latents_mean", device).view(1, -1, 1, 1, 1)
        self._std = statistic(self.files, "latents_std", device).view(1, -1, 1, 1, 1)

    @property
    def latent_channels(self) -> int:
        """Channels of a latent."""
        return int(self._vae.config.latent_channels)

    @property
    def compression(self) -> int:
        """Pixels of an edge to one latent."""
        return int(self._vae.spatial_compression_ratio)

    def encode(self, frames: FramesU8) -> Tensor:
        """uint8 [T,H,W,3] to float32 latents [1,C,Tl,Hl,Wl] as the DiT has them, on the CPU.

        The posterior is drawn from a generator of its own, seeded 42 whatever the request, and rounded to float16, as the
        model was conditioned in training.
        """
        mean = torch.tensor(PIXEL_MEAN, device=self._device).view(1, 3, 1, 1, 1)
        std = torch.tensor(PIXEL_STD, device=self._device).view(1, 3, 1, 1, 1)
        pixels = torch.from_numpy(frames).to(self._device).permute(3, 0, 1, 2)[None]
        (posterior,) = self._vae.encode((pixels.float().div(255.0) - mean) / std, return_dict=False)
        latents = posterior.sample(generator=torch.Generator().manual_seed(ENCODE_SEED)).half().float().cpu()
        encoded: Tensor = (latents - self._mean.cpu()) / self._std.cpu()
        return encoded

    def decode(self, latents: Tensor) -> FramesU8:
        """float32 latents [1,C,Tl,Hl,Wl] as the DiT has them to uint8 [T,H,W,3]."""
        (pixels,) = self._vae.decode(latents.to(self._device) * self._std + self._mean, return_dict=False)
        mean = torch.tensor(PIXEL_MEAN, device=self._device).view(3, 1, 1)
        std = torch.tensor(PIXEL_STD, device=self._device).view(3, 1, 1)
        _, _, num_frames, height, width = pixels.shape
        frames = np.empty((num_frames, height, width, 3), np.uint8)
        for k in range(num_frames):
            # A frame at a time: the clip as float is many times the size of the clip in bytes.
            unit = (pixels[0, :, k].float() * std + mean).clamp_(0, 1)
            frames[k] = unit.mul_(255).round_().to(torch.uint8).permute(1, 2, 0).cpu().numpy()
        return frames


def statistic(files: ComponentFiles, key: str, device: torch.device) -> Tensor:
    """A number for each latent channel, float32, from a VAE's config.

    Raises:
        BadCheckpoint: the config does not have as many numbers as the VAE has latent channels.
    """
    values, count = files.config.get(key), files.config.get("latent_channels")
    if not isinstance(values, list) or len(values) != count or not all(isinstance(v, int | float) for v in values):
        shown = f"{files.folder.name}/config.json"
        raise BadCheckpoint(shown, "lacks the statistics of the latents", key=key, expected=f"{count} numbers")
    return torch.tensor(values, dtype=torch.float32, device=device)


def _float32(_: str, __: torch.dtype) -> torch.dtype:
    return torch.float32


def _mixed(name: str, _: torch.dtype) -> torch.dtype:
    return torch.float32 if _KEPT_FLOAT32 & set(name.split(".")) else torch.bfloat16
