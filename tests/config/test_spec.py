"""Rules that every spec keeps."""

import pytest

from omnireel.config import GROUPS, all_settings, convert, engine_settings, owners, settings_of

SETTINGS = list(all_settings().values())
KINDS = {"ar", "generation", "diffusion"}


@pytest.mark.parametrize("name", GROUPS)
def test_a_spec_has_at_most_25_fields(name):
    assert 1 <= len(settings_of(GROUPS[name].spec)) <= 25


def test_no_name_is_declared_twice_also_as_an_alias():
    names = [item.name for group in GROUPS.values() for item in settings_of(group.spec)]
    names += [alias.lstrip("!") for item in SETTINGS for alias in item.aliases]
    assert len(names) == len(set(names))


def test_every_field_of_a_spec_is_a_setting():
    fields = {name for group in GROUPS.values() for name in vars(group.spec)["__dataclass_fields__"]}
    assert fields == set(all_settings())


@pytest.mark.parametrize("item", SETTINGS, ids=lambda item: item.name)
def test_a_default_and_idle_values_are_allowed_values(item):
    for value in (item.default, *item.idle):
        assert convert(item, value) == value


@pytest.mark.parametrize("item", SETTINGS, ids=lambda item: item.name)
def test_help_is_one_line_without_a_full_stop(item):
    assert item.help
    assert "\n" not in item.help
    assert not item.help.endswith(".")


@pytest.mark.parametrize("item", SETTINGS, ids=lambda item: item.name)
def test_every_setting_has_owners_that_are_execution_types(item):
    assert set(owners()[item.name]) <= KINDS
    assert item.stages is None or set(owners()[item.name]) == set(item.stages)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("model", KINDS),
        ("dtype", KINDS),
        ("tensor_parallel_size", KINDS),
        ("max_num_seqs", KINDS),
        ("ulysses_degree", {"diffusion"}),
        ("diffusion_kv_cache_dtype", {"diffusion"}),
        ("diffusion_attention_backend", {"diffusion"}),
        ("cache_backend", {"diffusion"}),
        ("attention_backend", {"ar", "generation"}),
        ("gpu_memory_utilization", {"ar", "generation"}),
        ("max_model_len", {"ar", "generation"}),
        ("max_queue", set()),
        ("async_chunk", set()),
    ],
)
def test_the_stages_that_have_a_setting(name, kinds):
    assert set(owners()[name]) == kinds


def test_settings_that_can_be_set_are_those_without_a_mark():
    assert set(engine_settings()) == {item.name for item in SETTINGS if not item.pending}
