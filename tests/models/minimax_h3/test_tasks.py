"""Which task a request is, and what of its media each task takes."""

from __future__ import annotations

import pytest

from omnireel.errors import InvalidRequest
from omnireel.models.minimax_h3 import tasks
from omnireel.models.minimax_h3.limits import Limits
from omnireel.request import MediaFacts, MediaKind, MediaPlan

ALL = ("t2va", "fl2va", "ref2va")


def fact(kind: str, role: str = "reference", **more: object) -> MediaFacts:
    named = {"width": 640, "height": 360, "fps": 24.0, "seconds": 5.0, "name": f"a {kind}"} | more
    return MediaFacts(kind=MediaKind(kind), role=role, **named)  # type: ignore[arg-type]


FIRST, LAST = fact("image", "first_frame"), fact("image", "last_frame")
PICTURE, CLIP, SOUND = fact("image"), fact("video"), fact("audio", width=0, height=0)


@pytest.mark.parametrize(
    ("media", "task"),
    [
        ([], "t2va"),
        ([FIRST], "fl2va"),
        ([LAST], "fl2va"),
        ([LAST, FIRST], "fl2va"),
        ([PICTURE], "ref2va"),
        ([CLIP], "ref2va"),
        ([PICTURE, SOUND], "ref2va"),
    ],
)
def test_the_task_is_told_from_the_media(media, task):
    assert tasks.infer_task(None, media, ALL) == task
    assert tasks.infer_task(task, media, ALL) == task


def test_a_service_of_references_alone_takes_everything_as_that():
    with pytest.raises(InvalidRequest, match="no reference came"):
        tasks.infer_task(None, [], ("ref2va",))


@pytest.mark.parametrize(
    ("asked", "media", "served", "problem"),
    [
        ("t2va", [FIRST], ALL, "takes a text alone"),
        ("fl2va", [], ALL, "no picture came"),
        ("fl2va", [PICTURE], ALL, "first frame"),
        ("fl2va", [fact("video", "first_frame")], ALL, "first frame"),
        ("fl2va", [FIRST, FIRST], ALL, "two pictures are both the first_frame"),
        ("ref2va", [], ALL, "no reference came"),
        ("ref2va", [FIRST], ALL, "is a first_frame"),
        ("ref2va", [SOUND], ALL, "not recordings alone"),
        ("ref2va", [PICTURE] * 10, ALL, "up to 9 pictures"),
        ("ref2va", [CLIP] * 4, ALL, "3 clips"),
        ("ref2va", [PICTURE] + [SOUND] * 4, ALL, "3 recordings"),
        ("ref2va", [PICTURE] * 7 + [CLIP] * 3 + [SOUND] * 3, ALL, "1 to 12 references"),
        ("ref2va", [PICTURE], ("t2va", "fl2va"), "this service runs t2va, fl2va"),
        (None, [PICTURE], ("t2va", "fl2va"), "this service runs t2va, fl2va"),
        ("i2v", [], ALL, "t2va or fl2va or ref2va"),
    ],
)
def test_what_does_not_fit_says_what_would(asked, media, served, problem):
    with pytest.raises(InvalidRequest, match=problem):
        tasks.infer_task(asked, media, served)


@pytest.mark.parametrize("media", [[PICTURE] * 9, [PICTURE] * 6 + [CLIP] * 3 + [SOUND] * 3, [SOUND, CLIP]])
def test_the_most_that_fits_is_taken(media):
    assert tasks.infer_task("ref2va", media, ALL) == "ref2va"


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        (fact("image", size_bytes=31 * 2**20), "30 MiB"),
        (fact("video", size_bytes=51 * 2**20), "50 MiB"),
        (fact("image", width=500, height=100), "1:4"),
        (fact("video", width=100, height=500), "1:4"),
        (fact("video", seconds=0.4), "13 frames"),
    ],
)
def test_media_out_of_bounds_are_refused(facts, problem):
    with pytest.raises(InvalidRequest, match=problem):
        tasks.infer_task("ref2va", [facts], ALL)


def test_a_recording_that_is_too_large_is_refused():
    with pytest.raises(InvalidRequest, match="15 MiB"):
        tasks.infer_task("ref2va", [PICTURE, fact("audio", size_bytes=16 * 2**20)], ALL)


def test_the_leading_keyframe_is_stretched_and_the_other_one_covers():
    assert [plan.fit for plan in tasks.keyframe_plans([FIRST, LAST], (64, 32))] == ["stretch", "cover"]
    assert [plan.fit for plan in tasks.keyframe_plans([LAST, FIRST], (64, 32))] == ["cover", "stretch"]
    assert tasks.keyframe_plans([LAST], (64, 32)) == (MediaPlan(size=(64, 32)),)


def test_references_get_the_sizes_of_the_published_rules():
    media = [fact("image", width=80, height=48), fact("image", width=1600, height=900), fact("video"), SOUND]
    picture, wide, clip, sound = tasks.reference_plans(media, 209, Limits())
    assert picture.size == (3424, 2048)
    assert wide.size == (3648, 2048)
    assert (clip.size, clip.fps, clip.max_frames, clip.max_seconds) == ((1344, 768), 24.0, 209, 209 / 24)
    assert sound == MediaPlan(max_seconds=209 / 24)
