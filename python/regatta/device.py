"""Where programs run. Regatta computes on the processors of the machine: other places are accepted,
so that scripts run, and a warning says what happens."""
from __future__ import annotations

import os
import warnings
from typing import Any, List, Optional, Sequence

from ._missing import missing

__all__ = [
    "CPUPlace", "CUDAPinnedPlace", "CUDAPlace", "IPUPlace", "NPUPlace", "Place", "XPUPlace",
    "cpu_places", "cuda_places", "device_count", "get_all_device_type", "get_available_device",
    "get_cudnn_version", "get_device", "is_compiled_with_cinn", "is_compiled_with_cuda",
    "is_compiled_with_custom_device", "is_compiled_with_distribute", "is_compiled_with_ipu",
    "is_compiled_with_npu", "is_compiled_with_rocm", "is_compiled_with_xpu", "set_device",
]


class Place:
    """Where a program runs."""

    _kind = "cpu"

    def __init__(self, device_id: int = 0) -> None:
        self._id = int(device_id)

    def get_device_id(self) -> int:
        """The number of the device."""
        return self._id

    def is_cpu_place(self) -> bool:
        """Whether the place is named as the processor."""
        return self._kind == "cpu"

    def is_gpu_place(self) -> bool:
        """Whether the place is named as a graphics card."""
        return self._kind == "gpu"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and (self._kind, self._id) == (other._kind, other._id)

    def __hash__(self) -> int:
        return hash((self._kind, self._id))

    def __repr__(self) -> str:
        return f"Place({self._kind})" if self._kind == "cpu" else f"Place({self._kind}:{self._id})"


class CPUPlace(Place):
    """The processors of this machine."""

    def __init__(self) -> None:
        super().__init__(0)


_warned = False


def _warn(name: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(f"{name}: Regatta computes on CPUs", UserWarning, stacklevel=3)


class CUDAPlace(Place):
    """Accepted, with a warning: Regatta computes on CPUs."""

    _kind = "gpu"

    def __init__(self, device_id: int = 0) -> None:
        super().__init__(device_id)
        _warn("CUDAPlace")


class XPUPlace(Place):
    """Accepted, with a warning: Regatta computes on CPUs."""

    _kind = "xpu"

    def __init__(self, device_id: int = 0) -> None:
        super().__init__(device_id)
        _warn("XPUPlace")


class NPUPlace(Place):
    """Accepted, with a warning: Regatta computes on CPUs."""

    _kind = "npu"

    def __init__(self, device_id: int = 0) -> None:
        super().__init__(device_id)
        _warn("NPUPlace")


class IPUPlace(Place):
    """Accepted, with a warning: Regatta computes on CPUs."""

    _kind = "ipu"

    def __init__(self) -> None:
        super().__init__(0)
        _warn("IPUPlace")


class CUDAPinnedPlace(Place):
    """Memory of this machine, as all memory here."""

    def __init__(self) -> None:
        super().__init__(0)


_PLACES = {"gpu": CUDAPlace, "cuda": CUDAPlace, "xpu": XPUPlace, "npu": NPUPlace}
_current: Place = CPUPlace()


def set_device(device: Any) -> Place:
    """Names the place of this process and returns it: ``"cpu"``, ``"gpu"``, ``"gpu:1"``, ...
    Whatever the name, Regatta computes on CPUs; others than ``"cpu"`` warn of it once.

    >>> set_device("cpu")
    Place(cpu)
    """
    global _current
    if isinstance(device, Place):
        _current = device
        return _current
    kind, _, number = str(device).lower().partition(":")
    if kind == "cpu" and not number:
        _current = CPUPlace()
    elif kind in _PLACES and (not number or number.isdigit()):
        _current = _PLACES[kind](int(number or 0))
    elif kind == "ipu" and not number:
        _current = IPUPlace()
    else:
        raise ValueError(
            f"set_device: '{device}' is not a device; expected cpu, gpu, gpu:N, xpu:N or npu:N"
        )
    return _current


def get_device() -> str:
    """The name that :func:`set_device` was given, ``"cpu"`` at first."""
    place = _current
    return "cpu" if place._kind == "cpu" else f"{place._kind}:{place._id}"


def cpu_places(device_count: Optional[int] = None) -> List[CPUPlace]:
    """As many places as ``CPU_NUM`` says, 1 if it is not set."""
    n = int(os.environ.get("CPU_NUM", "1")) if device_count is None else int(device_count)
    return [CPUPlace() for _ in range(n)]


def cuda_places(device_ids: Optional[Sequence[int]] = None) -> List[CUDAPlace]:
    """Places of graphics cards: those of ``FLAGS_selected_gpus`` if none are given."""
    if device_ids is None:
        chosen = os.environ.get("FLAGS_selected_gpus", "0")
        device_ids = [int(i) for i in chosen.split(",") if i.strip()]
    return [CUDAPlace(i) for i in device_ids]


def xpu_places(device_ids: Optional[Sequence[int]] = None) -> List[XPUPlace]:
    """Places of accelerators; one if none are given."""
    return [XPUPlace(i) for i in (device_ids if device_ids is not None else [0])]


def device_count() -> int:
    """Accelerators that programs may use: none."""
    return 0


def get_all_device_type() -> List[str]:
    """Kinds of devices that programs may use."""
    return ["cpu"]


def get_available_device() -> List[str]:
    """Devices that programs may use."""
    return ["cpu"]


def get_cudnn_version() -> None:
    """There is none."""


def is_compiled_with_cuda() -> bool:
    """False: Regatta computes on CPUs."""
    return False


is_compiled_with_rocm = is_compiled_with_xpu = is_compiled_with_npu = is_compiled_with_cuda
is_compiled_with_ipu = is_compiled_with_cinn = is_compiled_with_cuda


def is_compiled_with_custom_device(device_type: str) -> bool:
    """False, for every kind of device."""
    return False


def is_compiled_with_distribute() -> bool:
    """True."""
    return True


__getattr__ = missing(__name__)
