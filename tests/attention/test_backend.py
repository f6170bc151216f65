import sys

from omnireel.attention import all_backends, backends


def test_backends_come_ordered_by_name():
    names = [backend.name for backend in all_backends()]
    assert names == sorted(names)
    assert {"TORCH_SDPA", "CUDNN_ATTN"} <= set(names)


def test_a_file_in_the_folder_is_a_backend(tmp_path, monkeypatch):
    (tmp_path / "thrown_away.py").write_text(
        "class B:\n    name = 'A_FIRST'\n    def available(self): return None\nBACKEND = B()\n"
    )
    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, f"{backends.__name__}.thrown_away", raising=False)
    assert all_backends()[0].name == "A_FIRST"
    sys.modules.pop(f"{backends.__name__}.thrown_away")
