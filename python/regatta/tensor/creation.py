"""Tensors and variables with given values, and parameters."""
from __future__ import annotations

from typing import Any, Optional, Sequence

from .. import framework
from .._missing import missing
from .._mode import in_dynamic_mode
from ..framework import ParamAttr, Tensor, Variable, create_state, to_dtype, unique_name
from ._common import (
    Namer, Numbers, Unknown, array_constant, cast_to, check, constant, filled, fresh, int_list,
    is_integer, made_name, namer_of, op, part_of, rows_like, said, scalar,
)

__all__ = [
    "arange", "assign", "clone", "create_global_var", "create_parameter", "diag", "diagflat",
    "empty", "empty_like", "eye", "fill_constant", "full", "full_like", "linspace", "logspace",
    "meshgrid", "ones", "ones_like", "to_tensor", "tril", "tril_indices", "triu", "triu_indices",
    "zeros", "zeros_like",
]


def fill_constant(
    shape: Sequence[int], dtype: Any, value: float, force_cpu: bool = False,
    out: Optional[Variable] = None, name: Optional[str] = None,
) -> Variable:
    """The same number everywhere."""
    if out is not None:
        raise NotImplementedError("fill_constant: writing into 'out'; use what it returns")
    if in_dynamic_mode():
        return _filled(shape, value, dtype)
    dims = int_list(shape, "fill_constant: shape")
    if dims and isinstance(dims[0], Unknown) and all(d >= 0 for d in dims[1:]):
        result = Namer("fill_constant", name).tmp()
        rows = rows_like(dims[0].of, len(dims), value, dtype, part_of(result))
        return op("expand", {"X": rows}, result, {"shape": [-1] + dims[1:]})
    if any(d < 0 for d in dims):
        raise ValueError(f"fill_constant: the shape {dims} has a dimension of unknown size; use "
                         "full_like")
    return constant(float(value), dtype, Namer("fill_constant", name).tmp(), dims or [1])


def _filled(shape: Any, value: Any, kind: Any) -> Tensor:
    import numpy as np

    dims = int_list(shape, "shape")
    number = value.item() if isinstance(value, Tensor) else value
    logical = to_dtype(kind)
    if isinstance(number, str):
        number = float(number)
    return Tensor(np.full(dims, number, _numpy_type(logical)), str(logical))


def _numpy_type(logical: Any) -> str:
    return "float32" if logical == "bfloat16" else str(logical)


def full(
    shape: Sequence[int], fill_value: Any, dtype: Any = None, name: Optional[str] = None
) -> Variable:
    """The same number everywhere; float32 unless a type is given."""
    if in_dynamic_mode():
        return _filled(shape, fill_value, dtype or "float32")
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
    if isinstance(x, Tensor):
        return _filled(x.shape, fill_value, dtype or x.dtype)
    out = namer_of(x, "full_like", name).tmp()
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
    if isinstance(output, Tensor):
        output._set(x.detach() if isinstance(x, Tensor) else Tensor(x, output._dtype))
        return output
    if isinstance(x, Tensor) and output is None:
        return op("assign", {"X": x}, "")
    if output is None and not isinstance(x, Variable) and in_dynamic_mode():
        return Tensor(x)
    name = Namer("assign").tmp() if output is None else check(output, "assign: output").name
    if isinstance(x, (Tensor, Variable)):
        return op("assign", {"X": x}, name)
    if output is None:
        return array_constant(x, name)
    return op("assign", {"X": array_constant(x, part_of(name), output.dtype)}, name)


def clone(x: Variable, name: Optional[str] = None) -> Variable:
    """A copy."""
    return op("assign", {"X": check(x, "clone: x")}, namer_of(x, "clone", name).tmp())


def to_tensor(
    data: Any, dtype: Any = None, place: Any = None, stop_gradient: bool = True
) -> Variable:
    """A tensor with a copy of numbers: of an array, a list, a number, another tensor. In the static
    mode a constant of the program that is being built.

    >>> import regatta as rg
    >>> rg.to_tensor([[1.0, 2.0]]).shape
    [1, 2]
    """
    if isinstance(data, Variable):
        return data if dtype is None else cast_to(data, dtype, Namer("cast").tmp())
    if in_dynamic_mode() or isinstance(data, Tensor):
        kind = None if dtype is None else str(to_dtype(dtype))
        # Numbers of numpy are arrays: np.float64 is a float, too, and keeps its type.
        if type(data) in _OF_PYTHON:
            made = scalar(data, kind or _OF_PYTHON[type(data)])
            made.stop_gradient = stop_gradient
            return made
        return Tensor(_array(data), kind, stop_gradient)
    if dtype is None and isinstance(data, float):
        dtype = "float32"
    return array_constant(data, Namer("assign").tmp(), dtype)


