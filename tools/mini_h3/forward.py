"""The DiT and the text encoder of mini-h3 as they are trained: many requests at once, with gradients.

Requests lie one behind another in one packed sequence, a document each, as the served model would have them one by one; a test
compares the two. Modules are the published classes, so that names and shapes are theirs.
Letters: S packed rows of all documents, H hidden, A heads, D channels of a head, M timesteps, R table rows, B documents,
L text rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from tools.mini_h3.architecture import TRANSFORMER
from torch import Tensor

HEADS, HEAD_DIM = TRANSFORMER["num_attention_heads"], TRANSFORMER["attention_head_dim"]
NUM_FREQUENCIES = TRANSFORMER["rope_freq_dim"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Documents:
    """Where documents lie in the packed sequence. bounds: int32 [B+1]; longest: of their lengths, at least."""

    bounds: Tensor
    longest: int


def attend(q_SAD: Tensor, k_SAD: Tensor, v_SAD: Tensor, documents: Documents) -> Tensor:
    """Full attention inside each document."""
    if not q_SAD.is_cuda:
        edges = documents.bounds.tolist()
        parts = [_attend_whole(q_SAD[a:b], k_SAD[a:b], v_SAD[a:b]) for a, b in pairwise(edges) if b > a]
        return torch.cat(parts)
    from torch.nn.attention.varlen import varlen_attn

    bounds, longest = documents.bounds, documents.longest
    made: Any = varlen_attn(q_SAD, k_SAD, v_SAD, bounds, bounds, longest, longest)
    out: Tensor = made
    return out


def _attend_whole(q_SAD: Tensor, k_SAD: Tensor, v_SAD: Tensor) -> Tensor:
    q, k, v = (x.transpose(0, 1)[None] for x in (q_SAD, k_SAD, v_SAD))
    return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)


def _rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x.float(), (x.shape[-1],), weight, eps)


def _rotated(x_SAD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = 3 * NUM_FREQUENCIES
    first, second, rest = x_SAD[..., :half], x_SAD[..., half : 2 * half], x_SAD[..., 2 * half :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def rotary(positions_S3: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [S,1,3K] of positions in (time, height, width)."""
    steps = torch.arange(NUM_FREQUENCIES, device=positions_S3.device, dtype=torch.float32)
    frequencies = 10000.0 ** (-steps / NUM_FREQUENCIES)
    angles = (positions_S3.float()[:, :, None] * frequencies).flatten(1)[:, None]
    return angles.cos(), angles.sin()


def _qkv(attn: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    weight = torch.cat([attn.to_q.weight, attn.to_k.weight, attn.to_v.weight])
    q, k, v = F.linear(x, weight).unflatten(-1, (3, HEADS, HEAD_DIM)).unbind(-3)
    return _rms(q, attn.norm_q.weight, 1e-5), _rms(k, attn.norm_k.weight, 1e-5), v


def run_blocks(
    model: Any, x_SH: Tensor, time_ME: Tensor, table_rows_SR: Tensor, turn: tuple[Tensor, Tensor], documents: Documents
) -> Tensor:
    """The stack of blocks. table_rows_SR: for each row of the sequence, one at its row of the modulation table."""
    cos, sin = turn
    for block in model.transformer_blocks:
        table = F.linear(time_ME, block.adaln_proj.linear.weight, block.adaln_proj.linear.bias)
        rows = table_rows_SR @ table.view(-1, 6 * x_SH.shape[1]).to(table_rows_SR.dtype)
        shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = rows.chunk(6, dim=-1)
        h = _rms(x_SH, block.norm1.weight, 1e-5) * (1 + scale_a) + shift_a
        q, k, v = _qkv(block.attn, h)
        q, k = _rotated(q, cos, sin).to(v.dtype), _rotated(k, cos, sin).to(v.dtype)
        x_SH = x_SH + gate_a * block.attn.to_out[0](attend(q, k, v, documents).flatten(1))
        h = _rms(x_SH, block.norm2.weight, 1e-5) * (1 + scale_f) + shift_f
        x_SH = x_SH + gate_f * _feed_forward(block.ff, h)
    return x_SH


def _feed_forward(ff: Any, h: Tensor) -> Tensor:
    value, gate = ff.net[0].proj(h).chunk(2, dim=-1)
    out: Tensor = ff.net[2](value * F.silu(gate))
    return out


def refine_text(model: Any, states_BLC: Tensor, lengths_B: Tensor) -> Tensor:
    """Refined rows [B,L,H] of padded states; rows behind a text's end are of no use."""
    x = model.context_embedder(states_BLC).float()
    inside = torch.arange(x.shape[1], device=x.device) < lengths_B[:, None]
    for block in model.token_refiner.refiner_blocks:
        q, k, v = (part.transpose(1, 2) for part in _qkv(block.attn, _rms(x, block.norm1.weight, 1e-5)))
        out = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, attn_mask=inside[:, None, None, :])
        x = x + block.attn.to_out[0](out.transpose(1, 2).flatten(2))
        x = x + _feed_forward(block.ff, _rms(x, block.norm2.weight, 1e-5))
    return _rms(x, model.token_refiner.final_norm.weight, 1e-5)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Everything that the DiT is given of a batch. Indices say where rows lie in the packed sequence.

    timestep: float32 [M]; timestep_of: int64 [S]; tags: int64 [S]; positions: [S,3].
    """

    video: Tensor
    audio: Tensor
    text: Tensor
    video_at: Tensor
    audio_at: Tensor
    text_at: Tensor
    timestep: Tensor
    timestep_of: Tensor
    tags: Tensor
    positions: Tensor
    documents: Documents


def velocities(model: Any, rows: Rows, *, blocks: Callable[..., Tensor] = run_blocks) -> tuple[Tensor, Tensor]:
    """Of all picture rows and of all sound rows, float32."""
    with torch.autocast(rows.video.device.type, enabled=False):
        video, audio = model.proj_in(rows.video.float()), model.audio_proj_in(rows.audio.float())
        half = TRANSFORMER["freq_dim"] // 2
        steps = torch.arange(half, device=rows.timestep.device, dtype=torch.float32)
        angles = rows.timestep[:, None] * torch.exp(-math.log(10000.0) * steps / half)
        embedder = model.time_embedder
        hidden = F.silu(embedder.linear_1(torch.cat([angles.cos(), angles.sin()], dim=-1)))
        time_ME = F.silu(embedder.linear_2(hidden))
    x_SH = video.new_zeros(len(rows.tags), video.shape[1])
    x_SH = x_SH.index_copy(0, rows.text_at, rows.text.float())
    x_SH = x_SH.index_copy(0, rows.video_at, video).index_copy(0, rows.audio_at, audio)
    size = 3 * len(rows.timestep)
    stream = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else torch.float32
    table_rows = F.one_hot(rows.timestep_of * 3 + rows.tags, size).to(stream)
    x_SH = blocks(model, x_SH, time_ME, table_rows, rotary(rows.positions), rows.documents)
    shift, scale = model.norm_out.linear(time_ME).float().chunk(2, dim=-1)
    y = _rms(x_SH, model.norm_out.norm.weight, 1e-5)
    at_SM = F.one_hot(rows.timestep_of, len(rows.timestep)).to(stream)
    y = y * (1 + at_SM @ scale.to(stream)) + at_SM @ shift.to(stream)
    with torch.autocast(rows.video.device.type, enabled=False):
        return model.proj_out(y[rows.video_at]), model.audio_proj_out(y[rows.audio_at])
