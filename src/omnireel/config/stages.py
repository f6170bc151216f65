"""Settings of pipelines of several stages."""

from __future__ import annotations

from dataclasses import dataclass

from omnireel.request import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class StagesSpec:
    """Which stages there are, and how they hand on what they make."""

    pipeline: str | None = setting(
        None, "pipeline of several stages, by its name; the model alone when absent", metavar="NAME", stages=()
    )
    async_chunk: bool = setting(False, "let stages begin on parts of their input", stages=())
    stage_connector: str | None = setting(
        None,
        "how arrays come to a stage; when absent as its processes need it",
        choices=("MemoryConnector", "SharedMemoryConnector", "TcpConnector"),
    )
    connector_host: str = setting("127.0.0.1", "address that a TcpConnector listens at", stages=())
