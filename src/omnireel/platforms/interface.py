"""What the engine needs to know of a kind of device; each file beside this one that holds a `PLATFORM` is one kind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    import torch

    from omnireel.errors import OutOfMemory

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """One device. `capability` is the maker's word for its generation, "" where there is none."""

    index: int
    name: str
    total_bytes: int
    capability: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTraits:
    """What holds for every device of a kind, for code that must not ask for the kind's name.

    collectives: the backend of torch.distributed; visible_devices: the variable that hides devices from a process, "" for
    none. is_run_on_hardware: False where only the seam to torch is tested, on a stand-in.
    """

    collectives: str
    visible_devices: str
    has_float64: bool = True
    has_inductor: bool = True
    has_pinned_memory: bool = True
    has_graphs: bool = False
    is_run_on_hardware: bool = True


class Platform(Protocol):
    """A kind of device. Importing its file touches no device; methods but the first two and `attention_preference` need
    `available()`.
    """

    @property
    def name(self) -> str:
        """In lower case, as a user types it."""
        ...

    def available(self) -> bool:
        """Whether at least one such device can be used here."""
        ...

    def why_not(self) -> str:
        """Why it is not available, as the end of a sentence; "" when it is."""
        ...

    def devices(self) -> tuple[DeviceInfo, ...]:
        """Every device of this kind, by index."""
        ...

    def device(self, index: int = 0) -> torch.device:
        """The torch device of an index."""
        ...

    def use(self, index: int = 0) -> AbstractContextManager[object]:
        """Within this block the device is the current one of the calling thread, which kernels and libraries ask for that are
        not told of any.
        """
        ...

    def synchronize(self, index: int = 0) -> None:
        """Waits until the device has done all it was given."""
        ...

    def reset_peak_memory(self, index: int = 0) -> None:
        """Starts a new measurement of peak memory."""
        ...

    def peak_memory_bytes(self, index: int = 0) -> int:
        """Most memory in use since `reset_peak_memory`: of the device, or of this process on a CPU."""
        ...

    def free_memory_bytes(self, index: int = 0) -> int:
        """Memory that could be taken now."""
        ...

    def release_memory(self, index: int = 0) -> None:
        """Gives memory that is held for later use back, so that the next request starts from a clean allocator."""
        ...

    @property
    def traits(self) -> DeviceTraits:
        """What its devices can do, and what they are called elsewhere."""
        ...

    @property
    def default_dtype(self) -> str:
        """What "auto" means here: "float32", or "checkpoint" to keep the stored types."""
        ...

    @property
    def attention_preference(self) -> tuple[str, ...]:
        """Names of attention backends, best first."""
        ...

    def capture(self, call: Callable[[], T], index: int = 0) -> Callable[[], T]:
        """Records what `call` queues on the device, after running it a few times; what it gives queues the same again and gives
        the outputs of the recording, filled anew. `call` must not wait for the device, and its tensors must stay. Where the
        device has no graphs (`traits`), the call itself.

        Raises:
            RuntimeError: something in the call cannot be recorded.
        """
        ...

    def out_of_memory(self, error: BaseException, where: str, index: int = 0) -> OutOfMemory | None:
        """The typed error when `error` means that memory ran out, else None."""
        ...
