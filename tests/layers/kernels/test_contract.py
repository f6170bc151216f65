import pytest

from omnireel.layers.kernels import PLAIN, TRACEABLE


@pytest.mark.parametrize("kernels", [PLAIN, TRACEABLE])
def test_a_spelling_has_a_name_of_its_own(kernels):
    assert kernels.name == type(kernels).__name__.lower()
