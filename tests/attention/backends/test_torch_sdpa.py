from omnireel.attention.backends.torch_sdpa import BACKEND


def test_it_takes_everything_everywhere():
    assert (BACKEND.platforms, BACKEND.head_dims, BACKEND.dtypes, BACKEND.package) == (None, (), (), "")
    assert BACKEND.available() is None
