"""``to_static``: functions and layers that become programs."""
from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from .._files import is_tensor
from .nested import leaves, replaced
from .trace import Trace, in_trace, is_spec, key_of, trace

_enabled = True
#: Traces that a function keeps for other shapes.
_MOST_TRACES = 32


class StaticFunction:
    """A function that runs as a program where no gradients are wanted.

    Called with tensors under ``no_grad``, and of a layer after ``eval()``, it runs the traced
    program by the executor; the first call for new shapes traces. Otherwise, so in training, it
    runs as it was written. Tensors that are neither parameters nor buffers, and all other values
    that the function finds, are those of the trace. A sum or mean over all dimensions, and what
    follows from it, has the shape ``[1]`` in a program."""

    def __init__(
        self, function: Callable[..., Any], input_spec: Optional[Sequence[Any]] = None,
        layer: Any = None,
    ) -> None:
        self._function, self._layer = function, layer
        self.input_spec = list(input_spec) if input_spec is not None else None
        self._traces: Dict[Any, Trace] = {}
        self._last: Optional[Trace] = None
        functools.update_wrapper(self, function)

    # As a method
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        name = f"_static_{self.__name__}"  # type: ignore[attr-defined]
        bound = instance.__dict__.get(name)
        if bound is None or bound._layer is not instance:
            method = self._function.__get__(instance, owner)
            bound = StaticFunction(method, self.input_spec, instance)
            object.__setattr__(instance, name, bound)
        return bound

    def __deepcopy__(self, memo: Dict[int, Any]) -> Any:
        # Traces hold the parameters of the layer that they were made for.
        layer = memo.get(id(self._layer))
        if layer is None:
            return StaticFunction(self._function, self.input_spec, self._layer)
        method = getattr(self._function, "__func__", self._function).__get__(layer)
        return StaticFunction(method, self.input_spec, layer)

    def __reduce__(self) -> Any:
        return StaticFunction, (self._function, self.input_spec, self._layer)

    @property
    def dygraph_function(self) -> Callable[..., Any]:
        """The function as it was written."""
        return self._function

    def rollback(self) -> Callable[..., Any]:
        """The function as it was written; a layer gets it back."""
        if self._layer is not None and self._layer.__dict__.get("forward") is self:
            del self._layer.__dict__["forward"]
        return self._function

    @property
    def code(self) -> str:
        """The source of the function: nothing is rewritten."""
        return inspect.getsource(self._function)

    @property
    def concrete_program(self) -> Trace:
        """The last trace; its ``program`` prints."""
        if self._last is None:
            if self.input_spec is None:
                raise RuntimeError("there is no trace yet: call the function under no_grad, or "
                                   "give to_static an input_spec")
            self._last = self.traced(self.input_spec, {})
        return self._last

    @property
    def main_program(self) -> Any:
        """The program of the last trace."""
        return self.concrete_program.program

    # Calls
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._runs_program(args, kwargs):
            return self._function(*args, **kwargs)
        args = tuple(replaced(list(args), _tensor_of))
        found = self._trace_for(args, kwargs)
        tensors = [v for v in leaves((list(args), kwargs)) if is_tensor(v)]
        return found.run(tensors)

    def _runs_program(self, args: Sequence[Any], kwargs: Dict[str, Any]) -> bool:
        if not _enabled or in_trace():
            return False
        from .._mode import is_grad_enabled

        if is_grad_enabled() or self._layer is not None and self._layer.training:
            return False
        return any(is_tensor(v) or hasattr(v, "__array__") for v in leaves((list(args), kwargs)))

    def _trace_for(self, args: Sequence[Any], kwargs: Dict[str, Any]) -> Trace:
        general, named = self._specified(args, kwargs)
        key = key_of(general, named)
        found = self._traces.get(key)
        if found is None or not found.is_current():
            if len(self._traces) >= _MOST_TRACES:
                self._traces.clear()
            found = self._traces[key] = self.traced(general, named)
        self._last = found
        return found

    def _specified(
        self, args: Sequence[Any], kwargs: Dict[str, Any]
    ) -> Tuple[List[Any], Dict[str, Any]]:
        """Arguments with specifications in the place of the tensors that they fit."""
        if self.input_spec is None:
            return list(args), kwargs
        specs = self.input_spec
        out = [_fitted(v, specs[i]) if i < len(specs) else v for i, v in enumerate(args)]
        return out, kwargs

    def traced(self, args: Sequence[Any], kwargs: Dict[str, Any]) -> Trace:
        """A trace for arguments, in which specifications stand for tensors."""
        return trace(self._function, args, kwargs, self._layer)

    def __repr__(self) -> str:
        return f"StaticFunction({self._function!r})"


