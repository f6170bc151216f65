import pytest
import torch
from benchmarks.h3_attention import LAYOUTS, best_layout, laid_out


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_holds_the_same_values(layout):
    packed = torch.randn(1, 5, 3, 2, 4)
    for made, part in zip(laid_out(packed, layout), packed.unbind(2), strict=True):
        assert torch.equal(made, part)


def rows(**seconds):
    told = [
        {"case": f"attention FLASH_ATTN, {name}", "rows": 9, "median_seconds": value} for name, value in seconds.items()
    ]
    return [*told, {"case": "attention, copying one of three into heads", "milliseconds": 10.0}]


def test_the_quickest_layout_is_taken_and_its_copies_count():
    assert best_layout(rows(packed=0.20, dense=0.19, heads=0.18), "FLASH_ATTN", 9) == "dense"
    assert best_layout(rows(packed=0.20, dense=0.19, heads=0.16), "FLASH_ATTN", 9) == "heads"


@pytest.mark.parametrize(("backend", "attended"), [("CUDNN_ATTN", 9), ("FLASH_ATTN", 10)])
def test_what_was_not_measured_stays_as_it_is(backend, attended):
    assert best_layout(rows(packed=0.20, dense=0.19, heads=0.16), backend, attended) == "packed"
