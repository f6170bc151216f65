import pytest
from tests.attention.conftest import Recorder, dense

from omnireel.attention.hub import FLASH_3, hub_kernel


@pytest.fixture(autouse=True)
def _forget():
    hub_kernel.cache_clear()
    yield
    hub_kernel.cache_clear()


@pytest.fixture
def hub(stand_in):
    """The `kernels` library with these versions of every repository; gives what was asked for."""

    def put(*versions):
        asked = []

        class Module:
            flash_attn_func = staticmethod(Recorder(dense))

        def get_kernel(repository, *, revision=None, version=None):
            asked.append((repository, version))
            if version not in versions:
                raise FileNotFoundError(f"no build of version {version}")
            return Module

        stand_in("kernels", get_kernel=get_kernel)
        return asked

    return put


def test_the_first_version_with_a_build_is_loaded_once(hub):
    asked = hub(2)
    assert hub_kernel(FLASH_3) is hub_kernel(FLASH_3)
    assert asked == [(FLASH_3, 1), (FLASH_3, 2)]
    assert hub_kernel(FLASH_3).source == FLASH_3


def test_without_a_build_every_reason_is_told(hub):
    hub()
    with pytest.raises(ImportError, match=r"version 1: no build of version 1; version 2: no build of version 2"):
        hub_kernel(FLASH_3)
