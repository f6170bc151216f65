"""Media files in and out: probing, decoding, encoding, recipes inside files. Knows no model.

PyAV and Pillow are imported when they are first needed. URLs are read by `fetch`, which only the command line needs.
"""

from omnireel.media.aside import check_writable
from omnireel.media.color import to_uint8_frames
from omnireel.media.decode import read_clip, read_picture, read_sound
from omnireel.media.digest import frames_digest, media_digest, wave_digest
from omnireel.media.encode import ENCODERS, has_encoder, write_clip
from omnireel.media.image import PICTURE_SUFFIXES, write_picture
from omnireel.media.inspect import inspect_media
from omnireel.media.prepare import media_facts, prepared
from omnireel.media.recipe import read_recipe, recipe_from_json, recipe_to_json

__all__ = [
    "ENCODERS",
    "PICTURE_SUFFIXES",
    "check_writable",
    "frames_digest",
    "has_encoder",
    "inspect_media",
    "media_digest",
    "media_facts",
    "prepared",
    "read_clip",
    "read_picture",
    "read_recipe",
    "read_sound",
    "recipe_from_json",
    "recipe_to_json",
    "to_uint8_frames",
    "wave_digest",
    "write_clip",
    "write_picture",
]