def _tensor_of(leaf: Any, _: str) -> Any:
    import numpy as np

    if isinstance(leaf, np.ndarray):
        from ..tensor import to_tensor

        return to_tensor(leaf)
    return leaf


def _fitted(value: Any, spec: Any) -> Any:
    if isinstance(spec, (list, tuple)) and isinstance(value, (list, tuple)):
        return type(value)(_fitted(v, s) for v, s in zip(value, spec))
    if not is_spec(spec) or not is_tensor(value):
        return value
    shape = list(spec.shape)
    if len(shape) != len(value.shape) or any(
            d >= 0 and d != n for d, n in zip(shape, value.shape)):
        raise ValueError(f"an input has the shape {list(value.shape)}, but to_static was given "
                         f"{spec!r}")
    return spec


def to_static(
    function: Any = None, input_spec: Optional[Sequence[Any]] = None, build_strategy: Any = None,
    backend: Optional[str] = None, **kwargs: Any,
) -> Any:
    """A layer or function that runs as a program where no gradients are wanted, and that
    :func:`save` saves: ``@to_static``, ``@to_static(input_spec=[...])`` or ``to_static(layer)``.

    In training it runs as it was written; see :class:`StaticFunction`.

    >>> import regatta as rg
    >>> layer = rg.jit.to_static(rg.nn.Linear(2, 3))
    >>> _ = layer.eval()
    >>> with rg.no_grad():
    ...     layer(rg.ones([4, 2])).shape
    [4, 3]
    """
    from ..nn import Layer

    unknown = set(kwargs) - {"full_graph", "property"}
    if unknown:
        raise TypeError(f"to_static: unknown arguments {sorted(unknown)}")
    if backend is not None:
        raise NotImplementedError(f"to_static: backend '{backend}'; programs run on processors")

    def convert(target: Any) -> Any:
        if isinstance(target, StaticFunction):
            return StaticFunction(target._function, input_spec or target.input_spec, target._layer)
        if isinstance(target, Layer):
            forward = target.forward
            forward = forward._function if isinstance(forward, StaticFunction) else forward
            object.__setattr__(target, "forward", StaticFunction(forward, input_spec, target))
            return target
        if not callable(target):
            raise TypeError(f"to_static takes a layer or a function, not {type(target).__name__}")
        layer = getattr(target, "__self__", None)
        return StaticFunction(target, input_spec, layer if isinstance(layer, Layer) else None)

    return convert if function is None else convert(function)


def not_to_static(func: Any = None) -> Any:
    """The function itself: tracing calls functions as they are."""
    return (lambda function: function) if func is None else func


def ignore_module(modules: Sequence[Any]) -> None:
    """Nothing: tracing rewrites no modules."""


def enable_to_static(enable_to_static_bool: bool) -> None:
    """With False, functions of :func:`to_static` run as they were written."""
    global _enabled
    if not isinstance(enable_to_static_bool, bool):
        raise TypeError(f"enable_to_static takes True or False, not {enable_to_static_bool!r}")
    _enabled = enable_to_static_bool


def set_code_level(level: int = 100, also_to_stdout: bool = False) -> None:
    """Nothing: there is no rewritten code to show."""


def set_verbosity(level: int = 0, also_to_stdout: bool = False) -> None:
    """Nothing: tracing has nothing to report."""
