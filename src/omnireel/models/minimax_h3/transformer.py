"""The DiT of MiniMax-H3: one stack of blocks over one packed sequence of text, sound and picture rows.

What does not change from step to step (refined text, rotary table) is computed by methods of its own, once a request, and
so can be what is known of every step before the first (`plan_step`). Nothing here waits for the device: what it must know of
the layout it reads from host tensors.

Letters: B batch, S packed rows, L text rows, N rows of one medium, M distinct timesteps, C channels of a row, H hidden,
A attention heads, D channels of a head, E channels of the time embedding, R = 3M rows of a modulation table.
Row tags: 0 picture, 1 text, 2 sound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from math import inf, prod
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from omnireel.acceleration import mark_dynamic
from omnireel.attention import Attention, AttentionMetadata
from omnireel.layers import (
    PLAIN,
    Kernels,
    Linear,
    RMSNorm,
    RotaryTable,
    SwiGlu,
    TableRows,
    TimestepEmbedding,
    axial_rotary,
    project,
    sinusoid,
)
from omnireel.models.minimax_h3.keymap import KEEP_FLOAT32, stored_dtype
from omnireel.parallel.ulysses import gather_rows, shares

if TYPE_CHECKING:
    from omnireel.attention import AttentionBackend
    from omnireel.parallel import Ranks

    SelectBackend: TypeAlias = Callable[[str, str, int], AttentionBackend]

__all__ = ["KEEP_FLOAT32", "MiniMaxH3Transformer", "StepPlan", "StepTables", "TransformerConfig", "stored_dtype"]

NUM_TAGS = 3
_BLOCK_ROLE = "self"
_REFINER_ROLE = "minimax_h3.token_refiner"

_NATIVE_KEYS = {
    "token_refiner_num_layers": "num_refiner_layers",
    "ffn_hidden_size": "ffn_dim",
    "latents_dim": "in_channels",
    "audio_latents_dim": "audio_in_channels",
    "timestep_input_dim": "freq_dim",
    "time_embed_hidden_size": "time_embed_hidden_dim",
    "rope_inv_freq_len": "rope_freq_dim",
}
# Native configs also list widths that follow from the others, as multiples of the hidden size.
_DERIVED_WIDTHS = {"adaln_out_features": 6 * NUM_TAGS, "final_adaln_out_features": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """Sizes of the DiT, by their diffusers names."""

    num_attention_heads: int
    attention_head_dim: int
    hidden_size: int
    num_layers: int
    num_refiner_layers: int
    ffn_dim: int
    in_channels: int
    audio_in_channels: int
    patch_size: tuple[int, int, int]
    text_dim: int
    freq_dim: int
    time_embed_hidden_dim: int
    time_embed_dim: int
    rope_freq_dim: int
    norm_eps: float
    qk_norm_eps: float
    final_norm_eps: float
    rope_theta: float = 10000.0

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> TransformerConfig:
        """The sizes in a checkpoint's `config.json`, whose keys may be spelled as diffusers does or natively.

        Keys that begin with an underscore describe the file and are passed over.

        Raises:
            ValueError: a key is unknown, missing or has a value that no such model can have; the text names it.
        """
        named = {_NATIVE_KEYS.get(key, key): value for key, value in config.items() if not key.startswith("_")}
        derived = {key: named.pop(key) for key in _DERIVED_WIDTHS if key in named}
        known = {entry.name for entry in fields(cls)}
        _refuse("unknown", named.keys() - known)
        _refuse("missing", known - named.keys() - {"rope_theta"})
        made = cls(**{key: _checked(key, value) for key, value in named.items()})
        made._check_widths(derived)
        return made

    @property
    def video_row_dim(self) -> int:
        """Channels of a picture row: those of the latents times the values of a patch."""
        return self.in_channels * prod(self.patch_size)

    def _check_widths(self, derived: Mapping[str, Any]) -> None:
        if 2 * 3 * self.rope_freq_dim > self.attention_head_dim:
            raise ValueError(f"rope_freq_dim {self.rope_freq_dim} turns more than a head of {self.attention_head_dim}")
        if self.freq_dim % 2:
            raise ValueError(f"freq_dim {self.freq_dim} must be even")
        for key, value in derived.items():
            if value != _DERIVED_WIDTHS[key] * self.hidden_size:
                raise ValueError(f"{key} must be {_DERIVED_WIDTHS[key]} times hidden_size, got {value!r}")


def _refuse(what: str, keys: set[str]) -> None:
    if keys:
        raise ValueError(f"{what} {'key' if len(keys) == 1 else 'keys'} {', '.join(sorted(keys))}")


def _checked(key: str, value: Any) -> Any:
    if key == "patch_size":
        if not isinstance(value, list | tuple) or len(value) != 3:
            raise ValueError(f"patch_size must be three whole numbers, got {value!r}")
        return tuple(_positive("patch_size", size, int) for size in value)
    return _positive(key, value, float if key.endswith(("_eps", "_theta")) else int)


def _positive(key: str, value: Any, kind: type[float]) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | kind) or not 0 < value < inf:
        raise ValueError(f"{key} must be a positive {'whole number' if kind is int else 'number'}, got {value!r}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTables:
    """The modulation tables of one step: blocks[k] is block k's [R,6,H], out the output norm's [M,2,H]; scales hold the 1 +."""

    blocks: tuple[Tensor, ...]
    out: Tensor

    @property
    def size_bytes(self) -> int:
        """Memory of all tables."""
        return self.out.nbytes + sum(table.nbytes for table in self.blocks)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepPlan:
    """What of a step is known before it: its distinct timesteps, float32 [M], on the device of the weights; which table row
    each packed row takes in the blocks and in the output norm; the tables, or None to compute them in the step; and what the
    attention backend is told, None where it does not ask.
    """

    timesteps: Tensor
    rows: TableRows
    out_rows: TableRows
    tables: StepTables | None = None
    attention: AttentionMetadata | None = None


class MiniMaxH3Transformer(nn.Module):
    """Velocities of picture and sound rows. Parameters are named as in the diffusers checkpoint; build it under
    `torch.device("meta")` and let a loader fill it. No parameter takes gradients.

    Args:
        select: gives the attention backend for (role, category, head size).
        kernels: computes what lies between matrix products and attention.
        ranks: who share out the packed rows between them, each of which evaluates with the same arguments and is given the whole
            result; None for one process.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        select: SelectBackend,
        kernels: Kernels = PLAIN,
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.kernels = kernels
        self.ranks = ranks
        hidden = config.hidden_size
        backend = select(_BLOCK_ROLE, _BLOCK_ROLE, config.attention_head_dim)
        self.proj_in = Linear(config.video_row_dim, hidden, bias=True)
        self.audio_proj_in = Linear(config.audio_in_channels, hidden, bias=True)
        self.context_embedder = Linear(config.text_dim, hidden, bias=True)
        self.time_embedder = TimestepEmbedding(config.freq_dim, config.time_embed_hidden_dim, config.time_embed_dim)
        self.token_refiner = TokenRefiner(config, select=select)
        self.transformer_blocks = nn.ModuleList(
            Block(config, backend=backend, index=index, ranks=ranks) for index in range(config.num_layers)
        )
        self.reads_metadata = backend.reads_metadata
        self.norm_out = OutputNorm(config)
        self.proj_out = Linear(hidden, config.video_row_dim, bias=True)
        self.audio_proj_out = Linear(hidden, config.audio_in_channels, bias=True)

    @property
    def blocks(self) -> list[Block]:
        """The blocks, in order."""
        return cast("list[Block]", list(self.transformer_blocks))

    def refine_text(self, text_BLC: Tensor) -> Tensor:
        """The conditioner's states [B,L,text_dim] as rows [B,L,H] of the stream, whose type is that of the blocks."""
        refined: Tensor = self.token_refiner(self.context_embedder(text_BLC.to(self.context_embedder.dtype)))
        return refined

    def rotary(self, position_ids_S3: Tensor, dtype: torch.dtype) -> RotaryTable:
        """The turning angles of positions [S,3] in (time, height, width), for queries and keys of type `dtype`."""
        return axial_rotary(
            position_ids_S3, num_frequencies=self.config.rope_freq_dim, theta=self.config.rope_theta, dtype=dtype
        )

    def forward(  # noqa: PLR0913 - the packed sequence is what it is; each input is named
        self,
        video_rows_BNC: Tensor,
        audio_rows_BNC: Tensor,
        text_BLH_refined: Tensor,
        *,
        timestep_M: Tensor,
        timestep_indices_S: Tensor,
        token_tags_S: Tensor,
        rotary: RotaryTable,
        video_indices: Tensor,
        audio_indices: Tensor,
        text_indices: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """One evaluation.

        Args:
            video_rows_BNC: picture rows in the order of `video_indices`; any float type.
            audio_rows_BNC: sound rows in the order of `audio_indices`; any float type.
            text_BLH_refined: from `refine_text`; its type is the type of the stream. Left as it was.
            timestep_M: the distinct timesteps, float32 in [0,1], 1 is clean.
            timestep_indices_S: which of them each packed row has; int64 on the CPU (elsewhere reading it waits).
            token_tags_S: the tag of each packed row; int64 on the CPU likewise.
            rotary: from `rotary`, in the type of the stream.
            video_indices: where the picture rows lie in the packed sequence, int64 on the device of the rows.
            audio_indices: where the sound rows lie.
            text_indices: where the text rows lie.

        Returns:
            Velocities [B,N,C] of all picture rows and of all sound rows, in the type of the output heads (float32).

        Raises:
            RankLost: a rank that shares the rows is gone.
            ValueError: tags, timestep indices and rotary table are not of one length, or a value is out of range.
        """
        plan = self.plan_step(timestep_M, timestep_indices_S, token_tags_S, num_rows=rotary.num_rows)
        return self.evaluate(
            video_rows_BNC,
            audio_rows_BNC,
            text_BLH_refined,
            plan=plan,
            rotary=rotary,
            indices=(video_indices, audio_indices, text_indices),
        )

    def plan_step(
        self, timestep_M: Tensor, timestep_indices_S: Tensor, token_tags_S: Tensor, *, num_rows: int
    ) -> StepPlan:
        """The plan of a step without tables. Arguments and errors are those of `forward`; num_rows: of the rotary table."""
        device = self.proj_in.weight.device
        indices_S, tags_S = timestep_indices_S.cpu(), token_tags_S.cpu()
        _check_rows(indices_S, tags_S, num_rows, timestep_M.shape[0])
        return StepPlan(
            timesteps=timestep_M.to(device),
            rows=TableRows.of(indices_S * NUM_TAGS + tags_S, device),
            out_rows=TableRows.of(indices_S, device),
        )

    def time_embedding(self, timestep_M: Tensor) -> Tensor:
        """The activated embedding [M,E] that all modulation tables of a step are made of."""
        return F.silu(self.time_embedder(sinusoid(timestep_M, self.config.freq_dim)))

    def evaluate(
        self,
        video_rows_BNC: Tensor,
        audio_rows_BNC: Tensor,
        text_BLH_refined: Tensor,
        *,
        plan: StepPlan,
        rotary: RotaryTable,
        indices: tuple[Tensor, Tensor, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """`forward` with what is known before the step in `plan`; indices: where picture, sound and text rows lie."""
        video_indices, audio_indices, text_indices = indices
        x_BSH = text_BLH_refined.new_zeros(text_BLH_refined.shape[0], rotary.num_rows, self.config.hidden_size)
        x_BSH.index_copy_(1, text_indices, text_BLH_refined)
        x_BSH.index_copy_(1, video_indices, self.proj_in(video_rows_BNC.to(self.proj_in.dtype)).to(x_BSH.dtype))
        x_BSH.index_copy_(
            1, audio_indices, self.audio_proj_in(audio_rows_BNC.to(self.audio_proj_in.dtype)).to(x_BSH.dtype)
        )
        ranks, counts = self.ranks, shares(rotary.num_rows, 1 if self.ranks is None else self.ranks.size)
        if ranks is not None:
            x_BSH, plan, rotary = _own_rows(x_BSH, plan, rotary, counts, ranks.rank)
        tables = plan.tables
        if tables is None:
            time_ME = self.time_embedding(plan.timesteps)
        mark_dynamic((x_BSH, 1), (plan.rows.index, 0), (rotary.cos, 0), (rotary.sin, 0))
        for index, block in enumerate(self.blocks):
            table_R6H = block.adaln_proj(time_ME) if tables is None else tables.blocks[index]
            mark_dynamic((table_R6H, 0))
            block(x_BSH, table_R6H, plan.rows, rotary, self.kernels, plan.attention)
        out_M2H = tables.out if tables is not None else self.norm_out.table(time_ME)
        y_BSH = self.norm_out(x_BSH, out_M2H, plan.out_rows, self.kernels)
        if ranks is not None:
            return self._gathered(ranks, y_BSH, counts, indices)
        video = self.proj_out(y_BSH.index_select(1, video_indices).to(self.proj_out.dtype))
        audio = self.audio_proj_out(y_BSH.index_select(1, audio_indices).to(self.audio_proj_out.dtype))
        return video, audio

    def _gathered(
        self, ranks: Ranks, y_BSH: Tensor, counts: Sequence[int], indices: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The velocities of all rows: what crosses are a row's few channels of both media, not its hidden ones."""
        both = torch.cat([head(y_BSH.to(head.dtype)) for head in (self.proj_out, self.audio_proj_out)], dim=-1)
        video, audio = torch.split(
            gather_rows(ranks, both, counts), [self.proj_out.out_features, self.audio_proj_out.out_features], dim=-1
        )
        return video.index_select(1, indices[0]), audio.index_select(1, indices[1])

    def pack_projections(self) -> None:
        """Joins q, k and v of every block into one matrix, of which the three weights become views: one product instead of
        three, and no memory but that of one block on the way.
        """
        for block in self.blocks:
            block.attn.pack()


def _check_rows(indices_S: Tensor, tags_S: Tensor, num_rows: int, num_timesteps: int) -> None:
    for name, values, limit in (("timestep_indices", indices_S, num_timesteps), ("token_tags", tags_S, NUM_TAGS)):
        if values.shape != (num_rows,):
            raise ValueError(f"{name} must have the {num_rows} rows of the rotary table, got {tuple(values.shape)}")
        if num_rows and not 0 <= int(values.min()) <= int(values.max()) < limit:
            raise ValueError(f"{name} must lie in 0..{limit - 1}, got {int(values.min())}..{int(values.max())}")


def _own_rows(
    x_BSH: Tensor, plan: StepPlan, rotary: RotaryTable, counts: tuple[int, ...], rank: int
) -> tuple[Tensor, StepPlan, RotaryTable]:
    """The rows of one rank, with what belongs to them; counts: rows of each."""
    stop = list(accumulate(counts))[rank]
    start = stop - counts[rank]
    own = replace(
        plan,
        rows=plan.rows.cut(start, stop),
        out_rows=plan.out_rows.cut(start, stop),
        attention=replace(plan.attention or AttentionMetadata(), shares=counts),
    )
    return x_BSH[:, start:stop].contiguous(), own, rotary.cut(start, stop)


class Block(nn.Module):
    """Attention and feed-forward, each shifted, scaled and gated by the row's timestep and tag."""

    def __init__(
        self,
        config: TransformerConfig,
        *,
        backend: AttentionBackend,
        index: int | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__()
        self.norm1 = RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.attn = SelfAttention(config, backend=backend, role=_BLOCK_ROLE, index=index, ranks=ranks)
        self.norm2 = RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.ff = SwiGlu(config.hidden_size, config.ffn_dim)
        self.adaln_proj = BlockModulation(config)

    def forward(
        self,
        x_BSH: Tensor,
        table_R6H: Tensor,
        rows: TableRows,
        rotary: RotaryTable,
        kernels: Kernels = PLAIN,
        metadata: AttentionMetadata | None = None,
    ) -> None:
        """Changes the stream `x_BSH` in place. table_R6H: from `adaln_proj`."""
        shift_attn, scale_attn, gate_attn, shift_ff, scale_ff, gate_ff = table_R6H.unbind(1)
        attended_BSH = self.attn(
            kernels.norm_modulate(x_BSH, self.norm1, scale_attn, shift_attn, rows), rotary, kernels, metadata
        )
        normed_BSH = kernels.gate_add_norm_modulate_(
            x_BSH, attended_BSH, gate_attn, self.norm2, scale_ff, shift_ff, rows
        )
        del attended_BSH
        kernels.gate_add_(x_BSH, self.ff(normed_BSH, kernels), gate_ff, rows)


class BlockModulation(nn.Module):
    """A block's table: a row for each timestep and tag, `timestep * 3 + tag`."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.hidden_size = config.hidden_size
        self.linear = Linear(config.time_embed_dim, 6 * NUM_TAGS * config.hidden_size, bias=True)

    def forward(self, time_ME: Tensor) -> Tensor:
        """[R,6,H]: shift, 1 + scale, gate of the attention and the same of the feed-forward."""
        return modulation_table(time_ME, self.linear.weight, self.linear.bias, width=self.hidden_size, places=6)


def modulation_table(time_ME: Tensor, weight: Tensor, bias: Tensor | None, *, width: int, places: int) -> Tensor:
    """[rows, places, width] from one linear layer; every third place from the second on is a scale and is given its 1 +.

    The activated embedding is rounded to the type of the weights here, after the activation: rounded before it, the error
    would lean the same way in every block of every step. The weights may lie anywhere `time_ME` lies too.
    """
    table = project(time_ME.to(weight.dtype), weight, bias).view(-1, places, width)
    table[:, 1::3] += 1.0
    return table


class SelfAttention(nn.Module):
    """Attention over all rows, with normed and turned queries and keys. All heads together may be wider than the stream."""

    def __init__(
        self,
        config: TransformerConfig,
        *,
        backend: AttentionBackend,
        role: str,
        index: int | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        inner = config.num_attention_heads * config.attention_head_dim
        self.to_q = Linear(config.hidden_size, inner, bias=False)
        self.to_k = Linear(config.hidden_size, inner, bias=False)
        self.to_v = Linear(config.hidden_size, inner, bias=False)
        self._packed: Tensor | None = None
        self.norm_q = RMSNorm(config.attention_head_dim, eps=config.qk_norm_eps)
        self.norm_k = RMSNorm(config.attention_head_dim, eps=config.qk_norm_eps)
        self.attend = Attention(
            config.num_attention_heads,
            config.attention_head_dim,
            backend=backend,
            role=role,
            index=index,
            name="" if index is None else f"transformer_blocks.{index}.attn",
            ranks=ranks,
        )
        # A list, for checkpoints name the projection `to_out.0`.
        self.to_out = nn.ModuleList([Linear(inner, config.hidden_size, bias=False)])

    def pack(self) -> None:
        """One matrix for q, k and v. Who replaces one of the three weights afterwards must pack anew."""
        packed = torch.cat([layer.weight for layer in (self.to_q, self.to_k, self.to_v)])
        for layer, part in zip((self.to_q, self.to_k, self.to_v), packed.chunk(3), strict=True):
            layer.weight = nn.Parameter(part, requires_grad=False)
        self._packed = packed

    def forward(
        self,
        x_BSH: Tensor,
        rotary: RotaryTable | None = None,
        kernels: Kernels = PLAIN,
        metadata: AttentionMetadata | None = None,
    ) -> Tensor:
        """[B,S,H] to [B,S,H]; `x_BSH` is left as it was."""
        if self._packed is None:
            q, k, v = self.to_q(x_BSH), self.to_k(x_BSH), self.to_v(x_BSH)
        else:
            q, k, v = F.linear(x_BSH, self._packed).chunk(3, dim=-1)
        q_BSAD = kernels.norm_rotate(self._heads(q), self.norm_q, rotary)
        k_BSAD = kernels.norm_rotate(self._heads(k), self.norm_k, rotary)
        out: Tensor = self.to_out[0](self.attend(q_BSAD, k_BSAD, self._heads(v), metadata).flatten(2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.num_heads, x.shape[-1] // self.num_heads)


class TokenRefiner(nn.Module):
    """Plain blocks over the text rows alone: neither positions nor timesteps, so once a request is enough."""

    def __init__(self, config: TransformerConfig, *, select: SelectBackend) -> None:
        super().__init__()
        backend = select(_REFINER_ROLE, _BLOCK_ROLE, config.attention_head_dim)
        blocks = (RefinerBlock(config, backend=backend) for _ in range(config.num_refiner_layers))
        self.refiner_blocks = nn.ModuleList(blocks)
        self.final_norm = RMSNorm(config.hidden_size, eps=config.final_norm_eps)

    def forward(self, text_BLH: Tensor) -> Tensor:
        """[B,L,H] to [B,L,H]; changes what it is given."""
        for block in self.refiner_blocks:
            block(text_BLH)
        refined: Tensor = self.final_norm(text_BLH)
        return refined


class RefinerBlock(nn.Module):
    """A pre-norm block without modulation."""

    def __init__(self, config: TransformerConfig, *, backend: AttentionBackend) -> None:
        super().__init__()
        self.norm1 = RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.attn = SelfAttention(config, backend=backend, role=_REFINER_ROLE)
        self.norm2 = RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.ff = SwiGlu(config.hidden_size, config.ffn_dim)

    def forward(self, text_BLH: Tensor) -> None:
        """Changes `text_BLH` in place."""
        text_BLH.add_(self.attn(self.norm1(text_BLH)))
        text_BLH.add_(self.ff(self.norm2(text_BLH)))


class OutputNorm(nn.Module):
    """The last norm, shifted and scaled by the row's timestep alone."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, eps=config.final_norm_eps)
        self.linear = Linear(config.time_embed_dim, 2 * config.hidden_size, bias=True)

    def table(self, time_ME: Tensor) -> Tensor:
        """[M,2,H]: shift and 1 + scale."""
        hidden = self.norm.dim
        return modulation_table(time_ME, self.linear.weight, self.linear.bias, width=hidden, places=2)

    def forward(self, x_BSH: Tensor, table_M2H: Tensor, rows: TableRows, kernels: Kernels = PLAIN) -> Tensor:
        """[B,S,H] to a new [B,S,H]. table_M2H: from `table`."""
        shift_MH, scale_MH = table_M2H.unbind(1)
        return kernels.norm_modulate(x_BSH, self.norm, scale_MH, shift_MH, rows)
