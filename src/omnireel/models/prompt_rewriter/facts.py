"""What the rewriter says of itself, and the pipeline that it begins."""

from __future__ import annotations

from omnireel.models.protocol import ComponentFacts, ModelFacts, Role
from omnireel.models.topology import ExecutionType, StageFacts, Topology

PROMPT_REWRITE = Topology(
    name="prompt_rewrite",
    stages=(
        StageFacts(
            name="rewrite",
            execution_type=ExecutionType.AR,
            model_arch="PromptRewriter",
            final_output="text",
            input_processor="omnireel.models.prompt_rewriter.handover:words_alone",
        ),
        StageFacts(
            name="generate",
            execution_type=ExecutionType.DIFFUSION,
            inputs=(0,),
            final_output="video",
            input_processor="omnireel.models.prompt_rewriter.handover:rewritten",
            whole_because="its text encoder reads the whole prompt at once, so the first word lets nothing begin",
        ),
    ),
)

FACTS = ModelFacts(
    name="prompt_rewriter",
    summary="a language model that rewrites the prompt; the first stage of prompt_rewrite",
    architectures=("PromptRewriter",),
    tasks=("rewrite",),
    components=(ComponentFacts(name="language_model", role=Role.ENCODER),),
    attention_roles={},
    pipeline="omnireel.models.prompt_rewriter.pipeline:PromptRewriter",
    rules="omnireel.models.prompt_rewriter.rules:admit",
    downloads="omnireel.models.prompt_rewriter.rules:download_patterns",
    is_stage=True,
    topologies=(PROMPT_REWRITE,),
)
