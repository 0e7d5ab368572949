"""Functions on the parameters of layers."""
from __future__ import annotations

from typing import Any, Iterable, List, Optional

from .. import _core
from .._bridge import EagerParamBase
from .._missing import missing
from .._mode import no_grad
from ..framework import Tensor
from ..tensor import linalg, manipulation
from .layers import Layer

__all__ = [
    "clip_grad_norm_", "clip_grad_value_", "parameters_to_vector", "remove_weight_norm",
    "vector_to_parameters", "weight_norm",
]


def parameters_to_vector(parameters: Iterable[Tensor], name: Optional[str] = None) -> Tensor:
    """All elements of parameters one after the other."""
    return manipulation.concat([manipulation.reshape(p, [-1]) for p in parameters], 0)


def vector_to_parameters(
    vec: Tensor, parameters: Iterable[Tensor], name: Optional[str] = None
) -> None:
    """Parameters take their elements from a vector."""
    values, at = vec.numpy(), 0
    for parameter in parameters:
        size = parameter.size
        parameter._set(values[at:at + size].reshape(parameter.shape))
        at += size
    if at != values.size:
        raise ValueError(f"vector_to_parameters: {values.size} elements for {at}")


def _with_grads(parameters: Any) -> List[Tensor]:
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [p for p in given if p._has_grad]


def clip_grad_norm_(
    parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """Scales all gradients so that their common length is at most ``max_norm``. Returns what it
    was."""
    import numpy as np

    found = _with_grads(parameters)
    lengths = [np.abs(p.grad.numpy()).reshape(-1) for p in found]
    if not found:
        return Tensor(0.0, "float32")
    if norm_type == float("inf"):
        total = max(float(a.max()) for a in lengths)
    else:
        power = float(norm_type)
        total = sum(float((a.astype("float64") ** power).sum()) for a in lengths) ** (1.0 / power)
    if error_if_nonfinite and not np.isfinite(total):
        raise RuntimeError(f"clip_grad_norm_: the length of the gradients is {total}")
    _core.unscale(found, min(float(max_norm) / (total + 1e-6), 1.0))
    return Tensor(total, "float32")


def clip_grad_value_(parameters: Any, clip_value: float) -> None:
    """Limits every element of the gradients to ``[-clip_value, clip_value]``."""
    with no_grad():
        for parameter in _with_grads(parameters):
            parameter.grad = parameter.grad.clip(-abs(clip_value), abs(clip_value))


# --- weight normalization ------------------------------------------------------------------------


def _length(value: Any, dim: int) -> Any:
    """The length of the parts of a dimension, or of the whole for -1."""
    if dim == -1:
        return linalg.norm(value)
    return linalg.norm(value, 2, [d for d in range(len(value.shape)) if d != dim], True)


class _WeightNorm:
    def __init__(self, name: str, dim: int) -> None:
        self.name, self.dim = name, dim

    def weight(self, layer: Layer) -> Any:
        """``g * v / |v|``."""
        g, v = getattr(layer, self.name + "_g"), getattr(layer, self.name + "_v")
        if self.dim == -1:
            return v * (g / _length(v, -1))
        shape = [1] * len(v.shape)
        shape[self.dim] = -1
        return v * (manipulation.reshape(g, shape) / _length(v, self.dim))

    def __call__(self, layer: Layer, inputs: Any) -> None:
        object.__setattr__(layer, self.name, self.weight(layer))


def weight_norm(layer: Layer, name: str = "weight", dim: Optional[int] = 0) -> Layer:
    """Learns length and direction of a parameter apart: ``g * v / |v|``."""
    at = -1 if dim is None else dim
    value = layer._parameters.pop(name)
    layer.__dict__.pop(name, None)
    length = _length(value.detach(), at)
    norm = _WeightNorm(name, at)
    layer.add_parameter(name + "_v", EagerParamBase(value.detach(), "float32", value.name + "_v"))
    layer.add_parameter(name + "_g", EagerParamBase(
        manipulation.reshape(length, [-1]), "float32", value.name + "_g"))
    norm(layer, ())
    object.__setattr__(layer, "_weight_norm_" + name, (
        norm, layer.register_forward_pre_hook(norm)))
    return layer


def remove_weight_norm(layer: Layer, name: str = "weight") -> Layer:
    """Makes one parameter again of what :func:`weight_norm` divided."""
    norm, hook = layer.__dict__.pop("_weight_norm_" + name)
    value = norm.weight(layer).detach()
    hook.remove()
    for end in ("_g", "_v"):
        delattr(layer, name + end)
    layer.__dict__.pop(name, None)
    layer.add_parameter(name, EagerParamBase(value, "float32"))
    return layer


__getattr__ = missing(__name__)
