"""MiniMax-H3 as the engine drives it: encode, prepare, step, preview, decode. The arithmetic is in the files beside this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from omnireel.acceleration import compile_blocks
from omnireel.attention import AttentionBackend, Calibration, calibration_of, select_backend
from omnireel.errors import BadCheckpoint, NonFinite
from omnireel.models.minimax_h3 import limits as geometry
from omnireel.models.minimax_h3 import references, tasks
from omnireel.models.minimax_h3.audio_vae import AudioVae
from omnireel.models.minimax_h3.conditioner import Conditioner
from omnireel.models.minimax_h3.graphed import evaluations
from omnireel.models.minimax_h3.kernel_choice import denoiser_kernels, vae_kernels
from omnireel.models.minimax_h3.keymap import transformer_names
from omnireel.models.minimax_h3.layout import Layout, resolve_layout
from omnireel.models.minimax_h3.limits import Limits
from omnireel.models.minimax_h3.modulation_tables import ModulationTables, is_table_weight, keep_on_host
from omnireel.models.minimax_h3.packing import (
    AUDIO_CHANNELS,
    ClipReference,
    Condition,
    Keyframe,
    PackedLayout,
    PictureReference,
    SoundReference,
    Target,
    pack,
    patchify,
    sound_latents,
    sound_rows,
    unpatchify,
)
from omnireel.models.minimax_h3.prompt_cache import PromptCache
from omnireel.models.minimax_h3.schedule import FlowSchedule, RowTimes, anchored, row_times
from omnireel.models.minimax_h3.transformer import MiniMaxH3Transformer, StepPlan, TransformerConfig, stored_dtype
from omnireel.models.minimax_h3.video_vae import VideoVae
from omnireel.models.protocol import BuildContext, Conditioning, DenoiseState
from omnireel.observe.profile import part
from omnireel.request import MediaInput, MediaKind, MediaOutput
from omnireel.weights import ComponentFiles, load_component, read_index, weights_digest

if TYPE_CHECKING:
    from omnireel.layers import RotaryTable
    from omnireel.request import FramesU8, Workload

PREVIEW_LATENT_FRAMES = 7
"""The least that the video VAE decodes as one clip."""

_BLOCK_PATHS = ("transformer_blocks",)
"""The blocks that are compiled. Those of the refiner run once a request and over few rows."""

_COMPILED = ("compile_blocks", "compile_vae", "fused_kernels")
"""Switches of what is compiled when it is first used."""

_BLOCK_WEIGHTS = ("transformer_blocks.0.attn.to_q.weight", "blocks.0.attn.qkv_proj.weight")
"""The tensor whose stored type is the type of the stream, under either name."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class H3Conditioning(Conditioning):
    """text: states [1,L,C] of the conditioner; tags: int64 [L] on the CPU. Of the request's media, in packed order:

    conditions: their geometry; visual: clean latents [1,C,T,H,W] of what is seen; heard: rows [n,C] of what is heard.
    """

    text: Tensor
    tags: Tensor
    conditions: tuple[Condition, ...] = ()
    visual: tuple[Tensor, ...] = ()
    heard: tuple[Tensor, ...] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class H3State(DenoiseState):
    """Rows on the way from noise to clip, float32 on the device, and what stays the same over the steps.

    video_rows: [Nv,C]; audio_rows: [Na,C], conditions before the target in both, and never written.
    text: refined states [1,L,H]. plans: one a step. video_velocity: of the target in the last evaluation.
    """

    target: Target
    layout: PackedLayout
    video_rows: Tensor
    audio_rows: Tensor
    text: Tensor
    rotary: RotaryTable
    indices: tuple[Tensor, Tensor, Tensor]
    plans: tuple[StepPlan, ...]
    video_schedule: FlowSchedule
    audio_schedule: FlowSchedule
    video_velocity: Tensor | None = None

    @property
    def video_target(self) -> Tensor:
        """A view of the rows of the picture that is made."""
        return self.video_rows[self.layout.num_condition_video_rows :]

    @property
    def audio_target(self) -> Tensor:
        """A view of the rows of the sound that is made."""
        return self.audio_rows[self.layout.num_condition_audio_rows :]


