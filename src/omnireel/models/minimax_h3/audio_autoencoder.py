"""The audio VAE: a strided convolutional encoder with one attention block, and a decoder that keeps down aliasing.

One channel in and out; the two ears are two items of a batch. Parameters are named as in the diffusers checkpoint, where
convolutions store direction and length of their weights apart; `fold_weight_norm` joins them once after loading. Always
float32. Letters: B batch, C channels, T latents, N samples, L places along time, H heads, D channels of a head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from omnireel.layers import Linear
from omnireel.models.minimax_h3.sizes import read_sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioVaeConfig:
    """Sizes of the audio VAE, by their diffusers names; what is written here is the released one."""

    encoder_dim: int = 64
    encoder_rates: tuple[int, ...] = (2, 4, 4, 5, 5)
    latent_dim: int = 2048
    latent_channels: int = 32
    num_attention_heads: int = 8
    decoder_dim: int = 1024
    decoder_rates: tuple[int, ...] = (5, 5, 2, 2, 2, 2, 2)
    decoder_kernel_sizes: tuple[int, ...] = (9, 9, 4, 4, 4, 4, 4)
    resblock_kernel_sizes: tuple[int, ...] = (3, 7, 11)
    resblock_dilation_sizes: tuple[tuple[int, ...], ...] = ((1, 3, 5), (1, 3, 5), (1, 3, 5))
    sampling_rate: int = 32_000
    latents_mean: tuple[float, ...] | None = None
    latents_std: tuple[float, ...] | None = None

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> AudioVaeConfig:
        """The sizes in a checkpoint's `config.json`; keys that begin with an underscore are passed over.

        Raises:
            ValueError: a key is unknown or has a value that no such VAE can have, as of a decoder that does not undo the
                encoder's strides; the text names it.
        """
        made = read_sizes(cls, config)
        for key, one, other in (
            ("decoder_kernel_sizes", made.decoder_kernel_sizes, made.decoder_rates),
            ("resblock_dilation_sizes", made.resblock_dilation_sizes, made.resblock_kernel_sizes),
        ):
            if len(one) != len(other):
                raise ValueError(f"{key} must have {len(other)} entries, got {len(one)}")
        if made.latent_dim % made.num_attention_heads:
            raise ValueError(
                f"num_attention_heads must divide latent_dim {made.latent_dim}, got {made.num_attention_heads}"
            )
        if prod(made.decoder_rates) != made.hop:
            raise ValueError(
                f"decoder_rates make {prod(made.decoder_rates)} samples of a latent, encoder_rates {made.hop}"
            )
        return made

    @property
    def hop(self) -> int:
        """Samples of a latent."""
        return prod(self.encoder_rates)


class AudioAutoencoder(nn.Module):
    """Waves in [-1,1] and latents of the posterior, before any statistics.

    It is made on the meta device, whatever the default device is, and a loader places it.
    """

    def __init__(self, config: AudioVaeConfig) -> None:
        super().__init__()
        self.config = config
        channels = config.latent_channels
        with torch.device("meta"):
            self.encoder = WaveEncoder(config)
            self.pre_block = Narrowing(config.latent_dim, channels, config.num_attention_heads)
            self.mean_proj = nn.Conv1d(channels, channels, 1)
            # Of the spread; the model reads the mean alone, and checkpoints hold both.
            self.logs_proj = nn.Conv1d(channels, channels, 1)
            self.dec_in_proj = nn.Conv1d(channels, config.latent_dim, 1)
            self.decoder = WaveDecoder(config)

    def encode(self, wave_BN: Tensor) -> Tensor:
        """The posterior's mean [B,C,T]; the wave is filled up with silence to whole latents."""
        padded = F.pad(wave_BN, (0, -wave_BN.shape[1] % self.config.hop))
        states = self.pre_block(self.encoder(padded[:, None]).transpose(1, 2)).transpose(1, 2)
        mean: Tensor = self.mean_proj(states)
        return mean

    def decode(self, latents_BCT: Tensor) -> Tensor:
        """A wave [B,N] in [-1,1], 800 samples a latent."""
        wave: Tensor = self.decoder(self.dec_in_proj(latents_BCT))
        return wave[:, 0]


def fold_weight_norm(module: nn.Module) -> None:
    """Joins length and direction of every convolution's weight into one tensor; the two are given back."""
    for part in module.modules():
        if isinstance(part, _Normed):
            part.fold()


class _Normed(nn.Module):
    """A convolution's weight as length `weight_g` and direction `weight_v`, until it is folded."""

    def __init__(self, shape: tuple[int, int, int], out_channels: int, *, bias: bool) -> None:
        super().__init__()
        self.weight_g: nn.Parameter | None = nn.Parameter(torch.empty(shape[0], 1, 1), requires_grad=False)
        self.weight_v: nn.Parameter | None = nn.Parameter(torch.empty(shape), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_channels), requires_grad=False) if bias else None
        self._folded: Tensor | None = None

    @property
    def weight(self) -> Tensor:
        """The weight that is convolved with."""
        if self._folded is not None or self.weight_g is None or self.weight_v is None:
            assert self._folded is not None
            return self._folded
        return torch._weight_norm(self.weight_v, self.weight_g, 0)

    def fold(self) -> None:
        """Keeps the joined weight alone."""
        self._folded = self.weight.detach()
        self.weight_g = self.weight_v = None


