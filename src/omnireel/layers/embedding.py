"""Embeddings of the timestep. Letters: M distinct timesteps, E channels."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from omnireel.layers.linear import Linear, project


def sinusoid(timestep_M: Tensor, num_channels: int) -> Tensor:
    """[M,E] float32, cosines before sines, of frequencies 10000^(-k / (E/2)).

    Source: the timestep features of "Denoising Diffusion Probabilistic Models", with the halves swapped.
    """
    half = num_channels // 2
    exponent = -math.log(10000) * torch.arange(half, dtype=torch.float32, device=timestep_M.device)
    angle_ME = timestep_M[:, None].float() * torch.exp(exponent / half)[None, :]
    return torch.cat((angle_ME.cos(), angle_ME.sin()), dim=-1)


class TimestepEmbedding(nn.Module):
    """Two linear layers with a SiLU between them, in the type of their weights."""

    def __init__(self, in_features: int, hidden_features: int, out_features: int) -> None:
        super().__init__()
        self.linear_1 = Linear(in_features, hidden_features, bias=True)
        self.linear_2 = Linear(hidden_features, out_features, bias=True)

    def forward(self, feature_ME: Tensor) -> Tensor:
        """[M, in] of any float type to [M, out] in the type of the weights."""
        first, second = self.linear_1, self.linear_2
        hidden_MF = F.silu(project(feature_ME.to(first.dtype), first.weight, first.bias))
        return project(hidden_MF, second.weight, second.bias)
