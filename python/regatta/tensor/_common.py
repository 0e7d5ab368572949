"""What functions on variables and tensors share: names, constants, ops.

Functions exist once. Where an input is a :class:`Variable`, :func:`op` adds an op to its program
under a name of Paddle's numbering; where all are tensors, the op runs at once. Tensors have no
names on the way: the name of a result is empty then, and costs nothing.
"""
from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from .. import _core
from .._mode import in_dynamic_mode
from ..framework import (
    _STORED, Program, Tensor, Variable, _user_line, append_op, default_main_program,
    dtype, to_dtype, unique_name,
)

Numbers = (int, float)
Values = (Tensor, Variable)
Value = Union[Tensor, Variable]


class Namer:
    """The names of one call: ``relu_0`` and its results ``relu_0.tmp_0``, ``relu_0.tmp_1``, ..."""

    __slots__ = ("name",)

    def __init__(self, word: str, name: Optional[str] = None) -> None:
        self.name = name or unique_name.generate(word)

    def tmp(self) -> str:
        """The name of the next result."""
        return unique_name.generate(self.name + ".tmp")

    def skip(self, count: int = 1) -> None:
        """Passes over names of results that other systems write and that are not needed here."""
        for _ in range(count):
            self.tmp()


class _NoNames:
    """The names of a call on tensors: none."""

    __slots__ = ()
    name = ""

    def tmp(self) -> str:
        """Empty."""
        return ""

    def skip(self, count: int = 1) -> None:
        """Nothing."""


NO_NAMES = _NoNames()


def namer_of(x: Any, word: str, name: Optional[str] = None) -> Any:
    """The names of a call on ``x``: none if it is a tensor."""
    return NO_NAMES if isinstance(x, Tensor) else Namer(word, name)


def made_name(word: str, name: Optional[str] = None) -> str:
    """The name of what a function without inputs makes: empty in the dynamic mode."""
    return "" if in_dynamic_mode() else Namer(word, name).tmp()


def fresh(x: Any, word: str) -> str:
    """The next name that begins with ``word``; empty if ``x`` is a tensor."""
    return "" if isinstance(x, Tensor) else unique_name.generate(word)


def part_of(name: str) -> str:
    """A name for a step on the way to the result ``name``."""
    return unique_name.generate(name + ".part") if name else ""


def program_of(values: Sequence[Any]) -> Program:
    """The program to which an op on these variables belongs."""
    program = default_main_program()
    variables = [v for v in values if isinstance(v, Variable)]
    if not variables or any(v.program is program for v in variables):
        return program
    if program._core.has_var(variables[0].name):
        return program
    return variables[0].program


def check(x: Any, what: str) -> Any:
    """``x`` if it is a tensor or a variable; otherwise a TypeError that says what is expected."""
    if isinstance(x, Values):
        return x
    if isinstance(x, (list, tuple)):
        raise TypeError(f"{what} should be one variable, but is a {type(x).__name__} of {len(x)}")
    raise TypeError(
        f"{what} should be a variable of a program (from static.data or a layer) or a tensor, but "
        f"is {type(x).__name__}: {x!r:.100}"
    )


def is_integer(x: Value) -> bool:
    """Whether it holds integers or truth values."""
    return (x._stored if isinstance(x, Tensor) else x._var[0]) in ("i64", "u64")


def stored_as(x: Value) -> str:
    """What the elements are stored as: 'f32', 'i64', ..."""
    return x._stored if isinstance(x, Tensor) else x._var[0]


def said(x: Value) -> str:
    """How messages name it."""
    return "the tensor" if isinstance(x, Tensor) else f"'{x.name}'"


def _flat(inputs: Dict[str, Any]) -> List[Any]:
    out: List[Any] = []
    for value in inputs.values():
        if isinstance(value, (list, tuple)):
            out.extend(value)
        elif value is not None:
            out.append(value)
    return out


