"""Variables with values that are known while the program is built, and what Fluid files with
them."""
from __future__ import annotations

from typing import Any, Optional, Sequence

from ... import tensor as _tensor
from ...framework import ParamAttr, Variable, default_main_program, unique_name
from ...static import create_global_var as _create_global_var
from ...tensor._common import check

__all__ = [
    "argmax", "argmin", "assign", "cast", "concat", "create_global_var", "create_parameter",
    "create_tensor", "fill_constant", "fill_constant_batch_size_like", "ones", "sum", "sums",
    "zeros",
]

fill_constant, assign, sums = _tensor.fill_constant, _tensor.assign, _tensor.sums


def cast(x: Variable, dtype: Any) -> Variable:
    """Another element type."""
    return _tensor.cast(x, dtype)


def concat(input: Any, axis: int = 0, name: Optional[str] = None) -> Variable:
    """Variables joined along a dimension."""
    return _tensor.concat(input if isinstance(input, (list, tuple)) else [input], axis, name)


def sum(x: Any) -> Variable:
    """The sum of variables of one shape."""
    return _tensor.sums(x if isinstance(x, (list, tuple)) else [x])


def zeros(shape: Sequence[int], dtype: Any, force_cpu: bool = False) -> Variable:
    """Zeros."""
    return _tensor.zeros(shape, dtype)


def ones(shape: Sequence[int], dtype: Any, force_cpu: bool = False) -> Variable:
    """Ones."""
    return _tensor.ones(shape, dtype)


def argmax(x: Variable, axis: int = 0) -> Variable:
    """Where the largest element of a dimension is."""
    return _tensor.argmax(x, axis)


def argmin(x: Variable, axis: int = 0) -> Variable:
    """Where the smallest element of a dimension is."""
    return _tensor.argmin(x, axis)


def fill_constant_batch_size_like(
    input: Variable, shape: Sequence[int], dtype: Any, value: float, input_dim_idx: int = 0,
    output_dim_idx: int = 0, force_cpu: bool = False,
) -> Variable:
    """The same number everywhere, for as many examples as ``input`` has."""
    x = check(input, "fill_constant_batch_size_like: input")
    if input_dim_idx or output_dim_idx:
        raise NotImplementedError(
            "fill_constant_batch_size_like: the examples are the first dimension of both"
        )
    if x.ndim < 1 or x.dtype != "float32":
        raise NotImplementedError(
            f"fill_constant_batch_size_like: '{x.name}' should hold float32 values per example"
        )
    # One number per example, then as wide as asked for.
    dims = list(range(1, x.ndim))
    column = _tensor.reduce_sum(x, dims, True) if dims else x
    column = _tensor.reshape(column, [-1] + [1] * (len(shape) - 1))
    times = [1] + [int(d) for d in shape[1:]]
    return _tensor.full_like(_tensor.tile(column, times), value, dtype)


def create_tensor(dtype: Any, name: Optional[str] = None, persistable: bool = False) -> Variable:
    """A variable that ops may write."""
    name = name or unique_name.generate("create_tensor")
    return default_main_program().global_block().create_var(
        name=name, shape=[1], dtype=dtype, persistable=persistable
    )


def create_parameter(
    shape: Sequence[int],
    dtype: Any,
    name: Optional[str] = None,
    attr: Any = None,
    is_bias: bool = False,
    default_initializer: Any = None,
) -> Variable:
    """A parameter."""
    return _tensor.create_parameter(
        shape, dtype, name=name, attr=ParamAttr() if attr is None else attr, is_bias=is_bias,
        default_initializer=default_initializer,
    )


def create_global_var(
    shape: Sequence[int],
    value: float,
    dtype: Any,
    persistable: bool = False,
    force_cpu: bool = False,
    name: Optional[str] = None,
) -> Variable:
    """A variable that keeps its value between runs, ``value`` everywhere at first."""
    return _create_global_var(shape, value, dtype, persistable, force_cpu, name)


