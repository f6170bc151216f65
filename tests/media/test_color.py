"""Frames of any origin become the 8-bit frames that the format's rules say."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from PIL import Image

from omnireel.media.color import to_uint8_frames


def test_alpha_is_dropped_and_values_outside_the_unit_range_mean_signed():
    frame = np.array([[[0, 0.5, 1, 0.2], [1.5, -0.5, 0.5, 0.8]]])
    assert to_uint8_frames([frame]).tolist() == [[[[128, 191, 255], [255, 64, 191]]]]


def test_a_grey_frame_four_wide_is_not_taken_for_alpha():
    frame = np.arange(8).reshape(2, 4) / 8
    frames = to_uint8_frames([frame, frame])
    assert frames.shape == (2, 2, 4)
    assert np.array_equal(frames[0], np.rint(255 * frame))


def test_mixed_types_are_computed_in_their_common_type():
    frames = to_uint8_frames([np.full((1, 1), 0.1, np.float16), np.full((1, 1), 0.2, np.float32)])
    assert frames.ravel().tolist() == [25, 51]


def test_floating_tensors_are_signed_whatever_their_values():
    assert to_uint8_frames(torch.zeros(1, 2, 2, 3)).ravel().tolist() == [128] * 12


def test_floating_arrays_in_the_unit_range_are_taken_as_they_are():
    assert to_uint8_frames(np.zeros((1, 2, 2, 3))).max() == 0


@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor])
def test_wide_integers_are_divided_by_255(make):
    assert to_uint8_frames(make(np.full((1, 1, 1, 3), 51, np.int32))).ravel().tolist() == [51, 51, 51]


def test_bytes_are_copied():
    payload = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3)
    frames = to_uint8_frames(payload)
    assert np.array_equal(frames, payload)
    assert not np.shares_memory(frames, payload)


def test_half_levels_round_to_even():
    values = np.array([[0.5 / 255, 1.5 / 255, 2.5 / 255]])
    assert to_uint8_frames([values]).ravel().tolist() == [0, 2, 2]


@pytest.mark.parametrize("shape", [(3, 5, 4, 6), (5, 3, 4, 6)])
def test_channels_first_is_recognised(shape):
    assert to_uint8_frames(np.zeros(shape, np.uint8)).shape == (5, 4, 6, 3)


@pytest.mark.parametrize("count", [3, 4])
def test_a_channels_last_clip_of_three_or_four_frames_keeps_its_frames(count):
    assert to_uint8_frames(np.zeros((count, 8, 6, 3), np.uint8)).shape == (count, 8, 6, 3)


def test_channels_first_frames_in_a_list_are_turned():
    assert to_uint8_frames([np.zeros((3, 8, 6), np.uint8)]).shape == (1, 8, 6, 3)


def test_pillow_pictures_are_taken():
    assert to_uint8_frames([Image.new("RGB", (4, 2), (1, 2, 3))])[0, 0, 0].tolist() == [1, 2, 3]


def test_pillow_pictures_with_a_palette_show_their_colours():
    picture = Image.new("RGB", (4, 2), (255, 0, 0)).convert("P")
    assert to_uint8_frames([picture])[0, 0, 0].tolist() == [255, 0, 0]


def test_a_single_array_is_one_frame():
    assert to_uint8_frames(np.zeros((8, 6, 3), np.uint8)).shape == (1, 8, 6, 3)


def test_half_precision_tensors_are_taken():
    assert to_uint8_frames(torch.ones(1, 2, 2, 3, dtype=torch.bfloat16)).min() == 255


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ([], "no frames"),
        (np.zeros((0, 4, 4, 3), np.uint8), "no frames"),
        (np.zeros((1, 2, 4, 4, 3), np.uint8), "5"),
        ([np.zeros((1, 2, 4, 3), np.uint8)], "frame"),
        ([np.zeros((2, 2, 3), np.uint8), np.zeros((2, 4, 3), np.uint8)], "differ in shape"),
        ([np.zeros((2, 2), np.uint8), np.zeros((2, 2, 3), np.uint8)], "differ in shape"),
        ("frames.mp4", "str"),
        ([None], "NoneType"),
        (np.array(["a"]), "U1"),
        (torch.zeros(1, 2, 2, 3, dtype=torch.bool), "bool"),
        (torch.zeros(1, 2, 2, 3, dtype=torch.complex64), "complex64"),
        (torch.full((1, 2, 2, 3), torch.nan), "no numbers"),
        (np.full((1, 2, 2, 3), np.nan), "no numbers"),
    ],
)
def test_what_is_no_clip_is_refused(payload, problem):
    with pytest.raises(ValueError, match=problem):
        to_uint8_frames(payload)


@pytest.mark.parametrize(
    "payload",
    [
        np.linspace(-1, 1, 3 * 4 * 6 * 3).reshape(3, 4, 6, 3),
        np.linspace(0, 300, 3 * 4 * 6 * 3).astype(np.int32).reshape(3, 3, 4, 6),
        np.arange(216, dtype=np.uint8).reshape(3, 3, 4, 6),
        torch.linspace(-2, 2, 216).reshape(3, 4, 6, 3),
        torch.linspace(-2, 2, 216, dtype=torch.bfloat16, requires_grad=True).reshape(3, 3, 4, 6),
    ],
)
def test_the_result_is_contiguous_and_the_input_unchanged(payload):
    before = payload.copy() if isinstance(payload, np.ndarray) else payload.detach().clone()
    assert to_uint8_frames(payload).flags.c_contiguous
    assert bool((payload == before).all())


def test_a_frozen_input_is_enough():
    payload = np.linspace(-1, 1, 72).reshape(2, 3, 4, 3)
    payload.flags.writeable = False
    assert to_uint8_frames(payload).flags.writeable


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_one_frame_is_held_as_float_never_the_clip(dtype):
    payload = np.random.default_rng(0).integers(-2, 2, (40, 128, 128, 3)).astype(dtype)
    to_uint8_frames(payload[:1])
    tracemalloc.start()
    frames = to_uint8_frames(payload)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < frames.nbytes + 1.2 * payload[0].nbytes


@pytest.mark.parametrize("as_list", [False, True])
def test_narrow_tensors_are_widened_one_frame_at_a_time(monkeypatch, as_list):
    sizes: list[int] = []
    widen = torch.Tensor.float

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel())
        return widen(tensor)

    monkeypatch.setattr(torch.Tensor, "float", counted)
    payload = torch.zeros(5, 4, 6, 3, dtype=torch.bfloat16)
    to_uint8_frames(list(payload) if as_list else payload)
    assert sizes == [4 * 6 * 3] * 5


def test_frames_of_one_list_may_lie_in_different_ranges():
    frames = to_uint8_frames([np.full((1, 1), 0.5), np.array([[-0.5]])])
    assert frames.ravel().tolist() == [128, 64]


def test_the_range_of_an_array_is_told_for_the_whole_clip():
    payload = np.zeros((2, 1, 1, 3), np.float32)
    payload[1] = -1
    assert to_uint8_frames(payload)[:, 0, 0, 0].tolist() == [128, 0]


def test_tensors_of_double_precision_are_computed_in_single():
    values = torch.linspace(-1, 1, 3000, dtype=torch.float64).reshape(1, 1, 1000, 3)
    assert np.array_equal(to_uint8_frames(values), to_uint8_frames(values.float()))
