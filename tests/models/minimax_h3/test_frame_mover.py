import numpy as np
import pytest
import torch

from omnireel.models.minimax_h3.frame_mover import Direct, Overlapped


class Delayed(Overlapped):
    """A stand-in for a device: what is queued arrives when its event is waited for, and no sooner."""

    def _pinned(self, size):
        return torch.zeros(size, dtype=torch.uint8)

    def _mark(self, device):
        return Arrival(self)

    def put(self, piece):
        self.piece = piece
        super().put(torch.zeros_like(piece))


class Arrival:
    def __init__(self, mover):
        self.mover, self.piece, self.turn = mover, mover.piece, mover._turn

    def synchronize(self):
        self.mover._buffers[self.turn][: self.piece.numel()] = self.piece.flatten()


@pytest.mark.parametrize("kind", [Direct, Delayed])
@pytest.mark.parametrize("lengths", [[3], [2, 2, 1], [1, 4, 2, 3]])
def test_frames_arrive_whole_and_in_order(kind, lengths):
    clip = torch.randint(256, (sum(lengths), 4, 5, 3), dtype=torch.uint8)
    frames = np.zeros(clip.shape, np.uint8)
    mover = kind(frames)
    for piece in clip.split(lengths):
        mover.put(piece)
    mover.finish()
    assert np.array_equal(frames, clip.numpy())


def test_a_piece_is_waited_for_only_when_the_next_one_is_queued():
    clip = torch.ones(4, 1, 1, 3, dtype=torch.uint8)
    frames = np.zeros(clip.shape, np.uint8)
    mover = Delayed(frames)
    mover.put(clip[:2])
    assert frames.sum() == 0
    mover.put(clip[2:])
    assert frames[:2].all()
    assert not frames[2:].any()
    mover.finish()
    assert frames.all()
