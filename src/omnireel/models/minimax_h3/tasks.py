"""Which task a request is, and what of its media the task takes: the rules of keyframes and references.

Everything is told from facts of the media; nothing is decoded here.
"""

from __future__ import annotations

from collections.abc import Sequence

from omnireel.errors import InvalidRequest
from omnireel.models.minimax_h3 import limits as geometry
from omnireel.models.minimax_h3.limits import FPS, Limits
from omnireel.request import MediaFacts, MediaKind, MediaPlan

T2VA, FL2VA, REF2VA = "t2va", "fl2va", "ref2va"
FIRST, LAST, REFERENCE = "first_frame", "last_frame", "reference"
"""Roles of media. A keyframe is a picture that the clip begins or ends with."""

MAX_OF_KIND = {MediaKind.IMAGE: 9, MediaKind.VIDEO: 3, MediaKind.AUDIO: 3}
MAX_REFERENCES = 12
MAX_BYTES = {MediaKind.IMAGE: 30 * 2**20, MediaKind.VIDEO: 50 * 2**20, MediaKind.AUDIO: 15 * 2**20}
MIN_CLIP_FRAMES = 13
"""A clip is read at two frames a second and its frames in pairs, so a pair must be there."""

_FITS = {
    T2VA: "t2va takes a text alone",
    FL2VA: "fl2va takes a picture as first frame, as last frame, or both",
    REF2VA: "ref2va takes 1 to 12 references: up to 9 pictures, 3 clips and 3 recordings, not recordings alone",
}


def infer_task(asked: str | None, media: Sequence[MediaFacts], served: tuple[str, ...]) -> str:
    """The task of a request: the one that was asked for, or the one that its media tell.

    A service of ref2va alone takes everything as ref2va; otherwise clips, recordings and references mean ref2va, pictures
    fl2va, and no media t2va.

    Raises:
        InvalidRequest: the task is not served here, or does not fit the media.
    """
    task = asked if asked is not None else _told(media, served)
    if task not in served:
        known = task in tuple(_FITS)
        allowed = f"this service runs {', '.join(served)}" if known else f"it must be {' or '.join(served)}"
        raise InvalidRequest("task", task, allowed)
    if task == T2VA and media:
        raise InvalidRequest("task", task, f"{len(media)} file(s) came with the request, and {_FITS[T2VA]}")
    if task == FL2VA:
        _check_keyframes(media)
    if task == REF2VA:
        _check_references(media)
    return task


def keyframe_plans(media: Sequence[MediaFacts], size: tuple[int, int]) -> tuple[MediaPlan, ...]:
    """The leading picture is stretched onto the canvas (width, height), a second one covers it and is cropped."""
    leading = ordered_keyframes(media)[0]
    return tuple(MediaPlan(size=size, fit="stretch" if index == leading else "cover") for index in range(len(media)))


def reference_plans(media: Sequence[MediaFacts], num_frames: int, limits: Limits) -> tuple[MediaPlan, ...]:
    """Pictures at a short edge of their own, clips on the canvas of their own shape, sound cut to the clip's length."""
    seconds = num_frames / FPS
    plans = []
    for facts in media:
        if facts.kind is MediaKind.IMAGE:
            plans.append(MediaPlan(size=_reference_size(facts, limits)))
        elif facts.kind is MediaKind.VIDEO:
            height, width = geometry.canvas(facts.width, facts.height, limits)
            plans.append(MediaPlan(size=(width, height), fps=float(FPS), max_frames=num_frames, max_seconds=seconds))
        else:
            plans.append(MediaPlan(max_seconds=seconds))
    return tuple(plans)


def ordered_keyframes(media: Sequence[MediaFacts]) -> tuple[int, ...]:
    """Places of the keyframes in the request, the first frame before the last one."""
    return tuple(sorted(range(len(media)), key=lambda index: media[index].role == LAST))


def _told(media: Sequence[MediaFacts], served: tuple[str, ...]) -> str:
    if served == (REF2VA,):
        return REF2VA
    if any(facts.role == REFERENCE or facts.kind is not MediaKind.IMAGE for facts in media):
        return REF2VA
    return FL2VA if media else T2VA


def _check_keyframes(media: Sequence[MediaFacts]) -> None:
    if not media:
        raise InvalidRequest("task", FL2VA, f"no picture came with the request, and {_FITS[FL2VA]}")
    for facts in media:
        if facts.kind is not MediaKind.IMAGE or facts.role not in (FIRST, LAST):
            raise InvalidRequest("task", FL2VA, f"{facts.name} is a {facts.kind} ({facts.role}), and {_FITS[FL2VA]}")
        _check_medium(facts)
    roles = [facts.role for facts in media]
    if len(set(roles)) < len(roles):
        raise InvalidRequest("task", FL2VA, f"two pictures are both the {roles[0]}, and {_FITS[FL2VA]}")


def _check_references(media: Sequence[MediaFacts]) -> None:
    if not media:
        raise InvalidRequest("task", REF2VA, f"no reference came with the request, and {_FITS[REF2VA]}")
    for facts in media:
        if facts.role != REFERENCE:
            raise InvalidRequest("task", REF2VA, f"{facts.name} is a {facts.role}, and {_FITS[REF2VA]}")
        _check_medium(facts)
    kinds = [facts.kind for facts in media]
    for kind, most in MAX_OF_KIND.items():
        if kinds.count(kind) > most:
            raise InvalidRequest("references", f"{kinds.count(kind)} of kind {kind}", _FITS[REF2VA])
    if len(kinds) > MAX_REFERENCES or set(kinds) == {MediaKind.AUDIO}:
        raise InvalidRequest("references", ", ".join(kinds), _FITS[REF2VA])


def _check_medium(facts: MediaFacts) -> None:
    most = MAX_BYTES[facts.kind]
    if facts.size_bytes > most:
        raise InvalidRequest(facts.name, f"{facts.size_bytes} bytes", f"a {facts.kind} may have {most // 2**20} MiB")
    if facts.kind is MediaKind.AUDIO:
        return
    if not facts.height or not geometry.MIN_RATIO <= facts.width / facts.height <= geometry.MAX_RATIO:
        size = f"{facts.width}x{facts.height}"
        raise InvalidRequest(facts.name, size, "width to height must lie between 1:4 and 4:1")
    if facts.kind is MediaKind.VIDEO and 0 < facts.seconds * FPS < MIN_CLIP_FRAMES - 1:
        least = f"{MIN_CLIP_FRAMES} frames at {FPS} a second ({MIN_CLIP_FRAMES / FPS:.2f} s)"
        raise InvalidRequest(facts.name, f"{facts.seconds:.2f} s", f"a clip must last {least}")


def _reference_size(facts: MediaFacts, limits: Limits) -> tuple[int, int]:
    scale = limits.reference_image_short_edge / min(facts.width, facts.height)
    multiple = geometry.CANVAS_MULTIPLE
    width, height = (max(multiple, round(edge * scale / multiple) * multiple) for edge in (facts.width, facts.height))
    return width, height
