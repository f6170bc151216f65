import logging
import sys

import pytest
import torch

from omnireel.attention import AttentionConfig, AttentionSpec, backends, select_backend
from omnireel.errors import BadSetting, MissingPackage, UnsupportedDevice

FAKE = """
import torch
from omnireel.attention.backend import AttentionBackend, Capabilities
class Backend(AttentionBackend):
    name = {name!r}
    can = Capabilities(
        platforms={platforms!r}, capabilities={capabilities!r}, head_dims={head_dims!r}, dtypes={dtypes}, masks={masks!r}
    )
    package = {package!r}
    install = "pip install " + package
    def available(self, place): return {reason!r}
    def bind(self, place, options):
        if {broken!r}: raise ImportError({broken!r})
        return self
    def forward(self, q, k, v, *, scale, causal, metadata, layer): return q
BACKEND = Backend()
"""


@pytest.fixture
def add_backend(tmp_path, monkeypatch):
    """Writes a throw-away backend file into the room's folder listing."""
    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(tmp_path)])

    def add(name, **facts):
        told = {
            "platforms": None, "capabilities": (), "head_dims": (), "dtypes": "()", "masks": "any", "package": "",
            "reason": None, "broken": "",
        }  # fmt: skip
        (tmp_path / f"{name.lower()}.py").write_text(FAKE.format(name=name, **{**told, **facts}))

    yield add
    for module in [name for name in sys.modules if name.startswith(f"{backends.__name__}.fake")]:
        del sys.modules[module]


def choose(config=None, *, role="self", head_dim=64, platform="cpu", preference=("TORCH_SDPA",), **facts):
    return select_backend(
        config or AttentionConfig(),
        role=role,
        category="self",
        head_dim=head_dim,
        platform_name=platform,
        preference=preference,
        **facts,
    )


def explicit(name):
    return AttentionConfig(default=AttentionSpec(backend=name))


def test_nobody_chose_so_the_first_of_the_platform_that_can_is_taken(add_backend):
    add_backend("FAKE_A", reason="its kernel is not built")
    add_backend("FAKE_B")
    assert choose(preference=("FAKE_A", "FAKE_B", "TORCH_SDPA")).name == "FAKE_B"


def test_what_the_platform_passed_over_is_logged_once_with_the_reason(add_backend, caplog):
    add_backend("FAKE_A", reason="its kernel is not built")
    with caplog.at_level(logging.INFO, logger="omnireel"):
        choose(preference=("FAKE_A", "TORCH_SDPA"))
    assert [record.getMessage() for record in caplog.records] == [
        "attention self: TORCH_SDPA, the default of cpu; FAKE_A is unavailable: its kernel is not built"
    ]


def test_the_choice_is_logged_with_the_setting_that_made_it(caplog):
    config = AttentionConfig(per_role={"self": AttentionSpec(backend="torch_sdpa")})
    with caplog.at_level(logging.INFO, logger="omnireel"):
        choose(config, role="minimax_h3.token_refiner")
    assert [record.getMessage() for record in caplog.records] == [
        "attention minimax_h3.token_refiner: TORCH_SDPA, chosen by attention.per_role.self"
    ]


def test_none_of_the_platform_can(add_backend):
    add_backend("FAKE_A", head_dims=(128,))
    add_backend("FAKE_B", package="no_such_package_here")
    with pytest.raises(UnsupportedDevice) as raised:
        choose(preference=("FAKE_A", "FAKE_B"))
    assert raised.value.message == (
        "need an attention backend for self on cpu, have none; FAKE_A is unavailable: it takes head sizes 128, this"
        " layer has 64; FAKE_B is unavailable: the package no_such_package_here is not installed"
        " (pip install no_such_package_here)"
    )


def test_an_unknown_name_lists_all_with_why_each_is_unavailable(add_backend):
    add_backend("FAKE_A", reason="its kernel is not built")
    add_backend("FAKE_B", package="no_such_package_here")
    with pytest.raises(BadSetting) as raised:
        choose(explicit("TORCH_SDPAA"))
    text = raised.value.message
    assert "attention.default = 'TORCH_SDPAA'" in text
    assert "FAKE_A (unavailable: its kernel is not built)" in text
    assert "FAKE_B (unavailable: the package no_such_package_here is not installed (pip install" in text
    assert "TORCH_SDPA, " in text
    assert raised.value.hint == "did you mean 'TORCH_SDPA'?"


def test_a_chosen_backend_of_another_platform_is_refused():
    with pytest.raises(BadSetting, match=r"attention\.default = 'CUDNN_ATTN' .* it runs on cuda, not on cpu"):
        choose(explicit("CUDNN_ATTN"))


