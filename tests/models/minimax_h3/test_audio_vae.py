"""Waves of the sound decoder."""

from __future__ import annotations

import numpy as np
import torch
from tests.support.mini import MINI

from omnireel.models.minimax_h3.audio_vae import AudioVae


@torch.inference_mode()
def test_a_latent_is_800_samples_and_ears_do_not_mix():
    vae = AudioVae(MINI / "audio_vae", device=torch.device("cpu"))
    latents = torch.randn(2, vae.latent_channels, 20)
    wave = vae.decode(latents)
    assert wave.shape == (2, 16_000)
    assert wave.dtype == np.float32
    assert vae.sample_rate_hz == 32_000
    swapped = vae.decode(latents.flip(0))
    assert np.allclose(swapped, wave[::-1], atol=1e-6)
