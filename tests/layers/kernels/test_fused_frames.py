"""As test_fused.py: through Triton's interpreter, in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from omnireel.layers.kernels import why_not_fused

ROOT = Path(__file__).parents[3]
INTERPRETED = """
from tests.layers.kernels.test_fused_frames import differences
assert max(differences("cpu", torch.float32)) < 1e-5, differences("cpu", torch.float32)
assert max(differences("cpu", torch.float16)) < 2e-3, differences("cpu", torch.float16)
print("all agree")
"""
WINDOWS = [(1, 2, 1, (1, 1)), (3, 2, 1, (1, 1)), (3, 2, 2, (0, 1)), (3, 2, 1, (0, 0))]

pytestmark = pytest.mark.skipif(why_not_fused() is not None, reason="the package triton is not installed")


def differences(device, dtype):
    """Of each window, normed and not, and of the stream that something was added to."""
    from omnireel.layers.kernels.frames import PlainFrames, Window
    from omnireel.layers.kernels.fused_frames import FusedFrames

    rng = torch.Generator().manual_seed(0)
    x, y = (3 + torch.randn(2, 3, 9, 20, 24, generator=rng).to(device, dtype) for _ in range(2))
    norm = torch.nn.GroupNorm(4, 24, device=device, dtype=dtype)
    made = []
    for kernels in (FusedFrames(), PlainFrames()):
        stream = x.clone()
        told = kernels.group_norm(stream, norm, y)
        windows = [Window(taps=t, past=p, stride=s, margins=m) for t, p, s, m in WINDOWS]
        outputs = [kernels.windows(stream, window, each) for window in windows for each in (told, None)]
        made.append([stream, *outputs])
    return [float((a.double() - b.double()).abs().max()) for a, b in zip(*made, strict=True)]


def test_every_kernel_agrees_with_its_oracle():
    done = subprocess.run(
        [sys.executable, "-c", "import torch" + INTERPRETED], capture_output=True, text=True, check=False, cwd=ROOT, timeout=150,
        env={"TRITON_INTERPRET": "1", "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.stdout.strip() == "all agree", done.stderr[-3000:]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA card")
def test_every_kernel_agrees_with_its_oracle_on_a_card():
    assert max(differences("cuda", torch.float16)) < 4e-3
