"""The Triton kernels through Triton's interpreter on a CPU, in a process of its own: the interpreter is
chosen at import. It cuts bfloat16 off where a card rounds, so half precision stands for it here.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from omnireel.layers.kernels import why_not_fused

ROOT = Path(__file__).parents[3]
INTERPRETED = """
import torch
from tests.layers.kernels.cases import CASES, OPERATIONS, assert_near, compare
from omnireel.layers.kernels import fused
from omnireel.models.minimax_h3.packing import Target, patchify, unpatchify
kernels = fused()
for name, case in CASES.items():
    for title, operation in OPERATIONS.items():
        for dtype in (torch.float32, torch.float16):
            for ours, plain in compare(kernels, operation, case, dtype):
                assert_near(ours, plain)
for patch in ((1, 2, 2), (2, 2, 1)):
    latents = torch.randn(1, 3, 4, 6, 8)
    rows = kernels.patchify(latents[0], patch)
    assert torch.equal(rows, patchify(latents, patch))
    assert torch.equal(kernels.unpatchify(rows, latents.shape[1:], patch), latents[0])
print("all agree")
"""

pytestmark = pytest.mark.skipif(why_not_fused() is not None, reason="the package triton is not installed")


def test_every_kernel_agrees_with_its_oracle():
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], capture_output=True, text=True, check=False, cwd=ROOT, timeout=150,
        env={"TRITON_INTERPRET": "1", "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.stdout.strip() == "all agree", done.stderr[-3000:]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA card")
def test_every_kernel_agrees_with_its_oracle_on_a_card():
    from tests.layers.kernels.cases import CASES, OPERATIONS, assert_near, compare

    from omnireel.layers.kernels import fused

    for case in CASES.values():
        for operation in OPERATIONS.values():
            for ours, plain in compare(fused(), operation, case, torch.bfloat16, "cuda"):
                assert_near(ours, plain)