def _is_static(values: Sequence[Any]) -> bool:
    for value in values:
        if isinstance(value, Variable):
            return True
    return False


def located(error: BaseException) -> BaseException:
    """The same exception with the line of the user's script."""
    line = _user_line()
    if line is None or line in str(error):
        return error
    try:
        return type(error)(f"{error}\n  at {line}").with_traceback(error.__traceback__)
    except TypeError:
        return error


_ERRORS = (ValueError, TypeError, RuntimeError)


def run(
    kind: str, inputs: Dict[str, Any], attrs: Optional[Dict[str, Any]] = None,
    counts: Optional[Dict[str, int]] = None, logical: Optional[str] = None,
) -> Any:
    """Runs an op on tensors."""
    given = {slot: value for slot, value in inputs.items() if value is not None}
    try:
        return _core.eager_op(kind, given, attrs, counts, logical)
    except _ERRORS as error:
        raise located(error) from None


def ops(
    kind: str, inputs: Dict[str, Any], outputs: Dict[str, Any],
    attrs: Optional[Dict[str, Any]] = None,
) -> Program:
    """Adds an op to a program; outputs are names. Returns the program."""
    program = program_of(_flat(inputs))
    append_op(program, kind, inputs, outputs, attrs)
    return program


def several(
    kind: str, inputs: Dict[str, Any], outputs: Dict[str, Any],
    attrs: Optional[Dict[str, Any]] = None,
) -> List[Any]:
    """An op with several results: slots in the order of the op, with the names of their variables
    (or variables that are written in place). Returns all results in that order."""
    values = _flat(inputs)
    names = [n for slot in outputs.values() for n in (slot if isinstance(slot, list) else [slot])]
    if not _is_static(values):
        counts = {slot: len(n) for slot, n in outputs.items() if isinstance(n, list)}
        made = run(kind, inputs, attrs, counts or None)
        return list(made) if isinstance(made, tuple) else [made]
    program = program_of(values)
    if any(isinstance(n, str) and not n for n in names):
        outputs = {
            slot: [_named(v) for v in n] if isinstance(n, list) else _named(n)
            for slot, n in outputs.items()
        }
        names = [n for s in outputs.values() for n in (s if isinstance(s, list) else [s])]
    append_op(program, kind, inputs, outputs, attrs)
    made = []
    for name in names:
        if isinstance(name, str):
            _note_first(program, values, name)
            name = program._variable(name)
        made.append(name)
    return made


def _named(name: Any) -> Any:
    return unique_name.generate("tmp") if isinstance(name, str) and not name else name


def _note_first(program: Program, values: Sequence[Any], out: str) -> None:
    """The element type of the first input goes on where both are stored alike."""
    if not values:
        return
    first = values[0]
    if isinstance(first, Tensor):
        logical: Optional[dtype] = first.dtype
    else:
        logical = program._logical.get(first.name)
    if logical is not None and _STORED[logical] == program._core.var(out)[0]:
        program._note_dtype(out, logical)


def op(
    kind: str,
    inputs: Dict[str, Any],
    out: str,
    attrs: Optional[Dict[str, Any]] = None,
    logical: Optional[dtype] = None,
    slot: str = "Out",
) -> Any:
    """An op with one result. On tensors it runs; on variables it is added to their program, and
    ``out`` is the name of the result. The element type is ``logical`` if given, otherwise that of
    the first input where both are stored alike."""
    values = _flat(inputs)
    if not _is_static(values) and (values or not out):
        return run(kind, inputs, attrs, None, logical)
    program = program_of(values)
    out = _named(out)
    append_op(program, kind, inputs, {slot: out}, attrs)
    if logical is not None:
        program._note_dtype(out, logical)
    else:
        _note_first(program, values, out)
    return program._variable(out)


# Ops that are prepared for attributes that come again and again, by kind and attributes.
_PREPARED: Dict[Any, Any] = {}
_MOST_PREPARED = 4096


