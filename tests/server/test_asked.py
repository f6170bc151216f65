"""Fields of a body as a request: spellings, names, and what is refused."""

import pytest

from omnireel.errors import InvalidRequest, UnknownModel
from omnireel.server.asked import FIELDS, asked_of
from omnireel.server.form import Fields

NAMES = ("mini-h3", "h3")


def asked(**values):
    return asked_of(Fields({"prompt": "a kite", **values}, is_json=True), NAMES)


@pytest.mark.parametrize(
    ("given", "sampling"),
    [
        ({"size": "1280x720"}, {"width": 1280, "height": 720}),
        ({"size": " 64 X 32 "}, {"width": 64, "height": 32}),
        ({"size": "auto"}, {}),
        ({"size": "64x32", "width": 1, "height": 1}, {"width": 64, "height": 32}),
        ({"width": "64", "height": 32}, {"width": 64, "height": 32}),
        ({"seconds": "8"}, {"seconds": 8.0}),
        ({"seconds": "8.7s"}, {"seconds": 8.7}),
        ({"seconds": 4}, {"seconds": 4.0}),
        ({"seconds": 4, "num_frames": 96}, {"num_frames": 96}),
        ({"seed": "-5"}, {"seed": -5}),
        ({"seed": "-5.0", "width": "64.", "height": 32.0}, {"seed": -5, "width": 64, "height": 32}),
        ({"seed": "9007199254740993.00"}, {"seed": 9007199254740993}),
        ({"fps": "24"}, {"fps": 24.0}),
        ({"aspect_ratio": "auto"}, {}),
        ({"aspect_ratio": "9:16", "short_edge": "128"}, {"aspect_ratio": "9:16", "short_edge": 128}),
        ({"size": "64x32", "aspect_ratio": "16:9"}, {"width": 64, "height": 32}),
        ({"seed": None, "user": ""}, {}),
        ({"extra_params": {"task": "t2va"}}, {"extra_args": {"task": "t2va"}}),
        ({"extra_params": '{"task": "t2va", "duration": 5.2}'}, {"extra_args": {"task": "t2va", "duration": 5.2}}),
    ],
)
def test_published_spellings_mean_the_same(given, sampling):
    assert asked(**given).sampling == sampling


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"size": "big"}, "size"),
        ({"size": "64x"}, "size"),
        ({"size": 64}, "size"),
        ({"seconds": "soon"}, "seconds"),
        ({"seconds": "nan"}, "seconds"),
        ({"seconds": 10**400}, "seconds"),
        ({"start_time_seconds": 10**400}, "start_time_seconds"),
        ({"prompt": "x" * 100_001}, "prompt"),
        ({"seed": "1.5"}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"seed": 1e300}, "seed"),
        ({"num_inference_steps": "4.0.0"}, "num_inference_steps"),
        ({"seed": [1]}, "seed"),
        ({"num_inference_steps": {}}, "num_inference_steps"),
        ({"extra_params": "{"}, "extra_params"),
        ({"extra_params": "[1]"}, "extra_params"),
        ({"extra_params": 7}, "extra_params"),
        ({"extra_params": {"frame_indices": [3]}}, "extra_params.frame_indices"),
        ({"start_time_seconds": "soon"}, "start_time_seconds"),
        ({"start_time_seconds": -1}, "start_time_seconds"),
        ({"prompt": 3}, "prompt"),
        ({"user": "u" * 513}, "user"),
        ({"lora": {"name": "a"}}, "lora"),
        ({"quality": "lossless"}, "quality"),
        ({"generate_sound": "false"}, "generate_sound"),
        ({"input_reference": 3}, "input_reference"),
        ({"input_reference": {"url": "x"}}, "input_reference"),
        ({"image_reference": {"video_url": "https://a/b"}}, "image_reference"),
        ({"image_reference": {"image_url": "https://a/b", "file_id": "f"}}, "image_reference"),
        ({"image_reference": "[{"}, "image_reference"),
        ({"video_reference": [{"video_url": {"url": 3}}]}, "video_reference"),
    ],
)
def test_what_is_not_allowed_names_its_field(given, field):
    with pytest.raises(InvalidRequest) as caught:
        asked(**given)
    assert caught.value.details["field"] == field


@pytest.mark.parametrize(
    ("name", "close"), [("num_frame", "num_frames"), ("Prompt", "prompt"), ("imagereference", "image_reference")]
)
def test_an_unknown_field_is_told_with_the_nearest(name, close):
    with pytest.raises(InvalidRequest) as caught:
        asked(**{name: 1})
    assert caught.value.hint == f"did you mean {close}?"
    assert close in FIELDS


def test_a_model_by_another_name_is_unknown():
    assert asked(model="h3").prompt == "a kite"
    with pytest.raises(UnknownModel):
        asked(model="sora-2")


def test_media_keep_the_order_of_the_body_and_their_names():
    sources = asked(
        video_reference={"video_url": {"url": "https://a/v"}},
        input_references='["https://a/1", {"file_id": "file_1"}]',
        image_reference=[{"image_url": "data:,x"}],
    ).sources
    assert [(source.field, source.kind, source.url, source.file_id) for source in sources] == [
        ("video_reference", "video", "https://a/v", ""),
        ("input_references[0]", "", "https://a/1", ""),
        ("input_references[1]", "", "", "file_1"),
        ("image_reference", "image", "data:,x", ""),
    ]


def test_starts_and_frame_indices_leave_the_extra_params():
    found = asked(extra_params={"start_time_seconds": [1, "2.5"], "frame_indices": "[0, -1]"})
    assert (found.starts, found.frame_indices, found.sampling) == ((1.0, 2.5), (0, -1), {})
