"""The part of Paddle's native module that scripts name."""
from __future__ import annotations

from typing import Any

from ..errors import RegattaError
from .._missing import missing
from ..device import (
    CPUPlace, CUDAPinnedPlace, CUDAPlace, Place, XPUPlace, is_compiled_with_cuda,
    is_compiled_with_custom_device, is_compiled_with_distribute, is_compiled_with_npu,
    is_compiled_with_rocm, is_compiled_with_xpu,
)
from ..fluid.lod_tensor import LoDTensor
from ..framework import Scope

__all__ = [
    "CPUPlace", "CUDAPinnedPlace", "CUDAPlace", "EOFException", "EnforceNotMet", "LoDTensor",
    "PSGPU", "Place", "Scope", "XPUPlace", "get_cuda_device_count", "is_compiled_with_cuda",
    "is_compiled_with_custom_device", "is_compiled_with_distribute", "is_compiled_with_npu",
    "is_compiled_with_rocm", "is_compiled_with_xpu",
]

#: What the engine raises.
EnforceNotMet = RegattaError


class EOFException(Exception):
    """A loader that was started has no more batches."""


class PSGPU:
    """Tables in tiers, by pass over the data. Python scripts of Regatta compute on CPUs: rows are in
    the memory of the parameter servers and on their disks, and workers pull what a batch needs.
    Calls are checked, and a warning says so once."""

    def __init__(self) -> None:
        import warnings

        warnings.warn("PSGPU: Regatta computes on CPUs; the rows stay on the parameter servers")
        self._slots: list = []
        self._in_pass = False

    def set_slot_vector(self, slots: list) -> None:
        """Takes the numbers of the slots."""
        self._slots = [int(slot) for slot in slots]

    def set_slot_dim_vector(self, dims: list) -> None:
        """Takes the widths of the slots, one for each."""
        if self._slots and len(dims) != len(self._slots):
            raise ValueError(f"PSGPU: {len(dims)} widths for {len(self._slots)} slots")

    def init_gpu_ps(self, devices: list) -> None:
        """Takes the numbers of cards."""
        if not devices:
            raise ValueError("PSGPU: there are no devices in the list")

    def set_date(self, year: int, month: int, day: int) -> None:
        """Takes the day of the data."""

    def begin_pass(self) -> None:
        """A pass over the data begins. It is an error if one has begun already."""
        if self._in_pass:
            raise RuntimeError("PSGPU: a pass has begun already; call end_pass first")
        if _has_servers():
            _fleet().begin_pass()
        self._in_pass = True

    def end_pass(self) -> None:
        """A pass over the data has ended: the servers have all that this worker has changed."""
        if not self._in_pass:
            raise RuntimeError("PSGPU: no pass has begun; call begin_pass first")
        self._in_pass = False
        if _has_servers():
            _fleet().end_pass()

    def finalize(self) -> None:
        """Training has ended, and with it a pass that is still open."""
        if self._in_pass:
            self.end_pass()


def _fleet() -> Any:
    from ..distributed import fleet

    return fleet.fleet


def _has_servers() -> bool:
    """Whether this process is a worker of parameter servers."""
    job = getattr(_fleet(), "_job", None)
    return job is not None and job.core.server_num() > 0


def get_cuda_device_count() -> int:
    """0: Regatta computes on CPUs."""
    return 0


__getattr__ = missing(__name__)
