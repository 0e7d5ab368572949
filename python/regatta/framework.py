"""Programs as Python sees them: variables, parameters, blocks, guards and names.

A :class:`Program` grows op by op. Layers find the program that is being built by
:func:`default_main_program`; parameters get their initial values from
:func:`default_startup_program`. Nothing here computes.
"""
from __future__ import annotations

import contextlib
import copy
import os
import sys
import threading
from typing import (
    TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union,
)

from . import _core

if not TYPE_CHECKING:
    Tensor = _core.Tensor

__all__ = [
    "Block", "EagerParamBase", "Operator", "ParamAttr", "Parameter", "Program", "Scope", "Tensor",
    "Variable", "append_op", "create_parameter", "create_state", "current_seed", "default_main_program",
    "default_startup_program", "dtype", "global_scope", "name_scope", "program_guard",
    "scope_guard", "seed", "to_dtype", "unique_name",
]

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class dtype(str):
    """The element type of a variable. It equals its name: ``dtype("float32") == "float32"``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"regatta.{str(self)}"

    @property
    def name(self) -> str:
        """Its name."""
        return str(self)


float32 = dtype("float32")
float64 = dtype("float64")
float16 = dtype("float16")
bfloat16 = dtype("bfloat16")
int8 = dtype("int8")
int16 = dtype("int16")
int32 = dtype("int32")
int64 = dtype("int64")
uint8 = dtype("uint8")
bool_ = dtype("bool")

# What a type is stored as. Integers and truth values are 64-bit integers, all floats 32-bit ones.
_STORED = {
    "float32": "f32", "float64": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64",
    "int32": "i64", "int16": "i64", "int8": "i64", "uint8": "i64", "bool": "i64", "uint64": "u64",
}
_BY_STORED = {
    "f32": float32, "f16": float16, "bf16": bfloat16, "i64": int64, "u64": dtype("uint64"),
}
_ALIASES = {
    "fp32": "float32", "fp64": "float64", "fp16": "float16", "bf16": "bfloat16", "float": "float32",
    "double": "float64", "half": "float16", "int": "int64", "long": "int64", "bool_": "bool",
    "f32": "float32", "i64": "int64", "u64": "uint64",
}


def to_dtype(value: Any) -> dtype:
    """The :class:`dtype` of a name, a numpy type or a dtype.

    >>> to_dtype("float32")
    regatta.float32
    """
    if isinstance(value, dtype):
        return value
    if isinstance(value, str):
        name = value
    elif isinstance(value, type) and value in (bool, int, float):
        name = {bool: "bool", int: "int64", float: "float32"}[value]
    else:
        import numpy as np

        try:
            name = np.dtype(value).name
        except TypeError:
            raise TypeError(f"{value!r} is not an element type") from None
    name = name.rsplit(".", 1)[-1]
    name = _ALIASES.get(name.lower(), name)
    if name not in _STORED:
        known = ", ".join(sorted(_STORED))
        raise TypeError(f"{value!r} is not an element type (known: {known})")
    return dtype(name)


# --- names ---------------------------------------------------------------------------------------


class _Names:
    """Numbers names as Paddle does: ``fc_0``, ``fc_0.w_0``, ``fc_0.tmp_0``, ``fc_1``, ..."""

    def __init__(self) -> None:
        self.counters: Dict[str, int] = {}
        self.prefix = ""

    def generate(self, key: str) -> str:
        """The next name that begins with ``key``."""
        key = self.prefix + key
        at = self.counters.get(key, 0)
        self.counters[key] = at + 1
        return f"{key}_{at}"


class _UniqueName:
    """Generators of names, one at a time."""

    def __init__(self) -> None:
        self._names = _Names()

    def generate(self, key: str) -> str:
        """The next name that begins with ``key``."""
        return self._names.generate(key)

    generate_with_ignorable_key = generate

    def switch(self, new: Optional[_Names] = None) -> _Names:
        """Begins to count anew, or with the counters of an earlier call."""
        old, self._names = self._names, new if new is not None else _Names()
        return old

    @contextlib.contextmanager
    def guard(self, new_generator: Union[None, str, _Names] = None) -> Iterator[None]:
        """Counts anew inside ``with``; a text goes before all names."""
        names = new_generator if isinstance(new_generator, _Names) else _Names()
        if isinstance(new_generator, str):
            names.prefix = new_generator
        old = self.switch(names)
        try:
            yield
        finally:
            self.switch(old)


unique_name = _UniqueName()


@contextlib.contextmanager
def name_scope(prefix: Optional[str] = None) -> Iterator[None]:
    """For scripts that group ops for display. Names of variables stay as they are."""
    if prefix is not None and not isinstance(prefix, str):
        raise TypeError(f"name_scope: the prefix should be a text, but is {prefix!r}")
    yield


def _user_line() -> Optional[str]:
    """File and line of the nearest caller outside this package."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_PACKAGE):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return None


