"""Waves of the sound decoder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.mini import MINI

from omnireel.errors import BadCheckpoint
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


@pytest.mark.parametrize(("samples", "latents"), [(800, 1), (15_999, 20), (16_001, 21)])
@torch.inference_mode()
def test_a_wave_is_encoded_to_its_mean_ear_by_ear(samples, latents):
    vae = AudioVae(MINI / "audio_vae", device=torch.device("cpu"))
    wave = 0.3 * torch.randn(2, samples)
    made = vae.encode(wave)
    assert (made.shape, made.dtype, made.device.type) == ((2, vae.latent_channels, latents), torch.float32, "cpu")
    assert torch.equal(vae.encode(wave), made)
    assert torch.allclose(vae.encode(wave.flip(0)), made.flip(0), atol=1e-6)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"encoder_rates": 800}, "encoder_rates"),
        ({"decoder_kernel_sizes": [9]}, "decoder_kernel_sizes"),
        ({"resblock_dilation_sizes": []}, "resblock_dilation_sizes"),
        ({"num_attention_heads": 7}, "num_attention_heads"),
        ({"sampling_rate": 16_000}, "sampling_rate, expected 32000, found 16000"),
    ],
)
def test_a_config_that_cannot_be_is_refused(tmp_path, change, named):
    folder = Path(shutil.copytree(MINI / "audio_vae", tmp_path / "audio_vae"))
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(BadCheckpoint, match=f"audio_vae/config.json.*{named}"):
        AudioVae(folder, device=torch.device("cpu"))
