"""Variables with given values, and parameters."""
from __future__ import annotations

from typing import Any, Optional, Sequence

from .. import framework
from ..framework import ParamAttr, Variable, create_state, to_dtype, unique_name
from .._missing import missing
from ._common import (
    Namer, Numbers, array_constant, cast_to, check, constant, filled, int_list, is_integer, op,
    part_of,
)

__all__ = [
    "arange", "assign", "clone", "create_global_var", "create_parameter", "eye", "fill_constant",
    "full", "full_like", "linspace", "ones", "ones_like", "to_tensor", "tril", "triu", "zeros",
    "zeros_like",
]


def fill_constant(
    shape: Sequence[int], dtype: Any, value: float, force_cpu: bool = False,
    out: Optional[Variable] = None, name: Optional[str] = None,
) -> Variable:
    """The same number everywhere."""
    if out is not None:
        raise NotImplementedError("fill_constant: writing into 'out'; use what it returns")
    dims = int_list(shape, "fill_constant: shape")
    if any(d < 0 for d in dims):
        raise ValueError(f"fill_constant: the shape {dims} has a dimension of unknown size; use "
                         "full_like")
    return constant(float(value), dtype, Namer("fill_constant", name).tmp(), dims or [1])


def full(
    shape: Sequence[int], fill_value: Any, dtype: Any = None, name: Optional[str] = None
) -> Variable:
    """The same number everywhere; float32 unless a type is given."""
    unique_name.generate("fill_constant")
    return fill_constant(shape, dtype or "float32", fill_value, name=name)


def zeros(
    shape: Sequence[int], dtype: Any = None, name: Optional[str] = None, force_cpu: bool = False
) -> Variable:
    """Zeros; float32 unless a type is given."""
    return full(shape, 0.0, dtype, name)


def ones(
    shape: Sequence[int], dtype: Any = None, name: Optional[str] = None, force_cpu: bool = False
) -> Variable:
    """Ones; float32 unless a type is given."""
    return full(shape, 1.0, dtype, name)


def full_like(
    x: Variable, fill_value: float, dtype: Any = None, name: Optional[str] = None
) -> Variable:
    """The same number everywhere in the shape of ``x``, also where that is known only when the
    program runs."""
    x = check(x, "full_like: x")
    out = Namer("full_like", name).tmp()
    return fill_like(x, fill_value, to_dtype(dtype) if dtype is not None else x.dtype, out)


def fill_like(x: Variable, value: float, logical: Any, out: str) -> Variable:
    """A number in the shape of ``x``."""
    if is_integer(x):
        x = cast_to(x, "float32", part_of(out))
    number = float(value)
    whole = framework._STORED[logical] in ("i64", "u64")
    if whole and abs(number) > 2**24:
        raise ValueError(f"full_like: {value} is not exact; integers up to 2^24 are")
    if framework._STORED[logical] == "f32":
        return filled(x, number, out, logical)
    made = filled(x, number, part_of(out), to_dtype("float32"))
    return cast_to(made, "int64" if logical == "bool" else logical, out)


def ones_like(x: Variable, dtype: Any = None, name: Optional[str] = None) -> Variable:
    """Ones in the shape of ``x``."""
    return full_like(x, 1.0, dtype, name)


def zeros_like(x: Variable, dtype: Any = None, name: Optional[str] = None) -> Variable:
    """Zeros in the shape of ``x``."""
    return full_like(x, 0.0, dtype, name)


def assign(x: Any = None, output: Optional[Variable] = None, input: Any = None) -> Variable:
    """A copy of a variable, or numbers as a constant of the program. ``output`` is a variable that
    is kept between runs and takes the value."""
    x = input if x is None else x
    name = Namer("assign").tmp() if output is None else check(output, "assign: output").name
    if isinstance(x, Variable):
        return op("assign", {"X": x}, name)
    if output is None:
        return array_constant(x, name)
    return op("assign", {"X": array_constant(x, part_of(name), output.dtype)}, name)


def clone(x: Variable, name: Optional[str] = None) -> Variable:
    """A copy."""
    return op("assign", {"X": check(x, "clone: x")}, Namer("clone", name).tmp())


