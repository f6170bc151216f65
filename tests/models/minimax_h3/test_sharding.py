"""The DiT over ranks is the DiT of one process, and heads are known before weights."""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading

import numpy as np
import pytest
import torch
from tests.models.minimax_h3.test_pipeline import built, context, workload
from tests.models.minimax_h3.test_transformer import TINY, fill
from tests.support.mini import MINI
from tests.support.ranks import together

from omnireel.attention.backends.torch_sdpa import BACKEND
from omnireel.errors import BadCheckpoint
from omnireel.models.discover import find_checkpoint, load_pipeline
from omnireel.models.minimax_h3.sharding import shared_heads, shared_tiles
from omnireel.models.minimax_h3.tiling import Job
from omnireel.models.minimax_h3.transformer import MiniMaxH3Transformer, TransformerConfig
from omnireel.request import MediaInput, MediaKind

CONFIG = TransformerConfig.from_dict(TINY | {"num_attention_heads": 4, "num_layers": 3})


def build(ranks=None):
    model = MiniMaxH3Transformer(CONFIG, select=lambda *_: BACKEND, ranks=ranks)
    fill(model)
    return model


def inputs(video, audio, text):
    """Rows of three kinds, in turn, with timesteps of their own."""
    rng = torch.Generator().manual_seed(1)
    rows = video + audio + text
    order = torch.randperm(rows, generator=rng)
    parts = torch.split(order, [video, audio, text])
    tags, times = torch.zeros(rows, dtype=torch.int64), torch.zeros(rows, dtype=torch.int64)
    for tag, part in zip((0, 2, 1), parts, strict=True):
        tags[part] = tag
    times[parts[1]] = 1
    return {
        "video": torch.randn(1, video, CONFIG.video_row_dim, generator=rng),
        "audio": torch.randn(1, audio, CONFIG.audio_in_channels, generator=rng),
        "text": torch.randn(1, text, CONFIG.text_dim, generator=rng),
        "positions": torch.randint(0, 9, (rows, 3), generator=rng),
        "tags": tags,
        "times": times,
        "indices": parts,
    }


@torch.inference_mode()
def velocities(model, given):
    text = model.refine_text(given["text"])
    video, audio, words = given["indices"]
    return model(
        given["video"], given["audio"], text, timestep_M=torch.tensor([0.3, 0.7]), timestep_indices_S=given["times"],
        token_tags_S=given["tags"], rotary=model.rotary(given["positions"], torch.float32), video_indices=video,
        audio_indices=audio, text_indices=words,
    )  # fmt: skip


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("counts", [(20, 8, 4), (21, 7, 5), (17, 3, 2), (1, 1, 1)])
def test_ranks_evaluate_what_one_process_does_at_odd_lengths_too(size, counts):
    given = inputs(*counts)
    whole = velocities(build(), given)
    for found in together(size, lambda ranks: velocities(build(ranks), given)):
        for mine, theirs in zip(found, whole, strict=True):
            assert mine.shape == theirs.shape
            assert (mine - theirs).abs().max() < 1e-5 * theirs.abs().max().clamp(min=1)


def test_every_rank_has_the_same_bits():
    given = inputs(21, 7, 5)
    first, *others = together(4, lambda ranks: velocities(build(ranks), given))
    for other in others:
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(first, other, strict=True))


def test_heads_are_those_of_the_config():
    assert shared_heads(find_checkpoint("mini-h3")) == 4


@pytest.mark.parametrize("value", [None, "4", 0])
def test_a_config_without_heads_is_told(tmp_path, value):
    root = shutil.copytree(MINI, tmp_path / "mini")
    path = root / "transformer" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_attention_heads": value}))
    with pytest.raises(BadCheckpoint, match="num_attention_heads"):
        shared_heads(find_checkpoint(str(root)))


def keyframes():
    """A request with a first and a last frame."""
    rng = np.random.default_rng(0)
    media = tuple(
        MediaInput(kind=MediaKind.IMAGE, role=role, frames=rng.integers(0, 255, (1, 32, 64, 3), np.uint8))
        for role in ("first", "last")
    )
    return dataclasses.replace(workload(num_inference_steps=3), task="fl2va", media=media)


def made(pipeline, work):
    state = pipeline.prepare(work, pipeline.encode(work))
    while state.steps_done < state.num_steps:
        state = pipeline.step(state)
    return pipeline.decode(state).latents


@pytest.mark.slow
@pytest.mark.parametrize("ask", [lambda: workload(num_inference_steps=3), keyframes], ids=["words", "keyframes"])
def test_the_miniature_makes_the_same_latents_over_ranks(ask):
    work, loading = ask(), threading.Lock()
    whole = made(load_pipeline(context()), work)

    def one(ranks):
        # Libraries of the text encoder are not made to load in several threads.
        with loading:
            pipeline = load_pipeline(dataclasses.replace(context(), ranks=ranks))
        return made(pipeline, work)

    for found in together(4, one):
        for name, theirs in whole.items():
            assert np.abs(found[name] - theirs).max() < 1e-5 * max(1.0, np.abs(theirs).max())


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 12])
@pytest.mark.parametrize("batch", [1, 3])
def test_tiles_are_made_once_each_and_come_to_the_first_rank_in_order(size, count, batch):
    jobs = [Job(number, 0, 0) for number in range(count)]

    def one(ranks):
        made: list[Job] = []
        pauses: list[None] = []

        def work(share):
            made.extend(share)
            return iter([torch.full((2, 3), float(job.clip)) for job in share])

        tiles = list(shared_tiles(work, jobs, ranks, batch=batch, pause=lambda: pauses.append(None)))
        return tiles, made, len(pauses)

    found = together(size, one)
    assert [int(tile[0, 0]) for tile in found[0][0]] == list(range(count))
    assert all(tile.shape == (2, 3) for tile in found[0][0])
    assert not [tiles for tiles, _, _ in found[1:] if tiles]
    assert sorted(job for _, made, _ in found for job in made) == jobs
    assert max(len(made) for _, made, _ in found) - min(len(made) for _, made, _ in found) <= batch
    assert {pauses for _, _, pauses in found} == {max(0, -(-count // (size * batch)) - 1)}


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_the_miniatures_clip_is_the_same_bits_when_ranks_decode_it(size):
    work, loading = workload(output_type="frames", num_inference_steps=2, height=288, width=96), threading.Lock()
    latents = torch.randn(1, 24, 12, 18, 6, generator=torch.Generator().manual_seed(0))
    whole = built(context())
    frames = whole._video_vae.decode(latents)

    def one(ranks):
        with loading:
            pipeline = built(dataclasses.replace(context(), ranks=ranks, is_decode_shared=True))
        state = pipeline.prepare(work, pipeline.encode(work))
        state.video_velocity = torch.zeros_like(state.video_target)
        if not ranks.is_first:
            return pipeline._video_vae.lend(latents, ranks)
        assert pipeline.preview(state) is not None
        return pipeline._video_vae.decode(latents, ranks=ranks)

    first, *others = together(size, one)
    assert others == [None] * (size - 1)
    assert np.array_equal(first, frames)
