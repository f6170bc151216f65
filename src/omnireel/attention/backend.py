"""The contract of an attention backend, and finding them: every file in `backends/` is one, there is no other list."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from omnireel.attention import backends

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from omnireel.attention.metadata import AttentionMetadata

_GROUP = "omnireel.attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a layer will run: a platform's name, and the maker's word for the device's generation ("9.0", "gfx942"); "" where
    it is not known, and then it is not checked.
    """

    platform: str
    capability: str = ""

    @property
    def major(self) -> int:
        """The first part of a capability such as "9.0"; 0 where it is no such number."""
        first = self.capability.partition(".")[0]
        return int(first) if first.isdecimal() else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can take. Empty tuples mean anything, `platforms` None means everywhere.

    capabilities: generations of a device, as in `Place`, or their major part alone ("9").
    masks: which masks; "prefix" are those of keys that hide a tail, with packed metadata alone.
    has_documents: one call serves a packed sequence; others are called once a document.
    has_spans: it can mix causal and full attention. has_causal: it can be causal at all.
    has_grouped_heads: keys may have fewer heads than queries.
    reads_video: see `AttentionBackend.reads_metadata`.
    is_downloaded: it fetches code and runs it, so nobody else's word is enough to choose it.
    is_traceable: torch's compiler may look into it; of others it is kept out.
    """

    platforms: tuple[str, ...] | None = None
    capabilities: tuple[str, ...] = ()
    head_dims: tuple[int, ...] = ()
    dtypes: tuple[torch.dtype, ...] = ()
    masks: Literal["none", "prefix", "keys", "any"] = "none"
    has_documents: bool = False
    has_spans: bool = False
    has_causal: bool = True
    has_grouped_heads: bool = True
    reads_video: bool = False
    is_downloaded: bool = False
    is_traceable: bool = True
    is_run_on_hardware: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFacts:
    """What a backend may ask of the layer that calls it. `name`: its path in the model. `layout` is the
    declared order of dims, None where nobody declared.
    """

    role: str = ""
    name: str = ""
    index: int | None = None
    layout: str | None = "BSND"
    causal: bool = False


ANY_LAYER = LayerFacts()


@dataclass(frozen=True, kw_only=True)
class AttentionBackend(ABC):
    """One way to compute softmax(scale * q k^T) v. A file in `backends/` holds one as `BACKEND`, which has no state; what
    `bind` gives belongs to the layers of one role and may have some.

    Importing such a file imports no optional package and touches no device.
    """

    name: ClassVar[str]
    """In capitals, as a user types it."""

    can: ClassVar[Capabilities]
    package: ClassVar[str] = ""
    """The optional package it needs, by import name; "" when torch is enough, or when `available` knows better."""

    install: ClassVar[str] = ""
    """The line that installs it."""

    said: set[str] = field(default_factory=set, init=False, compare=False, repr=False)
    """What this role was told once already."""

    def available(self, place: Place) -> str | None:
        """None when it can run there, else why not, as the end of the sentence "it is unavailable: ..."."""
        return None

    def missing(self, place: Place) -> str | None:
        """The line that installs what is not there; None when nothing is missing."""
        return self.install if self.package and not installed(self.package) else None

    def dtypes(self, place: Place) -> tuple[torch.dtype, ...]:
        """Number types that what is installed there has kernels for; empty for any."""
        return self.can.dtypes

    def bind(self, place: Place, options: Mapping[str, Any] | None) -> AttentionBackend:
        """The backend for the layers of one role; loads what it needs. `options` as `AttentionSpec.lowered` gives them.

        Raises:
            ImportError, OSError: a package is broken.
            ValueError: the options do not fit the place.
        """
        return self

    def describe(self) -> str:
        """The name, with the kernel that was loaded where there is a choice."""
        return self.name

    @property
    def reads_metadata(self) -> bool:
        """Whether a model shall tell, each step, where the video lies and how far the loop is. Models leave it out otherwise, for
        what changes with every step would be compiled with every step.
        """
        return self.can.reads_video

    def check_layer(self, layer: LayerFacts) -> None:
        """Raises ValueError when such a layer cannot be served."""
        if layer.causal and not self.can.has_causal:
            raise ValueError(f"{self.name} has no causal attention, which {layer.role} needs")

    @abstractmethod
    def forward(
        self,
        q_BSHD: Tensor,
        k_BSHD: Tensor,
        v_BSHD: Tensor,
        *,
        scale: float,
        causal: bool,
        metadata: AttentionMetadata,
        layer: LayerFacts = ANY_LAYER,
    ) -> Tensor:
        """Attention inside each document of `metadata`. All tensors [B,S,H,D] (batch, rows, heads, channels).

        Raises:
            ValueError: the metadata does not fit the tensors.
        """


def installed(module: str) -> bool:
    """Whether the top-level module can be found; nothing is imported."""
    return importlib.util.find_spec(module) is not None


def all_backends() -> tuple[AttentionBackend, ...]:
    """Every backend that has a file, usable here or not, and those of other packages (entry points of the group
    "omnireel.attention"), ordered by name. One of another package takes the place of a built-in one of its name.
    """
    names = (module.name for module in pkgutil.iter_modules(backends.__path__))
    own = [importlib.import_module(f"{backends.__name__}.{name}").BACKEND for name in names]
    plugged = [entry.load() for entry in entry_points(group=_GROUP)]
    found = {backend.name: backend for backend in (*own, *plugged)}
    return tuple(found[name] for name in sorted(found))
