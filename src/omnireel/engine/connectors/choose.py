"""Which connector brings arrays to each stage, by the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from omnireel.engine.connectors.memory import MemoryConnector
from omnireel.engine.connectors.shm import SharedMemoryConnector
from omnireel.engine.connectors.tcp import TcpConnector
from omnireel.errors import BadSetting

if TYPE_CHECKING:
    from omnireel.config import ResolvedConfig
    from omnireel.engine.connectors import Connector


def build_connectors(config: ResolvedConfig, is_here: Sequence[bool]) -> Mapping[int, Connector]:
    """By number of the stage that receives. Without `async_chunk` and without a choice arrays go with the request itself.

    Args:
        is_here: of each stage, whether it runs in this process.

    Raises:
        BadSetting: a MemoryConnector was chosen for a stage of another process, or a SharedMemoryConnector for one of another machine, or the address is not one of this machine.
    """
    found: dict[int, Connector] = {}
    for stage in config.stages:
        name = stage.values["stage_connector"]
        if stage.facts.inputs and (name is not None or config.stages_flags.async_chunk):
            is_far = stage.values["distributed_executor_backend"] == "ray"
            apart = "TcpConnector" if is_far else "SharedMemoryConnector"
            name = name or ("MemoryConnector" if is_here[stage.number] else apart)
            if name == "SharedMemoryConnector" and is_far:
                source, allowed = str(stage.sources["stage_connector"]), "workers of Ray may be on another machine"
                raise BadSetting("stage_connector", name, source, allowed, hint="use TcpConnector")
            if name == "MemoryConnector" and not is_here[stage.number]:
                source = str(stage.sources["stage_connector"])
                raise BadSetting("stage_connector", name, source, f"stage {stage.number} runs in another process")
            found[stage.number] = _built(name, config)
    return found


def _built(name: str, config: ResolvedConfig) -> Connector:
    if name != "TcpConnector":
        return SharedMemoryConnector() if name == "SharedMemoryConnector" else MemoryConnector()
    host = config.stages_flags.connector_host
    try:
        return TcpConnector(host)
    except OSError as error:
        allowed = f"nothing can listen there ({error.strerror})"
        raise BadSetting("connector_host", host, str(config.sources["connector_host"]), allowed) from None
