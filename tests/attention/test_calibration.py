import math

import pytest

from omnireel.attention.calibration import Calibration, calibration_of

FORMULA = "a*exp(b*target_sparsity)"


def config(**group):
    told = {"algorithm": "skip_softmax", "threshold_scale_factor": {"formula": FORMULA, "prefill": {"a": 2, "b": 3}}}
    return {"sparse_attention_config": {"config_groups": {"group_0": told | group}}}


def test_a_checkpoint_that_says_nothing_has_none():
    assert calibration_of({}) is None
    assert calibration_of(config(algorithm="another")) is None


@pytest.mark.parametrize("key", ["prefill", "coefficients"])
def test_the_factor_grows_with_the_sparsity(key):
    found = calibration_of(
        config(threshold_scale_factor={"formula": "a * exp(b * target_sparsity)", key: {"a": 2, "b": 3}})
    )
    assert found == Calibration(a=2, b=3)
    assert math.isclose(found.factor(0.5), 2 * math.exp(1.5))


def test_layers_are_ignored_by_name_and_by_what_holds_them():
    found = calibration_of(config(ignore=["blocks.0", "*.refiner"]))
    assert found is not None
    assert [found.ignores(name) for name in ("blocks.0.attn", "blocks.0", "x.refiner.y", "blocks.01.attn")] == [
        True, True, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        ({"formula": "a*target_sparsity", "prefill": {"a": 1, "b": 1}}, "known is a"),
        ({"formula": FORMULA}, "no numbers a and b"),
        ({"formula": FORMULA, "prefill": {"a": "x", "b": 1}}, "no numbers a and b"),
        ({}, "calibrated by None"),
    ],
)
def test_another_formula_is_refused(factor, words):
    with pytest.raises(ValueError, match=words):
        calibration_of(config(threshold_scale_factor=factor))