def prepared(key: Any, kind: str, slots: Tuple[str, ...], attrs: Dict[str, Any]) -> Any:
    """A prepared op, kept under a key that names kind and attributes."""
    if len(_PREPARED) >= _MOST_PREPARED:
        _PREPARED.clear()
    made = _PREPARED[key] = _core.Op(kind, slots, attrs)
    return made


_SCALES: Dict[Tuple[float, float], Any] = {}
_SHAPES: Dict[Tuple[int, ...], Any] = {}


def scale_op(key: Tuple[float, float]) -> Any:
    """The prepared op ``factor * x + shift``."""
    if len(_SCALES) >= _MOST_PREPARED:
        _SCALES.clear()
    made = _SCALES[key] = _core.Op("scale", ("X",), {"scale": key[0], "bias": key[1]})
    return made


def shape_op(key: Tuple[int, ...]) -> Any:
    """The prepared op that gives a shape."""
    if len(_SHAPES) >= _MOST_PREPARED:
        _SHAPES.clear()
    made = _SHAPES[key] = _core.Op("reshape", ("X",), {"shape": list(key)})
    return made


def stored(kind: Any) -> str:
    """What values of an element type are stored as."""
    return _STORED[to_dtype(kind)]


def constant(value: float, kind: Any, out: str, shape: Sequence[int] = (1,)) -> Any:
    """The same number everywhere: a tensor if ``out`` is empty, otherwise in the program that is
    being built."""
    logical = to_dtype(kind)
    attrs = {"shape": [int(d) for d in shape], "value": float(value), "dtype": _STORED[logical]}
    return op("fill_constant", {}, out, attrs, logical)


def scalar(value: Any, kind: Any) -> Tensor:
    """A tensor without dimensions."""
    import numpy as np

    logical = to_dtype(kind)
    number = np.int64(value) if _STORED[logical] in ("i64", "u64") else np.float32(value)
    return Tensor(number, str(logical))


def filled(x: Variable, value: float, out: str, logical: Optional[dtype] = None) -> Variable:
    """A number in the shape of ``x``, which is not differentiated."""
    made = op("fill_like", {"X": x}, out, {"value": float(value)}, logical)
    made.stop_gradient = True
    return made


def array_op(value: Any) -> Tuple[str, Dict[str, Any], dtype]:
    """The op that writes an array: its kind and attributes, and the element type."""
    import numpy as np

    array = np.asarray(value)
    if array.dtype.kind == "f":
        logical = to_dtype(array.dtype if array.dtype.itemsize == 4 else "float32")
        attrs: Dict[str, Any] = {"values": [float(v) for v in array.astype("float32").ravel()]}
    elif array.dtype.kind in "biu":
        logical = to_dtype("bool" if array.dtype.kind == "b" else "int64")
        attrs = {"values": [int(v) for v in array.ravel()]}
    else:
        raise TypeError(f"an array of type {array.dtype} cannot be a constant of a program")
    attrs["shape"] = [int(d) for d in array.shape] or [1]
    attrs["dtype"] = _STORED[logical]
    return "assign_value", attrs, logical


def array_constant(value: Any, out: str, kind: Any = None) -> Any:
    """An array as a tensor if ``out`` is empty, otherwise as a constant of the program that is
    being built."""
    import numpy as np

    if not out:
        return Tensor(value, None if kind is None else str(to_dtype(kind)))
    array = np.asarray(value)
    if kind is not None:
        logical = to_dtype(kind)
        array = array.astype("float32" if _STORED[logical] in ("f32", "f16", "bf16") else "int64")
    name, attrs, found = array_op(array)
    return op(name, {}, out, attrs, to_dtype(kind) if kind is not None else found)


