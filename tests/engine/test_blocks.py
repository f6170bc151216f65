"""Memory without a name: shared by descriptor, gone with its last array."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from omnireel.engine import blocks
from omnireel.engine.blocks import block_of, new_array, new_block, received


def test_an_array_of_a_block_is_found_and_so_is_a_part_of_it():
    array = new_array((4, 100, 3))
    assert (array.shape, array.dtype, int(array.sum())) == ((4, 100, 3), np.dtype(np.uint8), 0)
    block, offset = block_of(array) or pytest.fail("no block")
    assert offset == 0
    assert block_of(array[2:]) == (block, 600)


@pytest.mark.parametrize("array", [np.zeros(5), new_array((4, 6))[:, ::2]])
def test_other_memory_and_pieces_are_no_block(array):
    assert block_of(array) is None


def test_two_mappings_of_one_block_see_each_other():
    one = new_block(8)
    other = received(one.fd, 8)
    one[0] = 7
    assert other[0] == 7
    other[1] = 6
    assert one[1] == 6


def test_what_was_received_outlives_its_block_and_keeps_no_descriptor():
    one = new_block(8)
    before = len(list(Path("/proc/self/fd").iterdir()))
    others = [received(one.fd, 8) for _ in range(20)]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    one[0] = 7
    del one
    gc.collect()
    assert others[3][0] == 7


def test_a_block_that_is_smaller_than_said_is_refused():
    block = new_block(8)
    with pytest.raises(ValueError, match="smaller"):
        received(block.fd, 9)


def test_the_descriptor_is_closed_with_the_last_array():
    array = new_array((10,))
    part = array[3:]
    block, _ = block_of(array) or pytest.fail("no block")
    fd = block.fd
    del array, block
    gc.collect()
    os.fstat(fd)
    del part
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_types_are_kept_and_empty_ones_too():
    assert new_array((2, 3), np.float32).dtype == np.float32
    assert new_array((0, 3)).shape == (0, 3)


def test_no_memory_is_told_as_such(monkeypatch):
    def refuse():
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(blocks, "_nameless", refuse)
    with pytest.raises(MemoryError, match="Too many open files"):
        new_block(8)


def test_without_memfd_a_file_without_a_name_does(monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    array = new_array((5,))
    array[:] = 3
    assert int(array.sum()) == 15
