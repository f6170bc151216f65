import pytest
import torch

from omnireel.attention import AttentionMetadata, Place
from omnireel.attention.backend import LayerFacts
from omnireel.attention.backends import trtllm_attn
from omnireel.attention.backends.torch_sdpa import BACKEND as SDPA
from omnireel.attention.backends.torch_sdpa import attend
from omnireel.attention.calibration import Calibration
from omnireel.attention.metadata import ONE_DOCUMENT

B200, B300 = (Place(platform="cuda", capability=name) for name in ("10.0", "10.3"))
LAYER = LayerFacts(role="self", name="transformer_blocks.0.attn")
GATE = {"disabled_until_timestep": 0.0}
QUANT = {"q_block_size": 1, "k_block_size": 4}


class Kernels:
    """flashinfer.prefill: the kernel computes with torch on what it is given, whatever its type."""

    def __init__(self):
        self.calls, self.quantized = [], []

    def attention(
        self, query, key, value, workspace_buffer, seq_lens, max_q_len, max_kv_len, bmm1_scale, bmm2_scale, o_sf_scale,
        batch_size, window_left, cum_seq_lens_q, cum_seq_lens_kv, enable_pdl, is_causal, return_lse,
        skip_softmax_threshold_scale_factor=None, sage_attn_sfs=(None,) * 4, num_elts_per_sage_attn_blk=(0, 0, 0, 0),
    ):  # fmt: skip
        assert seq_lens.dtype is cum_seq_lens_q.dtype is cum_seq_lens_kv.dtype is torch.int32
        assert workspace_buffer.dtype is torch.uint8
        assert not workspace_buffer.any()
        assert len(cum_seq_lens_q) == len(cum_seq_lens_kv) == batch_size + 1
        assert type(max_q_len) is type(max_kv_len) is int
        assert (bmm2_scale, window_left, return_lse) == (1.0, -1, False)
        self.calls.append(
            {"q": cum_seq_lens_q.tolist(), "k": cum_seq_lens_kv.tolist(), "lengths": seq_lens.tolist(),
             "batch": batch_size, "max": (max_q_len, max_kv_len), "skip": skip_softmax_threshold_scale_factor,
             "scales": sage_attn_sfs, "blocks": num_elts_per_sage_attn_blk, "rows": (len(query), len(key))}
        )  # fmt: skip
        out = torch.zeros(query.shape, dtype=torch.bfloat16)
        q, k, v = (x.to(torch.bfloat16) for x in (query, key, value))
        for a, b, c, d in zip(
            *(x for bounds in (cum_seq_lens_q, cum_seq_lens_kv) for x in (bounds, bounds[1:])), strict=False
        ):
            out[a:b] = attend(q[None, a:b], k[None, c:d], v[None, c:d], scale=bmm1_scale, causal=is_causal)[0]
        return out

    def quantize(self, query, key, value, *, q_block_size, k_block_size, qk_quant_dtype):
        self.quantized.append((len(query), len(key), q_block_size, k_block_size, qk_quant_dtype))
        return query, key, value, "q", "k", "v"


@pytest.fixture
def kernels(stand_in, monkeypatch):
    monkeypatch.setattr(trtllm_attn, "WORKSPACE_BYTES", 64)
    made = Kernels()
    stand_in(
        "flashinfer.prefill",
        trtllm_ragged_attention_deepseek=made.attention,
        trtllm_sage_attention_quantize=made.quantize,
    )
    return made


def bind(options=None, place=B200):
    return trtllm_attn.BACKEND.bind(place, options)


def run(backend, tensors, metadata=ONE_DOCUMENT, causal=False, layer=LAYER):
    return backend.forward(*tensors, scale=0.1, causal=causal, metadata=metadata, layer=layer)


def prefix(valid, rows):
    return (torch.arange(rows) < valid)[None]


def test_the_vector_of_eight_rows_of_which_six_count(kernels, qkv):
    tensors = qkv(8, dim=128)
    before = [x.clone() for x in tensors]
    metadata = AttentionMetadata(cu_seqlens=(0, 6, 8), mask=prefix(6, 8))
    out = run(bind(), tensors, metadata)
    (call,) = kernels.calls
    assert (call["batch"], call["lengths"], call["q"], call["k"]) == (1, [6], [0, 6], [0, 6])
    assert call["rows"] == (6, 6)
    assert out.shape == tensors[0].shape
    assert not out[:, 6:].any()
    torch.testing.assert_close(
        out[:, :6], SDPA.forward(*(x[:, :6] for x in tensors), scale=0.1, causal=False, metadata=ONE_DOCUMENT)
    )
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))
    assert metadata.cu_seqlens == (0, 6, 8)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bounds", [(), (0, 4, 9)])
