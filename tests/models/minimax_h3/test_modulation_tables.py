import pytest
import torch
from tests.models.minimax_h3.test_transformer import TINY, build, fill

from omnireel.models.minimax_h3.modulation_tables import ModulationTables, is_table_weight, keep_on_host
from omnireel.models.minimax_h3.transformer import stored_dtype

# The first step has one distinct timestep, as a schedule's first step has.
STEPS = [torch.tensor(times) for times in ([0.0], [0.25, 0.5], [0.5, 0.875])]


def model(num_layers=3, dtype=torch.bfloat16):
    made = fill(build(TINY | {"num_layers": num_layers}))
    for name, parameter in made.named_parameters():
        parameter.data = parameter.data.to(stored_dtype(name, dtype))
    return made


def in_place(transformer, timestep_M):
    time_ME = transformer.time_embedding(timestep_M)
    blocks = [block.adaln_proj(time_ME) for block in transformer.transformer_blocks]
    return [*blocks, transformer.norm_out.table(time_ME)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tables_have_the_bits_of_computing_them_in_the_step(dtype):
    transformer = model(dtype=dtype)
    for step, tables in zip(STEPS, ModulationTables(transformer).of(STEPS), strict=True):
        for made, expected in zip((*tables.blocks, tables.out), in_place(transformer, step), strict=True):
            assert torch.equal(made, expected)


def test_an_evaluation_with_tables_has_the_same_bits():
    transformer = model()
    rotary = transformer.rotary(torch.arange(18.0).view(6, 3), torch.bfloat16)
    plan = transformer.plan_step(
        STEPS[1], torch.tensor([0, 0, 1, 0, 0, 0]), torch.tensor([1, 1, 2, 0, 0, 0]), num_rows=6
    )
    with_tables = type(plan)(
        timesteps=plan.timesteps,
        rows=plan.rows,
        out_rows=plan.out_rows,
        tables=ModulationTables(transformer).of(STEPS)[1],
    )
    indices = torch.tensor([3, 4, 5]), torch.tensor([2]), torch.tensor([0, 1])
    inputs = torch.ones(1, 3, 8), torch.ones(1, 1, 3), torch.ones(1, 2, 16, dtype=torch.bfloat16)
    first, second = (
        transformer.evaluate(*inputs, plan=each, rotary=rotary, indices=indices) for each in (plan, with_tables)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_schedule_that_was_seen_costs_nothing():
    tables = ModulationTables(model())
    first = tables.of(STEPS)
    made = tables.num_made
    again = tables.of(STEPS)
    assert (made, tables.num_made) == (4, 4)
    assert again[2].blocks[0] is first[2].blocks[0]


def test_another_schedule_or_other_weights_files_are_another_entry():
    transformer = model()
    tables = ModulationTables(transformer, digest="a")
    tables.of(STEPS)
    tables.of(STEPS[:2])
    assert tables.num_made == 8
    assert tables._key((b"x",)) != ModulationTables(transformer, digest="b")._key((b"x",))
    assert tables._key((b"xy", b"z")) != tables._key((b"x", b"yz"))


def test_steps_with_equal_timesteps_share_their_tables():
    first, second = ModulationTables(model()).of([STEPS[1], STEPS[1].clone()])
    assert first.out is second.out


def test_a_changed_block_is_made_again_and_no_other():
    transformer = model()
    tables = ModulationTables(transformer)
    before = tables.of(STEPS)
    with torch.no_grad():
        transformer.transformer_blocks[1].adaln_proj.linear.weight.mul_(2)
    after = tables.of(STEPS)
    assert tables.num_made == 5
    assert after[0].blocks[0] is before[0].blocks[0]
    assert torch.equal(after[1].blocks[1], in_place(transformer, STEPS[1])[1])
    assert not torch.equal(after[1].blocks[1], before[1].blocks[1])


def test_a_replaced_weight_is_made_again():
    transformer = model()
    tables = ModulationTables(transformer)
    tables.of(STEPS)
    linear = transformer.norm_out.linear
    kept = linear.weight
    linear.weight = torch.nn.Parameter(kept + 1, requires_grad=False)
    assert torch.equal(tables.of(STEPS)[1].out, in_place(transformer, STEPS[1])[-1])


def test_a_changed_time_embedding_makes_all_again():
    transformer = model()
    tables = ModulationTables(transformer)
    tables.of(STEPS)
    with torch.no_grad():
        transformer.time_embedder.linear_2.bias.add_(1)
    tables.of(STEPS)
    assert tables.num_made == 8


def test_the_least_recently_used_schedule_makes_room():
    transformer = model()
    size = sum(tables.size_bytes for tables in ModulationTables(transformer).of(STEPS[:2]))
    tables = ModulationTables(transformer, capacity_bytes=2 * size)
    other = [STEPS[0], STEPS[2]]
    tables.of(STEPS[:2])
    tables.of(other)
    tables.of(STEPS[:2])
    tables.of([torch.tensor([0.1]), torch.tensor([0.1, 0.2])])
    assert tables.num_made == 12
    tables.of(STEPS[:2])
    assert tables.num_made == 12
    tables.of(other)
    assert tables.num_made == 16


def test_a_schedule_too_large_to_keep_is_made_each_time():
    tables = ModulationTables(model(), capacity_bytes=1)
    assert tables.of(STEPS)[0].out is not tables.of(STEPS)[0].out


def test_the_weights_that_may_stay_on_the_host_are_those_of_the_tables():
    names = [name for name, _ in build(TINY, "meta").named_parameters() if is_table_weight(name)]
    assert names == [
        "transformer_blocks.0.adaln_proj.linear.weight", "transformer_blocks.0.adaln_proj.linear.bias",
        "norm_out.linear.weight", "norm_out.linear.bias",
    ]  # fmt: skip


def test_pageable_weights_are_left_as_they_are():
    transformer = model()
    weight = transformer.norm_out.linear.weight
    keep_on_host(transformer, pinned=False)
    assert transformer.norm_out.linear.weight is weight
