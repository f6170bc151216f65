"""Any frames that a pipeline may hand over, as 8-bit RGB. One frame at a time is held as float, never the clip.

Shape letters: T frames, H height, W width, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from omnireel.request import FramesU8


@dataclass(frozen=True, slots=True)
class _Frame:
    """One frame as it was handed over: [H,W], [H,W,3] or [H,W,4]. is_signed: its values lie in [-1,1]."""

    values: npt.NDArray[Any]
    is_signed: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Without alpha, which only a frame with a channel axis can have."""
        shape = self.values.shape
        return (*shape[:2], 3) if len(shape) == 3 and shape[2] == 4 else shape

    @property
    def float_dtype(self) -> np.dtype[Any] | None:
        """The type this frame is computed in; None for uint8, which is copied."""
        if self.values.dtype == np.uint8:
            return None
        return self.values.dtype if self.values.dtype.kind == "f" else np.dtype(np.float32)


def to_uint8_frames(payload: object) -> FramesU8:
    """Frames of any origin as uint8 [T,H,W,3] (or [T,H,W] for grey ones), contiguous; the payload is left as it was.

    Args:
        payload: a torch tensor, a numpy array, or a list of frames (arrays, tensors or Pillow pictures).
            A floating tensor is always in [-1,1]. A floating array is in [-1,1] when any value is below 0 or above 1, else
            in [0,1]; in a list this is told frame by frame. Integers other than uint8 are divided by 255.
            Channels first (C,T,H,W or T,C,H,W; C,H,W in a list) are recognised when the last dimension is neither 3 nor 4.
            The alpha of four-channel frames is dropped. A 3-D array is one frame.

    Raises:
        ValueError: there are no frames, they differ in shape, or the payload is batched or of another kind.
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
        result[k] = _to_uint8(frame, common)
    return result


def _to_uint8(frame: _Frame, dtype: np.dtype[Any]) -> npt.NDArray[np.uint8]:
    values = frame.values[..., :3] if frame.values.ndim == 3 else frame.values
    if frame.float_dtype is None:
        return values
    if values.dtype.kind != "f":
        unit = values.astype(np.float32) / 255
    else:
        unit = values.astype(dtype)
        if frame.is_signed:
            unit = unit.clip(-1, 1) / 2 + unit.dtype.type(0.5)
    rounded: npt.NDArray[np.uint8] = np.rint(unit.clip(0, 1) * unit.dtype.type(255)).astype(np.uint8)
    return rounded


def _frames(payload: object) -> list[_Frame]:
    if isinstance(payload, list | tuple):
        return [_single(item) for item in payload]
    values, is_signed = _array(payload)
    if values.ndim == 3:
        return [_single(payload)]
    if values.ndim != 4:
        raise ValueError(f"a clip has four dimensions, this payload has {values.ndim} (of a batch, hand over one clip)")
    if values.shape[3] not in (3, 4):
        if values.shape[0] in (3, 4):
            values = values.transpose(1, 2, 3, 0)
        elif values.shape[1] in (3, 4):
            values = values.transpose(0, 2, 3, 1)
    return [_checked(frame, is_signed=is_signed) for frame in values]


def _single(item: object) -> _Frame:
    values, is_signed = _array(item)
    if values.ndim == 3 and values.shape[2] not in (3, 4) and values.shape[0] in (3, 4):
        values = values.transpose(1, 2, 0)
    return _checked(values, is_signed=is_signed)


def _checked(values: npt.NDArray[Any], *, is_signed: bool) -> _Frame:
    if values.ndim != 2 and not (values.ndim == 3 and values.shape[2] in (3, 4)):
        raise ValueError(f"a frame is (height, width) or (height, width, 3 or 4), this one is {values.shape}")
    if not values.size:
        raise ValueError(f"a frame of shape {values.shape} is empty")
    return _Frame(values, is_signed)


def _array(item: object) -> tuple[npt.NDArray[Any], bool]:
    """The values as an array that shares memory where it can, and whether they are in [-1,1]."""
    if isinstance(item, np.ndarray):
        if item.dtype.kind not in "fiu":
            raise ValueError(f"frames cannot be made of {item.dtype}")
        return item, item.dtype.kind == "f" and bool(item.size) and bool(item.min() < 0 or item.max() > 1)
    module = type(item).__module__.partition(".")[0]
    if module == "torch":
        return _tensor_array(item)
    if module == "PIL":
        return np.asarray(item), False
    raise ValueError(f"frames cannot be made of {type(item).__name__}")


def _tensor_array(item: Any) -> tuple[npt.NDArray[Any], bool]:
    values = item.detach().cpu()
    # numpy has no bfloat16.
    is_narrow = values.is_floating_point() and values.element_size() < 4
    return (values.float() if is_narrow else values).numpy(), values.is_floating_point()
