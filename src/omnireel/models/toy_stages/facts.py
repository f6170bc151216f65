"""What the three toys say of themselves, and the pipeline that they are."""

from __future__ import annotations

from dataclasses import replace

from omnireel.models.protocol import ModelFacts
from omnireel.models.topology import ExecutionType, StageFacts, Topology

_HANDOVER = "omnireel.models.toy_stages.handover"
TOY_STORY = Topology(
    name="toy_story",
    stages=(
        StageFacts(
            name="words",
            execution_type=ExecutionType.AR,
            model_arch="ToyWords",
            input_processor=f"{_HANDOVER}:words_alone",
            chunk_processor=f"{_HANDOVER}:chunk",
            settings={"model": "toy-words"},
        ),
        StageFacts(
            name="levels",
            execution_type=ExecutionType.GENERATION,
            model_arch="ToyLevels",
            inputs=(0,),
            input_processor=f"{_HANDOVER}:tensors",
            chunk_processor=f"{_HANDOVER}:chunk",
            takes_chunks=True,
            settings={"model": "toy-levels"},
        ),
        StageFacts(
            name="scene",
            execution_type=ExecutionType.DIFFUSION,
            model_arch="ToyScene",
            inputs=(1,),
            final_output="video",
            input_processor=f"{_HANDOVER}:tensors",
            takes_chunks=True,
            settings={"model": "toy-scene"},
        ),
    ),
)

_WORDS = ModelFacts(
    name="toy_words",
    summary="the first stage of toy_story: numbers out of a prompt",
    architectures=("ToyWords",),
    tasks=("t2va",),
    components=(),
    attention_roles={},
    pipeline="omnireel.models.toy_stages.pipeline:ToyWords",
    rules="omnireel.models.toy_stages.rules:words",
    builtin={"toy-words": None},
    is_stage=True,
    topologies=(TOY_STORY,),
)
FACTS = (
    _WORDS,
    replace(
        _WORDS,
        name="toy_levels",
        summary="the second stage of toy_story: colours out of numbers",
        architectures=("ToyLevels",),
        pipeline="omnireel.models.toy_stages.pipeline:ToyLevels",
        rules="omnireel.models.toy_stages.rules:levels",
        builtin={"toy-levels": None},
        topologies=(),
    ),
    replace(
        _WORDS,
        name="toy_scene",
        summary="the last stage of toy_story: a clip out of colours",
        architectures=("ToyScene",),
        pipeline="omnireel.models.toy_stages.pipeline:ToyScene",
        rules="omnireel.models.toy_stages.rules:scene",
        builtin={"toy-scene": None},
        topologies=(),
    ),
)
