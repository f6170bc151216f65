import pytest
import torch

from omnireel.attention import AttentionConfig, AttentionMetadata, AttentionSpec, Place, select_backend
from omnireel.attention.backends import flash_attn
from omnireel.attention.backends.torch_sdpa import BACKEND as SDPA
from omnireel.attention.metadata import ONE_DOCUMENT
from omnireel.errors import BadSetting, MissingPackage

BACKEND = flash_attn.BACKEND


@pytest.fixture
def packages(monkeypatch, flash_module, stand_in):
    """Makes these modules installed, and no other of the sources."""

    def install(*modules):
        for module in modules:
            if module == "mindiesd":
                continue
            flash_module(module)
        there = property(lambda source: source.module in modules)
        monkeypatch.setattr(flash_attn.Source, "is_there", there)

    return install


ALL = tuple(source.module for source in flash_attn.SOURCES if source.platform == "cuda")


@pytest.mark.parametrize(
    ("capability", "there", "taken"),
    [
        ("10.0", ALL, "flash_attn.cute"),
        ("12.0", ALL, "flash_attn.cute"),
        ("10.0", ("flash_attn", "fa3_fwd_interface"), "flash_attn"),
        ("9.0", ALL, "fa3_fwd_interface"),
        ("9.0", ("flash_attn_interface", "flash_attn"), "flash_attn_interface"),
        ("9.0", ("flash_attn", "vllm.vllm_flash_attn"), "flash_attn"),
        ("9.0", ("vllm.vllm_flash_attn",), "vllm.vllm_flash_attn"),
        ("8.6", ALL, "flash_attn"),
        ("", ALL, "flash_attn.cute"),
    ],
)
def test_the_best_kernel_of_the_card_is_taken(packages, capability, there, taken):
    packages(*there)
    bound = BACKEND.bind(Place(platform="cuda", capability=capability), None)
    assert bound.describe() == f"FLASH_ATTN ({taken})"


@pytest.mark.parametrize(
    ("platform", "module"),
    [("rocm", "aiter"), ("xpu", "vllm_xpu_kernels.flash_attn_interface"), ("musa", "mate")],
)
def test_other_platforms_have_one_kernel_each(packages, platform, module):
    packages(module, "flash_attn")
    assert BACKEND.bind(Place(platform=platform), None).describe() == f"FLASH_ATTN ({module})"


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (Place(platform="cuda", capability="10.0"), "pip install flash-attn-4"),
        (Place(platform="cuda", capability="9.0"), "pip install fa3-fwd"),
        (Place(platform="cuda", capability="8.9"), "pip install flash-attn"),
        (Place(platform="xpu"), "pip install vllm-xpu-kernels"),
    ],
)
def test_without_a_package_it_says_which_would_be_best(packages, place, line):
    packages()
    assert BACKEND.missing(place) == line
    with pytest.raises(MissingPackage) as raised:
        select_backend(
            AttentionConfig(default=AttentionSpec(backend="FLASH_ATTN")), role="self", category="self", head_dim=128,
            platform_name=place.platform, capability=place.capability, preference=(),
        )  # fmt: skip
    assert raised.value.hint == line


def test_a_broken_package_gives_way_to_the_next(packages, stand_in):
    packages("flash_attn_interface", "fa3_fwd_interface")
    stand_in("fa3_fwd_interface")
    bound = BACKEND.bind(Place(platform="cuda", capability="9.0"), None)
    assert bound.describe() == "FLASH_ATTN (flash_attn_interface)"


def test_broken_packages_alone_are_told_with_their_reason(packages, stand_in):
    packages("fa3_fwd_interface")
    stand_in("fa3_fwd_interface")
    with pytest.raises(BadSetting, match="fa3_fwd_interface has neither flash_attn_func"):
        select_backend(
            AttentionConfig(default=AttentionSpec(backend="FLASH_ATTN")), role="self", category="self", head_dim=128,
            platform_name="cuda", capability="9.0", preference=(),
        )  # fmt: skip


def test_turing_is_too_old():
    assert "8.0" in (BACKEND.available(Place(platform="cuda", capability="7.5")) or "")
    assert BACKEND.available(Place(platform="cuda", capability="8.0")) is None


def test_a_distribution_that_shares_its_module_is_looked_up_by_its_own_name():
    four = flash_attn.SOURCES[0]
    assert four.distribution == "flash-attn-4"
    assert not four.is_there


@pytest.mark.parametrize("causal", [False, True])
def test_ascend_is_given_a_mask_of_what_may_be_seen(packages, stand_in, qkv, causal):
    calls = []

    def attention_forward(q, k, v, attn_mask=None, scale=None, fused=True, head_first=False, **options):
        calls.append((attn_mask, options))
        mask = None if attn_mask is None else attn_mask
        return SDPA.forward(q, k, v, scale=scale, causal=False, metadata=AttentionMetadata(mask=mask))

    packages("mindiesd")
    stand_in("mindiesd", attention_forward=attention_forward)
    bound = BACKEND.bind(Place(platform="npu"), None)
    q, k, v = qkv(7)
    made = bound.forward(q, k, v, scale=0.1, causal=causal, metadata=ONE_DOCUMENT)
    torch.testing.assert_close(made, SDPA.forward(q, k, v, scale=0.1, causal=causal, metadata=ONE_DOCUMENT))
    ((mask, options),) = calls
    assert (mask is not None) is causal
    assert options == {"opt_mode": "manual", "op_type": "fused_attn_score", "layout": "BNSD"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA card")
@pytest.mark.parametrize("cu_seqlens", [(), (0, 100, 333)])
def test_it_agrees_with_torch_on_a_card(cu_seqlens):
    major, minor = torch.cuda.get_device_capability()
    place = Place(platform="cuda", capability=f"{major}.{minor}")
    if BACKEND.missing(place) is not None:
        pytest.skip(f"no FlashAttention: {BACKEND.missing(place)}")
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 333, 4, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    metadata = AttentionMetadata(cu_seqlens=cu_seqlens)
    ours = BACKEND.bind(place, None).forward(q, k, v, scale=128**-0.5, causal=False, metadata=metadata)
    exact = SDPA.forward(q.float(), k.float(), v.float(), scale=128**-0.5, causal=False, metadata=metadata)
    assert (ours.float() - exact).norm() / exact.norm() < 1e-2


@pytest.mark.parametrize(
    ("there", "capability", "is_taken"),
    [(("fa3_fwd_interface",), "9.0", False), (("flash_attn_interface",), "9.0", True), (("flash_attn",), "8.0", True)],
)
def test_float16_is_taken_where_the_package_has_kernels_for_it(packages, there, capability, is_taken):
    packages(*there)
    place = Place(platform="cuda", capability=capability)
    assert (torch.float16 in flash_attn.BACKEND.dtypes(place)) is is_taken
    assert torch.bfloat16 in flash_attn.BACKEND.dtypes(place)


def test_a_float16_layer_goes_past_the_package_without_such_kernels(packages):
    packages("fa3_fwd_interface")
    told = select_backend(
        AttentionConfig(), role="r", category="self", head_dim=64, platform_name="cuda", capability="9.0",
        preference=("FLASH_ATTN", "TORCH_SDPA"), dtype=torch.float16,
    )  # fmt: skip
    assert told.name == "TORCH_SDPA"
