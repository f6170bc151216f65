"""A topology that does not hold together is told at once."""

import pytest

from omnireel.models.topology import SINGLE_DIFFUSION, ExecutionType, StageFacts, Topology


def stage(name, **facts):
    return StageFacts(name=name, execution_type=ExecutionType.AR, **facts)


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ((), "it needs stages"),
        ((stage("a"), stage("a", final_output="text")), "a name of its own"),
        ((stage("a", inputs=(0,), final_output="text"),), "not from before it"),
        ((stage("a", inputs=(-1,), final_output="text"),), "not from before it"),
        ((stage("a"), stage("b", inputs=(2,), final_output="text")), "not from before it"),
        ((stage("a"), stage("b", inputs=(0,))), "nothing leaves it"),
    ],
)
def test_stages_that_do_not_hold_together_are_refused(stages, words):
    with pytest.raises(ValueError, match=words):
        Topology(name="odd", stages=stages)


def test_a_chain_with_a_branch_holds():
    three = Topology(
        name="three", stages=(stage("a"), stage("b", inputs=(0,)), stage("c", inputs=(0, 1), final_output="audio"))
    )
    assert [item.inputs for item in three.stages] == [(), (0,), (0, 1)]


def test_a_model_without_a_topology_is_one_diffusion_stage():
    assert [item.execution_type for item in SINGLE_DIFFUSION.stages] == ["diffusion"]
