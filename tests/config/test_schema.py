"""The schema says of a deploy file what `resolve` does, as far as a schema can."""

from pathlib import Path

import pytest
from tests.support.settings import two_values

from omnireel.config import deploy_schema, engine_settings, owners, resolve

SCHEMA = deploy_schema()
OF_THE_COMMAND = {"deploy_config", "stage_overrides"}
TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "object": dict, "array": list}


def test_its_keys_are_the_settings_that_can_be_set():
    aliases = {alias for item in engine_settings().values() for alias in item.aliases}
    wide = set(SCHEMA["properties"]) - {"stages"}
    assert wide == set(engine_settings()) - OF_THE_COMMAND | aliases | {"parallel_config"}
    stage = set(SCHEMA["properties"]["stages"]["items"]["properties"]) - {"stage_id", "name", "engine_extras"}
    assert stage == {name for name in engine_settings() if owners()[name]} | aliases | {"parallel_config"}


@pytest.mark.parametrize("name", [name for name in engine_settings() if name not in OF_THE_COMMAND])
def test_a_value_of_its_type_is_one_that_is_taken(name):
    found = SCHEMA["properties"][name]
    value = two_values(engine_settings()[name])[0]
    value = str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
    kinds = found["type"] if isinstance(found["type"], list) else [found["type"]]
    assert isinstance(value, TYPES[kinds[0]])
    assert ("null" in kinds) == engine_settings()[name].is_optional
    beside = {"ulysses_degree": value} if name in ("sequence_parallel_size", "vae_patch_parallel_size") else {}
    assert resolve({name: value, **beside}, {}).values[name] is not None
    if "enum" in found:
        assert value in found["enum"]


def test_bounds_are_those_of_the_field():
    assert SCHEMA["properties"]["num_threads"]["minimum"] == 1
    assert SCHEMA["properties"]["num_threads"]["maximum"] == 4096
