from dataclasses import replace

import pytest
import torch
from tests.models.minimax_h3.test_transformer import TINY, fill
from torch._dynamo.testing import CompileCounterWithBackend

from omnireel.acceleration import compile_blocks
from omnireel.attention.backends.torch_sdpa import BACKEND
from omnireel.layers import PLAIN
from omnireel.layers.kernels import TRACEABLE
from omnireel.models.minimax_h3.modulation_tables import ModulationTables
from omnireel.models.minimax_h3.transformer import MiniMaxH3Transformer, TransformerConfig


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def model(kernels):
    config = TransformerConfig.from_dict(TINY | {"num_layers": 3})
    return fill(MiniMaxH3Transformer(config, select=lambda role, category, dim: BACKEND, kernels=kernels))


@torch.inference_mode()
def evaluate(transformer, text, sound, picture, timesteps, seed=0):
    rng = torch.Generator().manual_seed(seed)
    rows = text + sound + picture
    tags = torch.tensor([1] * text + [2] * sound + [0] * picture)
    times = torch.tensor(timesteps)
    indices = (tags == 2).long() % len(times)
    plan = transformer.plan_step(times, indices, tags, num_rows=rows)
    plan = replace(plan, tables=ModulationTables(transformer).of([times])[0])
    place = torch.arange(rows)
    return transformer.evaluate(
        torch.randn(1, picture, 8, generator=rng),
        torch.randn(1, sound, 3, generator=rng),
        torch.randn(1, text, 16, generator=rng),
        plan=plan,
        rotary=transformer.rotary(torch.rand(rows, 3, generator=rng), torch.float32),
        indices=(place[text + sound :], place[text : text + sound], place[:text]),
    )


REQUESTS = [(2, 1, 3, (0.25, 0.5)), (5, 4, 30, (0.1, 0.2)), (7, 2, 64, (0.3, 0.4, 0.999)), (3, 9, 2, (0.5,))]


def test_one_graph_serves_all_blocks_and_all_requests():
    transformer, counter = model(TRACEABLE), CompileCounterWithBackend("aot_eager")
    assert compile_blocks(transformer, ("transformer_blocks",), name="transformer", backend=counter) == 3
    evaluate(transformer, *REQUESTS[0])
    warm = counter.frame_count
    for seed, request in enumerate(REQUESTS):
        evaluate(transformer, *request, seed=seed)
    assert warm == counter.frame_count
    assert warm <= 2


def test_compiled_blocks_give_the_bits_of_eager_ones():
    compiled, plain = model(TRACEABLE), model(PLAIN)
    compile_blocks(compiled, ("transformer_blocks",), name="transformer", backend="aot_eager")
    for request in REQUESTS:
        for ours, expected in zip(evaluate(compiled, *request), evaluate(plain, *request), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