def cast_to(x: Variable, kind: Any, out: str) -> Variable:
    """``x`` with another element type."""
    logical = to_dtype(kind)
    if logical == "bool" and x.dtype != "bool":
        return _to_bool(x, out)
    if isinstance(x, Tensor) and x._stored == _STORED[logical]:
        return _narrowed(x, logical)
    attrs = {"dtype": _STORED[logical]}
    return op("cast", {"X": x}, out, attrs, logical)


_BITS = {"int32": 32, "int16": 16, "int8": 8, "uint8": 8}


def _narrowed(x: Tensor, logical: dtype) -> Tensor:
    """The same values under another name that is stored alike; integers wrap around."""
    if logical in _BITS and _BITS.get(x.dtype, 64) > _BITS[logical]:
        return Tensor(x.numpy().astype(str(logical)), str(logical))
    return x._as(str(logical))


def _to_bool(x: Value, out: str) -> Value:
    """1 where there is anything but 0."""
    return op("not_zero", {"X": x}, out, None, to_dtype("bool"))


def axes_of(axis: Any, rank: int, what: str) -> List[int]:
    """Dimensions counted from the front, from what users write: None, a number, several."""
    if axis is None:
        return []
    given = list(axis) if isinstance(axis, (list, tuple)) else [axis]
    return [axis_of(a, rank, what) for a in given]


def axis_of(axis: Any, rank: int, what: str) -> int:
    """A dimension counted from the front."""
    if isinstance(axis, Variable):
        raise NotImplementedError(f"{what}: axis as a variable ('{axis.name}'); pass a number")
    at = int(axis)
    if not -rank <= at < max(rank, 1):
        raise ValueError(f"{what}: axis {at} does not exist: there are {rank} dimensions")
    return at + rank if at < 0 else at


class Unknown(int):
    """-1 for a dimension that is known when the program runs, and the variable that has it."""

    of: Variable

    @staticmethod
    def size(of: Variable) -> "Unknown":
        """The size of the batch of a variable."""
        made = Unknown(-1)
        made.of = of
        return made


def sizes_of(x: Variable) -> List[int]:
    """The dimensions of a variable as numbers."""
    return [Unknown.size(x) if d < 0 else d for d in x.shape]


def int_list(values: Any, what: str) -> List[int]:
    """Whole numbers from a list, a tuple or an array; also from what :func:`regatta.shape` of a
    variable gave, where -1 stands for dimensions that are known when the program runs."""
    if isinstance(values, Variable):
        sizes = getattr(values, "_sizes", None)
        if sizes is not None:
            return list(sizes)
        raise NotImplementedError(
            f"{what}: '{values.name}' is a variable; its values are known when the program runs, "
            "but numbers are needed while it is built"
        )
    if isinstance(values, int):
        return [values]
    if isinstance(values, Tensor):
        return [int(v) for v in values.numpy().reshape(-1)]
    out = []
    for value in values:
        if value is None:
            value = -1
        if isinstance(value, Variable):
            sizes = getattr(value, "_sizes", None)
            if sizes is not None and len(sizes) == 1:
                out.append(sizes[0])
                continue
            raise NotImplementedError(
                f"{what} holds the variable '{value.name}'; numbers are needed while the program "
                "is built"
            )
        out.append(value if isinstance(value, Unknown) else int(value))
    return out


def rows_like(of: Variable, rank: int, value: float, kind: Any, out: str) -> Variable:
    """``[n, 1, 1, ...]`` of one number, with as many rows as a variable has."""
    logical = to_dtype(kind)
    attrs = {"shape": [-1] + [1] * (rank - 1), "value": float(value), "dtype": _STORED[logical]}
    made = op("fill_constant", {"Like": of}, out, attrs, logical)
    made.stop_gradient = True
    return made


def product(dims: Sequence[int]) -> int:
    """The product of dimensions."""
    total = 1
    for d in dims:
        total *= d
    return total


