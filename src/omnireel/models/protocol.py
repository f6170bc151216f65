"""What the engine asks of a model: one declaration of facts and a pipeline of five methods.

The engine drives the steps, never the pipeline: between any two `step` calls it may cancel, time out, measure or preview.
Nothing here names a model, a device or a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from omnireel.acceleration import Acceleration

if TYPE_CHECKING:
    from omnireel.attention import AttentionConfig
    from omnireel.models.topology import Topology
    from omnireel.parallel import Ranks
    from omnireel.platforms import Platform
    from omnireel.request import FramesU8, GenerationRequest, MediaFacts, MediaOutput, Workload


class Role(StrEnum):
    """What a component does; memory plans and reports are written by role, never by component name."""

    DENOISER = "denoiser"
    ENCODER = "encoder"
    DECODER = "decoder"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentFacts:
    """One component of a pipeline. `blocks` are dotted paths of its lists of repeated blocks, in order of use."""

    name: str
    role: Role
    blocks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The declaration that every shared mechanism reads; a model folder's `facts.py` holds it as `FACTS`, or several.

    architectures: pipeline class names of checkpoints that this model serves, aliases included.
    builtin: checkpoints inside the package, by the name a user types; a value of None needs no files at all.
    pipeline: "module:class" of the Pipeline; rules: "module:function" of its `admit`. Both are imported when used, so
    that listing models imports no torch.
    attention_roles: role name -> category of each attention layer.
    max_batch: requests of one batch key that `step_batch` moves on at once; 1 for a pipeline without it.
    partitions: folders of a checkpoint that may hold the pipeline index instead of its root, each with the start-up tasks
    that open it alone; of every other task all of them may be opened.
    is_stage: whether it runs as a stage of a pipeline only, never alone.
    topologies: pipelines of several stages that come with this model, which runs in one of them.
    task_types: words for what a service of this model may be started for; empty where any text will do.
    downloads: "module:function" that gives the file patterns of a repository which a start-up task needs; called with the
    task and the index of the repository's root, empty where it has none. "" for a model that is not downloaded.
    shared_heads: "module:function" that gives, of a checkpoint, how many attention heads its denoisers have; any number of ranks that
    divides it may share a request. Every rank runs `encode`, `prepare` and `step` with the same arguments, of which `step`
    alone may exchange anything, and only the first of them `preview` and `decode`. "" where one process runs a request.
    can_share_decode: where `BuildContext.is_decode_shared` says so every rank runs `decode`, calls `pause` at the same places, and all
    but the first give an empty output.
    """

    name: str
    summary: str
    architectures: tuple[str, ...]
    tasks: tuple[str, ...]
    components: tuple[ComponentFacts, ...]
    attention_roles: Mapping[str, str]
    pipeline: str
    rules: str
    builtin: Mapping[str, Path | None] = field(default_factory=dict)
    max_batch: int = 1
    partitions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    task_types: tuple[str, ...] = ()
    is_stage: bool = False
    topologies: tuple[Topology, ...] = ()
    downloads: str = ""
    shared_heads: str = ""
    can_share_decode: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model that was found: what the user called it, whose facts apply and where its files lie.

    index: the parsed pipeline index (model_index.json or modular_model_index.json), empty for a model without files.
    task_type: what the service is started for; each model has its own words, "auto" is everyone's.
    """

    name: str
    facts: ModelFacts
    path: Path | None
    index: Mapping[str, Any] = field(default_factory=dict)
    task_type: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """What a pipeline is built from. dtype: "float32", "bfloat16", or "checkpoint" for the stored types.

    validate_finite_tensors: look for NaN and infinity after each step, which waits for the device.
    is_profiled: measure each part of a run, which waits for the device too.
    prompt_embed_cache_size: presentations whose encoding is kept; 0 for none.
    new_frames: makes an array of zeros that the frames of a clip are to be decoded into; None for an ordinary one. Where the
    model runs in another process it lies in shared memory, so that a clip is never there twice.
    chunk_processor: of the stage, see `StageFacts`; "" where its output is handed over as a whole.
    native_qkv_order: "interleaved" or "stacked", how a native checkpoint's fused tensors are ordered.
    ranks: the processes that compute each request together, all with the same arguments; None for one alone. Of a model that
    declares `shared_heads`. is_decode_shared: they decode together too, of a model that can.
    """

    checkpoint: Checkpoint
    platform: Platform
    device: str
    dtype: str
    attention: AttentionConfig
    validate_finite_tensors: bool = False
    is_profiled: bool = False
    native_qkv_order: str = "interleaved"
    prompt_embed_cache_size: int = 0
    chunk_processor: str = ""
    acceleration: Acceleration = field(default_factory=Acceleration)
    new_frames: Callable[[Sequence[int]], FramesU8] | None = None
    ranks: Ranks | None = None
    is_decode_shared: bool = False

    @property
    def capability(self) -> str:
        """Of the device, as in `DeviceInfo`; "" where it is on another machine."""
        place = int(self.device.partition(":")[2] or 0)
        devices = self.platform.devices() if self.platform.available() else ()
        return devices[place].capability if place < len(devices) else ""

    def has(self, switch: str) -> bool:
        """Whether a switch of `acceleration` is on."""
        return self.acceleration.is_on(switch, self.platform.name, self.capability)


@dataclass(slots=True, kw_only=True)
class DenoiseState:
    """A request in the middle of its loop; the one mutable type. A model adds its own fields in a subclass.

    `steps_done` counts finished evaluations; the pipeline's `step` raises it by one. `progress` is the normalised timestep
    of the evaluation under way or last done, falling from 1 to 0; `step` sets it, and it is None outside of the loop.
    `pause` is set by the engine; `decode` calls it between parts that take long, and lets through what it raises.
    """

    workload: Workload
    num_steps: int
    steps_done: int = 0
    progress: float | None = None
    pause: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditioning:
    """What `encode` made of a request's words and media; a model adds its tensors in a subclass."""


