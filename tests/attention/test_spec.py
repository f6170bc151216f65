import copy
import pickle
from itertools import product

import pytest

from omnireel.attention import AttentionConfig, AttentionSpec
from omnireel.attention.options import AttnQuantSpec, BlockSparseSpec, SkipSoftmaxSpec

ROLE, CATEGORY = "image.self", "self"


def deciding(config, role=ROLE, category=CATEGORY):
    found = config.chosen(role, category)
    return None if found is None else (found[0], found[1].backend)


@pytest.mark.parametrize(("by_role", "by_category", "by_default"), list(product([True, False], repeat=3)))
def test_role_wins_over_category_over_default_over_the_platform(by_role, by_category, by_default):
    per_role = {}
    if by_role:
        per_role[ROLE] = AttentionSpec(backend="OF_ROLE")
    if by_category:
        per_role[CATEGORY] = AttentionSpec(backend="OF_CATEGORY")
    config = AttentionConfig(default=AttentionSpec(backend="OF_DEFAULT") if by_default else None, per_role=per_role)
    levels = [
        (by_role, ("attention.per_role.image.self", "OF_ROLE")),
        (by_category, ("attention.per_role.self", "OF_CATEGORY")),
        (by_default, ("attention.default", "OF_DEFAULT")),
    ]
    assert deciding(config) == next((answer for is_set, answer in levels if is_set), None)


def test_auto_at_one_level_leaves_it_to_the_next():
    config = AttentionConfig(
        default=AttentionSpec(backend="TORCH_SDPA"), per_role={"self": AttentionSpec(backend="auto")}
    )
    assert deciding(config, "self", "self") == ("attention.default", "TORCH_SDPA")


def test_a_backend_may_be_named_in_any_case():
    assert AttentionSpec(backend="torch_sdpa") == AttentionSpec(backend="TORCH_SDPA")


def test_a_backend_that_is_no_string_is_refused():
    with pytest.raises(TypeError, match="named by a string, not by int"):
        AttentionSpec(backend=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "backends"),
    [
        ({"skip_softmax": SkipSoftmaxSpec(threshold=1.0)}, {"TRTLLM_ATTN"}),
        ({"quant": AttnQuantSpec()}, {"TRTLLM_ATTN", "FLASHINFER_ATTN"}),
        ({"block_sparse": BlockSparseSpec()}, {"RAINFUSION_ATTN"}),
    ],
)
def test_an_option_goes_with_its_backends_alone(options, backends):
    for name in ("TRTLLM_ATTN", "FLASHINFER_ATTN", "RAINFUSION_ATTN", "TORCH_SDPA"):
        if name in backends:
            AttentionSpec(backend=name, **options)
        else:
            with pytest.raises(ValueError, match=f"not of {name}"):
                AttentionSpec(backend=name, **options)


def test_options_become_one_flat_mapping():
    spec = AttentionSpec(
        backend="TRTLLM_ATTN",
        skip_softmax=SkipSoftmaxSpec(threshold=0.5, disabled_until_timestep=0.25),
        quant=AttnQuantSpec(dtype_qk="int8"),
    )
    assert spec.lowered() == {
        "threshold": 0.5, "disabled_until_timestep": 0.25, "dtype_qk": "int8", "q_block_size": 1, "k_block_size": 16,
    }  # fmt: skip
    assert AttentionSpec(backend="TORCH_SDPA").lowered() is None


def test_rainfusion_has_options_without_being_told():
    assert AttentionSpec(backend="rainfusion_attn").lowered() == {"sparsity": 0.8, "start_step": 0}
    told = AttentionSpec(backend="RAINFUSION_ATTN", block_sparse=BlockSparseSpec(skip_layers="3,1-2"))
    assert told.lowered() == {"sparsity": 0.8, "start_step": 0, "skip_layers": [1, 2, 3]}


def test_a_config_survives_copies_and_other_processes():
    spec = AttentionSpec(backend="RAINFUSION_ATTN", block_sparse=BlockSparseSpec(skip_layers="1"))
    config = AttentionConfig(default=spec, per_role={"cross.text": AttentionSpec(backend="TORCH_SDPA")})
    assert copy.deepcopy(config) == config == pickle.loads(pickle.dumps(config))