_OF_PYTHON = {bool: "bool", int: "int64", float: "float32"}


def _array(data: Any) -> Any:
    """An array of what holds numbers: tensors in lists, objects with ``__array__``."""
    import numpy as np

    if isinstance(data, Tensor):
        return data
    if isinstance(data, (list, tuple)):
        array = _array_of_list(data)
    else:
        array = np.asarray(data)
    if array.dtype.kind not in "fiub":
        raise located_type(data)
    return array


def _array_of_list(data: Any) -> Any:
    """An array of nested lists. Python's own floats are float32, as those of parameters."""
    import numpy as np

    first = data
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    if isinstance(first, Tensor):
        return np.array([v.numpy() if isinstance(v, Tensor) else _array_of_list(v) for v in data])
    array = np.array(data)
    if array.dtype == np.float64 and not isinstance(first, (np.ndarray, np.generic)):
        return array.astype("float32")
    return array


def located_type(data: Any) -> TypeError:
    """The error for what holds no numbers."""
    from ._common import located

    return located(TypeError(f"to_tensor: {type(data).__name__} holds no numbers: {data!r:.80}"))


def arange(
    start: Any = 0, end: Any = None, step: Any = 1, dtype: Any = None, name: Optional[str] = None
) -> Variable:
    """Numbers in equal steps, as a constant."""
    import numpy as np

    if end is None:
        start, end = 0, start
    start, end, step = (_number(v) for v in (start, end, step))
    for value in (start, end, step):
        if not isinstance(value, Numbers):
            raise NotImplementedError("arange: the bounds are numbers, known while the program is "
                                      f"built, not {type(value).__name__}")
    values = np.arange(start, end, step)
    kind = dtype or ("int64" if values.dtype.kind == "i" else "float32")
    return array_constant(values, made_name("range", name), kind)


def _number(value: Any) -> Any:
    import numpy as np

    if isinstance(value, (Tensor, np.generic, np.ndarray)):
        return value.item()
    return value


def linspace(
    start: float, stop: float, num: int, dtype: Any = None, name: Optional[str] = None
) -> Variable:
    """Numbers at equal distances, as a constant."""
    import numpy as np

    values = np.linspace(float(start), float(stop), int(num))
    return array_constant(values, made_name("linspace", name), dtype or "float32")


def logspace(
    start: float, stop: float, num: int, base: float = 10.0, dtype: Any = None,
    name: Optional[str] = None,
) -> Variable:
    """Powers of ``base`` whose exponents are at equal distances, as a constant."""
    import numpy as np

    values = np.logspace(float(start), float(stop), int(num), base=float(base))
    return array_constant(values, made_name("logspace", name), dtype or "float32")


def eye(
    num_rows: int, num_columns: Optional[int] = None, dtype: Any = None, name: Optional[str] = None
) -> Variable:
    """Ones on the diagonal of a matrix."""
    import numpy as np

    values = np.eye(int(num_rows), None if num_columns is None else int(num_columns))
    return array_constant(values, made_name("eye", name), dtype or "float32")


def empty(shape: Sequence[int], dtype: Any = None, name: Optional[str] = None) -> Variable:
    """Room for numbers, which are zeros here."""
    return zeros(shape, dtype, name)


def empty_like(x: Variable, dtype: Any = None, name: Optional[str] = None) -> Variable:
    """Room for numbers in the shape of ``x``."""
    return zeros_like(x, dtype, name)


def _triangle(x: Any, diagonal: int, word: str, name: Optional[str]) -> Variable:
    x = check(x, f"{word}: x")
    if len(x.shape) < 2:
        raise ValueError(f"{word}: {said(x)} {list(x.shape)} has no matrices in its last two "
                         "dimensions")
    attrs = {"diagonal": int(diagonal), "lower": word == "tril"}
    return op("tril_triu", {"X": x}, name or fresh(x, word), attrs)


def tril(x: Variable, diagonal: int = 0, name: Optional[str] = None) -> Variable:
    """Zeros above a diagonal of matrices."""
    return _triangle(x, diagonal, "tril", name)


def triu(x: Variable, diagonal: int = 0, name: Optional[str] = None) -> Variable:
    """Zeros below a diagonal of matrices."""
    return _triangle(x, diagonal, "triu", name)


def tril_indices(row: int, col: Optional[int] = None, offset: int = 0, dtype: Any = "int64") -> Any:
    """Rows and columns of the elements on and below a diagonal."""
    import numpy as np

    found = np.stack(np.tril_indices(row, offset, row if col is None else col))
    return array_constant(found, made_name("tril_indices"), dtype)


