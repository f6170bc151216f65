"""Joint tokens: rows beside the main sequence, such as a prompt's, that every row sees and that see every row.

They are kept apart from the main rows until the kernel, because ranks that share out the main rows all have the same joint ones.
Letters: B batch, J joint rows, S main rows, H heads, D channels of a head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from omnireel.attention.metadata import AttentionMetadata


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JointTokens:
    """Queries, keys and values [B,J,H,D] of the joint rows; mask: boolean [B,J], True where a joint key may be seen; strategy:
    whether they stand before the main rows or behind them.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None = None
    strategy: Literal["front", "rear"] = "front"

    def __post_init__(self) -> None:
        if self.strategy not in ("front", "rear"):
            raise ValueError(f"joint tokens stand at the front or rear, not at {self.strategy!r}")
        if self.key.shape != self.value.shape:
            shapes = f"{tuple(self.key.shape)} and {tuple(self.value.shape)}"
            raise ValueError(f"joint keys and values must have one shape, got {shapes}")
        if self.mask is not None and self.mask.shape != self.key.shape[:2]:
            expected = tuple(self.key.shape[:2])
            raise ValueError(f"the mask of joint keys must be shaped {expected}, got {tuple(self.mask.shape)}")

    def beside(self, main: Tensor, joint: Tensor) -> Tensor:
        """Main and joint rows in their order, along dim 1."""
        return torch.cat([joint, main] if self.strategy == "front" else [main, joint], dim=1)

    def parted(self, both: Tensor) -> tuple[Tensor, Tensor]:
        """The main and the joint ones of rows that `beside` put together, along dim 1."""
        joint, main = self.query.shape[1], both.shape[1] - self.query.shape[1]
        if self.strategy == "front":
            return both[:, joint:], both[:, :joint]
        return both[:, :main], both[:, main:]


def with_joint(
    q_BSHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor, metadata: AttentionMetadata
) -> tuple[Tensor, Tensor, Tensor, AttentionMetadata]:
    """One sequence of main and joint rows, and what is to be said of it; without joint tokens everything as it is.

    Raises:
        ValueError: they do not fit the main rows, or come with documents, spans or a dense mask, which speak of the main rows
            alone.
    """
    joint = metadata.joint
    if joint is None:
        return q_BSHD, k_BSHD, v_BSHD, metadata
    for name, main, there in (("queries", q_BSHD, joint.query), ("keys", k_BSHD, joint.key)):
        if there.shape[::2] != main.shape[::2] or there.shape[3] != main.shape[3]:
            wanted = f"[{main.shape[0]},J,{main.shape[2]},{main.shape[3]}]"
            raise ValueError(f"joint {name} must be shaped {wanted} as the main ones, got {tuple(there.shape)}")
    if metadata.is_packed or metadata.full_attn_spans is not None:
        raise ValueError("joint tokens come with neither documents nor spans; put the rows into the sequence instead")
    told = replace(_shifted(metadata, joint), joint=None, mask=_mask(k_BSHD, metadata, joint))
    q, k, v = joint.beside(q_BSHD, joint.query), joint.beside(k_BSHD, joint.key), joint.beside(v_BSHD, joint.value)
    return q, k, v, told


def _mask(k_BSHD: Tensor, metadata: AttentionMetadata, joint: JointTokens) -> Tensor | None:
    """Of all keys. Who has none of the two masks is seen whole; padding that would end up in the middle is hidden."""
    main, length = metadata.mask, metadata.valid_kv_length
    if main is not None and main.dim() != 2:
        raise ValueError("a dense mask comes without joint tokens; put the rows into the sequence and the mask instead")
    is_split = length is not None and joint.strategy == "rear"
    if main is None and joint.mask is None and not is_split:
        return None
    # Where the masks that there are lie: on the host, best.
    device = next((mask.device for mask in (main, joint.mask) if mask is not None), torch.device("cpu"))
    if main is None:
        main = torch.ones(k_BSHD.shape[:2], dtype=torch.bool, device=device)
    if is_split and length is not None:
        main = main & (torch.arange(main.shape[1], device=device) < length)
    other = torch.ones(joint.key.shape[:2], dtype=torch.bool, device=device) if joint.mask is None else joint.mask
    return joint.beside(main, other.to(device))


def _shifted(metadata: AttentionMetadata, joint: JointTokens) -> AttentionMetadata:
    """Places of main rows, where joint ones move them; behind them, the video no longer ends the rows."""
    if joint.strategy == "rear":
        return replace(metadata, valid_kv_length=None, video=None)
    length, video, count = metadata.valid_kv_length, metadata.video, joint.key.shape[1]
    moved = None if video is None else replace(video, prefix_len=video.prefix_len + joint.query.shape[1])
    return replace(metadata, valid_kv_length=None if length is None else length + count, video=moved)