# --- parameters ----------------------------------------------------------------------------------


class ParamAttr:
    """How a parameter is named, initialised, regularised and updated.

    >>> ParamAttr(name="table", learning_rate=0.5).name
    'table'
    """

    def __init__(
        self,
        name: Optional[str] = None,
        initializer: Any = None,
        learning_rate: float = 1.0,
        regularizer: Any = None,
        trainable: bool = True,
        do_model_average: bool = True,
        need_clip: bool = True,
        gradient_clip: Any = None,
        update_hooks: Any = None,
    ) -> None:
        if gradient_clip is not None or update_hooks is not None:
            raise ValueError(
                "ParamAttr: gradient_clip and update_hooks were removed; pass grad_clip to the "
                "optimizer"
            )
        self.name = name
        self.initializer = initializer
        self.learning_rate = learning_rate
        self.regularizer = regularizer
        self.trainable = trainable
        self.do_model_average = do_model_average
        self.need_clip = need_clip

    @staticmethod
    def to_attr(arg: Any) -> Union["ParamAttr", bool]:
        """What users may write for an attribute: None, a name, an initializer, False."""
        if arg is None or arg is True:
            return ParamAttr()
        if arg is False:
            return False
        if isinstance(arg, ParamAttr):
            return arg
        if isinstance(arg, str):
            return ParamAttr(name=arg)
        if hasattr(arg, "_init_op"):
            return ParamAttr(initializer=arg)
        if hasattr(arg, "_regularizer_spec"):
            return ParamAttr(regularizer=arg)
        if isinstance(arg, (list, tuple)) and len(arg) == 1:
            return ParamAttr.to_attr(arg[0])
        raise TypeError(f"{arg!r} cannot describe a parameter: pass a ParamAttr")

    _to_attr = to_attr

    def __repr__(self) -> str:
        return f"ParamAttr(name={self.name!r}, learning_rate={self.learning_rate})"


# --- variables -----------------------------------------------------------------------------------


class ValueNeeded(TypeError, NotImplementedError):
    """Python code needs the value of a variable while the program is built."""

    def __init__(self, name: str, use: str) -> None:
        line = _user_line()
        where = f" at {line}" if line is not None else ""
        super().__init__(
            f"{use} of '{name}'{where}: its value is known when the program runs, not while it is "
            "built or traced. Compute with ops (where, maximum, ...), or fetch it with Executor.run"
        )


