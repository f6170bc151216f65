"""What a pipeline of several stages is made of, as a model tells it in code; deploy files and flags settle the rest.

Immutable and plain data: importing a topology imports no model, no torch and no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class ExecutionType(StrEnum):
    """How a stage computes; each setting belongs to some of them."""

    AR = "ar"
    """A language model that makes token after token."""
    GENERATION = "generation"
    """A language-model runner that makes everything in one pass, such as a codec's decoder."""
    DIFFUSION = "diffusion"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFacts:
    """One stage; its number is its place in the topology.

    model_arch: name of the class that runs, None for what the checkpoint says.
    inputs: numbers of the stages it reads from; empty for the request itself.
    final_output: modality of what leaves the pipeline here ("text", "image", "audio", "video"), "" for nothing.
    is_comprehension: whether it reads the request's media as a language model does.
    needs_media: whether its language model must be measured with media at start-up.
    retains_state_across_chunks: whether it keeps state between chunks of one request.
    input_processor: "module:function" that makes this stage's input of the outputs of `inputs`, "" for none.
    chunk_processor: "module:function" that is given its state after each step and gives named arrays of what is new, or None
    until there is enough; after the last step all that is left. "" where it cannot stream.
    takes_chunks: whether its pipeline has `take`, so that it can begin before its input is complete; while one request waits for
    its next part, others of its batch wait too.
    whole_because: why it cannot begin before its input is complete, to be told to who asks for that; "" where it is only not built.
    settings: the model's own values for settings, under what any user says.
    omni_kv_config: how key and value caches are handed over; a user's extras do not override it.
    """

    name: str
    execution_type: ExecutionType
    model_arch: str | None = None
    inputs: tuple[int, ...] = ()
    final_output: str = ""
    is_comprehension: bool = False
    needs_media: bool = False
    retains_state_across_chunks: bool = False
    scheduler_cls: str = ""
    hf_config_name: str = ""
    engine_output_type: str = ""
    input_processor: str = ""
    chunk_processor: str = ""
    takes_chunks: bool = False
    whole_because: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    omni_kv_config: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Stages in order: each reads from the request or from stages before it, and something leaves at the end.

    Raises:
        ValueError: the order or the names do not hold; a bug of the model that tells it.
    """

    name: str
    stages: tuple[StageFacts, ...]

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        if len(set(names)) < len(names) or not names:
            raise ValueError(f"topology {self.name}: it needs stages, each with a name of its own; they are {names}")
        for number, stage in enumerate(self.stages):
            if not all(0 <= source < number for source in stage.inputs):
                raise ValueError(f"topology {self.name}: stage {number} reads from {stage.inputs}, not from before it")
        if not any(stage.final_output for stage in self.stages):
            raise ValueError(f"topology {self.name}: nothing leaves it")


SINGLE_DIFFUSION = Topology(
    name="diffusion",
    stages=(StageFacts(name="diffusion", execution_type=ExecutionType.DIFFUSION, final_output="video"),),
)
"""What a model that tells no topology is: one pipeline in one stage."""
