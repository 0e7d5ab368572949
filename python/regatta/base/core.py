"""The part of Paddle's native module that scripts name."""
from __future__ import annotations

from ..errors import RegattaError
from .._missing import missing
from ..device import (
    CPUPlace, CUDAPinnedPlace, CUDAPlace, Place, XPUPlace, is_compiled_with_cuda,
    is_compiled_with_custom_device, is_compiled_with_distribute, is_compiled_with_npu,
    is_compiled_with_rocm, is_compiled_with_xpu,
)
from ..framework import Scope, TensorView as LoDTensor

__all__ = [
    "CPUPlace", "CUDAPinnedPlace", "CUDAPlace", "EOFException", "EnforceNotMet", "LoDTensor",
    "Place", "Scope", "XPUPlace", "get_cuda_device_count", "is_compiled_with_cuda",
    "is_compiled_with_custom_device", "is_compiled_with_distribute", "is_compiled_with_npu",
    "is_compiled_with_rocm", "is_compiled_with_xpu",
]

#: What the engine raises.
EnforceNotMet = RegattaError


class EOFException(Exception):
    """A loader that was started has no more batches."""


def get_cuda_device_count() -> int:
    """0: Regatta computes on CPUs."""
    return 0


__getattr__ = missing(__name__)