def to_tensor(
    data: Any, dtype: Any = None, place: Any = None, stop_gradient: bool = True
) -> Variable:
    """Numbers as a constant of the program that is being built. There are no tensors with values
    outside programs yet."""
    if isinstance(data, Variable):
        return data if dtype is None else cast_to(data, dtype, Namer("cast").tmp())
    if dtype is None and isinstance(data, float):
        dtype = "float32"
    return array_constant(data, Namer("assign").tmp(), dtype)


def arange(
    start: Any = 0, end: Any = None, step: Any = 1, dtype: Any = None, name: Optional[str] = None
) -> Variable:
    """Numbers in equal steps, as a constant."""
    import numpy as np

    if end is None:
        start, end = 0, start
    for value in (start, end, step):
        if not isinstance(value, Numbers):
            raise NotImplementedError("arange: the bounds are numbers, known while the program is "
                                      f"built, not {type(value).__name__}")
    values = np.arange(start, end, step)
    kind = dtype or ("int64" if values.dtype.kind == "i" else "float32")
    return array_constant(values, Namer("range", name).tmp(), kind)


def linspace(
    start: float, stop: float, num: int, dtype: Any = None, name: Optional[str] = None
) -> Variable:
    """Numbers at equal distances, as a constant."""
    import numpy as np

    values = np.linspace(float(start), float(stop), int(num))
    return array_constant(values, Namer("linspace", name).tmp(), dtype or "float32")


def eye(
    num_rows: int, num_columns: Optional[int] = None, dtype: Any = None, name: Optional[str] = None
) -> Variable:
    """Ones on the diagonal of a matrix."""
    import numpy as np

    values = np.eye(int(num_rows), None if num_columns is None else int(num_columns))
    return array_constant(values, Namer("eye", name).tmp(), dtype or "float32")


def _triangle(x: Any, diagonal: int, word: str, name: Optional[str]) -> Variable:
    import numpy as np

    x = check(x, f"{word}: x")
    if len(x.shape) < 2 or -1 in x.shape[-2:]:
        raise ValueError(f"{word}: '{x.name}' {list(x.shape)} has no matrix of known size in its "
                         "last two dimensions")
    out = Namer(word, name).tmp()
    mask = getattr(np, word)(np.ones(x.shape[-2:]), int(diagonal))
    keep = array_constant(mask, part_of(out), x.dtype)
    return op("elementwise_mul", {"X": x, "Y": keep}, out)


def tril(x: Variable, diagonal: int = 0, name: Optional[str] = None) -> Variable:
    """Zeros above a diagonal of matrices."""
    return _triangle(x, diagonal, "tril", name)


def triu(x: Variable, diagonal: int = 0, name: Optional[str] = None) -> Variable:
    """Zeros below a diagonal of matrices."""
    return _triangle(x, diagonal, "triu", name)


def create_parameter(
    shape: Sequence[int], dtype: Any = "float32", name: Optional[str] = None, attr: Any = None,
    is_bias: bool = False, default_initializer: Any = None,
) -> Any:
    """A parameter of the program that is being built: ``create_parameter_0.w_0`` unless it is
    named. Xavier's initial values, or zeros for a bias, unless an initializer is given."""
    from ..nn.initializer import default_for

    prefix = name or unique_name.generate("create_parameter")
    attr = ParamAttr.to_attr(attr)
    if attr is False:
        return None
    if name is not None and attr.name is None:
        attr = _named(attr, name)
    init = default_initializer if default_initializer is not None else default_for(is_bias)
    return framework.create_parameter(
        prefix, "b" if is_bias else "w", int_list(shape, "create_parameter: shape"), attr, init,
        dtype,
    )


def _named(attr: ParamAttr, name: str) -> ParamAttr:
    import copy

    attr = copy.copy(attr)
    attr.name = name
    return attr


def create_global_var(
    shape: Sequence[int], value: float, dtype: Any, persistable: bool = False,
    force_cpu: bool = False, name: Optional[str] = None,
) -> Variable:
    """A variable that is kept between runs and not learned; ``value`` everywhere at first."""
    unique_name.generate("global_var")
    dims = int_list(shape, "create_global_var: shape")
    return create_state(name or unique_name.generate("_generated_var"), dims, dtype, float(value))


__getattr__ = missing(__name__)
