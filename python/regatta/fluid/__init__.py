"""The API of Paddle Fluid: programs of layers, executors, and the transpiler of jobs.

>>> import numpy as np
>>> import regatta.fluid as fluid
>>> main, startup = fluid.Program(), fluid.Program()
>>> with fluid.program_guard(main, startup), fluid.unique_name.guard():
...     x = fluid.layers.data(name="x", shape=[2], dtype="float32")
...     y = fluid.layers.data(name="y", shape=[1], dtype="float32")
...     cost = fluid.layers.square_error_cost(input=fluid.layers.fc(input=x, size=1), label=y)
...     avg_cost = fluid.layers.mean(x=cost)
...     ops, params_grads = fluid.optimizer.SGD(learning_rate=0.1).minimize(avg_cost)
>>> exe = fluid.Executor(fluid.CPUPlace())
>>> exe.run(startup)
[]
>>> feed = {"x": np.eye(2, dtype="float32"), "y": np.ones((2, 1), "float32")}
>>> for step in range(200):
...     loss, = exe.run(main, feed=feed, fetch_list=[avg_cost])
>>> bool(loss[0] < 1e-3)
True

Names are loaded when they are first used.
"""
from __future__ import annotations

import importlib
import sys
from typing import Any

# name: module, and the name there if it differs
_NAMES = {
    "Block": "..framework", "ParamAttr": "..framework", "Parameter": "..framework",
    "Operator": "..framework", "Program": "..framework", "Scope": "..framework",
    "Variable": "..framework", "default_main_program": "..framework",
    "default_startup_program": "..framework", "global_scope": "..framework",
    "name_scope": "..framework", "program_guard": "..framework", "scope_guard": "..framework",
    "Executor": "..executor", "FetchHandler": "..executor",
    "CPUPlace": "..device", "CUDAPinnedPlace": "..device", "CUDAPlace": "..device",
    "NPUPlace": "..device", "XPUPlace": "..device", "cpu_places": "..device",
    "cuda_places": "..device", "is_compiled_with_cuda": "..device",
    "is_compiled_with_xpu": "..device", "is_compiled_with_rocm": "..device",
    "set_flags": "..", "get_flags": "..",
    "DataFeeder": ".data_feeder", "LoDTensor": ".lod_tensor", "Tensor": ".lod_tensor:LoDTensor",
    "LoDTensorArray": ".lod_tensor", "create_lod_tensor": ".lod_tensor",
    "create_random_int_lodtensor": ".lod_tensor",
    "BuildStrategy": ".compiler", "CompiledProgram": ".compiler", "ExecutionStrategy": ".compiler",
    "ParallelExecutor": ".parallel_executor",
    "DistributeTranspiler": ".transpiler", "DistributeTranspilerConfig": ".transpiler",
    "memory_optimize": ".transpiler", "release_memory": ".transpiler",
    "BeginEpochEvent": ".trainer", "BeginStepEvent": ".trainer", "CheckpointConfig": ".trainer",
    "EndEpochEvent": ".trainer", "EndStepEvent": ".trainer", "Trainer": ".trainer",
    "Inferencer": ".inferencer", "DatasetFactory": ".dataset",
    "data": "..static", "device_guard": "..static", "gradients": "..static", "save": "..static",
    "load": "..static", "append_backward": ".backward",
    "embedding": "..static.nn", "one_hot": ".layers:one_hot_v2",
    "in_dygraph_mode": ".framework",
}
_MODULES = (
    "backward", "clip", "compiler", "contrib", "core", "data_feeder", "dataset", "dygraph",
    "executor", "framework", "incubate", "inferencer", "initializer", "io", "layers", "lod_tensor",
    "metrics", "nets", "optimizer", "parallel_executor", "param_attr", "profiler", "reader",
    "regularizer", "trainer", "transpiler", "unique_name",
)
_DYNAMIC = ("enable_dygraph", "disable_dygraph", "enable_imperative", "disable_imperative",
            "save_dygraph", "load_dygraph", "VarBase")

__all__ = sorted({*_NAMES, *_MODULES})


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        where, _, real = _NAMES[name].partition(":")
        module = importlib.import_module(where, __name__)
        value = getattr(module, real or name)
        setattr(sys.modules[__name__], name, value)
        return value
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name == "WeightNormParamAttr":
        from . import param_attr

        return param_attr.WeightNormParamAttr
    if name in _DYNAMIC:
        from . import dygraph

        return getattr(dygraph, name)
    from .._missing import missing

    return missing(__name__)(name)


def __dir__() -> list:
    return list(__all__)


def require_version(min_version: str, max_version: Any = None) -> None:
    """Accepts what Regatta speaks of Paddle: versions up to 2.6.2."""
    def key(text: str) -> list:
        parts = [int(part) for part in str(text).split(".") if part.isdigit()]
        return parts + [0] * (4 - len(parts))

    if key(min_version) > key("2.6.2"):
        raise Exception(f"Paddle {min_version} or later is required; Regatta speaks that of 2.6.2")
