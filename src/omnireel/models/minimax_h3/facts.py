"""What MiniMax-H3 says of itself to the rest of the house."""

from __future__ import annotations

from pathlib import Path

from omnireel.models.protocol import ComponentFacts, ModelFacts, Role

FACTS = ModelFacts(
    name="minimax_h3",
    summary="a clip and its soundtrack together, from a text, from first and last frames, or from references",
    architectures=("MiniMaxH3ModularPipeline", "MiniMaxH3Pipeline"),
    tasks=("t2va", "fl2va", "ref2va"),
    components=(
        ComponentFacts(
            name="transformer", role=Role.DENOISER, blocks=("token_refiner.refiner_blocks", "transformer_blocks")
        ),
        ComponentFacts(name="text_encoder", role=Role.ENCODER, blocks=("visual.blocks", "language_model.layers")),
        ComponentFacts(name="vae", role=Role.DECODER, blocks=("decoder.transformer_blocks",)),
        ComponentFacts(name="audio_vae", role=Role.DECODER),
    ),
    attention_roles={"self": "self", "minimax_h3.token_refiner": "self", "minimax_h3.video_vae": "self"},
    pipeline="omnireel.models.minimax_h3.pipeline:MiniMaxH3Pipeline",
    rules="omnireel.models.minimax_h3.rules:admit",
    partitions={"FL2VA": ("t2va", "fl2va"), "Ref2VA": ("ref2va",)},
    downloads="omnireel.models.minimax_h3.layout:download_patterns",
    shared_heads="omnireel.models.minimax_h3.sharding:shared_heads",
    can_share_decode=True,
    task_types=("auto", "combined", "t2va", "fl2va", "ref2va"),
    builtin={"mini-h3": Path(__file__).parent / "mini"},
)
