import subprocess
import sys

import pytest

from omnireel.attention import Place, all_backends, backends


def test_backends_come_ordered_by_name():
    names = [backend.name for backend in all_backends()]
    assert names == sorted(names)
    assert names == [
        "CUDNN_ATTN", "FLASHINFER_ATTN", "FLASH_ATTN", "FLASH_ATTN_3_HUB", "FLASH_ATTN_HUB", "RAINFUSION_ATTN",
        "SAGE_ATTN", "SAGE_ATTN_3", "TORCH_SDPA", "TRTLLM_ATTN",
    ]  # fmt: skip


def test_finding_them_imports_no_kernel_package():
    code = (
        "import sys; from omnireel.attention import all_backends; all_backends(); "
        "print(sorted({'flash_attn', 'flashinfer', 'sageattention', 'sageattn3', 'kernels', 'mindiesd'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("capability", "major"), [("9.0", 9), ("12.1", 12), ("gfx942", 0), ("", 0)])
def test_a_place_has_a_major_where_its_capability_is_a_number(capability, major):
    assert Place(platform="cuda", capability=capability).major == major


def test_a_file_in_the_folder_is_a_backend(tmp_path, monkeypatch):
    (tmp_path / "thrown_away.py").write_text(
        "class B:\n    name = 'A_FIRST'\n    def available(self): return None\nBACKEND = B()\n"
    )
    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, f"{backends.__name__}.thrown_away", raising=False)
    assert all_backends()[0].name == "A_FIRST"
    sys.modules.pop(f"{backends.__name__}.thrown_away")


def test_a_package_may_bring_a_backend_and_take_the_place_of_a_built_in_one(monkeypatch):
    class Mine:
        name = "MINE"

    class Other:
        name = "TORCH_SDPA"

    class Entry:
        def __init__(self, value):
            self.load = lambda: value

    offered = {"omnireel.attention": [Entry(Mine()), Entry(Other())]}
    monkeypatch.setattr("omnireel.attention.backend.entry_points", lambda group: offered[group])
    found = {backend.name: backend for backend in all_backends()}
    assert isinstance(found["MINE"], Mine)
    assert isinstance(found["TORCH_SDPA"], Other)
    assert "CUDNN_ATTN" in found
