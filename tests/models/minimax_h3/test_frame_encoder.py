import pytest
import torch
from benchmarks.h3_references import TINY_VIDEO, filled

from omnireel.layers.kernels.frames import PlainFrames
from omnireel.models.minimax_h3.frame_encoder import FrameEncoder
from omnireel.models.minimax_h3.video_autoencoder import CausalConv3d, Encoder


@pytest.fixture(scope="module")
def encoder():
    with torch.device("meta"):
        made = Encoder(TINY_VIDEO)
    made = filled(made, "cpu", torch.float32).float()
    for parameter in made.parameters():
        if parameter.ndim == 1:
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return made


@pytest.mark.parametrize("is_flat", [False, True])
@pytest.mark.parametrize("shape", [(1, 3, 17, 32, 48), (2, 3, 5, 32, 32), (1, 3, 1, 32, 32)])
@torch.inference_mode()
def test_it_encodes_as_the_encoder_does(encoder, shape, is_flat):
    pixels = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    expected = encoder(pixels)
    made = FrameEncoder(encoder, dtype=torch.float32, kernels=PlainFrames(), is_flat=is_flat)
    torch.testing.assert_close(made(pixels), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("is_flat", [False, True])
@torch.inference_mode()
def test_in_half_precision_it_is_as_near_as_the_encoder_is(encoder, is_flat):
    pixels = torch.randn(1, 3, 5, 32, 32, generator=torch.Generator().manual_seed(3))
    expected = encoder(pixels)
    made = FrameEncoder(encoder, dtype=torch.float16, kernels=PlainFrames(), is_flat=is_flat)
    assert made.dtype is torch.float16
    distance = (made(pixels.half()).float() - expected).norm() / expected.norm()
    assert 0 < distance < 5e-3


def test_edges_that_are_not_mirrored_are_refused(encoder):
    conv = next(module for module in encoder.modules() if isinstance(module, CausalConv3d))
    conv.mode = "replicate"
    try:
        with pytest.raises(ValueError, match="not mirrored"):
            FrameEncoder(encoder, dtype=torch.float32, kernels=PlainFrames(), is_flat=True)
    finally:
        conv.mode = "reflect"
