from itertools import product

import pytest

from omnireel.attention import AttentionConfig, AttentionSpec

ROLE, CATEGORY = "image.self", "self"


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
    expected = next((answer for is_set, answer in levels if is_set), None)
    assert config.chosen(ROLE, CATEGORY) == expected


def test_auto_at_one_level_leaves_it_to_the_next():
    config = AttentionConfig(
        default=AttentionSpec(backend="TORCH_SDPA"), per_role={"self": AttentionSpec(backend="auto")}
    )
    assert config.chosen("self", "self") == ("attention.default", "TORCH_SDPA")


def test_a_backend_may_be_named_in_any_case():
    assert AttentionSpec(backend="torch_sdpa") == AttentionSpec(backend="TORCH_SDPA")


def test_a_backend_that_is_no_string_is_refused():
    with pytest.raises(TypeError, match="named by a string, not by int"):
        AttentionSpec(backend=3)  # type: ignore[arg-type]
