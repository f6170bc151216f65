"""Loading is strict, takes tensors from the memory map and leaves nothing on the meta device."""

from __future__ import annotations

import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from omnireel.errors import BadCheckpoint
from omnireel.weights import Part, build_empty, load_component, read_index

CPU = torch.device("cpu")


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("steps", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("filter", torch.arange(3.0), persistent=False)


class Tied(nn.Module):
    """As language models share their embedding with their head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.embed.weight


class BornTied(nn.Module):
    """One parameter put in two places before either knows of it."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Parameter(torch.ones(2))
        self.first, self.second = shared, shared


def weights() -> dict[str, torch.Tensor]:
    return {"linear.weight": torch.randn(2, 3), "linear.bias": torch.randn(2), "steps": torch.tensor([7, 8])}


def folder_of(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder = tmp_path / "part"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file(tensors, folder / "model.safetensors")
    return folder


def loaded(tmp_path: Path, tensors: dict[str, torch.Tensor], **options) -> Small:
    module = build_empty(Small)
    load_component(module, read_index(folder_of(tmp_path, tensors)), device=CPU, **options)
    return module


def test_every_tensor_arrives_and_takes_no_gradient(tmp_path):
    tensors = weights()
    module = loaded(tmp_path, tensors)
    assert all(torch.equal(value, tensors[name]) for name, value in module.state_dict().items())
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_a_buffer_that_no_file_holds_keeps_what_the_class_computed(tmp_path):
    assert torch.equal(loaded(tmp_path, weights()).get_buffer("filter"), torch.arange(3.0))


def test_weights_without_a_cast_are_the_memory_map(tmp_path):
    folder = folder_of(tmp_path, weights())
    module = build_empty(Small)
    load_component(module, read_index(folder), device=CPU)
    mapped = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "model.safetensors" in line]
    places = [tuple(int(end, 16) for end in line[0].split("-")) for line in mapped if str(folder) in line[-1]]
    assert any(first <= module.linear.weight.data_ptr() < last for first, last in places)


def test_the_type_rule_casts_floats_and_leaves_integers(tmp_path):
    module = loaded(tmp_path, weights(), dtype_of=lambda name, stored: torch.bfloat16)
    assert module.linear.weight.dtype == torch.bfloat16
    assert module.steps.dtype == torch.int64


def test_keys_are_renamed_and_known_ones_skipped(tmp_path):
    tensors = {f"model.{name}": value for name, value in weights().items()} | {"lm_head.weight": torch.ones(9)}
    module = loaded(tmp_path, tensors, rename=lambda key: key.removeprefix("model.") if "lm_head" not in key else None)
    assert torch.equal(module.linear.bias, tensors["model.linear.bias"])


def test_a_missing_tensor_is_named(tmp_path):
    tensors = weights()
    del tensors["linear.bias"]
    with pytest.raises(
        BadCheckpoint, match=r"part/model.safetensors: lacks 1 tensor, key linear.bias, expected shape \[2\]"
    ):
        loaded(tmp_path, tensors)


def test_an_unexpected_tensor_is_named(tmp_path):
    with pytest.raises(BadCheckpoint, match=r"has 1 tensor that the model does not know, key extra"):
        loaded(tmp_path, weights() | {"extra": torch.ones(1)})


def test_weights_of_another_model_are_called_so(tmp_path):
    with pytest.raises(BadCheckpoint, match="lacks 3 tensors; 2 others are not expected") as raised:
        loaded(tmp_path, {"x": torch.ones(1), "y": torch.ones(1)})
    assert "another model" in raised.value.hint


def test_a_misshaped_tensor_names_both_shapes(tmp_path):
    with pytest.raises(BadCheckpoint, match=r"key linear.weight, expected \[2, 3\], found \[3, 2\]"):
        loaded(tmp_path, weights() | {"linear.weight": torch.randn(3, 2)})


def test_an_integer_weight_is_refused(tmp_path):
    with pytest.raises(
        BadCheckpoint, match=r"another type, key linear.bias, expected a floating-point type, found I64"
    ):
        loaded(tmp_path, weights() | {"linear.bias": torch.ones(2, dtype=torch.int64)})


def test_two_keys_for_one_weight_are_refused(tmp_path):
    with pytest.raises(BadCheckpoint, match="gives a weight twice"):
        loaded(tmp_path, weights() | {"old.steps": torch.tensor([1, 2])}, rename=lambda key: key.removeprefix("old."))


def test_nothing_is_read_when_a_header_is_wrong(tmp_path, monkeypatch):
    def opened(*_: object, **__: object) -> None:
        raise AssertionError("data was read")

    monkeypatch.setattr("omnireel.weights.load.safe_open", opened)
    with pytest.raises(BadCheckpoint):
        loaded(tmp_path, weights() | {"linear.weight": torch.randn(3, 2)})


def test_a_meta_buffer_that_no_file_fills_is_refused(tmp_path):
    with torch.device("meta"):
        module = Small()
    with pytest.raises(BadCheckpoint, match="leaves a buffer without a value, key filter"):
        load_component(module, read_index(folder_of(tmp_path, weights())), device=CPU)


def test_an_empty_build_takes_no_memory_for_parameters():
    module = build_empty(lambda: nn.Linear(100, 100))
    assert module.weight.is_meta


def test_a_missing_tensor_of_a_sharded_checkpoint_is_named(tmp_path):
    folder = folder_of(tmp_path, {"linear.weight": torch.ones(2, 3)})
    (folder / "model.safetensors").rename(folder / "m-1.safetensors")
    save_file({"steps": torch.tensor([1, 2])}, folder / "m-2.safetensors")
    listed = '{"weight_map": {"linear.weight": "m-1.safetensors", "steps": "m-2.safetensors"}}'
    (folder / "m.safetensors.index.json").write_text(listed)
    with pytest.raises(BadCheckpoint, match=r"part: lacks 1 tensor in its 2 files, key linear.bias"):
        load_component(build_empty(Small), read_index(folder), device=CPU)


def test_many_missing_tensors_are_counted_and_the_first_few_named(tmp_path):
    module = build_empty(lambda: nn.Sequential(*(nn.Linear(1, 1) for _ in range(5))))
    files = read_index(folder_of(tmp_path, {"0.weight": torch.ones(1, 1)}))
    with pytest.raises(BadCheckpoint, match=r"lacks 9 tensors, key 0.bias, 1.weight, 1.bias, \.\.\."):
        load_component(module, files, device=CPU)


@pytest.mark.parametrize("stored", ["embed.weight", "head.weight"])
def test_a_shared_weight_is_filled_by_any_of_its_names_and_stays_shared(tmp_path, stored):
    value = torch.randn(4, 3)
    module = build_empty(Tied)
    load_component(module, read_index(folder_of(tmp_path, {stored: value})), device=CPU)
    assert module.head.weight is module.embed.weight
    assert torch.equal(module.head.weight, value)


def test_two_values_for_a_shared_weight_are_refused(tmp_path):
    both = {"embed.weight": torch.zeros(4, 3), "head.weight": torch.ones(4, 3)}
    with pytest.raises(BadCheckpoint, match=r"gives a weight twice, key head.weight, found also embed.weight"):
        load_component(build_empty(Tied), read_index(folder_of(tmp_path, both)), device=CPU)


def test_a_parameter_put_in_two_places_at_once_stays_one():
    module = build_empty(BornTied)
    assert module.first is module.second
    assert module.first.is_meta


@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm])
def test_weight_norm_of_either_kind_is_loaded_and_computes(tmp_path, norm):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        whole = nn.Sequential(norm(nn.Linear(3, 2)))
        empty = build_empty(lambda: nn.Sequential(norm(nn.Linear(3, 2))))
    load_component(empty, read_index(folder_of(tmp_path, dict(whole.state_dict()))), device=CPU)
    x = torch.randn(5, 3)
    assert torch.equal(empty(x), whole(x))


