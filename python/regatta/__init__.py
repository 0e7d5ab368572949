"""Regatta: distributed training of recommender models, from Python.

>>> import numpy as np
>>> import regatta as rg
>>> main, startup = rg.static.Program(), rg.static.Program()
>>> with rg.static.program_guard(main, startup), rg.unique_name.guard():
...     x = rg.static.data("x", [None, 2], "float32")
...     y = rg.static.data("y", [None, 1], "float32")
...     cost = rg.mean(rg.nn.functional.square_error_cost(rg.static.nn.fc(x, 1), y))
...     ops, params_grads = rg.optimizer.SGD(learning_rate=0.1).minimize(cost)
>>> exe = rg.static.Executor()
>>> exe.run(startup)
[]
>>> points = np.eye(2, dtype="float32")
>>> for step in range(200):
...     loss, = exe.run(main, feed={"x": points, "y": [[1.0], [2.0]]}, fetch_list=[cost])
>>> float(loss) < 1e-3
True

Modules and names follow Paddle 2.x; ``python -m regatta.paddle script.py`` runs scripts that say
``import paddle``. Names are loaded when they are first used.
"""
from __future__ import annotations

import sys
from importlib import import_module

# Editors and type checkers read __init__.pyi, which lists the same names.
_MODULES = (
    "amp", "base", "callbacks", "dataset", "device", "distributed", "errors", "fluid", "framework",
    "geometric", "hapi", "incubate", "inference", "io", "jit", "linalg", "metric", "nn",
    "optimizer", "paddle", "reader", "regularizer", "static", "tensor", "utils", "v2", "version",
    "vision",
)

# name: module and, if it differs, the name there.
_NAMES = {
    "__version__": "_core",
    "DataParallel": "distributed.DataParallel",
    "EagerParamBase": "_bridge",
    "PeerLost": "errors",
    "RegattaError": "errors",
    "op_kinds": "_core",
    "ParamAttr": "framework",
    "Tensor": "tensor.Tensor",
    "TrainReport": "_train",
    "batch": "batch",
    "bfloat16": "framework",
    "bool": "framework.bool_",
    "core": "base.core.",
    "create_parameter": "tensor.create_parameter",
    "disable_signal_handler": "_mode",
    "disable_static": "_mode",
    "dtype": "framework",
    "enable_grad": "_mode",
    "enable_static": "_mode",
    "float16": "framework",
    "float32": "framework",
    "float64": "framework",
    "get_default_dtype": "_mode",
    "get_flags": "_mode",
    "get_num_threads": "_mode",
    "grad": "_mode",
    "in_dynamic_mode": "_mode",
    "in_dynamic_or_pir_mode": "_mode.in_dynamic_mode",
    "in_dygraph_mode": "_mode.in_dynamic_mode",
    "int16": "framework",
    "int32": "framework",
    "int64": "framework",
    "int8": "framework",
    "is_grad_enabled": "_mode",
    "load": "_files",
    "no_grad": "_mode",
    "reset_default_programs": "framework",
    "save": "_files",
    "seed": "framework",
    "set_default_dtype": "_mode",
    "set_flags": "_mode",
    "set_grad_enabled": "_mode",
    "set_num_threads": "_mode",
    "set_printoptions": "_mode",
    "train": "_train",
    "uint8": "framework",
    "unique_name": "framework",
}
_DEVICE = (
    "CPUPlace", "CUDAPinnedPlace", "CUDAPlace", "IPUPlace", "NPUPlace", "XPUPlace", "get_device",
    "get_cudnn_version", "is_compiled_with_cinn", "is_compiled_with_cuda",
    "is_compiled_with_custom_device", "is_compiled_with_distribute", "is_compiled_with_ipu",
    "is_compiled_with_npu", "is_compiled_with_rocm", "is_compiled_with_xpu", "set_device",
)
_NAMES.update({name: "device" for name in _DEVICE})
_NAMES.update({"Model": "hapi.Model", "summary": "hapi.summary"})

# Not among them: what would hide Python's own names after `from regatta import *`.
__all__ = sorted(set(_MODULES) | set(_NAMES) - {"bool", "core", "__version__"})


def __getattr__(name: str):  # type: ignore[no-untyped-def]
    if name in _NAMES:
        return _remember(name, _named(name))
    if name in _MODULES:
        try:
            return import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
    if name == "torch":  # not among the modules: `from regatta import *` does without PyTorch
        try:
            return import_module(f"{__name__}.torch")
        except ImportError as error:
            raise AttributeError(str(error)) from None
    if not name.startswith("_"):
        tensor = import_module(f"{__name__}.tensor")
        if name in tensor.__all__:
            return _remember(name, getattr(tensor, name))
        from ._missing import absent

        raise absent(__name__, name, [*__all__, *tensor.__all__])
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def _named(name: str):  # type: ignore[no-untyped-def]
    module, _, attribute = _NAMES[name].partition(".")
    if attribute.endswith("."):  # a module below another
        return import_module(f"{__name__}.{module}.{attribute[:-1]}")
    try:
        found = import_module(f"{__name__}.{module}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}._core":
            raise
        raise ModuleNotFoundError(
            "regatta._core, the native part of Regatta, is not built: pip install ./python in a "
            "checkout, or pip install regatta-train", name=error.name,
        ) from None
    return getattr(found, attribute or name)


def _remember(name: str, value):  # type: ignore[no-untyped-def]
    setattr(sys.modules[__name__], name, value)
    return value


def __dir__() -> list:
    names = {*globals(), *_MODULES, *_NAMES}
    try:
        names.update(import_module(f"{__name__}.tensor").__all__)
    except ImportError:
        pass
    return sorted(name for name in names if not name.startswith("_") or name.startswith("__"))
