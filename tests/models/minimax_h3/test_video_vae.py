"""Pixels of the picture decoder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.mini import MINI

from omnireel.acceleration import compile_blocks
from omnireel.attention import AttentionBackend, AttentionConfig, select_backend
from omnireel.errors import BadCheckpoint
from omnireel.layers.kernels import TRACEABLE
from omnireel.models.minimax_h3.frame_encoder import FrameEncoder
from omnireel.models.minimax_h3.video_vae import HALF_TOLERANCE, PIXEL_MEAN, PIXEL_STD, VideoVae, _half_encoder


def select(role: str, category: str, head_dim: int) -> AttentionBackend:
    return select_backend(
        AttentionConfig(),
        role=role,
        category=category,
        head_dim=head_dim,
        platform_name="cpu",
        preference=("TORCH_SDPA",),
    )


@pytest.fixture(scope="module")
def vae():
    return VideoVae(MINI / "vae", device=torch.device("cpu"), is_mixed=False, select=select)


@pytest.mark.parametrize(("latent_frames", "frames"), [(7, 22), (12, 39), (32, 107)])
@torch.inference_mode()
def test_latents_become_the_frames_they_stand_for(vae, latent_frames, frames):
    made = vae.decode(torch.randn(1, 24, latent_frames, 2, 4))
    assert made.shape == (frames, 32, 64, 3)


@torch.inference_mode()
def test_frames_are_the_decoders_pixels_rounded(vae):
    latents = torch.randn(1, 24, 7, 2, 2)
    made = vae.decode(latents)
    pixels = vae._vae.decode(latents * vae._std + vae._mean)
    unit = pixels[0].permute(1, 2, 3, 0) * torch.tensor(PIXEL_STD) + torch.tensor(PIXEL_MEAN)
    assert np.abs(made - (unit.clamp(0, 1) * 255).numpy()).max() <= 0.5 + 1e-3


@pytest.mark.parametrize(("frames", "latents"), [(1, 1), (5, 2), (22, 7), (39, 12)])
@torch.inference_mode()
def test_frames_are_encoded_to_the_latents_that_stand_for_them(vae, frames, latents):
    pixels = np.random.default_rng(0).integers(0, 256, (frames, 32, 64, 3), dtype=np.uint8)
    before = pixels.copy()
    made = vae.encode(pixels)
    assert (made.shape, made.dtype, made.device.type) == ((1, 24, latents, 2, 4), torch.float32, "cpu")
    assert np.array_equal(pixels, before)
    posterior = made * vae._std + vae._mean
    assert torch.allclose(posterior.half().float(), posterior, atol=1e-6)


@torch.inference_mode()
def test_a_posterior_is_drawn_alike_whatever_was_drawn_before(vae):
    pixels = np.zeros((1, 32, 32, 3), np.uint8)
    torch.manual_seed(1)
    first = vae.encode(pixels)
    state = torch.get_rng_state()
    assert torch.equal(vae.encode(pixels), first)
    assert torch.equal(torch.get_rng_state(), state)


@torch.inference_mode()
def test_the_mixed_layout_stays_close(vae):
    latents = torch.randn(1, 24, 7, 2, 2)
    mixed = VideoVae(MINI / "vae", device=torch.device("cpu"), is_mixed=True, select=select)
    assert mixed._vae.decoder.proj_out.weight.dtype == torch.bfloat16
    assert mixed._vae.encoder.conv_in.weight.dtype == torch.float32
    assert np.abs(mixed.decode(latents).astype(int) - vae.decode(latents)).mean() < 3


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"decoder_num_layers": "2"}, "decoder_num_layers"),
        ({"spatial_downsample_factors": [2, 2]}, "spatial_downsample_factors"),
        ({"spatial_padding_mode": "mirror"}, "spatial_padding_mode"),
        ({"norm_num_groups": 7}, "divisible"),
        ({"decoder_rope_dim_ratio": 2}, "decoder_rope_dim_ratio"),
        ({"clip_length": 33}, "cuts space and time otherwise"),
        ({"spatial_downsample_factors": [2, 2, 2, 1, 1, 1]}, "cuts space and time otherwise"),
        ({"latents_std": [0.0] * 24}, "latents_std"),
        ({"latents_mean": [float("nan")] * 24}, "latents_mean"),
    ],
)
def test_a_config_that_cannot_be_is_refused(tmp_path, change, named):
    folder = Path(shutil.copytree(MINI / "vae", tmp_path / "vae"))
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(BadCheckpoint, match=f"vae/config.json.*{named}"):
        VideoVae(folder, device=torch.device("cpu"), is_mixed=False, select=select)


@torch.inference_mode()
def test_half_precision_encodes_within_its_tolerance(vae):
    half = VideoVae(MINI / "vae", device=torch.device("cpu"), is_mixed=False, select=select, encode_precision="float16")
    pixels = torch.randint(256, (1, 3, 17, 64, 64), dtype=torch.uint8)
    ours, exact = (each._moments(pixels).chunk(2, dim=1)[0] for each in (half, vae))
    error = (ours - exact).norm() / exact.norm()
    assert 0 < error < HALF_TOLERANCE


@torch.inference_mode()
def test_half_precision_that_overflows_is_done_again_in_float32(vae, caplog):
    half = VideoVae(MINI / "vae", device=torch.device("cpu"), is_mixed=False, select=select, encode_precision="float16")
    for parameter in half._half_encoder.parameters():  # type: ignore[union-attr]
        parameter.fill_(torch.inf)
    pixels = torch.randint(256, (1, 3, 5, 32, 32), dtype=torch.uint8)
    assert torch.equal(half._moments(pixels), vae._moments(pixels))
    assert "overflows in half precision" in caplog.text


@torch.inference_mode()
def test_one_pass_between_convolutions_encodes_as_near_in_half_precision(vae):
    pixels = torch.randn(1, 3, 5, 32, 48, generator=torch.Generator().manual_seed(1))
    encoder = vae._vae.encoder
    exact = encoder(pixels)
    errors = []
    for has_passes in (False, True):
        half = _half_encoder(encoder, has_passes)
        assert isinstance(half, FrameEncoder) is has_passes
        assert half.dtype is torch.float16
        errors.append(((half(pixels.half()).float() - exact).norm() / exact.norm()).item())
    assert 0 < errors[1] < max(2 * errors[0], 1e-3)


@torch.inference_mode()
def test_other_kernels_are_those_of_the_decoder(vae):
    other = VideoVae(MINI / "vae", device=torch.device("cpu"), is_mixed=False, select=select, kernels=TRACEABLE)
    assert other._vae.decoder.kernels is TRACEABLE
    latents = torch.randn(1, 24, 7, 2, 4, generator=torch.Generator().manual_seed(1))
    assert np.abs(other.decode(latents).astype(int) - vae.decode(latents).astype(int)).max() <= 1


@torch.inference_mode()
def test_compiled_blocks_decode_the_same_frames(vae):
    compiled = VideoVae(MINI / "vae", device=torch.device("cpu"), is_mixed=False, select=select)
    compile_blocks(compiled._vae, ("decoder.transformer_blocks",), name="vae", backend="aot_eager")
    latents = torch.randn(1, 24, 7, 2, 4)
    difference = np.abs(compiled.decode(latents).astype(int) - vae.decode(latents).astype(int))
    torch._dynamo.reset()
    assert difference.max() <= 1


@torch.inference_mode()
@pytest.mark.parametrize(("precision", "has_tf32"), [("float32", False), ("tf32", True)])
def test_the_precision_of_convolutions_is_what_was_asked_for_whatever_the_program_has_set(
    monkeypatch, precision, has_tf32
):
    vae = VideoVae(MINI / "vae", device=torch.device("cpu"), is_mixed=False, select=select, encode_precision=precision)
    seen: list[bool] = []
    encode = vae._vae.encode_moments

    def watched(*args, **options):
        seen.append(torch.backends.cudnn.allow_tf32)
        return encode(*args, **options)

    monkeypatch.setattr(vae._vae, "encode_moments", watched)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=not has_tf32):
        vae._moments(torch.zeros(1, 3, 1, 32, 32, dtype=torch.uint8))
    assert seen == [has_tf32]
