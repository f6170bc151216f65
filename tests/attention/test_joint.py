from dataclasses import replace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from omnireel.attention import Attention, AttentionMetadata, JointTokens, VideoTokenLayout
from omnireel.attention.backends import sage_attn
from omnireel.attention.backends.torch_sdpa import BACKEND
from omnireel.attention.joint import with_joint

MAIN, JOINT = 5, 3


def rows(count, num_heads=4, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(2, count, num_heads, 8, generator=rng)


def given(strategy, *, kv_heads=4, mask=None):
    q, k, v = rows(MAIN), rows(MAIN, kv_heads, 1), rows(MAIN, kv_heads, 2)
    joint = JointTokens(
        query=rows(JOINT, 4, 3),
        key=rows(JOINT, kv_heads, 4),
        value=rows(JOINT, kv_heads, 5),
        mask=mask,
        strategy=strategy,
    )
    return q, k, v, joint


def expected(q, k, v, joint, mask=None):
    """All rows in one sequence; `mask` of all keys, in the order of the sequence."""
    front = joint.strategy == "front"
    order = (
        (lambda main, there: torch.cat([there, main], 1))
        if front
        else (lambda main, there: torch.cat([main, there], 1))
    )
    parts = [order(main, there).transpose(1, 2) for main, there in ((q, joint.query), (k, joint.key), (v, joint.value))]
    mask = None if mask is None else mask[:, None, None, :]
    q, k, v = parts
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1]).transpose(1, 2)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("strategy", ["front", "rear"])
def test_every_row_sees_main_and_joint_rows(strategy, kv_heads):
    q, k, v, joint = given(strategy, kv_heads=kv_heads)
    out = Attention(4, 8, backend=BACKEND, role="joint")(q, k, v, AttentionMetadata(joint=joint))
    assert out.shape == (2, MAIN + JOINT, 4, 8)
    torch.testing.assert_close(out, expected(q, k, v, joint))


@pytest.mark.parametrize("strategy", ["front", "rear"])
@pytest.mark.parametrize("which", ["main", "joint", "both"])
def test_who_has_no_mask_is_seen_whole(strategy, which):
    of_main = torch.tensor([[True, True, False, True, True], [True] * 5]) if which != "joint" else None
    of_joint = torch.tensor([[True, False, True], [True, True, False]]) if which != "main" else None
    q, k, v, joint = given(strategy, mask=of_joint)
    out = Attention(4, 8, backend=BACKEND, role="joint")(q, k, v, AttentionMetadata(joint=joint, mask=of_main))
    masks = [torch.ones(2, MAIN, dtype=torch.bool) if of_main is None else of_main]
    masks.append(torch.ones(2, JOINT, dtype=torch.bool) if of_joint is None else of_joint)
    whole = torch.cat(masks[::-1] if strategy == "front" else masks, dim=1)
    torch.testing.assert_close(out, expected(q, k, v, joint, whole))


@pytest.mark.parametrize("strategy", ["front", "rear"])
def test_padding_keys_stay_hidden_wherever_they_come_to_lie(strategy):
    q, k, v, joint = given(strategy)
    told = AttentionMetadata(joint=joint, valid_kv_length=3)
    out = Attention(4, 8, backend=BACKEND, role="joint")(q, k, v, told)
    kept = torch.tensor([[True, True, True, False, False]] * 2)
    there = torch.ones(2, JOINT, dtype=torch.bool)
    whole = torch.cat([there, kept] if strategy == "front" else [kept, there], dim=1)
    torch.testing.assert_close(out, expected(q, k, v, joint, whole))
    if strategy == "front":
        assert with_joint(q, k, v, told)[3].valid_kv_length == 3 + JOINT


def test_the_video_moves_behind_joint_rows_and_is_lost_before_them():
    video = VideoTokenLayout(prefix_len=1, latent_grid=(1, 2, 2))
    q, k, v, joint = given("front")
    told = AttentionMetadata(joint=joint, video=video)
    assert with_joint(q, k, v, told)[3].video == replace(video, prefix_len=1 + JOINT)
    assert with_joint(q, k, v, replace(told, joint=given("rear")[3]))[3].video is None


def test_a_backend_without_masks_refuses_those_of_joint_rows():
    q, k, v, joint = given("front", mask=torch.ones(2, JOINT, dtype=torch.bool))
    layer = Attention(4, 8, backend=sage_attn.BACKEND, role="joint")
    with pytest.raises(ValueError, match="SAGE_ATTN takes no masks"):
        layer(q.half(), k.half(), v.half(), AttentionMetadata(joint=JointTokens(
            query=joint.query.half(), key=joint.key.half(), value=joint.value.half(), mask=joint.mask)))  # fmt: skip


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ({"cu_seqlens": (0, 2, 5)}, "neither documents nor spans"),
        ({"full_attn_spans": ((0, 2),)}, "neither documents nor spans"),
        ({"mask": torch.ones(5, 5, dtype=torch.bool)[None, None]}, "a dense mask comes without joint tokens"),
    ],
)
def test_what_speaks_of_the_main_rows_alone_is_refused(told, problem):
    q, k, v, joint = given("front")
    with pytest.raises(ValueError, match=problem):
        with_joint(q, k, v, AttentionMetadata(joint=joint, **told))


def test_rows_that_do_not_fit_are_told():
    q, k, v, joint = given("front")
    parts = {"query": joint.query, "key": joint.key, "value": joint.value}
    with pytest.raises(ValueError, match="at the front or rear, not at 'middle'"):
        JointTokens(**parts, strategy="middle")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="keys and values must have one shape"):
        JointTokens(**{**parts, "value": joint.value[:, :1]})
    with pytest.raises(ValueError, match=r"mask of joint keys must be shaped \(2, 3\), got \(2, 2\)"):
        JointTokens(**parts, mask=torch.ones(2, 2, dtype=torch.bool))
    fewer = {"key": joint.key[:, :, :2], "value": joint.value[:, :, :2]}
    with pytest.raises(ValueError, match=r"joint keys must be shaped \[2,J,4,8\]"):
        with_joint(q, k, v, AttentionMetadata(joint=JointTokens(**{**parts, **fewer})))
    with pytest.raises(ValueError, match=r"joint queries must be shaped \[2,J,4,8\]"):
        with_joint(q, k, v, AttentionMetadata(joint=JointTokens(**{**parts, "query": joint.query[..., :4]})))
