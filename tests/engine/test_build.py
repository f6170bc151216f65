"""Settings become a context; what is not there is told before anything is loaded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from omnireel.config import resolve
from omnireel.engine.build import build_context, engine_facts, worker_specs
from omnireel.engine.message import Kind, StageMessage, from_parts, to_parts
from omnireel.errors import BadSetting, UnknownModel, UnsupportedDevice
from omnireel.models.discover import topology_of
from omnireel.models.toy.facts import FACTS
from omnireel.parallel import Member
from omnireel.platforms import DeviceInfo
from omnireel.platforms.cpu import Cpu

DEVICE = DeviceInfo(index=0, name="one", total_bytes=1, capability="")


def config(**flags):
    return resolve({"model": "toy", "device": "cpu", **flags}, {})


def test_auto_is_the_devices_own_number_type():
    context, index = build_context(config())
    assert (context.checkpoint.name, context.device, context.dtype, index) == ("toy", "cpu", "float32", 0)


def test_a_chosen_number_type_is_kept():
    assert build_context(config(dtype="bfloat16"))[0].dtype == "bfloat16"


@pytest.mark.parametrize(("flags", "error"), [({"model": "toi"}, UnknownModel), ({"device": "tpu"}, BadSetting)])
def test_what_is_not_there_is_told(flags, error):
    with pytest.raises(error):
        build_context(config(**flags))


def test_facts_of_the_engine_go_by_the_names_of_settings():
    chosen = config(diffusion_attention_backend="TORCH_SDPA")
    facts = engine_facts(worker_specs(chosen)[0])
    assert facts["device_name"]
    assert (facts["device"], facts["dtype"], facts["diffusion_attention_backend"]) == ("cpu", "float32", "TORCH_SDPA")
    assert facts["num_threads"] >= 1


def test_a_recipe_remembers_attention_by_role_where_it_was_chosen():
    by_role = {"per_role": {"self": "torch_sdpa"}}
    chosen, plain = config(diffusion_attention_config=by_role), config()
    assert engine_facts(worker_specs(chosen)[0])["diffusion_attention_config"] == by_role
    assert "diffusion_attention_config" not in engine_facts(worker_specs(plain)[0])


@pytest.mark.parametrize("role", ["self", "minimax_h3.video_vae"])
def test_attention_is_chosen_for_roles_that_the_model_has(role):
    build_context(config(model="mini-h3", diffusion_attention_config={"per_role": {role: "torch_sdpa"}}))


def test_a_role_that_no_layer_has_is_told_with_the_nearest():
    with pytest.raises(
        BadSetting, match=r"has the roles and categories minimax_h3.token_refiner, minimax_h3.video_vae, self"
    ) as raised:
        build_context(
            config(model="mini-h3", diffusion_attention_config={"per_role": {"minimax_h3.vae": "torch_sdpa"}})
        )
    assert raised.value.hint == "did you mean 'minimax_h3.video_vae'?"


def test_a_recipe_remembers_what_of_speed_moves_a_result_where_it_is_on():
    fast = config(compile_blocks="on", vae_encode_precision="float16", modulation_tables="on", overlap_frames="on")
    eager = config(compile_blocks="on", enforce_eager=True)
    facts, plain = (engine_facts(worker_specs(item)[0]) for item in (fast, eager))
    assert (facts["compile_blocks"], facts["vae_encode_precision"]) == ("on", "float16")
    assert not {"fused_kernels", "modulation_tables", "overlap_frames"} & facts.keys()
    assert not {"compile_blocks", "vae_encode_precision"} & plain.keys()


def test_a_replica_is_made_of_plain_data_that_can_be_sent():
    (spec,) = worker_specs(config(num_threads=2, max_num_seqs=3))
    assert (spec.num_threads, spec.max_batch, spec.log_level) == (2, 3, "warning")
    message = StageMessage(kind=Kind.LOAD, body=spec)
    assert from_parts(*to_parts(message)).body == spec


def test_replicas_share_a_processor():
    assert [spec.context.device for spec in worker_specs(config(num_replicas=2))] == ["cpu", "cpu"]


def test_replicas_have_devices_of_their_own_in_order_or_as_named(monkeypatch):
    monkeypatch.setattr(Cpu, "devices", lambda self: (DEVICE,) * 4)
    assert [spec.device_index for spec in worker_specs(config(num_replicas=2, devices="3, 1"))] == [3, 1]
    with pytest.raises(UnsupportedDevice, match=r"devices 1, 4 of cpu.*have 4"):
        worker_specs(config(num_replicas=2, devices="1,4"))


@pytest.mark.parametrize("devices", ["0,0", "0", "0,1,2", "a,b", "0,-1", ""])
def test_devices_that_are_not_one_a_replica_are_refused(devices):
    with pytest.raises(BadSetting, match="must name 2 devices by different indices"):
        worker_specs(config(num_replicas=2, devices=devices))


def test_a_batch_that_the_model_does_not_take_is_refused():
    with pytest.raises(BadSetting, match=r"max_num_seqs = 2.*takes 1"):
        worker_specs(config(model="mini-h3", max_num_seqs=2))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"step_execution": True}, "step_execution (from flag --step-execution) changes nothing: max_num_seqs is 1"),
        ({"model": "mini-h3", "step_execution": True}, "minimax_h3 takes one request a step"),
        ({"request_batch_max_wait_ms": 5}, "request_batch_max_wait_ms (from"),
        ({"step_execution": True, "max_num_seqs": 2}, ""),
        ({}, ""),
    ],
)
def test_settings_of_batches_that_change_nothing_are_told(caplog, flags, words):
    worker_specs(config(**flags))
    assert words in caplog.text
    assert bool(caplog.records) == bool(words)


def test_variables_of_a_process_are_texts():
    found = worker_specs(config(env={"OMP_NUM_THREADS": 2, "MARK": "a b"}))[0].env
    assert found == {"OMP_NUM_THREADS": "2", "MARK": "a b"}


def test_a_folder_below_the_models_may_be_taken(tmp_path):
    (tmp_path / "whole" / "lm").mkdir(parents=True)
    pipeline = {"pipeline": "prompt_rewrite", "stage_0_model": str(tmp_path / "whole"), "stage_0_model_subdir": "lm"}
    stage = resolve({**pipeline, "device": "cpu"}, {}, topology=topology_of).of_stage(0)
    spec = worker_specs(stage)[0]
    assert spec.context.checkpoint.path == tmp_path / "whole" / "lm"
    assert (spec.stage, spec.name) == ("rewrite", "rewrite.0")


def test_ranks_have_consecutive_devices_and_replicas_the_next_ones(monkeypatch):
    monkeypatch.setattr(Cpu, "devices", lambda self: (DEVICE,) * 4)
    specs = worker_specs(config(ulysses_degree=2, num_replicas=2, devices="3,1,0,2"))
    assert [(spec.rank, spec.device_index, spec.members) for spec in specs] == [(0, 3, (3, 1)), (1, 0, (0, 2))]
    assert specs[0].engine["ulysses_degree"] == 2
    assert not worker_specs(config())[0].members


def test_too_few_devices_for_the_ranks_are_told(monkeypatch):
    monkeypatch.setattr(Cpu, "devices", lambda self: (DEVICE,) * 2)
    with pytest.raises(BadSetting, match="name 3 devices by different indices, one a rank of each replica"):
        worker_specs(config(ulysses_degree=3, devices="0,1"))
    with pytest.raises(UnsupportedDevice) as raised:
        worker_specs(config(ulysses_degree=3, devices="0,1,2"))
    assert raised.value.hint == "each rank of --ulysses-degree takes one"


def test_a_torch_without_the_devices_collectives_is_told(monkeypatch):
    monkeypatch.setattr("torch.distributed.is_backend_available", lambda name: False)
    with pytest.raises(UnsupportedDevice, match="need gloo for ranks on cpu, have this build of torch has no gloo"):
        worker_specs(config(ulysses_degree=2))


def test_a_rank_is_made_of_its_own_device_and_place():
    spec = worker_specs(config(ulysses_degree=2))[0].of_member(Member(rank=1, size=2, store="x"))
    head, arrays = to_parts(StageMessage(kind=Kind.LOAD, body=spec))
    assert from_parts(head, arrays).body == spec
    assert spec.member is not None
    assert (spec.member.rank, spec.device_index, spec.context.device) == (1, 0, "cpu")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            {"ulysses_degree": 3, "model": "mini-h3"},
            "ulysses_degree = 3 .* must divide the 4 attention heads of mini-h3: 1, 2, 4",
        ),
        ({"ulysses_degree": 5}, "the 12 attention heads of toy"),
    ],
)
def test_a_degree_that_does_not_divide_the_heads_is_told_before_anything_loads(flags, words):
    with pytest.raises(BadSetting, match=words):
        worker_specs(config(**flags))


def test_heads_may_be_shared_unevenly_where_that_is_set_but_not_by_more_ranks_than_heads():
    assert len(worker_specs(config(ulysses_degree=5, ulysses_mode="advanced_uaa"))[0].members) == 5
    with pytest.raises(BadSetting, match="12 attention heads"):
        worker_specs(config(ulysses_degree=13, ulysses_mode="advanced_uaa"))


def test_a_model_that_runs_in_one_process_says_so(monkeypatch):
    monkeypatch.setattr("omnireel.models.discover.all_facts", lambda: (replace(FACTS, shared_heads=""),))
    with pytest.raises(BadSetting, match="toy runs each request in one process"):
        worker_specs(config(ulysses_degree=2))
