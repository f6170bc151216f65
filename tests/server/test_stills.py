"""Pictures of a clip."""

import numpy as np

from omnireel.server.stills import COLUMNS, ROWS, SPRITE_EDGE, sheet


def test_a_sheet_shows_frames_over_the_whole_clip_line_by_line():
    frames = np.repeat(np.arange(100, dtype=np.uint8), 8 * 12 * 3).reshape(100, 8, 12, 3)
    made = sheet(frames)
    assert made.shape == (ROWS * 8, COLUMNS * 12, 3)
    shown = made[::8, ::12, 0].ravel()
    assert list(shown) == [0, 11, 22, 33, 44, 55, 66, 77, 88, 99]


def test_large_frames_are_made_small():
    made = sheet(np.zeros((3, 480, 960, 3), np.uint8))
    assert made.shape == (ROWS * SPRITE_EDGE // 2, COLUMNS * SPRITE_EDGE, 3)