class MiniMaxH3Pipeline:
    """See `Pipeline`. Built by `build`."""

    def __init__(
        self,
        *,
        layout: Layout,
        base_schedules: Mapping[str, tuple[float, ...] | None],
        transformers: Mapping[str, MiniMaxH3Transformer],
        conditioner: Conditioner,
        video_vae: VideoVae,
        audio_vae: AudioVae,
        digest: str,
        context: BuildContext,
    ) -> None:
        self._layout = layout
        self._base_schedules = base_schedules
        self._transformers = transformers
        self._evaluate = evaluations(transformers, context, torch.device(context.device).index or 0)
        self._conditioner = conditioner
        self._video_vae = video_vae
        self._audio_vae = audio_vae
        self._device = next(next(iter(transformers.values())).parameters()).device
        self._patch_size = next(iter(transformers.values())).config.patch_size
        self.weights_digest = digest
        has_tables = context.has("modulation_tables")
        self._tables = {
            name: ModulationTables(transformer, digest=digest)
            for name, transformer in transformers.items()
            if has_tables
        }
        self._is_checked = context.validate_finite_tensors
        self._new_frames = context.new_frames
        self._decode_ranks = context.ranks if context.is_decode_shared else None
        self._prompts = PromptCache(context.prompt_embed_cache_size)

    @classmethod
    def build(cls, context: BuildContext) -> MiniMaxH3Pipeline:
        """Loads every component of a checkpoint, of the partitions that the service was started for."""
        # First, for it may refuse.
        decoder_kernels = vae_kernels(context)
        layout = resolve_layout(context.checkpoint)
        device = torch.device(context.device)
        dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(context.dtype)
        is_mixed = dtype is not torch.float32
        vae_dtype = torch.bfloat16 if is_mixed else torch.float32
        denoisers = {name: read_index(folder) for name, folder in layout.denoisers.items()}
        limits = Limits.of(context.checkpoint)
        conditioner = Conditioner(layout.shared, num_layers=limits.condition_layer, device=device, dtype=dtype)
        select = partial(_select, context, vae_dtype)
        speed = context.acceleration
        video_vae = VideoVae(
            layout.shared["vae"],
            device=device,
            is_mixed=is_mixed,
            select=select,
            encode_precision=speed.vae_encode_precision,
            is_compiled=context.has("compile_vae"),
            is_overlapped=context.has("overlap_frames"),
            kernels=decoder_kernels,
        )
        audio_vae = AudioVae(layout.shared["audio_vae"], device=device)
        parts = (*denoisers.values(), conditioner.files, video_vae.files, audio_vae.files)
        made = cls(
            layout=layout,
            base_schedules={task: Limits.of(context.checkpoint, task).base_schedule for task in layout.tasks},
            transformers={name: _load_transformer(files, context, device, dtype) for name, files in denoisers.items()},
            conditioner=conditioner,
            video_vae=video_vae,
            audio_vae=audio_vae,
            digest=weights_digest(parts),
            context=context,
        )
        if speed.warm_up and any(map(context.has, _COMPILED)):
            made.warm_up()
        return made

    @torch.inference_mode()
    def warm_up(self) -> None:
        """One evaluation of each DiT and one decoded clip, as small as can be: their graphs serve every size."""
        target = Target(latent_frames=PREVIEW_LATENT_FRAMES, latent_height=2, latent_width=2, sound_latents=2)
        layout = pack(torch.ones(2, dtype=torch.int64), target, patch_size=self._patch_size)
        times = torch.tensor([0.25, 0.5])
        indices = torch.zeros(layout.num_rows, dtype=torch.int64)
        indices[layout.audio_indices] = 1
        video, audio, words = (
            index.to(self._device) for index in (layout.video_indices, layout.audio_indices, layout.text_indices)
        )
        for name, transformer in self._transformers.items():
            config = transformer.config
            text = transformer.refine_text(torch.zeros(1, 2, config.text_dim, device=self._device))
            plan = transformer.plan_step(times, indices, layout.token_tags, num_rows=layout.num_rows)
            if name in self._tables:
                plan = replace(plan, tables=self._tables[name].of([times])[0])
            transformer.evaluate(
                torch.zeros(1, len(video), config.video_row_dim, device=self._device),
                torch.zeros(1, len(audio), config.audio_in_channels, device=self._device),
                text,
                plan=plan,
                rotary=transformer.rotary(layout.position_ids.to(self._device), text.dtype),
                indices=(video, audio, words),
            )
        self._video_vae.decode(torch.zeros(1, self._video_vae.latent_channels, PREVIEW_LATENT_FRAMES, 2, 2))

    @torch.inference_mode()
    def encode(self, workload: Workload) -> H3Conditioning:
        """See `Pipeline.encode`."""
        media = _packed_order(workload)
        encode = partial(self._conditioner.encode, workload.prompt, media)
        with part("text_encoder"):
            text, tags = self._prompts.get(workload.prompt, media, encode)
        conditions: list[Condition] = []
        visual: list[Tensor] = []
        heard: list[Tensor] = []
        for item in media:
            sound = 0
            if item.wave is not None:
                with part("audio_vae"):
                    heard.append(
                        sound_rows(self._audio_vae.encode(references.heard(item, self._audio_vae.sample_rate_hz)))
                    )
                sound = len(heard[-1]) // AUDIO_CHANNELS
            if item.frames is not None:
                with part("video_vae"):
                    visual.append(self._video_vae.encode(references.encodable(item.frames)))
            conditions.append(_condition(item, visual[-1].shape if item.frames is not None else (), sound))
        return H3Conditioning(
            text=text, tags=tags, conditions=tuple(conditions), visual=tuple(visual), heard=tuple(heard)
        )

    @torch.inference_mode()
    def prepare(self, workload: Workload, conditioning: H3Conditioning) -> H3State:
        """See `Pipeline.prepare`. One CPU generator draws noise for each condition in packed order, then the picture's as
        latents, then the sound's as rows.
        """
        target = self._target(workload)
        layout = pack(conditioning.tags, target, patch_size=self._patch_size, conditions=conditioning.conditions)
        generator = torch.Generator("cpu").manual_seed(workload.seed)
        anchors = [
            patchify(anchored(clean, _noise(generator, *clean.shape)), self._patch_size)
            for clean in conditioning.visual
        ]
        extent = target.latent_frames, target.latent_height, target.latent_width
        video = _noise(generator, 1, self._video_vae.latent_channels, *extent)
        audio = _noise(generator, AUDIO_CHANNELS * target.sound_latents, self._audio_vae.latent_channels)
        transformer = self._transformer_of(workload)
        text = transformer.refine_text(conditioning.text)
        video_schedule = self._schedule(workload, workload.settings["flow_shift"])
        audio_schedule = self._schedule(workload, workload.settings["audio_flow_shift"])
        return H3State(
            workload=workload,
            num_steps=video_schedule.num_steps,
            target=target,
            layout=layout,
            video_rows=torch.cat([*anchors, patchify(video, self._patch_size)]).to(self._device),
            audio_rows=torch.cat([*conditioning.heard, audio]).to(self._device),
            text=text,
            rotary=transformer.rotary(layout.position_ids.to(self._device), text.dtype),
            indices=(
                layout.video_indices.to(self._device),
                layout.audio_indices.to(self._device),
                layout.text_indices.to(self._device),
            ),
            plans=self._plans(workload, layout, video_schedule, audio_schedule),
            video_schedule=video_schedule,
            audio_schedule=audio_schedule,
        )

    @torch.inference_mode()
    def step(self, state: H3State) -> H3State:
        """See `Pipeline.step`."""
        index = state.steps_done
        state.progress = float(state.video_schedule.sigmas[index])
        video_velocity, audio_velocity = self._evaluate[self._layout.denoiser_of(state.workload.task)](
            state.video_rows[None],
            state.audio_rows[None],
            state.text,
            plan=state.plans[index],
            rotary=state.rotary,
            indices=state.indices,
        )
        layout = state.layout
        state.video_velocity = video_velocity[0, layout.num_condition_video_rows :].float()
        state.video_schedule.step_(state.video_target, state.video_velocity, index)
        audio_target_velocity = audio_velocity[0, layout.num_condition_audio_rows :].float()
        state.audio_schedule.step_(state.audio_target, audio_target_velocity, index)
        state.steps_done += 1
        if self._is_checked:
            _check_finite(state, video_velocity, audio_velocity)
        return state

    @torch.inference_mode()
    def preview(self, state: H3State) -> FramesU8 | None:
        """The middle of the clip as the last evaluation sees it when clean: one short clip is decoded for it."""
        if state.video_velocity is None:
            return None
        clean = self._clean_video(state)
        first = (state.target.latent_frames - PREVIEW_LATENT_FRAMES) // 2
        frames = self._video_vae.decode(clean[:, :, first : first + PREVIEW_LATENT_FRAMES])
        middle: FramesU8 = frames[len(frames) // 2]
        return middle

    @torch.inference_mode()
    def decode(self, state: H3State) -> MediaOutput:
        """See `Pipeline.decode`. Latents are given as the DiT has them: normalised by the VAE's statistics."""
        video = unpatchify(state.video_target, state.target, self._patch_size)
        audio = sound_latents(state.audio_target)
        if state.workload.output_type == "latent":
            return MediaOutput(latents={"video": video.cpu().numpy(), "audio": audio.cpu().numpy()})
        ranks = self._decode_ranks
        with part("video_vae"):
            if ranks is not None and not ranks.is_first:
                self._video_vae.lend(video, ranks, pause=state.pause)
                return MediaOutput()
            frames = self._video_vae.decode(video, new_frames=self._new_frames, pause=state.pause, ranks=ranks)
        with part("audio_vae"):
            wave = self._audio_vae.decode(audio)
        return MediaOutput(
            frames=frames,
            fps=state.workload.fps,
            wave=wave,
            sample_rate_hz=self._audio_vae.sample_rate_hz,
        )

    def _plans(
        self, workload: Workload, layout: PackedLayout, video: FlowSchedule, audio: FlowSchedule
    ) -> tuple[StepPlan, ...]:
        """What is known of each step before the first. Steps whose rows lie at the same of their timesteps share the rows."""
        transformer, tables = self._transformer_of(workload), self._tables.get(self._layout.denoiser_of(workload.task))
        times = [_times(layout, video.timesteps[index], audio.timesteps[index]) for index in range(video.num_steps)]
        of_step = tables.of([step.timesteps for step in times]) if tables else (None,) * len(times)
        plans: list[StepPlan] = []
        for index, (step, table) in enumerate(zip(times, of_step, strict=True)):
            if index and torch.equal(step.indices, times[index - 1].indices):
                plan = replace(plans[-1], timesteps=step.timesteps.to(self._device))
            else:
                plan = transformer.plan_step(step.timesteps, step.indices, layout.token_tags, num_rows=layout.num_rows)
            told = layout.told(index, float(video.sigmas[index])) if transformer.reads_metadata else None
            plans.append(replace(plan, tables=table, attention=told))
        return tuple(plans)

    def _transformer_of(self, workload: Workload) -> MiniMaxH3Transformer:
        """References have a DiT of their own."""
        return self._transformers[self._layout.denoiser_of(workload.task)]

    def _schedule(self, workload: Workload, shift: float) -> FlowSchedule:
        points = self._base_schedules[workload.task]
        if points is not None:
            return FlowSchedule.of(torch.tensor(points, dtype=torch.float32), shift)
        return FlowSchedule.build(workload.num_inference_steps, shift)

    def _target(self, workload: Workload) -> Target:
        compression = self._video_vae.compression
        return Target(
            latent_frames=geometry.latent_frames(workload.num_frames),
            latent_height=workload.height // compression,
            latent_width=workload.width // compression,
            sound_latents=geometry.sound_latents_of(workload.num_frames),
        )

    def _clean_video(self, state: H3State) -> Tensor:
        """The picture that the last velocity points to from where the rows stand now."""
        if state.video_velocity is None or state.steps_done == state.num_steps:
            rows = state.video_target
        else:
            rows = state.video_schedule.denoised(state.video_target, state.video_velocity, state.steps_done)
        return unpatchify(rows, state.target, self._patch_size)


def _noise(generator: torch.Generator, *shape: int) -> Tensor:
    # Type and device are said, for a program around us may have set defaults of its own.
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


def _packed_order(workload: Workload) -> tuple[MediaInput, ...]:
    """References as they were given; of keyframes the first frame before the last."""
    if workload.task != tasks.FL2VA:
        return workload.media
    return tuple(sorted(workload.media, key=lambda item: item.role == tasks.LAST))


def _condition(item: MediaInput, shape: Sequence[int], sound: int) -> Condition:
    """The geometry of a medium; shape: of its latents [1,C,T,H,W], sound: its latents a channel."""
    if item.kind is MediaKind.AUDIO:
        return SoundReference(num_latents=sound)
    _, _, frames, height, width = shape
    if item.kind is MediaKind.VIDEO:
        return ClipReference(latent_frames=frames, latent_height=height, latent_width=width, sound_latents=sound)
    if item.role == tasks.REFERENCE:
        return PictureReference(latent_height=height, latent_width=width)
    return Keyframe(anchor="last" if item.role == tasks.LAST else "first")


def _check_finite(state: H3State, video_velocity: Tensor, audio_velocity: Tensor) -> None:
    """Raises NonFinite naming the first tensor, in the order in which they came to be."""
    made = ("video velocity", video_velocity), ("audio velocity", audio_velocity)
    moved = ("video latents", state.video_rows), ("audio latents", state.audio_rows)
    for name, tensor in (*made, *moved):
        if not bool(torch.isfinite(tensor).all()):
            raise NonFinite(name, state.steps_done)


def _times(layout: PackedLayout, video_time: Tensor, audio_time: Tensor) -> RowTimes:
    conditions = layout.num_condition_video_rows, layout.num_condition_audio_rows
    return row_times(
        layout.num_rows,
        video_time=video_time,
        audio_time=audio_time,
        visual_condition_rows=layout.video_indices[: conditions[0]],
        audio_condition_rows=layout.audio_indices[: conditions[1]],
        audio_rows=layout.audio_indices[conditions[1] :],
    )


def _load_transformer(
    files: ComponentFiles, context: BuildContext, device: torch.device, dtype: torch.dtype | None
) -> MiniMaxH3Transformer:
    shown = f"{files.folder.name}/config.json"
    try:
        config = TransformerConfig.from_dict(files.config)
        calibration = calibration_of(files.config)
    except ValueError as error:
        raise BadCheckpoint(shown, str(error)) from None
    kernels = denoiser_kernels(context)
    with torch.device("meta"):
        select = partial(_select, context, _stream_dtype(files, dtype), calibration=calibration)
        transformer = MiniMaxH3Transformer(config, select=select, kernels=kernels, ranks=context.ranks)
    has_tables = context.has("modulation_tables")
    load_component(
        transformer,
        files,
        device=device,
        device_of=lambda name: torch.device("cpu") if has_tables and is_table_weight(name) else device,
        rename=transformer_names(files, num_heads=config.num_attention_heads, qkv_order=context.native_qkv_order),
        dtype_of=lambda name, stored: stored if dtype is None else stored_dtype(name, dtype),
    )
    if has_tables:
        keep_on_host(transformer, pinned=device.type != "cpu")
    if kernels.name == "fused":
        transformer.pack_projections()
    if context.has("compile_blocks"):
        compile_blocks(transformer, _BLOCK_PATHS, name=files.folder.name)
    return transformer


def _stream_dtype(files: ComponentFiles, dtype: torch.dtype | None) -> torch.dtype | None:
    stored = next((files.tensors[name].dtype for name in _BLOCK_WEIGHTS if name in files.tensors), "")
    return dtype or {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}.get(stored)


def _select(
    context: BuildContext,
    dtype: torch.dtype | None,
    role: str,
    category: str,
    head_dim: int,
    calibration: Calibration | None = None,
) -> AttentionBackend:
    platform = context.platform
    return select_backend(
        context.attention,
        role=role,
        category=category,
        head_dim=head_dim,
        platform_name=platform.name,
        capability=context.capability,
        preference=platform.attention_preference,
        dtype=dtype,
        # Packed sequences are never padded, and text is refined by itself.
        is_mask_free=True,
        calibration=calibration,
    )
