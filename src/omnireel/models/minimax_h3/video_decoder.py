"""The decoder of the video VAE: transformer blocks over the latents of a window.

Letters: B batch, C channels, T frames, H height, W width (of pixels or latents), S tokens, A heads, D channels of a head, E width
of the decoder.
"""

from __future__ import annotations

import math
from math import prod
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from omnireel.attention import Attention
from omnireel.layers import PLAIN, Kernels, Linear, RMSNorm, RotaryTable, SwiGlu, rotate_

if TYPE_CHECKING:
    from omnireel.attention import AttentionBackend
    from omnireel.models.minimax_h3.video_autoencoder import VideoVaeConfig

ROLE = "minimax_h3.video_vae"


class Decoder(nn.Module):
    """Each latent is a token and becomes a block of pixels; register tokens and one of zeros listen in."""

    def __init__(self, config: VideoVaeConfig, *, backend: AttentionBackend) -> None:
        super().__init__()
        self.config = config
        width = config.decoder_num_attention_heads * config.decoder_attention_head_dim
        self.proj_in = Linear(config.latent_channels, width, bias=True)
        self.register_tokens = nn.Parameter(
            torch.empty(1, config.decoder_num_register_tokens, width), requires_grad=False
        )
        self.transformer_blocks = nn.ModuleList(
            DecoderBlock(config, backend=backend) for _ in range(config.decoder_num_layers)
        )
        self.kernels = PLAIN
        self.norm_out = nn.LayerNorm(width, eps=config.decoder_norm_eps)
        self._patch = (config.clips.ratio, config.spatial_ratio, config.spatial_ratio)
        self.proj_out = Linear(width, config.out_channels * prod(self._patch), bias=True)

    @property
    def blocks(self) -> list[DecoderBlock]:
        """The blocks, in order."""
        return cast("list[DecoderBlock]", list(self.transformer_blocks))

    def use(self, kernels: Kernels) -> None:
        """Other kernels than the plain ones; the projections of every block are joined for them."""
        self.kernels = kernels
        for block in self.blocks:
            block.attn.pack()

    def forward(self, latents_BCTHW: Tensor, table: RotaryTable) -> Tensor:
        """[B,C,T,H,W] to new pixels [B,3,4T,16H,16W]; `table` is `rotary` of (T, H, W)."""
        batch, _, frames, height, width = latents_BCTHW.shape
        x_BSE = self.proj_in(latents_BCTHW.flatten(2).transpose(1, 2))
        registers = self.register_tokens.expand(batch, -1, -1).to(x_BSE.dtype)
        x_BSE = torch.cat([x_BSE, registers, torch.zeros_like(x_BSE[:, :1])], dim=1)
        # float32 as it becomes after the first sum, for layer scales are.
        x_BSE = x_BSE.to(self.blocks[0].scale1.dtype)
        norms = [block.norm1.weight for block in self.blocks]
        h_BSE = self.blocks[0].norm1(x_BSE).to(self.proj_in.dtype)
        # Nobody reads what the last block norms; a graph of its own for it would cost more.
        for block, following_E in zip(self.blocks, [*norms[1:], norms[0]], strict=True):
            h_BSE = block(x_BSE, h_BSE, table, following_E, self.kernels)
        out = self.proj_out(self.norm_out(x_BSE).to(self.proj_out.dtype))[:, : frames * height * width]
        split = out.view(batch, frames, height, width, self.config.out_channels, *self._patch)
        time, size, _ = self._patch
        pixels: Tensor = split.permute(0, 4, 1, 5, 2, 6, 3, 7)
        return pixels.reshape(batch, -1, frames * time, height * size, width * size)

    def rotary(self, shape: tuple[int, int, int], device: torch.device) -> RotaryTable:
        """Angles by where a token lies in the window that is decoded, each axis from -1 to 1; extra tokens lie at 0."""
        pairs = int(self.config.decoder_attention_head_dim * self.config.decoder_rope_dim_ratio) // 6
        steps = torch.arange(0, 1, 1 / pairs, dtype=torch.float32, device="cpu")[:pairs]
        frequencies = (1.0 / self.config.decoder_rope_theta**steps).to(device)
        axes = [2.0 * (torch.arange(0.5, size, dtype=torch.float32, device=device) / size) - 1.0 for size in shape]
        places = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, 2)
        extra = places.new_zeros(self.config.decoder_num_register_tokens + 1, 3)
        angles = (2.0 * math.pi * torch.cat([places, extra])[..., None] * frequencies).flatten(1).unsqueeze(1)
        dtype = self.proj_out.dtype
        return RotaryTable(cos=angles.cos().to(dtype), sin=angles.sin().to(dtype))


