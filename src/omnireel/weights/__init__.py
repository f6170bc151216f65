"""Checkpoint files: what they hold, strict loading through memory maps, and their fingerprint. Knows no model."""

from omnireel.weights.digest import weights_digest
from omnireel.weights.index import ComponentFiles, TensorEntry, read_index, read_json
from omnireel.weights.load import build_empty, load_component

__all__ = [
    "ComponentFiles",
    "TensorEntry",
    "build_empty",
    "load_component",
    "read_index",
    "read_json",
    "weights_digest",
]
