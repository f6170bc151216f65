import pytest
import torch

from omnireel.layers import TimestepEmbedding, sinusoid


def test_cosines_come_before_sines_and_the_first_frequency_is_one():
    features = sinusoid(torch.tensor([0.5]), 4)
    angle = torch.tensor([0.5, 0.5 / 100])
    assert torch.allclose(features, torch.cat((angle.cos(), angle.sin()))[None])


def test_it_is_float32_for_any_timestep_type():
    assert sinusoid(torch.tensor([0.5], dtype=torch.float64), 4).dtype is torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_embedding_has_the_type_and_width_of_its_weights(dtype):
    embedding = TimestepEmbedding(4, 6, 5).to(dtype)
    for parameter in embedding.parameters():
        parameter.fill_(0.25)
    out = embedding(sinusoid(torch.tensor([0.0, 1.0]), 4))
    assert (out.shape, out.dtype) == ((2, 5), dtype)