class DecoderBlock(nn.Module):
    """Attention and feed-forward, scaled by a vector each. Norms are float32, and with them the stream after the first block."""

    def __init__(self, config: VideoVaeConfig, *, backend: AttentionBackend) -> None:
        super().__init__()
        width = config.decoder_num_attention_heads * config.decoder_attention_head_dim
        self.norm1 = RMSNorm(width, eps=config.decoder_norm_eps)
        self.attn = DecoderAttention(config, backend=backend)
        self.scale1 = nn.Parameter(torch.empty(width), requires_grad=False)
        self.norm2 = RMSNorm(width, eps=config.decoder_norm_eps)
        self.ff = SwiGlu(width, config.decoder_ffn_mult * width, bias=True)
        self.scale2 = nn.Parameter(torch.empty(width), requires_grad=False)

    def forward(
        self, x_BSE: Tensor, h_BSE: Tensor, table: RotaryTable, following_E: Tensor, kernels: Kernels = PLAIN
    ) -> Tensor:
        """Changes the stream `x_BSE` in place. h_BSE: its norm by `norm1`, in the type of the projections; given back is its norm
        with the weights `following_E`, those of the next block. Each sum and the norm after it are one pass that way.
        """
        attended_BSE = self.attn(h_BSE, table, kernels)
        h_BSE = kernels.scale_add_norm_(x_BSE, attended_BSE, self.scale1, self.norm2.weight, self.norm2.eps)
        return kernels.scale_add_norm_(x_BSE, self.ff(h_BSE, kernels), self.scale2, following_E, self.norm1.eps)


class DecoderAttention(nn.Module):
    """Full attention inside a window; queries and keys are normed in float32, without weights."""

    def __init__(self, config: VideoVaeConfig, *, backend: AttentionBackend) -> None:
        super().__init__()
        self._heads, self._dim = config.decoder_num_attention_heads, config.decoder_attention_head_dim
        self._eps = config.decoder_norm_eps
        width = self._heads * self._dim
        self.to_q = Linear(width, width, bias=True)
        self.to_k = Linear(width, width, bias=True)
        self.to_v = Linear(width, width, bias=True)
        self.attend = Attention(self._heads, self._dim, backend=backend, role=ROLE)
        # A list, for checkpoints name the projection `to_out.0`.
        self.to_out = nn.ModuleList([Linear(width, width, bias=True)])
        self._packed: tuple[Tensor, Tensor | None, RMSNorm] | None = None

    def pack(self) -> None:
        """Joins the three projections into one, of which their weights become views. Whoever changes them packs anew."""
        layers = self.to_q, self.to_k, self.to_v
        packed = []
        for name in ("weight", "bias"):
            joined = torch.cat([getattr(layer, name) for layer in layers])
            for layer, part in zip(layers, joined.chunk(3), strict=True):
                setattr(layer, name, nn.Parameter(part, requires_grad=False))
            packed.append(joined)
        norm = RMSNorm(self._dim, eps=self._eps)
        norm.weight = nn.Parameter(packed[0].new_ones(self._dim), requires_grad=False)
        self._packed = packed[0], packed[1], norm

    def forward(self, x_BSE: Tensor, table: RotaryTable, kernels: Kernels = PLAIN) -> Tensor:
        """[B,S,E] to [B,S,E]."""
        if self._packed is None:
            q_BSAD, k_BSAD, v_BSAD = (self._split(layer(x_BSE)) for layer in (self.to_q, self.to_k, self.to_v))
            q_BSAD, k_BSAD = (rotate_(self._normed(x), table) for x in (q_BSAD, k_BSAD))
        else:
            weight, bias, norm = self._packed
            q_BSAD, k_BSAD, v_BSAD = (self._split(x) for x in F.linear(x_BSE, weight, bias).chunk(3, dim=-1))
            q_BSAD, k_BSAD = (kernels.norm_rotate(x, norm, table) for x in (q_BSAD, k_BSAD))
        out: Tensor = self.to_out[0](self.attend(q_BSAD, k_BSAD, v_BSAD).flatten(2))
        return out

    def _split(self, x_BSE: Tensor) -> Tensor:
        return x_BSE.view(*x_BSE.shape[:2], self._heads, self._dim)

    def _normed(self, x_BSAD: Tensor) -> Tensor:
        return F.rms_norm(x_BSAD.float(), (self._dim,), eps=self._eps).to(x_BSAD.dtype)