def test_sequences_documents_batches_and_groups(kernels, qkv, causal, bounds):
    tensors = qkv(9, batch=2, heads=4, key_heads=2, dim=128)
    metadata = AttentionMetadata(cu_seqlens=bounds)
    expected = SDPA.forward(*tensors, scale=0.1, causal=causal, metadata=metadata)
    torch.testing.assert_close(run(bind(), tensors, metadata, causal), expected)
    (call,) = kernels.calls
    assert call["q"] == ([0, 4, 9, 13, 18] if bounds else [0, 9, 18])
    assert call["max"] == ((5, 5) if bounds else (9, 9))


def test_empty_documents_at_the_end_are_dropped_but_for_one(kernels, qkv):
    run(bind(), qkv(6, dim=128), AttentionMetadata(cu_seqlens=(0, 4, 6, 6, 6)))
    assert kernels.calls[0]["q"] == [0, 4, 6]
    packed = trtllm_attn.pack(AttentionMetadata(cu_seqlens=(0, 0, 0)), batch=1, num_queries=0, num_keys=0)
    assert packed.q_bounds == (0, 0)


def test_documents_that_are_empty_on_one_side_stay():
    metadata = AttentionMetadata(cu_seqlens=(0, 4, 4), cu_seqlens_k=(0, 4, 6))
    packed = trtllm_attn.pack(metadata, batch=1, num_queries=4, num_keys=6)
    assert packed.k_bounds == (0, 4, 6)


def test_a_valid_length_is_a_mask_that_is_known_on_the_host(kernels, qkv):
    tensors = qkv(8, dim=128)
    one = run(bind(), tensors, AttentionMetadata(cu_seqlens=(0, 6, 8), valid_kv_length=6))
    other = run(bind(), tensors, AttentionMetadata(cu_seqlens=(0, 6, 8), mask=prefix(6, 8)))
    assert torch.equal(one, other)
    whole = run(bind(), tensors, AttentionMetadata(valid_kv_length=6))
    assert kernels.calls[-1]["rows"] == (8, 6)
    torch.testing.assert_close(
        whole, SDPA.forward(*tensors, scale=0.1, causal=False, metadata=AttentionMetadata(valid_kv_length=6))
    )


@pytest.mark.parametrize(
    ("metadata", "shape", "words"),
    [
        ({"mask": prefix(6, 8)}, (8, 8), "only with packed metadata"),
        ({"cu_seqlens": (0, 6)}, (8, 8), "documents end at row 6, the sequence at row 8"),
        ({"cu_seqlens": (0, 8), "cu_seqlens_k": (0, 5)}, (8, 8), "documents of keys end at row 5"),
        ({"cu_seqlens": (0, 6, 8), "cu_seqlens_k": (0, 6, 9), "mask": prefix(6, 9)}, (8, 9), "whose queries are its keys"),
        ({"cu_seqlens": (0, 6, 8), "mask": torch.tensor([[True, False, True] + [False] * 5])}, (8, 8), "prefix-valid"),
        ({"cu_seqlens": (0, 6, 8), "mask": prefix(5, 8)}, (8, 8), "ends at row 5, where no document"),
        ({"cu_seqlens": (0, 6, 8), "cu_seqlens_k": (0, 5, 8), "mask": prefix(6, 8)}, (8, 8), "ends at row 6"),
        ({"cu_seqlens": (0, 8), "mask": prefix(6, 6)}, (8, 8), "of 8 keys"),
        ({"cu_seqlens": (0, 8), "mask": torch.ones(1, 1, 8, 8)}, (8, 8), "takes masks"),
    ],
)  # fmt: skip
def test_what_cannot_be_packed_is_refused(metadata, shape, words):
    with pytest.raises(ValueError, match=words):
        trtllm_attn.pack(AttentionMetadata(**metadata), batch=1, num_queries=shape[0], num_keys=shape[1])


def test_incomplete_bounds_are_refused_where_they_are_told():
    with pytest.raises(ValueError, match="incomplete packed metadata"):
        AttentionMetadata(cu_seqlens_k=(0, 8))


