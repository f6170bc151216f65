"""Trains the DiTs and the text encoder of mini-h3 on latents of scenes.

    python tools/mini_h3/train_dit.py --video VIDEO.pt --audio AUDIO.pt --output FOLDER --seconds 900 [--resume FOLDER]

First one DiT learns every task together with the text encoder, then two copies of it go apart: `clip.pt` (text and
keyframes) and `reference.pt`, with the text encoder held still, for they share it. What is saved, every minute and at the end
of a phase, are averages over the last steps. `--resume` goes on from the `base.pt` and `text.pt` of an earlier run, with its statistics
of latents, for which the encoders must be the same. Rectified flow as the served model has it: x = (1 - s) clean + s noise, v = clean - noise, the picture at the
shifted level 12u / (1 + 11u), the sound at 3u / (1 + 2u). Letters: B documents, L text rows, C channels.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.mini_h3 import architecture, batches, forward, pools

VIDEO_SHIFT, AUDIO_SHIFT = 12.0, 3.0
APART = 0.15
"""Requests whose sound is at another point of its schedule than their picture."""
HELD = 0.999
RATE = 1.0e-3
SAVED_EVERY_SECONDS = 60
STATISTICS = ("video_mean", "video_std", "audio_mean", "audio_std")
SHARES = {"base": 0.5, "clip": 0.23, "reference": 0.27}
POOLS = {"clips": 9000, "strange": 2500, "sequels39": 1000, "sequels107": 1000, "pictures": 60, "squares": 40,
         "recordings": 150}  # fmt: skip
"""Scenes in each pool; of pictures and recordings, how many of each look or pitch."""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--video", type=Path, required=True, help="state of the trained video VAE")
    parser.add_argument("--audio", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="in all, pools counted")
    parser.add_argument("--resume", type=Path, help="folder of an earlier run")
    parser.add_argument("--pool-share", type=float, default=1.0)
    parser.add_argument("--pool-seed", type=int, default=7, help="another one shows a run that goes on other scenes")
    parser.add_argument("--small", action="store_true", help="a few requests a batch, to try it on a CPU")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    arguments.output.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    log = Log(arguments.output / "train_dit.log.jsonl", begin)
    text, vision = new_text_encoder()
    states = [
        torch.load(path, map_location="cpu", weights_only=True)["model"] for path in (arguments.video, arguments.audio)
    ]
    encoders = pools.Encoders(states[0], states[1], vision, device)
    earlier = _earlier(arguments.resume)
    if earlier:
        text.load_state_dict(earlier["text"])
        vision.load_state_dict(earlier["vision"])
        for name in STATISTICS:
            setattr(encoders, name, earlier[name].to(device))
    else:
        encoders.measure()
    statistics = {name: getattr(encoders, name).cpu() for name in STATISTICS}
    made = make_pools(encoders, arguments.pool_share, log, seed=arguments.pool_seed)
    spent = time.perf_counter() - begin
    log.write(event="pools", scenes={name: len(pool.scenes) for name, pool in made.items()})
    trainer = Trainer(made, text, device, log, small=arguments.small)
    left = arguments.seconds - spent - 10
    if earlier:
        trainer.model.load_state_dict(earlier["model"])

    def save_base() -> None:
        shared = {"text": trainer.averaged_text(), "vision": vision.state_dict(), **statistics}
        _save(shared, arguments.output / "text.pt")
        _save(_halved(trainer.averaged), arguments.output / "base.pt")

    seconds = {name: share * left for name, share in SHARES.items()}
    trainer.phase("base", batches.BASE_MIX, seconds=seconds["base"], with_text=True, last_rate=0.6, save=save_base)
    kept = trainer.averaged, trainer.moments()
    for name, mix in (("clip", batches.CLIP_MIX), ("reference", batches.REFERENCE_MIX)):
        trainer.restart(*kept)

        def save(path: Path = arguments.output / f"{name}.pt") -> None:
            _save(trainer.averaged, path)

        trainer.phase(name, mix, seconds=seconds[name], with_text=False, last_rate=0.01, save=save)
    (arguments.output / "done").touch()


def _earlier(folder: Path | None) -> dict[str, Any]:
    if folder is None:
        return {}
    shared: dict[str, Any] = torch.load(folder / "text.pt", map_location="cpu", weights_only=True)
    return {**shared, "model": torch.load(folder / "base.pt", map_location="cpu", weights_only=True)}


def _save(state: Any, path: Path) -> None:
    """Whole or not at all: the machine may go at any time."""
    torch.save(state, path.with_suffix(".part"))
    path.with_suffix(".part").rename(path)


class Log:
    """A line of JSON a measurement."""

    def __init__(self, path: Path, begin: float) -> None:
        self._path, self._begin = path, begin

    def write(self, **values: Any) -> None:
        line = json.dumps({"seconds": round(time.perf_counter() - self._begin, 1), **values})
        print(line, flush=True)
        with self._path.open("a") as file:
            file.write(line + "\n")


def new_text_encoder() -> tuple[Any, Any]:
    """The read layers of the text encoder, to be trained, and the vision tower, which stays as it is drawn."""
    from transformers import Qwen3VLConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel, Qwen3VLVisionModel

    torch.manual_seed(1)
    config = Qwen3VLConfig(text_config=architecture.TEXT, vision_config=architecture.VISION)
    config.text_config.num_hidden_layers = architecture.CONDITION_LAYER
    text = Qwen3VLTextModel._from_config(config.text_config, attn_implementation="sdpa")
    text.norm = nn.Identity()
    vision = Qwen3VLVisionModel._from_config(config.vision_config, attn_implementation="sdpa")
    with torch.no_grad():
        for module in vision.modules():
            if isinstance(module, nn.Linear | nn.Conv3d):
                # The library draws them so small that nothing of a picture would come through.
                nn.init.normal_(module.weight, std=1 / math.sqrt(module.weight[0].numel()))
        # It is kept in this type, so what is learned must have been seen in it.
        vision.to(torch.bfloat16).float()
    return text, vision.eval()


def make_pools(encoders: pools.Encoders, share: float, log: Log, *, seed: int) -> dict[str, pools.Pool]:
    """All pools of POOLS, encoded on the device."""
    encoders._vision.to(encoders.device)
    made = {}
    for k, (name, count) in enumerate(POOLS.items()):
        rng = np.random.default_rng([seed, k])
        wanted = max(1 if name in ("pictures", "squares", "recordings") else 8, round(count * share))
        if name in ("clips", "strange"):
            made[name] = pools.clip_pool(encoders, rng, wanted, other_pitch=name == "strange")
        elif name.startswith("sequels"):
            made[name] = pools.sequel_pool(encoders, rng, wanted, int(name.removeprefix("sequels")))
        elif name == "recordings":
            made[name] = pools.recording_pool(encoders, rng, wanted)
        else:
            made[name] = pools.picture_pool(encoders, rng, wanted, width=192 if name == "pictures" else 128)
        log.write(event="pool", name=name, scenes=len(made[name].scenes))
    return made


def new_transformer() -> Any:
    """The DiT as it begins: blocks that change nothing yet, and a velocity of zero."""
    from diffusers import MiniMaxH3Transformer3DModel

    torch.manual_seed(2)
    model: Any = MiniMaxH3Transformer3DModel(**architecture.TRANSFORMER)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=1 / math.sqrt(parameter.shape[1]))
            elif parameter.ndim == 1:
                parameter.zero_()
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 and "norm" in name and name.endswith("weight"):
                parameter.fill_(1.0)
        for block in model.transformer_blocks:
            block.adaln_proj.linear.weight.zero_()
        model.norm_out.linear.weight.zero_()
        model.proj_out.weight.zero_()
        model.audio_proj_out.weight.zero_()
    return model


class Trainer:
    """A DiT and the text encoder with what moves them."""

    def __init__(
        self, made: dict[str, pools.Pool], text: Any, device: torch.device, log: Log, *, small: bool = False
    ) -> None:
        self._device, self._log, self._made, self._small = device, log, made, small
        self.text = text.to(device)
        self.model = new_transformer().to(device)
        self._scenes = {name: pool.scenes for name, pool in made.items()}
        self.averaged: dict[str, Tensor] = {}
        self._averaged_text: dict[str, Tensor] = {}
        self._optimizer = self._new_optimizer()
        self._step = 0
        torch._dynamo.config.suppress_errors = True
        torch._dynamo.config.cache_size_limit = 64
        self._blocks: Callable[..., Tensor] = (
            torch.compile(forward.run_blocks, dynamic=False) if device.type == "cuda" else forward.run_blocks
        )

    def _new_optimizer(self) -> torch.optim.AdamW:
        parameters = [*self.model.parameters(), *self.text.parameters()]
        decayed = [p for p in parameters if p.ndim > 1]
        others = [p for p in parameters if p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.98), fused=self._device.type == "cuda")

    def moments(self) -> Any:
        """What the optimizer knows."""
        return copy.deepcopy(self._optimizer.state_dict())

    def restart(self, weights: dict[str, Tensor], moments: Any) -> None:
        """Goes back to these weights and moments."""
        self.model.load_state_dict(weights)
        self._optimizer.load_state_dict(copy.deepcopy(moments))
        self.text.load_state_dict(self._averaged_text)

    def averaged_text(self) -> dict[str, Tensor]:
        """Of the text encoder."""
        return {name: value.cpu() for name, value in self._averaged_text.items()}

    def phase(
        self,
        name: str,
        mix: dict[str, int],
        *,
        seconds: float,
        with_text: bool,
        last_rate: float,
        save: Callable[[], None],
    ) -> None:
        """Trains on a mix for so long, and saves now and then; the rate falls along a cosine to `last_rate` of what it is."""
        if self._small:
            mix = dict.fromkeys(mix, 1)
        for parameter in self.text.parameters():
            parameter.requires_grad_(with_text)
        self.averaged = {key: value.detach().clone() for key, value in self.model.state_dict().items()}
        if with_text:
            self._averaged_text = {key: value.detach().clone() for key, value in self.text.state_dict().items()}
        source = self._source(mix)
        first = next(source)
        begin, shown, saved = time.perf_counter(), 0.0, 0.0
        first_step, total = self._step, torch.zeros(2, device=self._device)
        counted = 0
        while (now := time.perf_counter() - begin) < seconds:
            warm = min(1.0, (self._step + 1) / 500, (self._step - first_step + 1) / 100)
            fall = last_rate + (1 - last_rate) * 0.5 * (1 + math.cos(math.pi * min(1.0, now / seconds)))
            for group in self._optimizer.param_groups:
                group["lr"] = RATE * warm * fall
            losses = self.losses(first)
            self._optimizer.zero_grad(set_to_none=True)
            losses.sum().backward()
            nn.utils.clip_grad_norm_([*self.model.parameters(), *self.text.parameters()], 1.0)
            self._optimizer.step()
            self._step += 1
            first = next(source)
            total += losses.detach()
            counted += 1
            if self._step % 4 == 0:
                self._average(min(0.996, (self._step - first_step) / (self._step - first_step + 40)), with_text)
            if now - shown > 10 or self._step - first_step in (1, 20):
                picture, sound = (total / counted).tolist()
                self._log.write(phase=name, step=self._step, picture=round(picture, 4), sound=round(sound, 4))
                shown, counted = now, 0
                total.zero_()
            if now - saved > SAVED_EVERY_SECONDS:
                save()
                saved = now
        save()
        self._log.write(event="saved", phase=name)

    def _average(self, keep: float, with_text: bool) -> None:
        pairs = [(self.averaged, self.model)] + ([(self._averaged_text, self.text)] if with_text else [])
        with torch.no_grad():
            for averaged, module in pairs:
                state = module.state_dict()
                names = [key for key, value in state.items() if value.is_floating_point()]
                torch._foreach_lerp_([averaged[key] for key in names], [state[key] for key in names], 1 - keep)

    def _source(self, mix: dict[str, int]) -> Iterator[batches.Batch]:
        workers = 12 if self._device.type == "cuda" and not self._small else 0
        drawer = batches.Drawer(self._scenes, mix, seed=self._step + 11)
        loader: Any = torch.utils.data.DataLoader(
            drawer, batch_size=None, num_workers=workers, prefetch_factor=6 if workers else None,
            multiprocessing_context="fork" if workers else None,
        )  # fmt: skip
        for batch in loader:
            yield batch.to(self._device)

    def losses(self, batch: batches.Batch) -> Tensor:
        """Mean squares of picture and sound, float32 [2]."""
        with torch.no_grad():
            video, made_video, seen = self._pictures(batch)
            audio, made_audio = self._sounds(batch)
            count = len(batch.lengths)
            timestep = self._times(count)
            rows_time = timestep[batch.time_of, None]
            video_time, audio_time = rows_time[batch.video_at], rows_time[batch.audio_at]
            video_noise, audio_noise = torch.randn_like(video), torch.randn_like(audio)
            noisy_video = video_time * video + (1 - video_time) * video_noise
            noisy_audio = audio_time * audio + (1 - audio_time) * audio_noise
        cuda = self._device.type == "cuda"
        with torch.autocast(self._device.type, torch.bfloat16, enabled=cuda):
            rows = forward.Rows(
                video=noisy_video, audio=noisy_audio, text=self.text_rows(batch, seen), video_at=batch.video_at,
                audio_at=batch.audio_at, text_at=batch.text_at, timestep=timestep, timestep_of=batch.time_of, tags=batch.tags,
                positions=batch.positions, documents=forward.Documents(bounds=batch.bounds, longest=batch.longest),
            )  # fmt: skip
            velocity_video, velocity_audio = forward.velocities(self.model, rows, blocks=self._blocks)
        picture = _mean_square(velocity_video - (video - video_noise), made_video)
        return torch.stack([picture, _mean_square(velocity_audio - (audio - audio_noise), made_audio)])

    def text_rows(self, batch: batches.Batch, seen: Tensor | None) -> Tensor:
        """The refined text rows of all documents, one behind another."""
        embedded = self.text.embed_tokens(batch.ids)
        if seen is not None:
            flat = embedded.flatten(0, 1)
            embedded = flat.index_copy(0, batch.patch_at, seen.to(flat.dtype)).view_as(embedded)
        states = self.text(inputs_embeds=embedded, position_ids=batch.mrope, use_cache=False).last_hidden_state
        refined = forward.refine_text(self.model, states, batch.lengths)
        return refined.flatten(0, 1)[batch.text_from]

    def _times(self, count: int) -> Tensor:
        """[3B+1]: of each document's picture, its sound and its given pictures; then of what is clean."""
        u = torch.rand(count, device=self._device)
        other = torch.where(torch.rand(count, device=self._device) < APART, torch.rand_like(u), u)
        video = 1 - VIDEO_SHIFT * u / (1 + (VIDEO_SHIFT - 1) * u)
        audio = 1 - AUDIO_SHIFT * other / (1 + (AUDIO_SHIFT - 1) * other)
        times = torch.stack([video, audio, video.clamp(min=HELD)], dim=1).flatten()
        return torch.cat([times, torch.ones(1, device=self._device)])

    def _pictures(self, batch: batches.Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Clean rows [N,96], which of them are to be made, and the vision tower's tokens in the order of the texts."""
        clean, made, seen = [], [], []
        for name, (places, *picks) in batch.chosen.items():
            kind = batches.KINDS[name]
            source = self._made[kind.source]
            parts, looks = [], []
            for pool, index in zip(kind.picks, picks, strict=True):
                if pool in ("first", "last"):
                    end = 0 if pool == "first" else 1
                    parts.append(source["key"][places, end])
                    looks.append(source["key_seen"][places, end])
                elif pool == "before":
                    parts.append(source["given"][places])
                    looks.append(source["given_seen"][places].flatten(1, 2))
                elif pool in ("pictures", "squares"):
                    parts.append(self._made[pool]["rows"][index])
                    looks.append(self._made[pool]["seen"][index])
            target = source["video"][places]
            given = sum(part.shape[1] for part in parts)
            clean.append(torch.cat([*parts, target], dim=1).flatten(0, 1))
            made.append(_marks(len(places), given, target.shape[1], self._device))
            if looks:
                seen.append(torch.cat(looks, dim=1).flatten(0, 1))
        return torch.cat(clean).float(), torch.cat(made), torch.cat(seen) if seen else None

    def _sounds(self, batch: batches.Batch) -> tuple[Tensor, Tensor]:
        """Clean rows [N,32] and which of them are to be made."""
        clean, made = [], []
        for name, (places, *picks) in batch.chosen.items():
            kind = batches.KINDS[name]
            source = self._made[kind.source]
            parts = []
            for pool, index in zip(kind.picks, picks, strict=True):
                if pool == "recordings":
                    parts.append(self._made[pool]["rows"][index].flatten(1, 2))
                elif pool == "heard_before":
                    parts.append(source["given_audio"][places].flatten(1, 2))
            target = source["audio"][places].flatten(1, 2)
            given = sum(part.shape[1] for part in parts)
            clean.append(torch.cat([*parts, target], dim=1).flatten(0, 1))
            made.append(_marks(len(places), given, target.shape[1], self._device))
        return torch.cat(clean).float(), torch.cat(made)


def _marks(count: int, given: int, wanted: int, device: torch.device) -> Tensor:
    row = torch.arange(given + wanted, device=device) >= given
    return row.expand(count, -1).flatten()


def _mean_square(error: Tensor, made: Tensor) -> Tensor:
    weight = made.float()[:, None]
    return (error.float() ** 2 * weight).sum() / (weight.sum() * error.shape[1])


def _halved(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.to(torch.bfloat16) if value.is_floating_point() else value for name, value in state.items()}


if __name__ == "__main__":
    main()
