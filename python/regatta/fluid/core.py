"""``paddle.fluid.core``: what scripts take from Paddle's native module."""
from __future__ import annotations

from typing import Any

from .._missing import missing
from ..base.core import EOFException, EnforceNotMet, get_cuda_device_count  # noqa: F401
from ..device import CPUPlace, CUDAPinnedPlace, CUDAPlace, NPUPlace, XPUPlace  # noqa: F401
from ..framework import Scope  # noqa: F401
from .lod_tensor import LoDTensor, LoDTensorArray  # noqa: F401

__all__ = [
    "CPUPlace", "CUDAPinnedPlace", "CUDAPlace", "EOFException", "EnforceNotMet", "LoDTensor",
    "LoDTensorArray", "NPUPlace", "Scope", "VarDesc", "XPUPlace", "get_cuda_device_count",
    "get_cudnn_version", "globals", "is_compiled_with_cuda", "is_compiled_with_dist",
    "op_support_gpu",
]


class VarDesc:
    """Kinds of variables, by name."""

    class VarType:
        """Element types and layouts. Element types equal their names: ``FP32 == "float32"``."""

        BOOL, INT8, INT16, INT32, INT64 = "bool", "int8", "int16", "int32", "int64"
        UINT8, FP16, FP32, FP64, BF16 = "uint8", "float16", "float32", "float64", "bfloat16"
        LOD_TENSOR, SELECTED_ROWS = "LOD_TENSOR", "SELECTED_ROWS"
        LOD_TENSOR_ARRAY, READER, RAW = "LOD_TENSOR_ARRAY", "READER", "RAW"
        FEED_MINIBATCH, FETCH_LIST = "FEED_MINIBATCH", "FETCH_LIST"
        STEP_SCOPES, STRINGS = "STEP_SCOPES", "STRINGS"


get_npu_device_count = get_xpu_device_count = get_cuda_device_count


def get_cudnn_version() -> int:
    """-1: there is none."""
    return -1


def is_compiled_with_cuda() -> bool:
    """False: Regatta computes on CPUs."""
    return False


is_compiled_with_xpu = is_compiled_with_npu = is_compiled_with_rocm = is_compiled_with_cuda


def is_compiled_with_dist() -> bool:
    """True."""
    return True


def op_support_gpu(op_type: str) -> bool:
    """False: Regatta computes on CPUs."""
    return False


def globals() -> Any:
    """Flags of Paddle."""
    from .._mode import _FLAGS, get_flags

    return get_flags(list(_FLAGS))


__getattr__ = missing(__name__)
