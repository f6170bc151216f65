"""Classes that settings name: of installed packages, never of a checkpoint."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from omnireel.errors import nearest

T = TypeVar("T")
_FOREIGN = "it lies in the model's folder, and no code of a checkpoint is ever run"


def class_named(name: str, base: type[T], checkpoint: Path | None = None) -> type[T]:
    """The class that "package.module.Class" names, which is `base` or made from it; "" names `base`.

    Args:
        checkpoint: folder of the model; nothing in it is imported.

    Raises:
        ValueError: there is none, it cannot be imported, or it is another kind of thing; with what is wrong.
    """
    if not name:
        return base
    module, _, attribute = name.rpartition(".")
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        # One by one, since to look for a module is to import the package around it.
        _check_there(".".join(parts[:count]), checkpoint)
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except Exception as error:
        raise ValueError(f"{module} cannot be imported ({type(error).__name__}: {error})") from error
    if found is None:
        close = nearest(attribute, vars(importlib.import_module(module)))
        raise ValueError(f"{module} has no {attribute}" + (f"; did you mean {close}?" if close else ""))
    if not isinstance(found, type) or not issubclass(found, base):
        raise ValueError(f"it must be a subclass of {base.__module__}.{base.__qualname__}")
    return found


def _check_there(module: str, checkpoint: Path | None) -> None:
    try:
        spec = importlib.util.find_spec(module)
    except Exception as error:
        # A package around it that cannot be imported, or is none.
        raise ValueError(f"{module} cannot be imported ({type(error).__name__}: {error})") from error
    if spec is None:
        raise ValueError(f"no module {module} is installed")
    if checkpoint is not None:
        places = [
            *(spec.submodule_search_locations or ()),
            *([spec.origin] if spec.has_location and spec.origin else []),
        ]
        if any(_lies_in(Path(place), checkpoint) for place in places):
            raise ValueError(_FOREIGN)


def _lies_in(place: Path, folder: Path) -> bool:
    """As it is written and where links lead: files of a hub's folder are links out of it."""
    return any(one.is_relative_to(other) for one in _both(place) for other in _both(folder))


def _both(path: Path) -> Iterator[Path]:
    yield path.absolute()
    yield path.resolve()
