"""Names and stored types of the DiT's tensors; the module's own names are those of the diffusers checkpoint."""

from __future__ import annotations

import torch

# Source: the released checkpoint, 12 float32 tensors; a name is met as a whole dotted component, never as a substring
# (`ff.net.0.proj` and `adaln_proj` are bfloat16).
KEEP_FLOAT32 = frozenset({"proj_in", "audio_proj_in", "time_embedder", "proj_out", "audio_proj_out"})


def stored_dtype(key: str, default: torch.dtype) -> torch.dtype:
    """The type of the tensor named `key` when the model as a whole is kept in `default`."""
    return torch.float32 if KEEP_FLOAT32.intersection(key.split(".")) else default
