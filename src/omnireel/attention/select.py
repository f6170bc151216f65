"""Which backend serves a layer. What a user chose is honoured or refused before weights load, never replaced; but a choice for
all or for a category leaves the layers that compute in float32 to TORCH_SDPA where the chosen backend has no float32.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from omnireel.attention.backend import AttentionBackend, Place, all_backends
from omnireel.errors import BadSetting, MissingPackage, UnsupportedDevice, nearest

if TYPE_CHECKING:
    from omnireel.attention.calibration import Calibration
    from omnireel.attention.spec import AttentionConfig

logger = logging.getLogger(__name__)

FALLBACK = "TORCH_SDPA"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    role: str
    place: Place
    head_dim: int
    dtype: torch.dtype | None
    is_mask_free: bool


def select_backend(  # noqa: PLR0913 - what decides is as it is; each is named
    config: AttentionConfig,
    *,
    role: str,
    category: str,
    head_dim: int,
    platform_name: str,
    preference: tuple[str, ...],
    capability: str = "",
    dtype: torch.dtype | None = None,
    is_mask_free: bool = False,
    calibration: Calibration | None = None,
) -> AttentionBackend:
    """The backend for the layers of one role; call it once a role, for it logs what it chose and why.

    Args:
        config: the user's choice; role, then category, then default, then `preference` decides.
        role: what the layer is for; `category` is the broader class of the role.
        head_dim: channels of a head.
        platform_name, capability: where the layer will run, as in `Place`.
        preference: the platform's own order, best first.
        dtype: type of q, k and v; None when it is not known yet, and then it is not checked.
        is_mask_free: no layer of the model ever needs a mask, so that a backend without may be taken unasked.
        calibration: the checkpoint's, for options that need one.

    Raises:
        BadSetting: the chosen backend is unknown, or cannot serve this layer here.
        MissingPackage: the chosen backend needs a package that is not installed.
        UnsupportedDevice: nobody chose, and none of `preference` can serve this layer here.
    """
    backends = {backend.name: backend for backend in all_backends()}
    place = Place(platform=platform_name, capability=capability)
    layer = _Layer(role=role, place=place, head_dim=head_dim, dtype=dtype, is_mask_free=is_mask_free)
    chosen = config.chosen(role, category)
    if chosen is None:
        return _preferred(backends, preference, layer)
    setting, spec = chosen
    if spec.backend not in backends:
        raise _unknown(backends, setting, spec.backend, place)
    backend = backends[spec.backend]
    is_broad = setting != f"attention.per_role.{role}"
    if is_broad and dtype is torch.float32 and backend.can.dtypes and dtype not in backend.can.dtypes:
        _check_place(backend, setting, place)
        logger.info("attention %s: %s, for %s of %s has no float32", role, FALLBACK, backend.name, setting)
        return backends[FALLBACK]
    options = spec.lowered()
    if options is not None and calibration is not None:
        options = {**options, "calibration": calibration}
    bound = _chosen(backend, setting, layer, options)
    logger.info("attention %s: %s, chosen by %s", role, bound.describe(), setting)
    return bound


def why_unavailable(backend: AttentionBackend, place: Place) -> str | None:
    """Why no layer could use it there, as the end of "it is unavailable: ..."; None when one could. Loads nothing."""
    missing = backend.missing(place)
    return (
        _elsewhere(backend, place)
        or (None if missing is None else f"{_package(backend)} installed ({missing})")
        or backend.available(place)
    )


def _preferred(backends: dict[str, AttentionBackend], preference: tuple[str, ...], layer: _Layer) -> AttentionBackend:
    passed_over: list[str] = []
    for name in preference:
        problem: str | None = "it is not part of omnireel"
        if name in backends:
            problem = why_unavailable(backends[name], layer.place) or _misfit(backends[name], layer)
            if problem is None and not layer.is_mask_free and backends[name].can.masks in ("none", "prefix"):
                problem = "it takes no masks, and this model may need them"
        if problem is None:
            try:
                bound = backends[name].bind(layer.place, None)
            except (ImportError, OSError, ValueError) as error:
                problem = f"it cannot be loaded ({error})"
            else:
                reason = "".join(f"; {text}" for text in passed_over)
                told = (layer.role, bound.describe(), layer.place.platform, reason)
                logger.info("attention %s: %s, the default of %s%s", *told)
                return bound
        passed_over.append(f"{name} is unavailable: {problem}")
    need = f"an attention backend for {layer.role} on {layer.place.platform}"
    raise UnsupportedDevice(need, "; ".join(("none", *passed_over)))


def _chosen(
    backend: AttentionBackend, setting: str, layer: _Layer, options: Mapping[str, Any] | None
) -> AttentionBackend:
    _check_place(backend, setting, layer.place)
    problem = _misfit(backend, layer)
    if problem is not None:
        raise _refused(setting, backend, problem)
    try:
        return backend.bind(layer.place, options)
    except (ImportError, OSError, ValueError) as error:
        raise _refused(setting, backend, f"it cannot be used: {error}") from error


def _check_place(backend: AttentionBackend, setting: str, place: Place) -> None:
    problem = _elsewhere(backend, place)
    if problem is not None:
        raise _refused(setting, backend, problem)
    missing = backend.missing(place)
    if missing is not None:
        raise MissingPackage(backend.package or backend.name, f"attention backend {backend.name}", missing)
    problem = backend.available(place)
    if problem is not None:
        raise _refused(setting, backend, problem)


def _package(backend: AttentionBackend) -> str:
    return f"the package {backend.package} is not" if backend.package else "none of its packages is"


def _refused(setting: str, backend: AttentionBackend, problem: str) -> BadSetting:
    return BadSetting(setting, backend.name, "attention settings", problem, hint="choose another, or auto")


def _elsewhere(backend: AttentionBackend, place: Place) -> str | None:
    can = backend.can
    if can.platforms is not None and place.platform not in can.platforms:
        return f"it runs on {', '.join(can.platforms)}, not on {place.platform}"
    fits = {place.capability, place.capability.partition(".")[0]}
    if can.capabilities and place.capability and not fits & set(can.capabilities):
        return f"it runs on capability {', '.join(can.capabilities)}, this device has {place.capability}"
    return None


def _misfit(backend: AttentionBackend, layer: _Layer) -> str | None:
    can = backend.can
    if can.head_dims and layer.head_dim not in can.head_dims:
        return f"it takes head sizes {_listed(can.head_dims)}, this layer has {layer.head_dim}"
    dtypes = backend.dtypes(layer.place)
    if layer.dtype is not None and dtypes and layer.dtype not in dtypes:
        return f"it takes {_listed(dtypes)}, this layer has {layer.dtype}"
    return None


def _unknown(backends: dict[str, AttentionBackend], setting: str, name: str, place: Place) -> BadSetting:
    states = []
    for backend in backends.values():
        problem = why_unavailable(backend, place)
        states.append(backend.name if problem is None else f"{backend.name} (unavailable: {problem})")
    close = nearest(name, backends)
    hint = f"did you mean {close!r}?" if close else ""
    return BadSetting(setting, name, "attention settings", f"known are {', '.join(states)}", hint=hint)


def _listed(values: tuple[object, ...]) -> str:
    shown = [str(value) for value in values]
    return ", ".join(shown) if len(shown) <= 8 else f"{shown[0]}, {shown[1]}, ... {shown[-1]}"