class Variable:
    """A variable of a program: what a layer returns and the next one takes.

    Its operators (``+``, ``*``, ``[...]``, ...) and methods are those of :mod:`regatta.tensor`.
    """

    __slots__ = ("program", "name", "_attributes", "__weakref__")
    __array_priority__ = 100  # numpy leaves `array + variable` to the variable

    if TYPE_CHECKING:  # also Tensor(value)
        program: "Program"
        name: str

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    else:
        def __init__(self, program: "Program", name: str) -> None:
            self.program = program
            self.name = name
            self._attributes: Optional[Dict[str, Any]] = None

    @property
    def block(self) -> "Block":
        """The block it belongs to."""
        return self.program.global_block()

    @property
    def _var(self) -> Tuple[str, str, List[int], str, bool]:
        return self.program._core.var(self.name)

    @property
    def shape(self) -> Tuple[int, ...]:
        """Dimensions; -1 for those that are known when the program runs."""
        return tuple(-1 if d < 0 else d for d in self._var[2])

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._var[2])

    @property
    def dtype(self) -> dtype:
        """Element type."""
        logical = self.program._logical.get(self.name)
        return logical if logical is not None else _BY_STORED[self._var[0]]

    @property
    def lod_level(self) -> int:
        """1 for inputs with any number of values per example."""
        return 1 if self._var[1] == "ragged" else 0

    @property
    def persistable(self) -> bool:
        """Whether it is kept between runs."""
        return self._var[3] in ("param", "persist")

    @persistable.setter
    def persistable(self, value: bool) -> None:
        if bool(value) != self.persistable:
            raise ValueError(
                f"'{self.name}': whether a variable is kept between runs is decided when it is made"
            )

    @property
    def is_data(self) -> bool:
        """Whether it is an input."""
        return self._var[3] == "data"

    @property
    def is_parameter(self) -> bool:
        """Whether it is learned."""
        return self._var[3] == "param"

    @property
    def stop_gradient(self) -> bool:
        """Whether no gradient flows into or through it."""
        return self._var[4]

    @stop_gradient.setter
    def stop_gradient(self, value: bool) -> None:
        self.program._core.set_stop_gradient(self.name, bool(value))

    @property
    def type(self) -> str:
        """Paddle's name for the layout."""
        return {"rows": "SELECTED_ROWS"}.get(self._var[1], "LOD_TENSOR")

    def __getattr__(self, name: str) -> Any:
        attributes = object.__getattribute__(self, "_attributes")
        if attributes is not None and name in attributes:
            return attributes[name]
        raise AttributeError(f"a Variable has no attribute '{name}'")

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            object.__setattr__(self, name, value)
        except AttributeError:
            if self._attributes is None:
                object.__setattr__(self, "_attributes", {})
            self._attributes[name] = value  # type: ignore[index]

    if TYPE_CHECKING:  # regatta.tensor gives them at run time
        def __add__(self, other: Any) -> "Variable": ...
        def __radd__(self, other: Any) -> "Variable": ...
        def __sub__(self, other: Any) -> "Variable": ...
        def __rsub__(self, other: Any) -> "Variable": ...
        def __mul__(self, other: Any) -> "Variable": ...
        def __rmul__(self, other: Any) -> "Variable": ...
        def __truediv__(self, other: Any) -> "Variable": ...
        def __rtruediv__(self, other: Any) -> "Variable": ...
        def __floordiv__(self, other: Any) -> "Variable": ...
        def __rfloordiv__(self, other: Any) -> "Variable": ...
        def __mod__(self, other: Any) -> "Variable": ...
        def __rmod__(self, other: Any) -> "Variable": ...
        def __pow__(self, other: Any) -> "Variable": ...
        def __rpow__(self, other: Any) -> "Variable": ...
        def __matmul__(self, other: Any) -> "Variable": ...
        def __rmatmul__(self, other: Any) -> "Variable": ...
        def __and__(self, other: Any) -> "Variable": ...
        def __or__(self, other: Any) -> "Variable": ...
        def __xor__(self, other: Any) -> "Variable": ...
        def __lt__(self, other: Any) -> "Variable": ...
        def __le__(self, other: Any) -> "Variable": ...
        def __gt__(self, other: Any) -> "Variable": ...
        def __ge__(self, other: Any) -> "Variable": ...
        def __eq__(self, other: Any) -> "Variable": ...  # type: ignore[override]
        def __ne__(self, other: Any) -> "Variable": ...  # type: ignore[override]
        def __neg__(self) -> "Variable": ...
        def __invert__(self) -> "Variable": ...
        def __abs__(self) -> "Variable": ...
        def __getitem__(self, item: Any) -> "Variable": ...
        def __setitem__(self, item: Any, value: Any) -> None: ...
        def __iter__(self) -> Iterator["Variable"]: ...
        def __len__(self) -> int: ...
        def __float__(self) -> float: ...
        def __int__(self) -> int: ...

    def __repr__(self) -> str:
        kind = "param" if self.is_parameter else "var"
        shape = list(self.shape)
        return f"{kind} {self.name} : shape={shape}, dtype={self.dtype}, stop_gradient={self.stop_gradient}"

    __str__ = __repr__

    def to_string(self, throw_on_error: bool = True, with_details: bool = False) -> str:
        """As :func:`repr`."""
        return repr(self)

    def __bool__(self) -> bool:
        raise ValueNeeded(self.name, "a condition")

    def __index__(self) -> int:
        raise ValueNeeded(self.name, "an index")

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        value = self.numpy()
        return value if dtype is None else value.astype(dtype)

    def __hash__(self) -> int:
        return hash(self.name)

    def numpy(self) -> Any:
        """Only values that are kept between runs have one here: those of the global scope."""
        if not self.persistable:
            raise ValueNeeded(self.name, "numpy()")
        value = global_scope()._core.get(self.name)
        if value is None:
            raise RuntimeError(f"'{self.name}' has no value here: run the startup program first")
        return value

    def get_value(self, scope: Optional["Scope"] = None) -> Any:
        """The value in a scope."""
        value = (scope or global_scope())._core.get(self.name)
        if value is None:
            raise ValueError(f"'{self.name}' has no value in this scope: run the startup program")
        return value

    def set_value(self, value: Any, scope: Optional["Scope"] = None) -> None:
        """Sets the value in a scope; the shape must be that of the variable."""
        (scope or global_scope()).var(self.name).get_tensor().set(value)


