import subprocess
import sys

import pytest

import omnireel.acceleration


def test_settings_of_speed_are_read_without_torch():
    code = "import sys; from omnireel.acceleration import Acceleration; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", omnireel.acceleration.__all__)
def test_every_public_name_is_there(name):
    assert getattr(omnireel.acceleration, name) is not None


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = omnireel.acceleration.Nothing
