"""The audio VAE begins as a transform that sound survives."""

import pytest
import torch

from tools.mini_h3 import audio_start

pytestmark = pytest.mark.slow


def test_axes_are_orthonormal_and_sorted_by_spread():
    generator = torch.Generator().manual_seed(0)
    pieces = torch.randn(200, 800, generator=generator) * torch.linspace(3, 0, 800)
    axes, spread = audio_start.principal_axes(pieces, 12)
    torch.testing.assert_close(axes @ axes.T, torch.eye(12), atol=1e-4, rtol=0)
    torch.testing.assert_close((pieces @ axes.T).square().mean(0).sqrt(), spread, atol=1e-3, rtol=1e-3)
    assert (spread.diff() <= 0).all()


def test_cosines_are_orthonormal():
    rows = audio_start.cosine_blocks(128, 160)
    torch.testing.assert_close(rows @ rows.T, torch.eye(128), atol=1e-5, rtol=0)


def test_sound_that_it_was_not_started_from_survives():
    from tools.mini_h3.train_vaes import AudioTrainer

    assert AudioTrainer(torch.device("cpu")).held_out(2)["snr_db"] > 10