if TYPE_CHECKING:
    # Functions and layers take variables of programs and tensors alike, and give what they took:
    # for type checkers both are one type.
    Tensor = Variable


class Parameter(Variable):
    """A variable that is learned."""

    __slots__ = ()

    @property
    def trainable(self) -> bool:
        """Whether optimizers update it."""
        return self.program._core.param_info(self.name)["trainable"]

    @trainable.setter
    def trainable(self, value: bool) -> None:
        self.program._core.set_trainable(self.name, bool(value))

    @property
    def optimize_attr(self) -> Dict[str, float]:
        """The factor on the learning rate."""
        return {"learning_rate": self.program._core.param_info(self.name)["lr_scale"]}

    @property
    def need_clip(self) -> bool:
        """Whether clipping touches its gradient."""
        return self.program._core.param_info(self.name)["clip"]


class Operator:
    """An op of a program, to look at."""

    def __init__(self, block: "Block", index: int) -> None:
        self.block = block
        self.idx = index
        self.type, self._inputs, self._outputs, self._attrs, self.role = block.program._core.op(index)

    @property
    def input_names(self) -> List[str]:
        """Input slots."""
        return list(self._inputs)

    @property
    def output_names(self) -> List[str]:
        """Output slots."""
        return list(self._outputs)

    @property
    def input_arg_names(self) -> List[str]:
        """All input variables."""
        return [name for names in self._inputs.values() for name in names]

    @property
    def output_arg_names(self) -> List[str]:
        """All output variables."""
        return [name for names in self._outputs.values() for name in names]

    def input(self, slot: str) -> List[str]:
        """Variables of an input slot."""
        return list(self._inputs.get(slot, []))

    def output(self, slot: str) -> List[str]:
        """Variables of an output slot."""
        return list(self._outputs.get(slot, []))

    def has_attr(self, name: str) -> bool:
        """Whether there is such an attribute."""
        return name in self._attrs

    def attr(self, name: str) -> Any:
        """An attribute."""
        return self._attrs[name]

    @property
    def attr_names(self) -> List[str]:
        """Names of attributes."""
        return list(self._attrs)

    def all_attrs(self) -> Dict[str, Any]:
        """All attributes."""
        return dict(self._attrs)

    def __repr__(self) -> str:
        outs = ", ".join(self.output_arg_names)
        ins = ", ".join(f"{slot}={names}" for slot, names in self._inputs.items())
        return f"{{{outs}}} = {self.type}({ins})"

    __str__ = __repr__


