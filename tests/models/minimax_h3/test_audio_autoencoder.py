"""The audio VAE by itself."""

from __future__ import annotations

import pytest
import torch
from tests.support.mini import MINI

from omnireel.models.minimax_h3.audio_autoencoder import (
    Activation,
    AudioAutoencoder,
    AudioVaeConfig,
    fold_weight_norm,
)
from omnireel.weights import load_component, read_index


def unfilled() -> AudioAutoencoder:
    return AudioAutoencoder(AudioVaeConfig.from_dict(read_index(MINI / "audio_vae").config))


def loaded() -> AudioAutoencoder:
    made = unfilled()
    load_component(
        made, read_index(MINI / "audio_vae"), device=torch.device("cpu"), dtype_of=lambda _, __: torch.float32
    )
    return made


@pytest.fixture(scope="module")
def vae():
    return loaded()


@pytest.mark.parametrize("default", ["cpu", "meta"])
def test_it_is_made_on_the_meta_device_whatever_the_default_device(default):
    with torch.device(default):
        made = unfilled()
    assert {tensor.device.type for tensor in (*made.parameters(), *made.buffers())} == {"meta"}


@torch.inference_mode()
def test_folding_keeps_the_sound_and_gives_half_of_the_names_back(vae):
    folded = loaded()
    fold_weight_norm(folded)
    names = [name for name, _ in folded.named_parameters()]
    assert not [name for name in names if name.endswith(("weight_g", "weight_v"))]
    latents, wave = torch.randn(2, 32, 9), 0.3 * torch.randn(2, 4000)
    assert (folded.decode(latents) - vae.decode(latents)).abs().max() <= 3e-7
    assert (folded.encode(wave) - vae.encode(wave)).abs().max() <= 3e-7


@torch.inference_mode()
def test_folding_twice_is_folding_once():
    folded = loaded()
    fold_weight_norm(folded)
    latents = torch.randn(1, 32, 5)
    once = folded.decode(latents)
    fold_weight_norm(folded)
    assert torch.equal(folded.decode(latents), once)


@pytest.mark.parametrize(("samples", "latents"), [(1, 1), (800, 1), (801, 2), (16_000, 20)])
@torch.inference_mode()
def test_a_wave_is_filled_up_with_silence_to_whole_latents(vae, samples, latents):
    wave = 0.3 * torch.randn(1, samples)
    filled = torch.zeros(1, 800 * latents)
    filled[:, :samples] = wave
    made = vae.encode(wave)
    assert made.shape == (1, 32, latents)
    assert torch.equal(made, vae.encode(filled))


@torch.inference_mode()
def test_loud_latents_stay_within_what_a_file_can_hold(vae):
    wave = vae.decode(100 * torch.randn(1, 32, 10))
    assert wave.shape == (1, 8000)
    assert wave.abs().max() <= 1


@torch.inference_mode()
def test_what_is_given_is_left_as_it_was(vae):
    latents, wave = torch.randn(2, 32, 5), 0.3 * torch.randn(2, 1600)
    before = latents.clone(), wave.clone()
    vae.decode(latents)
    vae.encode(wave)
    assert torch.equal(latents, before[0])
    assert torch.equal(wave, before[1])


@torch.inference_mode()
def test_an_activation_is_its_formula_where_nothing_changes():
    """On a constant both resamplers do nothing when their filters add up to one, at each phase for the one that widens."""
    activation = Activation(3)
    alpha, beta = torch.randn(2, 3)
    activation.act.alpha.copy_(alpha)
    activation.act.beta.copy_(beta)
    for taps in activation.buffers():
        taps.fill_(1 / 12)
    made = activation(torch.full((1, 3, 40), 0.7))
    expected = 0.7 + torch.sin(alpha.exp() * 0.7) ** 2 / (beta.exp() + 1e-9)
    assert torch.allclose(made[0, :, 20], expected, atol=1e-5)
