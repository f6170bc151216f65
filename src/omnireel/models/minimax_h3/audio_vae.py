"""Sound latents to a waveform; always float32, for bfloat16 can be heard. Letters: N samples."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from omnireel.models.minimax_h3.video_vae import statistic
from omnireel.weights import build_empty, load_component, read_index

if TYPE_CHECKING:
    from omnireel.request import WaveF32


class AudioVae:
    """The decoder of the sound; the two ears are two items of a batch.

    Args:
        root: the checkpoint's directory.
        device: where it runs.
    """

    def __init__(self, root: Path, *, device: torch.device) -> None:
        from diffusers import AutoencoderKLMiniMaxH3Audio

        self.files = read_index(root / "audio_vae")
        self._device = device
        with warnings.catch_warnings():
            # The published weights have the names of torch's older weight norm, which warns that it is old.
            warnings.simplefilter("ignore", FutureWarning)
            self._vae: Any = build_empty(lambda: AutoencoderKLMiniMaxH3Audio.from_config(dict(self.files.config)))
        load_component(self._vae, self.files, device=device, dtype_of=lambda _, __: torch.float32)
        self._vae.eval()
        self._mean = statistic(self.files, "latents_mean", device).view(1, -1, 1)
        self._std = statistic(self.files, "latents_std", device).view(1, -1, 1)

    @property
    def latent_channels(self) -> int:
        """Channels of a latent."""
        return int(self._vae.config.latent_channels)

    @property
    def sample_rate_hz(self) -> int:
        """Samples a second."""
        return int(self._vae.config.sampling_rate)

    def encode(self, wave: Tensor) -> Tensor:
        """float32 [2,N] at the VAE's rate to float32 latents [2,C,Ta] as the DiT has them, on the CPU: the mean, not a draw."""
        (posterior,) = self._vae.encode(wave.to(self._device)[:, None], return_dict=False)
        encoded: Tensor = (posterior.mode().float().cpu() - self._mean.cpu()) / self._std.cpu()
        return encoded

    def decode(self, latents: Tensor) -> WaveF32:
        """float32 latents [2,C,Ta] as the DiT has them to a float32 wave [2,N]."""
        (wave,) = self._vae.decode(latents.to(self._device) * self._std + self._mean, return_dict=False)
        return np.ascontiguousarray(wave.float().cpu().numpy().reshape(latents.shape[0], -1))