def test_a_flashinfer_without_the_kernel_cannot_be_bound(stand_in):
    stand_in("flashinfer.prefill")
    with pytest.raises(ImportError, match="no trtllm_ragged_attention_deepseek"):
        bind()


def test_rows_are_cut_before_they_are_quantised(kernels, qkv):
    metadata = AttentionMetadata(cu_seqlens=(0, 6, 8), mask=prefix(6, 8))
    run(bind({**QUANT, "dtype_qk": "int8"}), qkv(8, dim=128), metadata)
    assert kernels.quantized == [(6, 6, 1, 4, torch.int8)]
    assert kernels.calls[0]["scales"] == ("q", "k", None, "v")
    assert kernels.calls[0]["blocks"] == (1, 4, 0, 1)


def test_short_keys_are_dense_for_that_call_and_it_says_so_once(kernels, qkv, caplog):
    backend = bind({**QUANT, "dtype_qk": "int8"})
    for rows in (3, 3, 8):
        run(backend, qkv(rows, dim=128))
    run(backend, qkv(8, dim=128), AttentionMetadata(cu_seqlens=(0, 6, 8)))
    assert [call["scales"][0] for call in kernels.calls] == [None, None, "q", None]
    assert [record.getMessage() for record in caplog.records] == [
        "attention self: full precision where keys are fewer than a block"
    ]


@pytest.mark.parametrize(
    ("options", "place", "words"),
    [
        ({"dtype_qk": "int8"}, B300, "needs capability 10.0, not 10.3"),
        ({"dtype_qk": "bfloat16"}, B200, "must be int8 or fp8_e4m3"),
        ({}, B200, "must be int8 or fp8_e4m3"),
        ({"dtype_qk": "int8", "dtype_vo": "bfloat16"}, B200, "is fp8_e4m3 always"),
    ],
)
def test_types_without_kernels_are_refused(kernels, options, place, words):
    with pytest.raises(ValueError, match=words):
        bind({**QUANT, **options}, place)


def test_fp8_is_for_both_cards(kernels):
    for place in (B200, B300):
        assert bind({**QUANT, "dtype_qk": "fp8_e4m3", "dtype_vo": "fp8_e4m3"}, place).quant is not None


def test_an_older_flashinfer_has_no_low_precision(kernels, stand_in):
    def older(query, key, value):
        return query

    stand_in("flashinfer.prefill", trtllm_ragged_attention_deepseek=older)
    with pytest.raises(ValueError, match=r"flashinfer 0\.6\.16rc1"):
        bind({**QUANT, "dtype_qk": "int8"})


def test_the_factor_grows_with_the_longest_document_of_keys(kernels, qkv):
    run(bind({**GATE, "threshold": 0.5}), qkv(9, dim=128), AttentionMetadata(cu_seqlens=(0, 3, 9)))
    assert kernels.calls[0]["skip"] == 3.0


def test_a_wanted_sparsity_asks_the_calibration(kernels, qkv):
    calibration = Calibration(a=2.0, b=0.0, ignore=("transformer_blocks.1",))
    backend = bind({**GATE, "target_sparsity": 0.5, "calibration": calibration})
    run(backend, qkv(9, dim=128))
    run(backend, qkv(9, dim=128), layer=LayerFacts(role="self", name="transformer_blocks.1.attn"))
    assert [call["skip"] for call in kernels.calls] == [2.0, None]
    with pytest.raises(ValueError, match="needs a calibrated checkpoint"):
        bind({**GATE, "target_sparsity": 0.5})


@pytest.mark.parametrize(("progress", "skip"), [(1.0, None), (0.51, None), (0.5, 9.0), (0.1, 9.0), (None, None)])
def test_nothing_is_skipped_above_the_gate_or_without_a_step(kernels, qkv, caplog, progress, skip):
    backend = bind({"threshold": 1.0, "disabled_until_timestep": 0.5})
    assert backend.reads_metadata
    for _ in range(2):
        run(backend, qkv(9, dim=128), AttentionMetadata(progress=progress))
    assert [call["skip"] for call in kernels.calls] == [skip, skip]
    assert len(caplog.records) == (progress is None)


def test_it_declares_what_it_takes():
    can = trtllm_attn.BACKEND.can
    assert (can.capabilities, can.head_dims, can.masks) == (("10.0", "10.3"), (128,), "prefix")
    assert not trtllm_attn.BACKEND.reads_metadata