def move_batch_first(x: Variable, out: str) -> Tuple[Variable, int]:
    """``x`` with its only unknown dimension first, and where that was."""
    shape = x.shape
    at = shape.index(-1)
    if at == 0:
        return x, 0
    perm = [at] + [d for d in range(len(shape)) if d != at]
    return op("transpose", {"X": x}, part_of(out), {"perm": perm}), at


def to_shape(x: Variable, dims: Sequence[int], out: str) -> Variable:
    """The same elements in order under other dimensions, of which -1 is the batch as in ``x``."""
    shape, dims = list(x.shape), list(dims)
    if shape.count(-1) != 1 or dims.count(-1) != 1:
        return op("reshape", {"X": x}, out, {"shape": dims})
    before, after = shape.index(-1), dims.index(-1)
    if before == after == 0:
        return op("reshape", {"X": x}, out, {"shape": dims})
    ahead, behind = product(shape[:before]), product(dims[:after])
    if ahead != behind:
        raise NotImplementedError(
            f"reshape of '{x.name}' from {shape} to {dims}: the dimension of unknown size would "
            "be mixed with those before it"
        )
    # The batch goes first, what stood before it second; and back at the end.
    x, _ = move_batch_first(x, out)
    rest = dims[:after] + dims[after + 1:]
    x = op("reshape", {"X": x}, out if after == 0 else part_of(out), {"shape": [-1] + rest})
    if after == 0:
        return x
    perm = list(range(1, after + 1)) + [0] + list(range(after + 1, len(dims)))
    return op("transpose", {"X": x}, out, {"perm": perm})


def broadcast_dims(x: Sequence[int], y: Sequence[int]) -> List[int]:
    """The dimensions that two shapes broadcast to."""
    rank = max(len(x), len(y))
    a, b = [1] * (rank - len(x)) + list(x), [1] * (rank - len(y)) + list(y)
    return [p if q == 1 else q if p == 1 else max(p, q) for p, q in zip(a, b)]


ACTIVATIONS = {
    "relu": ("relu", {}), "tanh": ("tanh", {}), "sigmoid": ("sigmoid", {}), "gelu": ("gelu", {}),
    "softmax": ("softmax", {}), "exp": ("exp", {}), "log": ("log", {}), "sqrt": ("sqrt", {}),
    "square": ("square", {}), "abs": ("abs", {}), "leaky_relu": ("leaky_relu", {"alpha": 0.02}),
    "relu6": ("clip", {"min": 0.0, "max": 6.0}), "identity": ("assign", {}),
}


def activation_name(act: Any) -> str:
    """The name in what users pass as activation: None, a text, a dict with 'type', a layer."""
    if act is None:
        return ""
    if isinstance(act, dict):
        act = act.get("type")
    if not isinstance(act, str):
        raise TypeError(f"an activation is named by a text such as 'relu', but this is {act!r}")
    if act in ("", "linear"):
        return ""
    if act not in ACTIVATIONS:
        known = ", ".join(sorted(ACTIVATIONS))
        raise NotImplementedError(f"activation '{act}' is not in the op set (known: {known})")
    return act


def activate(x: Variable, act: Any, namer: Namer) -> Variable:
    """Applies an activation by name; the result is the next of ``namer``."""
    act = activation_name(act)
    if not act:
        return x
    kind, attrs = ACTIVATIONS[act]
    return op(kind, {"X": x}, namer.tmp(), dict(attrs))


def missing_op(function: str, kind: str) -> NotImplementedError:
    """The error of a function whose op does not exist."""
    return NotImplementedError(
        f"{function} needs the op '{kind}', which is not in the op set (regatta.op_kinds() lists "
        "what is)"
    )


def need_op(function: str, kind: str) -> None:
    """Raises NotImplementedError if there is no such op."""
    from .. import _core

    if kind not in _KINDS:
        _KINDS.update(_core.op_kinds())
    if kind not in _KINDS:
        raise missing_op(function, kind)


_KINDS: set = set()

Axis = Union[None, int, Sequence[int]]
