"""A result is saved as a file, with or without what makes it again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.engines import Heard, request

from omnireel.errors import InvalidRequest, MediaUnreadable
from omnireel.media.recipe import read_recipe


@pytest.fixture
def result(start):
    heard = Heard()
    start().submit(request(), heard)
    return heard.result()


def test_it_is_saved_with_its_recipe(result, tmp_path):
    encoded = result.save(tmp_path / "kite.mp4")
    assert encoded.path == tmp_path / "kite.mp4"
    assert read_recipe(encoded.path) == result.recipe


def test_it_is_saved_without_a_recipe(result, tmp_path):
    result.save(str(tmp_path / "kite.mp4"), recipe=False)
    with pytest.raises(MediaUnreadable):
        read_recipe(tmp_path / "kite.mp4")


def test_latents_cannot_be_saved(start, tmp_path):
    heard = Heard()
    start().submit(request(output_type="latent"), heard)
    with pytest.raises(InvalidRequest, match="output_type"):
        heard.result().save(tmp_path / "kite.mp4")


def test_a_result_is_equal_to_itself_only(result):
    assert len({result, result, replace(result)}) == 2


def test_it_knows_its_request(result):
    assert result.request_id == result.workload.request_id
