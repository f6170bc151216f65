"""Batches are trained on as the published classes and the served conditioner would have them, request by request."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tools.mini_h3.build import write_tokenizer
from tools.mini_h3.train_dit import Log, Trainer, _earlier, _halved, _save, new_text_encoder, new_transformer
from tools.mini_h3.words import Given, Words, learn_merges

from omnireel.models.minimax_h3.conditioner import Conditioner
from omnireel.models.minimax_h3.video_vae import PIXEL_MEAN, PIXEL_STD
from omnireel.request import MediaInput, MediaKind
from tools.mini_h3 import architecture, batches, data, forward, pools

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
MIX = dict.fromkeys(batches.KINDS, 1)


def made_pools() -> dict[str, pools.Pool]:
    """Random latents in the sizes of the real ones."""
    rng = torch.Generator().manual_seed(0)
    width = architecture.TEXT_WIDTH

    def pool(scenes, **shapes):
        filled = pools.Pool(scenes=scenes)
        filled.add(**{name: torch.randn(len(scenes), *shape, generator=rng) for name, shape in shapes.items()})
        filled.close()
        return filled

    clip = {"video": (768, 96), "audio": (2, 178, 32)}
    ends = {"key": (2, 24, 96), "key_seen": (2, 24, width)}
    scenes = [data.draw_scene(seed) for seed in range(3)]
    looks = [pools._portrait(np.random.default_rng(0), c, s) for c in data.COLOURS for s in data.SHAPES]
    sequels = {
        f"sequels{count}": pool(
            [data.draw_scene(seed, count + data.NUM_FRAMES) for seed in range(2)],
            given=(pools.geometry(count)[0] * 24, 96), given_audio=(2, pools.geometry(count)[1], 32),
            given_seen=(-(-len(range(0, count, 12)) // 2), 24, width), **clip,
        )
        for count in pools.SEQUEL_FRAMES
    }  # fmt: skip
    return {
        "clips": pool(scenes, **clip, **ends),
        "strange": pool(scenes, **clip, **ends),
        "pictures": pool(looks, rows=(24, 96), seen=(24, width)),
        "squares": pool(looks, rows=(16, 96), seen=(16, width)),
        "recordings": pool(looks, rows=(2, pools.RECORDING_LATENTS, 32)),
        **sequels,
    }


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    text, _ = new_text_encoder()
    return Trainer(made_pools(), text, CPU, Log(tmp_path_factory.mktemp("log") / "log.jsonl", 0.0))


@pytest.fixture(scope="module")
def batch(trainer):
    found = batches.Drawer(trainer._scenes, MIX, seed=1).draw(np.random.default_rng(3))
    assert found is not None
    return found


def randomised():
    model = new_transformer()
    rng = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=rng))
    return model.eval()


@torch.no_grad()
def test_each_request_moves_as_the_published_class_has_it(trainer, batch):
    model = randomised()
    rng = torch.Generator().manual_seed(6)
    video = torch.randn(len(batch.video_at), 96, generator=rng)
    audio = torch.randn(len(batch.audio_at), 32, generator=rng)
    timestep = trainer._times(len(batch.lengths))
    states = trainer.text(
        inputs_embeds=trainer.text.embed_tokens(batch.ids), position_ids=batch.mrope, use_cache=False
    ).last_hidden_state
    text = forward.refine_text(model, states, batch.lengths).flatten(0, 1)[batch.text_from]
    rows = forward.Rows(
        video=video, audio=audio, text=text, video_at=batch.video_at, audio_at=batch.audio_at, text_at=batch.text_at,
        timestep=timestep, timestep_of=batch.time_of, tags=batch.tags, positions=batch.positions,
        documents=forward.Documents(bounds=batch.bounds, longest=9999),
    )  # fmt: skip
    made_video, made_audio = forward.velocities(model, rows)
    for k, (first, last) in enumerate(zip(batch.bounds[:-2].tolist(), batch.bounds[1:-1].tolist(), strict=True)):
        own_video, own_audio = ((at >= first) & (at < last) for at in (batch.video_at, batch.audio_at))
        own_text = (batch.text_at >= first) & (batch.text_at < last)
        expected_video, expected_audio = model(
            video[own_video][None], audio[own_audio][None], states[k, : batch.lengths[k]][None], timestep,
            batch.time_of[first:last], batch.tags[first:last], batch.positions[first:last],
            batch.video_at[own_video] - first, batch.audio_at[own_audio] - first, batch.text_at[own_text] - first,
            return_dict=False,
        )  # fmt: skip
        torch.testing.assert_close(made_video[own_video], expected_video[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(made_audio[own_audio], expected_audio[0], rtol=1e-4, atol=1e-4)


def test_an_untrained_model_is_wrong_by_clean_and_noise_and_learns(trainer):
    torch.manual_seed(0)
    # Two requests: what gradients of all kinds take would stay with the process for the tests behind this one.
    batch = next(iter(batches.Drawer(trainer._scenes, {"text": 1, "picture": 1}, seed=1)))
    losses = trainer.losses(batch)
    assert losses.tolist() == pytest.approx([2.0, 2.0], abs=0.05)
    losses.sum().backward()
    assert trainer.model.proj_out.weight.grad.abs().max() > 0


def test_a_phase_saves_what_a_later_run_goes_on_from(trainer, tmp_path):
    def save():
        _save({"text": trainer.averaged_text(), "video_mean": torch.ones(24)}, tmp_path / "text.pt")
        _save(_halved(trainer.averaged), tmp_path / "base.pt")

    trainer.phase("base", {"text": 1}, seconds=0.1, with_text=True, last_rate=0.5, save=save)
    earlier = _earlier(tmp_path)
    model, (text, _) = new_transformer(), new_text_encoder()
    model.load_state_dict(earlier["model"])
    text.load_state_dict(earlier["text"])
    for name, value in trainer.averaged.items():
        torch.testing.assert_close(model.state_dict()[name], value, atol=0, rtol=2**-8)
    assert earlier["video_mean"].eq(1).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base.pt", "text.pt"]


def test_rows_are_counted_before_they_are_drawn(trainer, batch):
    assert batch.bounds[-1] == len(batch.tags) == batches.Drawer(trainer._scenes, MIX, seed=1).num_rows
    assert sorted(torch.cat([batch.video_at, batch.audio_at, batch.text_at]).tolist()) == list(range(batch.bounds[-2]))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    root = tmp_path_factory.mktemp("text")
    merges = learn_merges()
    ids = {name: architecture.NUM_WORDS + k for k, name in enumerate(architecture.SPECIAL_TOKENS)}
    torch.manual_seed(4)
    config = Qwen3VLConfig(
        text_config=architecture.TEXT, vision_config=architecture.VISION, image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"], vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"], tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen3VLForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    model.save_pretrained(root / "text_encoder")
    write_tokenizer(root / "tokenizer", merges)
    (root / "processor").mkdir()
    bounds = {"size": {"shortest_edge": 1024, "longest_edge": 16777216}}
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        (root / "processor" / name).write_text(json.dumps(bounds))
    return {name: root / name for name in ("text_encoder", "tokenizer", "processor")}, model


def test_the_tokenizer_is_as_large_as_the_text_encoder_expects():
    assert 256 + len(learn_merges()) == architecture.NUM_WORDS


def unit(frames):
    """uint8 [T,H,W,3] as the encoders normalise pixels: float32 [1,3,T,H,W]."""
    mean, std = (torch.tensor(value).view(1, 3, 1, 1, 1) for value in (PIXEL_MEAN, PIXEL_STD))
    return (torch.from_numpy(frames).permute(3, 0, 1, 2)[None] / 255 - mean) / std


@pytest.mark.parametrize("kind", ["text", "picture", "clip"])
@torch.no_grad()
def test_words_and_what_is_seen_reach_the_text_encoder_as_served(folders, kind):
    paths, model = folders
    conditioner = Conditioner(paths, num_layers=architecture.CONDITION_LAYER, device=CPU, dtype=torch.float32)
    encoders = object.__new__(pools.Encoders)
    encoders.device, encoders._vision = CPU, model.model.visual
    encoders._mean, encoders._std = (torch.tensor(value).view(1, 3, 1, 1, 1) for value in (PIXEL_MEAN, PIXEL_STD))
    frames = data.render(data.draw_scene(4, 39))
    media: tuple[MediaInput, ...] = ()
    given: tuple[Given, ...] = ()
    seen = torch.zeros(1, 0, architecture.TEXT_WIDTH)
    if kind == "picture":
        media = (MediaInput(kind=MediaKind.IMAGE, role="reference", frames=frames[:1]),)
        given, seen = (Given(kind="picture", grid=batches.WIDE),), encoders.seen(unit(frames[:1]))
    elif kind == "clip":
        media = (MediaInput(kind=MediaKind.VIDEO, role="reference", frames=frames),)
        given = (Given(kind="clip", grid=batches.WIDE, num_frames=39),)
        pairs = [unit(frames[[k, k + 12]]) for k in (0, 24)]
        seen = torch.cat([encoders.seen(pair) for pair in pairs], dim=1)
    expected, tags = conditioner.encode("a red ball moves up", media)
    stream = Words().stream("a red ball moves up", given)
    text = model.model.language_model
    embedded = text.embed_tokens(torch.from_numpy(stream.ids))
    embedded[torch.from_numpy(stream.is_patch)] = seen[0].float()
    states = text(
        inputs_embeds=embedded[None], position_ids=torch.from_numpy(stream.positions)[:, None], use_cache=False,
        output_hidden_states=True,
    ).hidden_states[architecture.CONDITION_LAYER]  # fmt: skip
    assert tags.tolist() == np.where(stream.is_vision, 0, 1).tolist()
    # What is seen was rounded to bfloat16, as the pools keep it.
    tolerance = 1e-4 if kind == "text" else 3e-2
    assert (states - expected).norm() / expected.norm() < tolerance