class _Vars:
    """The variables of a block as a mapping."""

    def __init__(self, block: "Block") -> None:
        self._block = block

    def __getitem__(self, name: str) -> Variable:
        if not self._block.program._core.has_var(name):
            raise KeyError(name)
        return self._block.var(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._block.program._core.has_var(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._block.program._core.var_names())

    def __len__(self) -> int:
        return len(self._block.program._core.var_names())

    def keys(self) -> List[str]:
        return self._block.program._core.var_names()

    def values(self) -> List[Variable]:
        return [self._block.var(name) for name in self.keys()]

    def items(self) -> List[Tuple[str, Variable]]:
        return [(name, self._block.var(name)) for name in self.keys()]

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default


class Block:
    """The ops and variables of a program."""

    idx = 0

    def __init__(self, program: "Program") -> None:
        self.program = program

    @property
    def vars(self) -> _Vars:
        """Variables by name."""
        return _Vars(self)

    @property
    def ops(self) -> List[Operator]:
        """Ops in the order they run."""
        return [Operator(self, i) for i in range(self.program._core.num_ops())]

    def has_var(self, name: str) -> bool:
        """Whether there is such a variable."""
        return self.program._core.has_var(name)

    def var(self, name: str) -> Variable:
        """The variable of that name.

        Raises ValueError if there is none."""
        if not self.program._core.has_var(name):
            raise ValueError(f"variable '{name}' is not declared in this program")
        return self.program._variable(name)

    def all_parameters(self) -> List[Parameter]:
        """Parameters in order of declaration."""
        return self.program.all_parameters()

    def iter_parameters(self) -> Iterator[Parameter]:
        """Parameters in order of declaration."""
        return iter(self.all_parameters())

    def create_var(
        self,
        name: Optional[str] = None,
        shape: Sequence[int] = (),
        dtype: Any = "float32",
        persistable: bool = False,
        **unused: Any,
    ) -> Variable:
        """Declares a variable that ops may write."""
        name = name or unique_name.generate("_generated_var")
        logical = to_dtype(dtype)
        dims = [-1 if d is None else int(d) for d in shape]
        self.program._core.declare(name, _STORED[logical], dims, bool(persistable))
        self.program._note_dtype(name, logical)
        return self.program._variable(name)

    def append_op(
        self,
        type: str,
        inputs: Optional[Dict[str, Any]] = None,
        outputs: Optional[Dict[str, Any]] = None,
        attrs: Optional[Dict[str, Any]] = None,
        **unused: Any,
    ) -> Operator:
        """Adds an op of the op set (:func:`regatta.op_kinds`); slots hold variables or names."""
        append_op(self.program, type, inputs or {}, outputs or {}, attrs or {})
        return Operator(self, self.program._core.num_ops() - 1)

    def __repr__(self) -> str:
        return repr(self.program)


class Program:
    """A model or a part of one: ops over variables. ``print`` shows all of it.

    >>> import regatta as rg
    >>> main, startup = rg.static.Program(), rg.static.Program()
    >>> with rg.static.program_guard(main, startup), rg.unique_name.guard():
    ...     x = rg.static.data("x", [None, 3], "float32")
    ...     y = rg.static.nn.fc(x, 2)
    >>> y.shape
    (-1, 2)
    """

    def __init__(self, _native: Optional[_core.Program] = None) -> None:
        self._core = _native if _native is not None else _core.Program("main")
        self._block = Block(self)
        self._logical: Dict[str, dtype] = {}
        self._lines: Dict[str, str] = {}
        self._seed = 0
        # How Executor.run runs this program if not by itself: a job, a server, a saved model.
        self._runner: Optional[Callable[..., Any]] = None
        # The scheduler of the learning rate and the variable that holds the rate.
        self._lr_scheduler: Any = None
        self._lr_name: Optional[str] = None
        self._is_test = False
        self._fleet_opt: Optional[Dict[str, Any]] = None
        # Tensors that ops of the program read, by identity, with their names here.
        self._imported: Dict[int, Tuple[Any, str]] = {}

    # What programs hold
    def global_block(self) -> Block:
        """The block with everything."""
        return self._block

    def current_block(self) -> Block:
        """The block that is being built."""
        return self._block

    def block(self, index: int) -> Block:
        """There is one block, 0."""
        if index != 0:
            raise IndexError(f"block {index}: a program has one block, 0")
        return self._block

    @property
    def blocks(self) -> List[Block]:
        """The only block."""
        return [self._block]

    @property
    def num_blocks(self) -> int:
        """1."""
        return 1

    def list_vars(self) -> Iterator[Variable]:
        """All variables, in order of declaration."""
        return iter([self._variable(name) for name in self._core.var_names()])

    def all_parameters(self) -> List[Parameter]:
        """Parameters in order of declaration."""
        names = self._core.var_names()
        return [self._variable(n) for n in names if self._core.var(n)[3] == "param"]  # type: ignore[misc]

    def _variable(self, name: str) -> Variable:
        is_param = self._core.var(name)[3] == "param"
        return Parameter(self, name) if is_param else Variable(self, name)

    def _note_dtype(self, name: str, logical: dtype) -> None:
        if _BY_STORED[_STORED[logical]] != logical:
            self._logical[name] = logical

    # Seeds
    @property
    def random_seed(self) -> int:
        """Decides all initial values of parameters; 0 means that of :func:`regatta.seed`."""
        return self._seed

    @random_seed.setter
    def random_seed(self, value: int) -> None:
        if not isinstance(value, int):
            raise ValueError(f"random_seed should be an integer, but is {value!r}")
        self._seed = value

    # Copies and text
    def _like(self, native: _core.Program) -> "Program":
        program = Program(native)
        program._logical = dict(self._logical)
        program._lines = dict(self._lines)
        program._seed = self._seed
        return program

    def clone(self, for_test: bool = False) -> "Program":
        """A copy; ``for_test`` leaves what predicts: no gradients, no updates, dropout off."""
        program = self._like(self._core.for_test() if for_test else self._core.clone())
        program._is_test = for_test or self._is_test
        if not for_test:
            program._lr_scheduler, program._lr_name = self._lr_scheduler, self._lr_name
            program._runner, program._fleet_opt = self._runner, copy.copy(self._fleet_opt)
        return program

    def _prune(self, targets: Iterable[Union[str, Variable]]) -> "Program":
        names = [t if isinstance(t, str) else t.name for t in targets]
        return self._like(self._core.prune(names))

    @staticmethod
    def parse_from_string(text: Union[str, bytes]) -> "Program":
        """The program of a text that :meth:`to_string` gave."""
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        return Program(_core.Program.parse(text))

    def to_string(self, throw_on_error: bool = True, with_details: bool = False) -> str:
        """The whole program as text; :meth:`parse_from_string` reads it."""
        return self._core.text()

    def __str__(self) -> str:
        return self._core.text()

    def __repr__(self) -> str:
        return self._core.text()

    @property
    def desc(self) -> "Program":
        """For ``program.desc.serialize_to_string()``."""
        return self

    def serialize_to_string(self) -> bytes:
        """The text of the program as bytes."""
        return self._core.text().encode("utf-8")

    def __getstate__(self) -> Dict[str, Any]:
        if self._runner is not None:
            raise TypeError("a program that is part of a job cannot be pickled; pickle a clone "
                            "that was made before minimize")
        return {"text": self._core.text(), "logical": dict(self._logical), "seed": self._seed}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        Program.__init__(self, _core.Program.parse(state["text"]))
        self._logical = {k: dtype(v) for k, v in state["logical"].items()}
        self._seed = state["seed"]

    def __deepcopy__(self, memo: Dict[int, Any]) -> "Program":
        return self.clone()


# --- what is being built -------------------------------------------------------------------------


class _Building(threading.local):
    def __init__(self) -> None:
        self.main = _DEFAULT[0]
        self.startup = _DEFAULT[1]
        self.guards = 0  # program_guards that are entered


def _startup_program() -> Program:
    return Program(_core.Program("startup"))


_DEFAULT = (Program(), _startup_program())
_building = _Building()


def default_main_program() -> Program:
    """The program that layers are added to."""
    return _building.main


def default_startup_program() -> Program:
    """The program that gives parameters their initial values."""
    return _building.startup


@contextlib.contextmanager
def program_guard(
    main_program: Program, startup_program: Optional[Program] = None
) -> Iterator[None]:
    """Layers inside ``with`` are added to these programs; the mode is static there."""
    for program in (main_program, startup_program):
        if program is not None and not isinstance(program, Program):
            raise TypeError(f"program_guard takes programs, not {type(program).__name__}")
    old = _building.main, _building.startup
    _building.main = main_program
    if startup_program is not None:
        if startup_program._core.num_ops() == 0:
            startup_program._core.replace(_core.Program("startup"))
        _building.startup = startup_program
    _building.guards += 1
    try:
        yield
    finally:
        _building.guards -= 1
        _building.main, _building.startup = old


def reset_default_programs() -> None:
    """Begins with empty default programs and names, as in a new process. For notebooks."""
    _building.main, _building.startup = Program(), _startup_program()
    unique_name.switch()
    global _global_scope
    _global_scope = Scope()


_seed = 0
_seed_count = 0  # how often a seed was given


def seed(value: int) -> int:
    """Everything random that is built or drawn from now on follows from this number."""
    global _seed, _seed_count
    _seed, _seed_count = int(value), _seed_count + 1
    _core.seed_eager(_seed & 0xFFFFFFFFFFFFFFFF)
    return _seed


def current_seed(program: Optional[Program] = None) -> int:
    """The seed for something random in a program."""
    program = program or _building.main
    return program._seed or _building.startup._seed or _seed


def _names(slots: Dict[str, Any], program: "Program") -> Dict[str, List[str]]:
    out = {}
    for slot, values in slots.items():
        if values is None:
            continue
        if not isinstance(values, (list, tuple)):
            values = [values]
        out[slot] = [_name_in(program, v) for v in values]
    return out


def _name_in(program: "Program", value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Tensor):
        from ._bridge import imported

        return imported(program, value)
    return value.name


def append_op(
    program: Program,
    kind: str,
    inputs: Dict[str, Any],
    outputs: Dict[str, Any],
    attrs: Optional[Dict[str, Any]] = None,
) -> None:
    """Adds an op to a program. Slots hold variables, names, or lists of them."""
    outs = _names(outputs, program)
    program._core.append_op(kind, _names(inputs, program), outs, attrs or {})
    line = _user_line()
    if line is not None:
        for names in outs.values():
            for name in names:
                program._lines[name] = line


def create_parameter(
    prefix: str,
    suffix: str,
    shape: Sequence[int],
    attr: Any,
    default_initializer: Any,
    dtype: Any = "float32",
) -> Optional[Parameter]:
    """A parameter of the program that is being built: ``prefix.suffix_0``, unless ``attr`` has a
    name. Nothing if ``attr`` is False."""
    attr = ParamAttr.to_attr(attr)
    if attr is False:
        return None
    if to_dtype(dtype) not in ("float32", "float64"):
        raise TypeError(f"a parameter is of type float32, not {dtype}")
    program, startup = _building.main, _building.startup
    name = attr.name or unique_name.generate(f"{prefix}.{suffix}")
    init = attr.initializer if attr.initializer is not None else default_initializer
    if not hasattr(init, "_init_op"):
        raise TypeError(f"parameter '{name}': {init!r} is not an initializer")
    dims = [int(d) for d in shape]
    regularizer = None
    if attr.regularizer is not None:
        regularizer = attr.regularizer._regularizer_spec()
    program._core.param(
        startup._core, name, dims, init._init_op(dims, current_seed(program)),
        attr.trainable, float(attr.learning_rate), regularizer, bool(attr.need_clip),
    )
    line = _user_line()
    if line is not None:
        program._lines.setdefault(name, line)
    return program._variable(name)  # type: ignore[return-value]


def create_state(name: str, shape: Sequence[int], dtype: Any, value: float) -> Variable:
    """A variable that is kept between runs but not learned, ``value`` everywhere at first."""
    logical = to_dtype(dtype)
    program, startup = _building.main, _building.startup
    program._core.state(startup._core, name, _STORED[logical], [int(d) for d in shape], float(value))
    program._note_dtype(name, logical)
    return program._variable(name)


# --- values of jobs --------------------------------------------------------------------------------

# Jobs whose values live elsewhere: each takes a program and a scope, and brings what the program
# reads there up to date.
refreshers: List[Callable[[Program, "Scope"], None]] = []


def refresh(program: Program, scope: "Scope") -> None:
    """Before a program is run or saved by this process alone: parameters that servers hold come into
    the scope. Does nothing in a process without servers."""
    for refresher in list(refreshers):
        refresher(program, scope)


# --- scopes --------------------------------------------------------------------------------------


class TensorView:
    """The value of a variable in a scope, as ``scope.find_var(name).get_tensor()`` gives it."""

    def __init__(self, scope: "Scope", name: str) -> None:
        self._scope, self._name = scope, name

    def _value(self) -> Any:
        value = self._scope._core.get(self._name)
        if value is None:
            raise RuntimeError(f"'{self._name}' has no value yet: run the startup program first")
        return value

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        value = self._value()
        return value if dtype is None else value.astype(dtype)

    def __dlpack__(self, **options: Any) -> Any:
        return self._value().__dlpack__(**options)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self._value().__dlpack_device__()

    def numpy(self) -> Any:
        """The value as an array."""
        return self._value()

    def set(self, value: Any, place: Any = None) -> None:
        """Replaces the value; its shape stays."""
        import numpy as np

        value = np.ascontiguousarray(value)
        old = self._scope._core.get(self._name)
        if old is not None:
            if value.size == old.size and value.shape != old.shape:
                value = value.reshape(old.shape)
            if value.shape != old.shape:
                raise ValueError(
                    f"'{self._name}' has the shape {list(old.shape)}, but the value has "
                    f"{list(value.shape)}"
                )
            value = value.astype(old.dtype, copy=False)
        self._scope._core.set(self._name, value)

    def shape(self) -> List[int]:
        """Dimensions."""
        return list(self._value().shape)

    _get_dims = shape

    def lod(self) -> List[List[int]]:
        """No offsets: values of scopes are rectangular."""
        return []

    def __repr__(self) -> str:
        return f"TensorView({self._name!r}, {self._value()!r})"


class _ScopeVar:
    def __init__(self, scope: "Scope", name: str) -> None:
        self._scope, self._name = scope, name

    def get_tensor(self) -> TensorView:
        """The value."""
        return TensorView(self._scope, self._name)

    def name(self) -> str:
        """The name."""
        return self._name


class Scope:
    """Values that outlive a run: parameters, optimizer state, statistics."""

    def __init__(self, native: Optional[_core.Scope] = None) -> None:
        self._core = native if native is not None else _core.Scope()

    def find_var(self, name: str) -> Optional[_ScopeVar]:
        """The variable of that name, if it has a value."""
        return _ScopeVar(self, name) if self._core.get(name) is not None else None

    def var(self, name: str) -> _ScopeVar:
        """The variable of that name, with a value or without."""
        return _ScopeVar(self, name)

    def local_var_names(self) -> List[str]:
        """Names of all values."""
        return self._core.names()

    def new_scope(self) -> "Scope":
        """An empty scope."""
        return Scope()

    def drop_kids(self) -> None:
        """Nothing: scopes have no children here."""

    def __repr__(self) -> str:
        return f"Scope({len(self._core.names())} values)"


_global_scope = Scope()


def global_scope() -> Scope:
    """The scope that executors use if they are given none."""
    return _global_scope


@contextlib.contextmanager
def scope_guard(scope: Scope) -> Iterator[None]:
    """``scope`` is the global one inside ``with``."""
    global _global_scope
    if not isinstance(scope, Scope):
        raise TypeError(f"scope_guard takes a Scope, not {type(scope).__name__}")
    old, _global_scope = _global_scope, scope
    try:
        yield
    finally:
        _global_scope = old


def __getattr__(name: str) -> Any:
    if name == "EagerParamBase":
        from ._bridge import EagerParamBase

        return EagerParamBase
    if name in ("in_dynamic_mode", "in_dygraph_mode", "in_dynamic_or_pir_mode"):
        from ._mode import in_dynamic_mode

        return in_dynamic_mode
    if name in ("get_default_dtype", "no_grad", "set_grad_enabled"):
        from . import _mode

        return getattr(_mode, name)
    if name == "core":
        from .base import core

        return core
    from ._missing import missing

    return missing(__name__)(name)
