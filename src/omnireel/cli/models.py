"""`omnireel models`: what can be served here, and what is missing where something cannot."""

from __future__ import annotations

import argparse
from typing import Any

from omnireel.cli import show
from omnireel.cli.command import Command
from omnireel.errors import OmniReelError


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", help='print one JSON object: {"models": [...], "pipelines": [...]}'
    )


def _run(arguments: argparse.Namespace) -> int:
    models, pipelines = _models(), _pipelines()
    if arguments.json:
        show.data({"models": models, "pipelines": pipelines})
        return 0
    for index, model in enumerate(models):
        if index:
            show.line("")
        show.line(f"{model['name']}: {model['summary']}")
        show.line(f"  tasks       {', '.join(model['tasks'])}")
        for name, problem in model["builtin"].items():
            show.line(f"  built in    {name}" + (f" (cannot be served: {problem})" if problem else ""))
        if model["architectures"]:
            show.line(f"  directories {', '.join(model['architectures'])} (give a checkpoint directory with --model)")
    for pipeline in pipelines:
        stages = ", ".join(f"{stage['name']} ({stage['type']})" for stage in pipeline["stages"])
        show.line(f"\n{pipeline['name']}: a pipeline of stages (give its name with --pipeline)\n  stages      {stages}")
    return 0


def _models() -> list[dict[str, Any]]:
    from omnireel.models.discover import all_facts

    return [
        {
            "name": facts.name,
            "summary": facts.summary,
            "tasks": list(facts.tasks),
            "architectures": list(facts.architectures),
            "builtin": {name: _problem(name) for name in facts.builtin},
        }
        for facts in all_facts()
        if not facts.is_stage
    ]


def _pipelines() -> list[dict[str, Any]]:
    from omnireel.models.discover import all_facts

    found = sorted((topology for facts in all_facts() for topology in facts.topologies), key=lambda one: one.name)
    return [
        {
            "name": topology.name,
            "stages": [{"name": stage.name, "type": str(stage.execution_type)} for stage in topology.stages],
        }
        for topology in found
    ]


def _problem(name: str) -> str | None:
    """Why a built-in model cannot be served; None where it can."""
    from omnireel.models.discover import find_checkpoint

    try:
        find_checkpoint(name)
    except OmniReelError as error:
        return error.message
    return None


COMMAND = Command(name="models", summary="list what can be served, and why not", add_flags=_add_flags, run=_run)
