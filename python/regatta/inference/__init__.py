"""Predictors with the interface of ``paddle.inference``, over models that Regatta saved.

New code reads better with :class:`regatta.Model`.
"""
from __future__ import annotations

import os
from typing import Any, Dict, List, Optional

from .._missing import missing
from .._model import SavedModel, model_folder

__all__ = ["Config", "DataType", "Predictor", "Tensor", "create_predictor", "get_version"]


class DataType:
    """Element types by the names of ``paddle.inference``."""

    FLOAT32, INT64, INT32 = "float32", "int64", "int32"


class Config:
    """Which model, and with how many threads. Switches for other hardware and for Paddle's own
    optimizations are refused or change nothing, as each says."""

    def __init__(
        self, model: Optional[str] = None, params: Optional[str] = None
    ) -> None:
        self._path, self._threads = model, 1

    def set_model(self, model: str, params: Optional[str] = None) -> None:
        """The folder of a model, or its ``.pdmodel``."""
        self._path = model

    def set_prog_file(self, path: str) -> None:
        """The ``.pdmodel`` of a model."""
        self._path = path

    def set_params_file(self, path: str) -> None:
        """Nothing: the model names its parameters."""

    def prog_file(self) -> str:
        """The path of the model."""
        return self._path or ""

    model_dir = params_file = prog_file

    def set_cpu_math_library_num_threads(self, n: int) -> None:
        """Threads that share a batch."""
        self._threads = int(n)

    def cpu_math_library_num_threads(self) -> int:
        """Threads that share a batch."""
        return self._threads

    def disable_gpu(self) -> None:
        """Nothing: models answer on CPUs."""

    def use_gpu(self) -> bool:
        """False."""
        return False

    def enable_use_gpu(self, memory_pool_init_size_mb: int, device_id: int = 0) -> None:
        """Warns once: Regatta computes on CPUs."""
        from ..device import CUDAPlace

        CUDAPlace(device_id)

    def enable_mkldnn(self) -> None:
        """Nothing: kernels are Regatta's own."""

    def switch_ir_optim(self, x: bool = True) -> None:
        """Nothing: programs are always optimized."""

    def switch_use_feed_fetch_ops(self, x: bool = True) -> None:
        """Nothing: programs have no such ops."""

    def switch_specify_input_names(self, x: bool = True) -> None:
        """Nothing: inputs have names."""

    def enable_memory_optim(self, x: bool = True) -> None:
        """Nothing: memory is always shared."""

    def disable_glog_info(self) -> None:
        """Nothing: predictors print nothing."""


class Tensor:
    """An input or an output of a predictor."""

    def __init__(self, name: str, values: Dict[str, Any]) -> None:
        self._name, self._values = name, values

    def name(self) -> str:
        """The name."""
        return self._name

    def reshape(self, shape: Any) -> None:
        """Nothing: the array that is copied in has its shape."""

    def copy_from_cpu(self, data: Any) -> None:
        """Sets an input."""
        import numpy as np

        self._values[self._name] = np.ascontiguousarray(data)

    def copy_to_cpu(self) -> Any:
        """The array of an output."""
        if self._name not in self._values:
            raise RuntimeError(f"'{self._name}' has no value: call run() first")
        return self._values[self._name]

    def shape(self) -> List[int]:
        """Dimensions."""
        return list(self.copy_to_cpu().shape)

    def type(self) -> str:
        """The element type."""
        return str(self.copy_to_cpu().dtype)


class Predictor:
    """Runs a model."""

    def __init__(self, config: Config) -> None:
        if not config._path:
            raise ValueError("create_predictor: the config names no model")
        self._model = SavedModel.open(model_folder(os.fspath(config._path)), config._threads)
        self._inputs: Dict[str, Any] = {}
        self._outputs: Dict[str, Any] = {}

    def get_input_names(self) -> List[str]:
        """Names of the inputs."""
        return [each.name for each in self._model.inputs]

    def get_output_names(self) -> List[str]:
        """Names of the outputs."""
        return self._model.outputs

    def get_input_handle(self, name: str) -> Tensor:
        """An input by name."""
        return Tensor(_known(name, self.get_input_names()), self._inputs)

    def get_output_handle(self, name: str) -> Tensor:
        """An output by name."""
        return Tensor(_known(name, self.get_output_names()), self._outputs)

    get_input_tensor, get_output_tensor = get_input_handle, get_output_handle

    def run(self, inputs: Optional[List[Any]] = None) -> Any:
        """Computes the outputs; with a list of inputs it returns their list."""
        if inputs is not None:
            self._inputs.update(zip(self.get_input_names(), inputs))
        self._outputs.update(self._model.predict(self._inputs))
        if inputs is not None:
            return [self._outputs[name] for name in self.get_output_names()]
        return True

    zero_copy_run = run


def _known(name: str, names: List[str]) -> str:
    if name not in names:
        raise ValueError(f"the model has no '{name}', only {names}")
    return name


def create_predictor(config: Config) -> Predictor:
    """A predictor for the model of a config."""
    return Predictor(config)


def get_version() -> str:
    """Versions as text."""
    from .. import version

    return f"version: {version.full_version}"


__getattr__ = missing(__name__)