def test_an_empty_build_draws_nothing():
    before = torch.get_rng_state()
    build_empty(lambda: nn.Linear(3, 2))
    assert torch.equal(torch.get_rng_state(), before)


def test_an_empty_build_leaves_the_modules_of_other_threads_alone():
    def factory() -> nn.Sequential:
        with ThreadPoolExecutor(1) as pool:
            return nn.Sequential(pool.submit(nn.Linear, 3, 2).result(), nn.Linear(3, 2))

    module = build_empty(factory)
    assert [parameter.is_meta for parameter in module.parameters()] == [False, False, True, True]


def test_a_factory_that_fails_leaves_no_trace():
    def factory() -> nn.Module:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        build_empty(factory)
    assert not nn.Linear(3, 2).weight.is_meta


def anonymous_bytes() -> int:
    """Memory of this process that no file stands behind."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def layers(tmp_path: Path) -> tuple[nn.Module, Path]:
    """16 layers of 2 MiB each."""
    tensors = {f"{k}.weight": torch.ones(1024, 1024, dtype=torch.bfloat16) for k in range(16)}
    return build_empty(lambda: nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(16)))), folder_of(
        tmp_path, tensors
    )


def test_weights_without_a_cast_take_no_memory_of_their_own(tmp_path):
    module, folder = layers(tmp_path)
    before = anonymous_bytes()
    load_component(module, read_index(folder), device=CPU)
    assert sum(float(parameter.sum()) for parameter in module.parameters()) > 0
    assert anonymous_bytes() - before < 8 * 2**20


def test_a_cast_takes_the_memory_of_its_result_alone(tmp_path):
    module, folder = layers(tmp_path)
    before = anonymous_bytes()
    load_component(module, read_index(folder), device=CPU, dtype_of=lambda _, __: torch.float32)
    # 64 MiB; with the file in memory beside them it would be 96.
    assert anonymous_bytes() - before < 80 * 2**20


def test_a_file_that_changes_after_its_header_was_read_is_named(tmp_path):
    folder = folder_of(tmp_path, weights())
    files = read_index(folder)
    (folder / "model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(BadCheckpoint, match=r"part/model\.safetensors: cannot be read"):
        load_component(build_empty(Small), files, device=CPU)


class Split(nn.Module):
    """Two weights that a file may keep as one."""

    def __init__(self, rows: int = 2) -> None:
        super().__init__()
        self.first = nn.Linear(3, rows, bias=False)
        self.second = nn.Linear(3, rows, bias=False)


def halves(key: str) -> tuple[Part, ...]:
    """The first half of the rows as `first`, the other as `second`."""
    assert key == "both"
    return (
        Part(name="first.weight", take=lambda tensor: tensor.reshape(2, -1, *tensor.shape[1:])[0]),
        Part(name="second.weight", take=lambda tensor: tensor.reshape(2, -1, *tensor.shape[1:])[1]),
    )


def test_one_stored_tensor_fills_several_weights(tmp_path):
    both = torch.randn(4, 3)
    module = build_empty(Split)
    load_component(module, read_index(folder_of(tmp_path, {"both": both})), device=CPU, rename=halves)
    assert torch.equal(module.first.weight, both[:2])
    assert torch.equal(module.second.weight, both[2:])


def test_a_weight_may_be_taken_in_another_order(tmp_path):
    both = torch.randn(4, 3)
    module = build_empty(Split)
    load_component(
        module, read_index(folder_of(tmp_path, {"both": both})), device=CPU,
        rename=lambda _: (
            Part(name="first.weight", take=lambda tensor: tensor[::2]),
            Part(name="second.weight", take=lambda tensor: torch.flip(tensor[1::2], (0,))),
        ),
    )  # fmt: skip
    assert torch.equal(module.first.weight, both[::2])
    assert torch.equal(module.second.weight, both[[3, 1]])
    assert module.first.weight.is_contiguous()


@pytest.mark.parametrize("rows", [6, 5])
def test_a_part_of_another_shape_is_refused_before_data_is_read(tmp_path, rows):
    files = read_index(folder_of(tmp_path, {"both": torch.randn(rows, 3)}))
    files.shards[0].unlink()
    with pytest.raises(BadCheckpoint, match=rf"another shape, key both, .*part first\.weight.*\[{rows}, 3\]"):
        load_component(build_empty(Split), files, device=CPU, rename=halves)


def test_a_part_and_a_tensor_cannot_give_one_weight(tmp_path):
    files = read_index(folder_of(tmp_path, {"both": torch.randn(4, 3), "first.weight": torch.randn(2, 3)}))
    with pytest.raises(BadCheckpoint, match="gives a weight twice"):
        load_component(build_empty(Split), files, device=CPU, rename=lambda key: halves(key) if key == "both" else key)


def test_a_part_that_the_module_has_no_place_for_is_refused(tmp_path):
    files = read_index(folder_of(tmp_path, {"both": torch.randn(4, 3)}))
    with pytest.raises(BadCheckpoint, match=r"lacks 1 tensor; 1 others.*second\.weight"):
        load_component(
            build_empty(Split), files, device=CPU,
            rename=lambda _: (Part(name="first.weight", take=lambda tensor: tensor[:2]), Part(name="third", take=torch.clone)),
        )  # fmt: skip


def test_parts_that_lie_together_are_the_map_itself(tmp_path):
    module = build_empty(lambda: Split(4_000_000))
    both = torch.ones(8_000_000, 3, dtype=torch.bfloat16)
    files = read_index(folder_of(tmp_path, {"both": both}))
    del both
    before = anonymous_bytes()
    load_component(module, files, device=CPU, rename=halves)
    assert float(module.second.weight[-1].sum()) == 3
    assert anonymous_bytes() - before < 8 * 2**20


@pytest.mark.gpu
def test_a_device_holds_the_weights_and_no_more_than_one_twice(tmp_path):
    module, folder = layers(tmp_path)
    device = torch.device("cuda")
    torch.zeros(1, device=device)
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    before = anonymous_bytes()
    load_component(module, read_index(folder), device=device, dtype_of=lambda _, __: torch.float32)
    assert {parameter.device.type for parameter in module.parameters()} == {"cuda"}
    assert torch.cuda.max_memory_allocated() - start <= 64 * 2**20 + 2 * 4 * 2**20
    assert anonymous_bytes() - before < 24 * 2**20


@pytest.mark.gpu
def test_buffers_that_no_file_holds_go_to_the_device(tmp_path):
    module = build_empty(Small)
    load_component(module, read_index(folder_of(tmp_path, weights())), device=torch.device("cuda"))
    assert {value.device.type for value in (*module.parameters(), *module.buffers())} == {"cuda"}
