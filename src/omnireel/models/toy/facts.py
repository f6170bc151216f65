"""What the toy says of itself."""

from __future__ import annotations

from omnireel.models.protocol import ModelFacts

FACTS = ModelFacts(
    name="toy",
    summary="a moving gradient and a tone, made without weights in milliseconds",
    architectures=(),
    tasks=("t2va",),
    components=(),
    attention_roles={},
    pipeline="omnireel.models.toy.pipeline:ToyPipeline",
    rules="omnireel.models.toy.rules:admit",
    task_types=("auto", "t2va"),
    builtin={"toy": None},
    max_batch=64,
    shared_heads="omnireel.models.toy.rules:shared_heads",
)