def test_a_chosen_backend_that_cannot_take_the_head_size_is_refused(add_backend):
    add_backend("FAKE_A", head_dims=(64, 128))
    with pytest.raises(BadSetting, match="it takes head sizes 64, 128, this layer has 80"):
        choose(explicit("fake_a"), head_dim=80)


def test_a_chosen_backend_that_cannot_take_the_type_is_refused(add_backend):
    add_backend("FAKE_A", dtypes="(torch.bfloat16, torch.float16)")
    with pytest.raises(BadSetting, match=r"takes torch\.bfloat16, torch\.float16, this layer has torch\.float32"):
        choose(AttentionConfig(per_role={"self": AttentionSpec(backend="FAKE_A")}), dtype=torch.float32)


def test_a_chosen_backend_that_is_unavailable_is_refused(add_backend):
    add_backend("FAKE_A", reason="its kernel is not built")
    with pytest.raises(BadSetting, match="its kernel is not built"):
        choose(explicit("FAKE_A"))


def test_a_chosen_backend_without_its_package_says_how_to_install_it(add_backend):
    add_backend("FAKE_A", package="no_such_package_here")
    with pytest.raises(MissingPackage) as raised:
        choose(explicit("FAKE_A"))
    assert raised.value.hint == "pip install no_such_package_here"


def test_a_type_that_is_not_known_yet_is_not_checked(add_backend):
    add_backend("FAKE_A", dtypes="(torch.bfloat16,)")
    assert choose(explicit("FAKE_A")).name == "FAKE_A"


def test_a_choice_for_all_leaves_float32_layers_to_torch_and_says_so(add_backend, caplog):
    add_backend("FAKE_A", dtypes="(torch.bfloat16,)")
    with caplog.at_level(logging.INFO, logger="omnireel"):
        assert choose(explicit("FAKE_A"), dtype=torch.float32).name == "TORCH_SDPA"
    assert [record.getMessage() for record in caplog.records] == [
        "attention self: TORCH_SDPA, for FAKE_A of attention.default has no float32"
    ]


def test_a_choice_for_all_is_checked_even_where_float32_layers_are_left_out(add_backend):
    add_backend("FAKE_A", dtypes="(torch.bfloat16,)", platforms=("npu",))
    with pytest.raises(BadSetting, match="it runs on npu, not on cpu"):
        choose(explicit("FAKE_A"), dtype=torch.float32)


@pytest.mark.parametrize(
    ("capability", "is_taken"), [("9.0", True), ("10.3", True), ("8.6", False), ("10.0", False), ("", True)]
)
def test_generations_are_checked_where_they_are_known(add_backend, capability, is_taken):
    add_backend("FAKE_A", capabilities=("9", "10.3"))
    if is_taken:
        assert choose(explicit("FAKE_A"), capability=capability).name == "FAKE_A"
    else:
        with pytest.raises(BadSetting, match=f"it runs on capability 9, 10.3, this device has {capability}"):
            choose(explicit("FAKE_A"), capability=capability)


@pytest.mark.parametrize("masks", ["none", "prefix"])
def test_a_backend_without_masks_is_taken_unasked_only_by_models_without(add_backend, masks):
    add_backend("FAKE_A", masks=masks)
    preference = ("FAKE_A", "TORCH_SDPA")
    assert choose(preference=preference, is_mask_free=True).name == "FAKE_A"
    assert choose(preference=preference).name == "TORCH_SDPA"
    assert choose(explicit("FAKE_A")).name == "FAKE_A"


def test_a_package_that_is_broken_is_passed_over_unless_it_was_chosen(add_backend, caplog):
    add_backend("FAKE_A", broken="undefined symbol")
    with caplog.at_level(logging.INFO, logger="omnireel"):
        assert choose(preference=("FAKE_A", "TORCH_SDPA")).name == "TORCH_SDPA"
    assert "FAKE_A is unavailable: it cannot be loaded (undefined symbol)" in caplog.text
    with pytest.raises(BadSetting, match="it cannot be used: undefined symbol"):
        choose(explicit("FAKE_A"))


def test_the_platform_is_looked_at_before_the_package(add_backend):
    add_backend("FAKE_A", platforms=("npu",), package="no_such_package_here")
    with pytest.raises(BadSetting, match="it runs on npu, not on cpu"):
        choose(explicit("FAKE_A"))


def test_a_preference_without_a_file_is_passed_over(caplog):
    with caplog.at_level(logging.INFO, logger="omnireel"):
        choose(preference=("NO_FILE", "TORCH_SDPA"))
    assert "NO_FILE is unavailable: it is not part of omnireel" in caplog.text
