"""Settings of pipelines of several stages."""

from __future__ import annotations

from dataclasses import dataclass

from omnireel.request import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class StagesSpec:
    """Which stages there are."""

    pipeline: str | None = setting(
        None, "pipeline of several stages, by its name; the model alone when absent", metavar="NAME", stages=()
    )