C = TypeVar("C", bound=Conditioning)
S = TypeVar("S", bound=DenoiseState)


class Admit(Protocol):
    """A model's rules: a request against a checkpoint, before any weight is loaded."""

    def __call__(
        self, request: GenerationRequest, checkpoint: Checkpoint, media: Sequence[MediaFacts] = ()
    ) -> Workload:
        """The settled workload, with a plan for each medium; its `media` are still empty.

        Args:
            request: as the user said it.
            checkpoint: what it is for.
            media: what each of the request's media is, in their order.

        Raises:
            InvalidRequest: naming the field, the value and what is allowed.
        """
        ...


class Pipeline(Protocol, Generic[C, S]):
    """A model ready to run on one device. Called by one thread at a time, no method keeps state of a request.

    `admit` comes first and needs no weights, so it is a function of its own (ModelFacts.rules); the rest follow in order.
    """

    @classmethod
    def build(cls, context: BuildContext) -> Pipeline[C, S]:
        """Loads every component.

        Raises:
            BadCheckpoint: a file is missing, cut short or does not fit.
        """
        ...

    @property
    def weights_digest(self) -> str:
        """A digest that changes when any weight file does; "" for a model without weights."""
        ...

    def encode(self, workload: Workload) -> C:
        """Words and media to tensors.

        Raises:
            InvalidRequest: what only the tokenizer can tell, such as a prompt that is too long.
        """
        ...

    def prepare(self, workload: Workload, conditioning: C) -> S:
        """Draws the noise and lays out everything that stays the same over the steps."""
        ...

    def step(self, state: S) -> S:
        """One evaluation of the denoiser; may change `state` in place and return it."""
        ...

    # Where ModelFacts.max_batch is more than 1 there is also
    #     def step_batch(self, states: Sequence[S]) -> Sequence[S]
    # which moves states of one batch key on as `step` does each, whatever their steps_done; all of them, or none when it
    # raises. What it makes of a state may not depend on the others.

    def preview(self, state: S) -> FramesU8 | None:
        """A quick look at what the clip will be: uint8 [H,W,3], or None where the model has no cheap way."""
        ...

    def decode(self, state: S) -> MediaOutput:
        """The finished latents to frames and sound."""
        ...
