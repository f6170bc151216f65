"""Which backend serves a layer. What a user chose is honoured or refused before weights load, never replaced."""

from __future__ import annotations

import importlib.util
import logging
from typing import TYPE_CHECKING

from omnireel.attention.backend import AttentionBackend, all_backends
from omnireel.errors import BadSetting, MissingPackage, UnsupportedDevice, nearest

if TYPE_CHECKING:
    import torch

    from omnireel.attention.spec import AttentionConfig

logger = logging.getLogger(__name__)


def select_backend(
    config: AttentionConfig,
    *,
    role: str,
    category: str,
    head_dim: int,
    platform_name: str,
    preference: tuple[str, ...],
    dtype: torch.dtype | None = None,
) -> AttentionBackend:
    """The backend for the layers of one role; call it once a role, for it logs what it chose and why.

    Args:
        config: the user's choice; role, then category, then default, then `preference` decides.
        role: what the layer is for; `category` is the broader class of the role.
        head_dim: channels of a head.
        platform_name: the platform that the layer will run on.
        preference: the platform's own order, best first.
        dtype: type of q, k and v; None when it is not known yet, and then it is not checked.

    Raises:
        BadSetting: the chosen backend is unknown, or cannot serve this layer here.
        MissingPackage: the chosen backend needs a package that is not installed.
        UnsupportedDevice: nobody chose, and none of `preference` can serve this layer here.
    """
    backends = {backend.name: backend for backend in all_backends()}
    chosen = config.chosen(role, category)
    if chosen is None:
        return _preferred(backends, preference, role, (platform_name, head_dim, dtype))
    setting, name = chosen
    if name not in backends:
        raise _unknown(backends, setting, name)
    _check_chosen(backends[name], setting, (platform_name, head_dim, dtype))
    logger.info("attention %s: %s, chosen by %s", role, name, setting)
    return backends[name]


_Layer = tuple[str, int, "torch.dtype | None"]


def _preferred(
    backends: dict[str, AttentionBackend], preference: tuple[str, ...], role: str, layer: _Layer
) -> AttentionBackend:
    passed_over: list[str] = []
    for name in preference:
        known = name in backends
        problem = _problem(backends[name], layer) or _missing(backends[name]) if known else "it is not part of omnireel"
        if problem is None:
            reason = "".join(f"; {text}" for text in passed_over)
            logger.info("attention %s: %s, the default of %s%s", role, name, layer[0], reason)
            return backends[name]
        passed_over.append(f"{name} is unavailable: {problem}")
    raise UnsupportedDevice(f"an attention backend for {role} on {layer[0]}", "; ".join(("none", *passed_over)))


def _check_chosen(backend: AttentionBackend, setting: str, layer: _Layer) -> None:
    missing = _missing(backend)
    if missing is not None:
        raise MissingPackage(backend.package, f"attention backend {backend.name}", f"pip install {backend.package}")
    problem = _problem(backend, layer)
    if problem is not None:
        raise BadSetting(setting, backend.name, "attention settings", problem, hint="choose another, or auto")


def _problem(backend: AttentionBackend, layer: _Layer) -> str | None:
    """Why the backend cannot serve such a layer, packages aside; None when it can."""
    platform_name, head_dim, dtype = layer
    if backend.platforms is not None and platform_name not in backend.platforms:
        return f"it runs on {', '.join(backend.platforms)}, not on {platform_name}"
    if backend.head_dims and head_dim not in backend.head_dims:
        return f"it takes head sizes {_listed(backend.head_dims)}, this layer has {head_dim}"
    if dtype is not None and backend.dtypes and dtype not in backend.dtypes:
        return f"it takes {_listed(backend.dtypes)}, this layer has {dtype}"
    return backend.available() if _missing(backend) is None else None


def _missing(backend: AttentionBackend) -> str | None:
    if backend.package and importlib.util.find_spec(backend.package) is None:
        return f"the package {backend.package} is not installed"
    return None


def _unknown(backends: dict[str, AttentionBackend], setting: str, name: str) -> BadSetting:
    states = []
    for backend in backends.values():
        problem = _missing(backend) or backend.available()
        states.append(backend.name if problem is None else f"{backend.name} (unavailable: {problem})")
    close = nearest(name, backends)
    hint = f"did you mean {close!r}?" if close else ""
    return BadSetting(setting, name, "attention settings", f"known are {', '.join(states)}", hint=hint)


def _listed(values: tuple[object, ...]) -> str:
    shown = [str(value) for value in values]
    return ", ".join(shown) if len(shown) <= 8 else f"{shown[0]}, {shown[1]}, ... {shown[-1]}"
