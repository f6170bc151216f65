import pytest

from omnireel.attention.options import AttnQuantSpec, BlockSparseSpec, SkipSoftmaxSpec, selected


@pytest.mark.parametrize(
    ("written", "numbers"),
    [
        (None, set()),
        ("", set()),
        ("  ", set()),
        ("0", {0}),
        ("0, 2-4,7", {0, 2, 3, 4, 7}),
        ("3, 3, 2 - 3", {2, 3}),
        ("5-5", {5}),
        ([1, 2, 1], {1, 2}),
        ((), set()),
        ({4}, {4}),
    ],
)
def test_numbers_are_selected(written, numbers):
    assert selected(written) == numbers


@pytest.mark.parametrize("written", ["4-2", "-1", "a", "1,,2", "1.5", "1-2-3", [-1], [1.0], [True], ["1"]])
def test_what_is_no_number_or_range_is_refused(written):
    with pytest.raises(ValueError, match=r"backwards|neither a number|no whole number"):
        selected(written)


@pytest.mark.parametrize("written", [3, True, 1.5, {1: 2}])
def test_other_types_are_refused(written):
    with pytest.raises(TypeError, match="not as"):
        selected(written)


def test_skip_softmax_is_enabled_by_one_of_two():
    assert not SkipSoftmaxSpec().enabled
    assert SkipSoftmaxSpec(threshold=0.0).enabled
    assert SkipSoftmaxSpec(target_sparsity=0.5).enabled
    with pytest.raises(ValueError, match="not both"):
        SkipSoftmaxSpec(threshold=1.0, target_sparsity=0.5)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"threshold": -1.0}, "threshold = -1.0 is no number from 0 on"),
        ({"threshold": float("nan")}, "threshold"),
        ({"threshold": True}, "threshold"),
        ({"target_sparsity": 1.1}, "target_sparsity = 1.1 is no number from 0 to 1"),
        ({"disabled_until_timestep": 2}, "disabled_until_timestep"),
    ],
)
def test_skip_softmax_out_of_range_is_refused(values, words):
    with pytest.raises(ValueError, match=words):
        SkipSoftmaxSpec(**values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dtype_qk": "fp4"}, "dtype_qk = 'fp4' is none of float16"),
        ({"dtype_vo": "float64"}, "dtype_vo"),
        ({"q_block_size": 2}, "q_block_size = 2 is none of 1, 4, 16"),
        ({"k_block_size": 32}, "k_block_size"),
        ({"flashinfer_backend": 3}, "flashinfer_backend must be a name"),
    ],
)
def test_quantisation_out_of_range_is_refused(values, words):
    with pytest.raises(ValueError, match=words):
        AttnQuantSpec(**values)


def test_block_sparse_reads_its_layers():
    assert BlockSparseSpec(skip_layers="0-2").skip_layers == {0, 1, 2}
    assert BlockSparseSpec().skip_layers == frozenset()


@pytest.mark.parametrize(
    "values", [{"sparsity": 1.01}, {"sparsity": -0.1}, {"sparsity": float("inf")}, {"start_step": -1},
               {"start_step": 1.0}, {"start_step": True}, {"skip_layers": "x"}]
)  # fmt: skip
def test_block_sparse_out_of_range_is_refused(values):
    with pytest.raises(ValueError, match=r"block_sparse|neither a number"):
        BlockSparseSpec(**values)
