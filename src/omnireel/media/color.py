"""Any frames that a pipeline may hand over, as 8-bit RGB. One frame at a time is held as float, never the clip.

Shape letters: T frames, H height, W width, C channels.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from omnireel.request import FramesU8


@dataclass(frozen=True, slots=True)
class _Frame:
    """One frame as it was handed over: an array or tensor [H,W], [H,W,3] or [H,W,4]; is_signed: in [-1,1]."""

    values: Any
    is_signed: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Without alpha, which only a frame with a channel axis can have."""
        shape = tuple(self.values.shape)
        return (*shape[:2], 3) if len(shape) == 3 and shape[2] == 4 else shape

    @property
    def float_dtype(self) -> np.dtype[Any] | None:
        """The type this frame is computed in; None for uint8, which is copied."""
        dtype = self.values.dtype
        if isinstance(dtype, np.dtype) and dtype.kind == "f":
            return dtype
        return None if str(dtype).removeprefix("torch.") == "uint8" else np.dtype(np.float32)


def to_uint8_frames(payload: object) -> FramesU8:
    """Frames of any origin as uint8 [T,H,W,3] (or [T,H,W] for grey ones), contiguous; the payload is left as it was.

    Args:
        payload: a torch tensor, a numpy array, or a list of frames (arrays, tensors or Pillow pictures).
            A floating tensor is always in [-1,1]. A floating array is in [-1,1] when any value is below 0 or above 1, else
            in [0,1]; in a list this is told frame by frame. Integers other than uint8 are divided by 255.
            Channels first (C,T,H,W or T,C,H,W; C,H,W in a list) are recognised when the last dimension is neither 3 nor 4.
            The alpha of four-channel frames is dropped. A 3-D array is one frame.

    Raises:
        ValueError: there are no frames, they differ in shape or hold NaN, or the payload is batched or of another kind.
    """
    frames = _frames(payload)
    if not frames:
        raise ValueError("there are no frames")
    shapes = sorted({frame.shape for frame in frames})
    if len(shapes) > 1:
        raise ValueError(f"frames differ in shape: {', '.join(str(shape) for shape in shapes)}")
    dtypes = [frame.float_dtype for frame in frames if frame.float_dtype is not None]
    common = np.result_type(*dtypes) if dtypes else np.dtype(np.float32)
    result = np.empty((len(frames), *shapes[0]), np.uint8)
    for k, frame in enumerate(frames):
        result[k] = _levels(frame, common)
    return result


def _levels(frame: _Frame, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Whole numbers from 0 to 255, in uint8 or still in a floating type. Works in place, on one copy of the frame."""
    shown = frame.values[..., :3] if frame.values.ndim == 3 else frame.values
    values: npt.NDArray[Any] = shown if isinstance(shown, np.ndarray) else _from_tensor(shown)
    if frame.float_dtype is None:
        return values
    is_float = values.dtype.kind == "f"
    unit = values.astype(dtype if is_float else np.float32)
    if not is_float:
        unit /= 255
    elif frame.is_signed:
        np.clip(unit, -1, 1, out=unit)
        unit /= 2
        unit += 0.5
    np.clip(unit, 0, 1, out=unit)
    # The smallest value is NaN when any value is.
    if np.isnan(unit.min()):
        raise ValueError("frames hold values that are no numbers")
    unit *= 255
    rounded: npt.NDArray[Any] = np.rint(unit, out=unit)
    return rounded


def _from_tensor(values: Any) -> npt.NDArray[Any]:
    moved = values.detach().cpu()
    # Of one frame: numpy has no bfloat16.
    array: npt.NDArray[Any] = (moved.float() if moved.is_floating_point() else moved).numpy()
    return array


def _frames(payload: object) -> list[_Frame]:
    if isinstance(payload, list | tuple):
        return [_single(item) for item in payload]
    values, is_signed = _values(payload)
    if values.ndim == 3:
        return [_single(payload)]
    if values.ndim != 4:
        raise ValueError(f"a clip has four dimensions, this payload has {values.ndim} (of a batch, hand over one clip)")
    if values.shape[3] not in (3, 4):
        if values.shape[0] in (3, 4):
            values = _turned(values, (1, 2, 3, 0))
        elif values.shape[1] in (3, 4):
            values = _turned(values, (0, 2, 3, 1))
    return [_checked(frame, is_signed=is_signed) for frame in values]


def _single(item: object) -> _Frame:
    values, is_signed = _values(item)
    if values.ndim == 3 and values.shape[2] not in (3, 4) and values.shape[0] in (3, 4):
        values = _turned(values, (1, 2, 0))
    return _checked(values, is_signed=is_signed)


def _turned(values: Any, axes: tuple[int, ...]) -> Any:
    return values.transpose(axes) if isinstance(values, np.ndarray) else values.permute(axes)


def _checked(values: Any, *, is_signed: bool) -> _Frame:
    shape = tuple(values.shape)
    if len(shape) != 2 and not (len(shape) == 3 and shape[2] in (3, 4)):
        raise ValueError(f"a frame is (height, width) or (height, width, 3 or 4), this one is {shape}")
    if 0 in shape:
        raise ValueError(f"a frame of shape {shape} is empty")
    return _Frame(values, is_signed)


def _values(item: object) -> tuple[Any, bool]:
    """An array or tensor that shares the item's memory, and whether it is in [-1,1]."""
    # There can be no tensor or picture before its library is loaded, so neither is loaded here.
    torch, pillow = sys.modules.get("torch"), sys.modules.get("PIL.Image")
    if torch is not None and isinstance(item, torch.Tensor):
        if item.dtype.is_complex or item.dtype == torch.bool:
            raise ValueError(f"frames cannot be made of {item.dtype}")
        return item, item.is_floating_point()
    if pillow is not None and isinstance(item, pillow.Image):
        # Other modes hold an index into a palette, two channels or bits.
        item = np.asarray(item if item.mode in ("L", "RGB", "RGBA", "I", "F") else item.convert("RGB"))
    if not isinstance(item, np.ndarray):
        raise ValueError(f"frames cannot be made of {type(item).__name__}")
    if item.dtype.kind not in "fiu":
        raise ValueError(f"frames cannot be made of {item.dtype}")
    return item, item.dtype.kind == "f" and bool(item.size) and bool(item.min() < 0 or item.max() > 1)