class Conv(_Normed):
    """[B,C,L] to [B,C',L'] with a weight of unit directions."""

    def __init__(
        self, in_channels: int, out_channels: int, size: int, *, stride: int = 1, padding: int = 0, dilation: int = 1,
        bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__((out_channels, in_channels, size), out_channels, bias=bias)
        self._stride, self._padding, self._dilation = stride, padding, dilation

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return F.conv1d(x, self.weight, self.bias, self._stride, self._padding, self._dilation)


class UpConv(_Normed):
    """[B,C,L] to [B,C',rate*L], by a transposed convolution."""

    def __init__(self, in_channels: int, out_channels: int, size: int, *, rate: int) -> None:
        super().__init__((in_channels, out_channels, size), out_channels, bias=True)
        self._rate, self._padding = rate, (size - rate) // 2

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return F.conv_transpose1d(x, self.weight, self.bias, self._rate, self._padding)


def _snake(x: Tensor, frequency: Tensor, size: Tensor) -> Tensor:
    """x + size * sin^2(frequency * x) with one tensor of x's size more, not five."""
    return (frequency * x).sin_().pow_(2).mul_(size).add_(x)


class Snake(nn.Module):
    """x + sin^2(a x) / a, with a frequency for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(1, channels, 1), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B,C,L] to the same."""
        return _snake(x, self.alpha, (self.alpha + 1e-9).reciprocal())


class ResidualUnit(nn.Module):
    """A dilated and a plain convolution beside a shortcut."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        wide = Conv(channels, channels, 7, padding=3 * dilation, dilation=dilation)
        self.block = nn.Sequential(Snake(channels), wide, Snake(channels), Conv(channels, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """[B,C,L] to the same."""
        out: Tensor = self.block(x).add_(x)
        return out


class EncoderBlock(nn.Module):
    """Three residual units, then a stride that doubles the channels."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        units = [ResidualUnit(channels, dilation) for dilation in (1, 3, 9)]
        step = Conv(channels, 2 * channels, 2 * stride, stride=stride, padding=math.ceil(stride / 2))
        self.block = nn.Sequential(*units, Snake(channels), step)

    def forward(self, x: Tensor) -> Tensor:
        """[B,C,L] to [B,2C,L/stride]."""
        out: Tensor = self.block(x)
        return out


class WaveEncoder(nn.Module):
    """A wave to states, 800 samples each."""

    def __init__(self, config: AudioVaeConfig) -> None:
        super().__init__()
        channels = config.encoder_dim
        parts: list[nn.Module] = [Conv(1, channels, 7, padding=3)]
        for stride in config.encoder_rates:
            parts.append(EncoderBlock(channels, stride))
            channels *= 2
        self.block = nn.Sequential(*parts, Snake(channels), Conv(channels, config.latent_dim, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        """[B,1,N] to [B,C,T]."""
        out: Tensor = self.block(x)
        return out


class Narrowing(nn.Module):
    """Causal attention and a gated feed-forward that narrow states to the channels of a latent."""

    def __init__(self, width: int, channels: int, num_heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = PooledAttention(width, channels, num_heads)
        self.proj = Linear(width, channels, bias=True)
        self.norm3 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(channels)
        self.mlp = GatedMlp(channels)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """[B,T,width] to [B,T,channels]."""
        y = self.proj(self.norm3(x_BTC)) + self.attn(self.norm1(x_BTC))
        out: Tensor = y + self.mlp(self.norm2(y))
        return out


class GatedMlp(nn.Module):
    """w2(gelu(w0 u) * (w1 u)) of a normed u."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.w0 = Linear(channels, 2 * channels, bias=True)
        self.w1 = Linear(channels, 2 * channels, bias=True)
        self.w2 = Linear(2 * channels, channels, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """[...,C] to the same."""
        x = self.norm(x)
        out: Tensor = self.w2(F.gelu(self.w0(x), approximate="tanh") * self.w1(x))
        return out


class PooledAttention(nn.Module):
    """Causal attention whose heads are averaged, not joined, and then pooled to the channels of a latent."""

    def __init__(self, width: int, channels: int, num_heads: int) -> None:
        super().__init__()
        self._channels, self._heads = channels, num_heads
        self.qkv = Linear(width, 3 * width, bias=False)
        self.q_bias = nn.Parameter(torch.empty(width), requires_grad=False)
        self.v_bias = nn.Parameter(torch.empty(width), requires_grad=False)
        # Keys have no bias; the checkpoint stores the zeros all the same.
        self.register_buffer("zero_k_bias", torch.empty(width))
        self.proj = Linear(channels, channels, bias=True)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """[B,T,width] to [B,T,channels]."""
        batch, length, _ = x_BTC.shape
        bias = torch.cat((self.q_bias, self.get_buffer("zero_k_bias"), self.v_bias))
        qkv = F.linear(x_BTC, self.qkv.weight, bias).view(batch, length, 3, self._heads, -1)
        q_BHTD, k_BHTD, v_BHTD = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)
        pooled = F.adaptive_avg_pool1d(attended.transpose(1, 2).mean(dim=2), self._channels)
        out: Tensor = self.proj(pooled)
        return out


class SnakeBeta(nn.Module):
    """x + sin^2(e^a x) / e^b, with frequency and size for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels), requires_grad=False)
        self.beta = nn.Parameter(torch.empty(channels), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B,C,L] to the same."""
        alpha, beta = self.alpha.exp()[:, None], self.beta.exp()[:, None]
        return _snake(x, alpha, (beta + 1e-9).reciprocal())


class Activation(nn.Module):
    """SnakeBeta at twice the rate, so that what it adds above the band is filtered out before it can fold down."""

    RATIO, TAPS = 2, 12

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.act = SnakeBeta(channels)
        self.upsample = Up(self.TAPS)
        self.downsample = nn.ModuleDict({"lowpass": Low(self.TAPS)})

    def forward(self, x: Tensor) -> Tensor:
        """[B,C,L] to the same."""
        out: Tensor = self.downsample["lowpass"](self.act(self.upsample(x)))
        return out


class Up(nn.Module):
    """Twice the rate; the filter comes with the weights."""

    def __init__(self, taps: int) -> None:
        super().__init__()
        self.register_buffer("filter", torch.empty(1, 1, taps))

    def forward(self, x: Tensor) -> Tensor:
        """[B,C,L] to [B,C,2L]."""
        taps, channels = self.get_buffer("filter"), x.shape[1]
        size = taps.shape[-1]
        pad = size // 2 - 1
        padded = F.pad(x, (pad, pad), mode="replicate")
        # Twice the filter, not twice what it makes: doubling is exact, and the filter is short.
        wide = F.conv_transpose1d(padded, (2 * taps).expand(channels, -1, -1), stride=2, groups=channels)
        return wide[..., 2 * pad + (size - 2) // 2 : -(2 * pad + (size - 1) // 2)]


class Low(nn.Module):
    """Half the rate, behind a filter that comes with the weights."""

    def __init__(self, taps: int) -> None:
        super().__init__()
        self.register_buffer("filter", torch.empty(1, 1, taps))

    def forward(self, x: Tensor) -> Tensor:
        """[B,C,2L] to [B,C,L]."""
        taps, channels = self.get_buffer("filter"), x.shape[1]
        size = taps.shape[-1]
        padded = F.pad(x, (size // 2 - (size % 2 == 0), size // 2), mode="replicate")
        return F.conv1d(padded, taps.expand(channels, -1, -1), stride=2, groups=channels)


class PeriodBlock(nn.Module):
    """Pairs of convolutions at growing dilations, an activation before each, beside a shortcut."""

    def __init__(self, channels: int, size: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(
            Conv(channels, channels, size, dilation=d, padding=(size - 1) * d // 2) for d in dilations
        )
        self.convs2 = nn.ModuleList(Conv(channels, channels, size, padding=(size - 1) // 2) for _ in dilations)
        self.activations = nn.ModuleList(Activation(channels) for _ in range(2 * len(dilations)))

    def forward(self, x: Tensor) -> Tensor:
        """[B,C,L] to the same."""
        before, between = self.activations[::2], self.activations[1::2]
        for first, wide, second, plain in zip(before, self.convs1, between, self.convs2, strict=True):
            x = plain(second(wide(first(x)))).add_(x)
        return x


class WaveDecoder(nn.Module):
    """States to a wave: the rate goes up in steps, and behind each step the blocks of all sizes are averaged."""

    def __init__(self, config: AudioVaeConfig) -> None:
        super().__init__()
        self._num_sizes = len(config.resblock_kernel_sizes)
        self.conv_pre = Conv(config.latent_dim, config.decoder_dim, 7, padding=3)
        widths = [config.decoder_dim // 2**k for k in range(len(config.decoder_rates) + 1)]
        steps = zip(widths, widths[1:], config.decoder_kernel_sizes, config.decoder_rates, strict=False)
        # Sequences of one, for checkpoints name them `ups.0.0`.
        self.ups = nn.ModuleList(
            nn.Sequential(UpConv(wide, narrow, size, rate=rate)) for wide, narrow, size, rate in steps
        )
        kinds = list(zip(config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True))
        self.resblocks = nn.ModuleList(PeriodBlock(width, *kind) for width in widths[1:] for kind in kinds)
        self.activation_post = Activation(widths[-1])
        self.conv_post = Conv(widths[-1], 1, 7, padding=3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B,C,T] to [B,1,N]."""
        x = self.conv_pre(x)
        for k, up in enumerate(self.ups):
            x = up(x)
            blocks = self.resblocks[k * self._num_sizes : (k + 1) * self._num_sizes]
            total = blocks[0](x)
            for block in blocks[1:]:
                total.add_(block(x))
            x = total.div_(self._num_sizes)
        wave: Tensor = self.conv_post(self.activation_post(x))
        return wave.clamp_(-1.0, 1.0)
