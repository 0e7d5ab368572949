"""Dynamic or static: dynamic by default, static after :func:`enable_static` and inside
``program_guard``. Here too: whether ops are recorded for gradients.

>>> import regatta as rg
>>> rg.in_dynamic_mode()
True
>>> x = rg.to_tensor([1.0, 2.0], stop_gradient=False)
>>> with rg.no_grad():
...     (x * 2).stop_gradient
True
"""
from __future__ import annotations

import functools
import inspect
import os
from typing import Any, Callable, Dict, Iterator, List, Optional, Union

from . import _core
from .framework import Tensor, _building, to_dtype

_static = False


def enable_static() -> None:
    """From now on layers and creation functions add to the default program."""
    global _static
    _static = True


def disable_static(place: Any = None) -> None:
    """From now on layers and creation functions make tensors with values."""
    global _static
    _static = False


def in_dynamic_mode() -> bool:
    """Whether layers and creation functions make tensors with values."""
    return not _static and not _building.guards


def disable_signal_handler() -> None:
    """Regatta handles no signals, so there is nothing to disable."""


def set_num_threads(n: int) -> None:
    """``n`` threads share ops on tensors with many examples; 1 by default. Executors of programs take
    ``CPU_NUM`` threads."""
    _core.set_num_threads(int(n))


def get_num_threads() -> int:
    """How many threads share ops on tensors with many examples."""
    return _core.get_num_threads()


# --- gradients -----------------------------------------------------------------------------------


class _GradMode:
    """Gradients on or off: a context, or around every call of a function or generator."""

    def __init__(self, on: bool) -> None:
        self._on = on
        self._old: List[bool] = []

    def __enter__(self) -> "_GradMode":
        self._old.append(_core.set_grad_enabled(self._on))
        return self

    def __exit__(self, *error: Any) -> None:
        _core.set_grad_enabled(self._old.pop())

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.isgeneratorfunction(function):
            return self._generator(function)

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with _GradMode(self._on):
                return function(*args, **kwargs)

        return wrapped

    def _generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        # Only while the generator runs, not while its caller does.
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Iterator[Any]:
            made = function(*args, **kwargs)
            sent = None
            while True:
                with _GradMode(self._on):
                    try:
                        value = made.send(sent)
                    except StopIteration as end:
                        return end.value
                sent = yield value

        return wrapped


def no_grad(func: Optional[Callable[..., Any]] = None) -> Any:
    """No gradients inside ``with no_grad():`` or in a function below ``@no_grad()``."""
    return _GradMode(False) if func is None else _GradMode(False)(func)


def enable_grad(func: Optional[Callable[..., Any]] = None) -> Any:
    """Gradients again, inside of :func:`no_grad`."""
    return _GradMode(True) if func is None else _GradMode(True)(func)


class set_grad_enabled(_GradMode):
    """Gradients on or off from now on; as a context, until its end."""

    def __init__(self, mode: bool) -> None:
        super().__init__(bool(mode))
        self._old.append(_core.set_grad_enabled(bool(mode)))

    def __enter__(self) -> "set_grad_enabled":
        return self


def is_grad_enabled() -> bool:
    """Whether ops are recorded for gradients."""
    return _core.is_grad_enabled()


def _list(values: Any) -> List[Any]:
    return list(values) if isinstance(values, (list, tuple)) else [values]


def grad(
    outputs: Any, inputs: Any, grad_outputs: Any = None, retain_graph: Optional[bool] = None,
    create_graph: bool = False, only_inputs: bool = True, allow_unused: bool = False,
    no_grad_vars: Any = None,
) -> List[Optional[Tensor]]:
    """Gradients of ``outputs`` with respect to ``inputs``; ``.grad`` stays as it is.

    >>> import regatta as rg
    >>> x = rg.to_tensor([1.0, 2.0], stop_gradient=False)
    >>> rg.grad(x * x, x)[0].tolist()
    [2.0, 4.0]
    """
    if create_graph:
        raise NotImplementedError("grad: create_graph=True, gradients of gradients")
    if not only_inputs:
        raise NotImplementedError("grad: only_inputs=False; call backward()")
    if no_grad_vars:
        raise NotImplementedError("grad: no_grad_vars; detach() the tensors instead")
    outs, ins = _list(outputs), _list(inputs)
    given = [None] * len(outs) if grad_outputs is None else _list(grad_outputs)
    if len(given) != len(outs):
        raise ValueError(f"grad: {len(outs)} outputs, but {len(given)} grad_outputs")
    for i, out in enumerate(outs):
        if given[i] is None and out.size != 1:
            given[i] = _core.eager_op("fill_like", {"X": out.detach()}, {"value": 1.0})
    return _core.grad(outs, ins, given, bool(retain_graph), bool(allow_unused))


# --- settings ------------------------------------------------------------------------------------


def get_default_dtype() -> str:
    """``"float32"``, the type of all parameters."""
    return "float32"


def set_default_dtype(d: Any) -> None:
    """Accepts ``"float32"``, the type of all parameters."""
    if to_dtype(d) != "float32":
        raise ValueError(f"set_default_dtype: parameters are of type float32, not {d}")


def set_printoptions(
    precision: Optional[int] = None, threshold: Optional[int] = None,
    edgeitems: Optional[int] = None, sci_mode: Optional[bool] = None,
    linewidth: Optional[int] = None,
) -> None:
    """How tensors print: digits, how many elements before parts are left out, how many then stay
    at the edges, and the width of lines."""
    from .tensor import _print

    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems,
             "linewidth": linewidth}
    _print.OPTIONS.update({k: int(v) for k, v in given.items() if v is not None})
    if sci_mode is not None:
        _print.OPTIONS["sci_mode"] = bool(sci_mode)


# Flags of Paddle that mean something here; they are environment variables of the same names.
_FLAGS = {"FLAGS_check_nan_inf": False}


def set_flags(flags: Dict[str, Any]) -> None:
    """Sets flags. ``FLAGS_check_nan_inf`` is known: executors that are made afterwards check every
    result."""
    if not isinstance(flags, dict):
        raise TypeError(f"set_flags takes a dictionary, not {type(flags).__name__}")
    for name in flags:
        _check_flag(name)
    for name, value in flags.items():
        os.environ[name] = "1" if value else "0"


def get_flags(flags: Union[str, List[str]]) -> Dict[str, Any]:
    """Values of flags."""
    names = [flags] if isinstance(flags, str) else list(flags)
    for name in names:
        _check_flag(name)
    return {name: os.environ.get(name, "0").lower() in ("1", "true") for name in names}


def _check_flag(name: str) -> None:
    if name not in _FLAGS:
        raise ValueError(f"flag '{name}' is not in Regatta (known: {', '.join(_FLAGS)})")
