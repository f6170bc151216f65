"""Layers that models are made of: maths only, no model's name, no kernel choice, no placement.

Weights are created unfilled and without gradients: a loader fills them, nothing trains here. Operations keep the order
of the public reference implementations, so that the same weights give the same bits.
"""

from omnireel.layers.embedding import TimestepEmbedding, sinusoid
from omnireel.layers.feed_forward import SwiGlu
from omnireel.layers.kernels import PLAIN, Kernels
from omnireel.layers.linear import Linear, project
from omnireel.layers.modulation import RowSegment, TableRows, gate_, modulate_, row_segments
from omnireel.layers.norm import RMSNorm
from omnireel.layers.rotary import RotaryTable, axial_rotary, rotate_

__all__ = [
    "PLAIN",
    "Kernels",
    "Linear",
    "RMSNorm",
    "RotaryTable",
    "RowSegment",
    "SwiGlu",
    "TableRows",
    "TimestepEmbedding",
    "axial_rotary",
    "gate_",
    "modulate_",
    "project",
    "rotate_",
    "row_segments",
    "sinusoid",
]