def triu_indices(row: int, col: Optional[int] = None, offset: int = 0, dtype: Any = "int64") -> Any:
    """Rows and columns of the elements on and above a diagonal."""
    import numpy as np

    found = np.stack(np.triu_indices(row, offset, row if col is None else col))
    return array_constant(found, made_name("triu_indices"), dtype)


def diag(
    x: Variable, offset: int = 0, padding_value: float = 0, name: Optional[str] = None
) -> Variable:
    """A matrix with a vector on a diagonal, or the diagonal of a matrix."""
    from .search import diagonal

    x = check(x, "diag: x")
    if len(x.shape) == 2:
        return diagonal(x, offset)
    if len(x.shape) != 1:
        raise ValueError(f"diag: x should have 1 or 2 dimensions, but has {len(x.shape)}")
    return diagflat(x, offset) if not padding_value else _padded_diag(x, offset, padding_value)


def _padded_diag(x: Variable, offset: int, value: float) -> Variable:
    import numpy as np

    n = x.shape[0] + abs(offset)
    rest = np.where(np.eye(n, k=offset) > 0, 0.0, float(value)).astype("float32")
    return diagflat(x, offset) + array_constant(rest, namer_of(x, "diag").tmp(), x.dtype)


def diagflat(x: Variable, offset: int = 0, name: Optional[str] = None) -> Variable:
    """A matrix with all elements of ``x`` on a diagonal."""
    import numpy as np

    x = check(x, "diagflat: x")
    out = namer_of(x, "diagflat", name).tmp()
    from .manipulation import reshape

    flat = reshape(x, [-1, 1] if offset <= 0 else [1, -1])
    n, k = flat.shape[0] * flat.shape[1], abs(offset)
    # Rows or columns of a shifted unit matrix, times the elements.
    mask = np.eye(n + k, k=offset, dtype="float32")
    kept = mask[k:] if offset <= 0 else mask[:, k:]
    spread = array_constant(kept, part_of(out), x.dtype)
    inner = op("elementwise_mul", {"X": spread, "Y": flat}, part_of(out) if k else out)
    if not k:
        return inner
    border = [k, n + k] if offset <= 0 else [n + k, k]
    zero = array_constant(np.zeros(border, "float32"), part_of(out), x.dtype)
    return op("concat", {"X": [zero, inner]}, out, {"axis": 0 if offset <= 0 else 1})


def meshgrid(*args: Any, **kwargs: Any) -> Any:
    """Vectors repeated to the grid that they span: one tensor for each of them."""
    from .manipulation import expand, reshape

    values = list(args[0]) if len(args) == 1 and isinstance(args[0], (list, tuple)) else list(args)
    sizes = [v.shape[0] if v.shape else 1 for v in values]
    rank = len(values)
    return [
        expand(reshape(v, [sizes[i] if d == i else 1 for d in range(rank)]), sizes)
        for i, v in enumerate(values)
    ]


def create_parameter(
    shape: Sequence[int], dtype: Any = "float32", name: Optional[str] = None, attr: Any = None,
    is_bias: bool = False, default_initializer: Any = None,
) -> Any:
    """A parameter of the program that is being built: ``create_parameter_0.w_0`` unless it is
    named. Xavier's initial values, or zeros for a bias, unless an initializer is given."""
    from ..nn.initializer import default_for

    prefix = name or unique_name.generate("create_parameter")
    # As in Paddle: beside an attribute the name is only the first part, `name.w_0`.
    if attr is None and name is not None:
        attr = ParamAttr(name=name)
    attr = ParamAttr.to_attr(attr)
    if attr is False:
        return None
    init = default_initializer if default_initializer is not None else default_for(is_bias)
    if in_dynamic_mode():
        from .._bridge import create_eager

        dims = int_list(shape, "create_parameter: shape")
        return create_eager(None, prefix, "b" if is_bias else "w", dims, attr, init, dtype)
    return framework.create_parameter(
        prefix, "b" if is_bias else "w", int_list(shape, "create_parameter: shape"), attr, init,
        dtype,
    )


def create_global_var(
    shape: Sequence[int], value: float, dtype: Any, persistable: bool = False,
    force_cpu: bool = False, name: Optional[str] = None,
) -> Variable:
    """A variable that is kept between runs and not learned; ``value`` everywhere at first."""
    unique_name.generate("global_var")
    dims = int_list(shape, "create_global_var: shape")
    return create_state(name or unique_name.generate("_generated_var"), dims, dtype, float(value))


__getattr__ = missing(__name__)
