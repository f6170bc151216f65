"""Waves to sound latents and back; always float32, for bfloat16 can be heard. Letters: C channels, N samples, Ta latents."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from omnireel.errors import BadCheckpoint
from omnireel.models.minimax_h3.audio_autoencoder import AudioAutoencoder, AudioVaeConfig, fold_weight_norm
from omnireel.models.minimax_h3.limits import SOUND_LATENTS_PER_SECOND
from omnireel.models.minimax_h3.native import audio_vae_files
from omnireel.models.minimax_h3.video_vae import exact_float32, statistic
from omnireel.weights import load_component

if TYPE_CHECKING:
    from omnireel.request import WaveF32


class AudioVae:
    """The audio VAE of a checkpoint, on a device; the two ears are two items of a batch.

    Args:
        folder: of the VAE.
        device: where it runs.
    """

    def __init__(self, folder: Path, *, device: torch.device) -> None:
        self.files, told = audio_vae_files(folder)
        try:
            config = AudioVaeConfig.from_dict(told)
        except ValueError as error:
            raise BadCheckpoint(f"{self.files.folder.name}/config.json", str(error)) from None
        if config.sampling_rate != config.hop * SOUND_LATENTS_PER_SECOND:
            # The layout gives every second 40 latents; at another rate sound and picture would drift apart.
            raise BadCheckpoint(
                f"{self.files.folder.name}/config.json", "does not keep the picture's time", key="sampling_rate",
                expected=str(config.hop * SOUND_LATENTS_PER_SECOND), found=str(config.sampling_rate),
            )  # fmt: skip
        with torch.device("meta"):
            self._vae = AudioAutoencoder(config)
        load_component(self._vae, self.files, device=device, dtype_of=lambda _, __: torch.float32)
        fold_weight_norm(self._vae)
        self._device = device
        self._mean = statistic(self.files, told, "latents_mean", device).view(1, -1, 1)
        self._std = statistic(self.files, told, "latents_std", device).view(1, -1, 1)

    @property
    def latent_channels(self) -> int:
        """Channels of a latent."""
        return self._vae.config.latent_channels

    @property
    def sample_rate_hz(self) -> int:
        """Samples a second."""
        return self._vae.config.sampling_rate

    def encode(self, wave: Tensor) -> Tensor:
        """float32 [2,N] at the VAE's rate to float32 latents [2,C,Ta] as the DiT has them, on the CPU: the mean, not a draw."""
        with exact_float32():
            mean = self._vae.encode(wave.to(self._device))
        return (mean.cpu() - self._mean.cpu()) / self._std.cpu()

    def decode(self, latents: Tensor) -> WaveF32:
        """float32 latents [2,C,Ta] as the DiT has them to a float32 wave [2,N]."""
        with exact_float32():
            wave = self._vae.decode(latents.to(self._device) * self._std + self._mean)
        return np.ascontiguousarray(wave.cpu().numpy())
