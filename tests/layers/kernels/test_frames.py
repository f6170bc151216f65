import pytest
import torch
from torch.nn import functional as F

from omnireel.layers.kernels.frames import PlainFrames, Window, frame_kernels

KERNELS = PlainFrames()


def normed(channels=8, groups=4):
    norm = torch.nn.GroupNorm(groups, channels, eps=1e-6)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    return norm


@torch.inference_mode()
def test_a_group_norm_is_one_product_and_one_sum_a_value():
    x, norm = torch.randn(2, 3, 4, 6, 8), normed()
    scale, shift = KERNELS.group_norm(x, norm)
    expected = norm(x.flatten(0, 1).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    torch.testing.assert_close(x.flatten(0, 1) * scale[:, None, None] + shift[:, None, None], expected)


@torch.inference_mode()
def test_what_is_to_be_added_is_added_before_the_norm():
    x, y, norm = torch.randn(1, 2, 4, 4, 8), torch.randn(1, 2, 4, 4, 8), normed()
    together = x + y
    expected = KERNELS.group_norm(together, norm)
    for made, wanted in zip(KERNELS.group_norm(x, norm, y), expected, strict=True):
        assert torch.equal(made, wanted)
    assert torch.equal(x, together)


@pytest.mark.parametrize("margins", [(1, 1), (0, 1), (0, 0)])
@torch.inference_mode()
def test_margins_are_mirrored_and_nothing_lies_before_the_first_frame(margins):
    x = torch.randn(2, 3, 4, 5, 8)
    made = KERNELS.windows(x, Window(taps=1, past=2, stride=1, margins=margins))
    channels_first = F.pad(x.permute(0, 4, 1, 2, 3), (*margins, *margins, 0, 0), mode="reflect")
    assert torch.equal(made, F.pad(channels_first, (0, 0, 0, 0, 2, 0)).permute(0, 2, 3, 4, 1))


@pytest.mark.parametrize(("stride", "frames"), [(1, 5), (2, 5), (2, 4), (1, 1), (2, 1)])
@torch.inference_mode()
def test_flat_convolutions_are_those_over_time(stride, frames):
    x, weight = torch.randn(2, frames, 5, 6, 8), torch.randn(4, 8, 3, 3, 3)
    deep = KERNELS.windows(x, Window(taps=1, past=2, stride=1, margins=(0, 0))).permute(0, 4, 1, 2, 3)
    expected = F.conv3d(deep, weight, stride=(stride, 1, 1))
    window = Window(taps=3, past=2, stride=stride, margins=(0, 0))
    flat = KERNELS.windows(x, window)
    assert flat.shape[1] == window.num_frames(frames) == expected.shape[2]
    made = F.conv2d(flat.flatten(0, 1).permute(0, 3, 1, 2), weight.transpose(1, 2).flatten(1, 2))
    torch.testing.assert_close(made.unflatten(0, flat.shape[:2]).transpose(1, 2), expected, atol=1e-4, rtol=1e-4)


def test_a_processor_has_the_plain_spelling():
    assert isinstance(frame_kernels(torch.device("cpu")), PlainFrames)
