import subprocess
import sys

import pytest

import omnireel.weights


def test_checkpoints_are_looked_into_without_torch():
    code = "import sys; from omnireel.weights import read_index, weights_digest; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", omnireel.weights.__all__)
def test_every_public_name_is_there(name):
    assert getattr(omnireel.weights, name) is not None


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = omnireel.weights.Nothing
