"""Degrees as settings: what can be chosen, and that what is not built says so."""

from __future__ import annotations

import pytest

from omnireel.config import resolve
from omnireel.errors import BadSetting, Incompatible, NotAvailable


@pytest.mark.parametrize("said", [{"ulysses_degree": 4}, {"usp": "4"}, {"parallel_config": {"ulysses_degree": 4}}])
def test_a_degree_may_be_written_in_each_way(said):
    assert resolve(said, {}).stages[0].parallel.num_ranks == 4


@pytest.mark.parametrize(
    "said",
    [
        {"tensor_parallel_size": 2},
        {"pipeline_parallel_size": 2},
        {"ring_degree": 2},
        {"allgather_degree": 2},
        {"cfg_parallel_size": 2},
        {"use_hsdp": True},
        {"vae_parallel_mode": "spatial_shard_height"},
        {"text_encoder_tp_size": 2},
    ],
)
def test_what_is_not_built_is_refused(said):
    with pytest.raises(NotAvailable, match=next(iter(said))):
        resolve(said, {})


def test_a_product_that_is_none_is_refused():
    assert resolve({"ulysses_degree": 2, "sequence_parallel_size": 2}, {})
    with pytest.raises(BadSetting, match=r"sequence_parallel_size = 4 .* is 2"):
        resolve({"ulysses_degree": 2, "sequence_parallel_size": 4}, {})


def test_a_clip_is_decoded_by_one_or_by_all():
    assert resolve({"ulysses_degree": 4, "vae_patch_parallel_size": 4}, {})
    with pytest.raises(BadSetting, match=r"vae_patch_parallel_size = 2 .* must be 1, or the 4 ranks of ulysses_degree"):
        resolve({"ulysses_degree": 4, "vae_patch_parallel_size": 2}, {})
    with pytest.raises(BadSetting, match="must be 1, or the 1 rank of ulysses_degree"):
        resolve({"vae_patch_parallel_size": 2}, {})


def test_a_stage_of_another_type_is_not_asked_for_what_it_does_not_have():
    """A language model before the denoiser may batch, though ranks run one request at a time."""
    from omnireel.models.discover import topology_of

    said = {"pipeline": "prompt_rewrite", "ulysses_degree": 2, "stage_0_max_num_seqs": 4}
    config = resolve(said, {}, topology=topology_of)
    assert [config.of_stage(number).stages[0].parallel.num_ranks for number in (0, 1)] == [1, 2]
    with pytest.raises(Incompatible, match="max_num_seqs = 4"):
        resolve(
            {"pipeline": "prompt_rewrite", "ulysses_degree": 2, "stage_1_max_num_seqs": 4}, {}, topology=topology_of
        )
