"""One trace of a function: the program, and how to run it."""
from __future__ import annotations

import copy
import inspect
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from .. import framework
from .._files import is_tensor
from ..executor import Executor
from ..framework import Program, Scope, Variable, program_guard, scope_guard, unique_name
from .nested import leaves, replaced


class Trace:
    """A program with the tensors whose values it reads.

    ``feeds`` are names of inputs in the order of the tensors among the arguments; ``outputs`` is
    the structure that the function returned, with variables in the place of tensors."""

    def __init__(
        self, program: Program, feeds: List[str], outputs: Any, scope: Scope,
        bound: Sequence[Tuple[str, Any]], fixed: Sequence[Any] = (), depends: Sequence[Any] = (),
    ) -> None:
        self.program, self.feeds, self.outputs, self.scope = program, feeds, outputs, scope
        self.fetches = [v for v in leaves(outputs) if isinstance(v, Variable)]
        # Parameters and buffers with the versions that the scope has; tensors that were read once.
        self._bound = [[name, tensor, -1] for name, tensor in bound]
        self._read = [(tensor, tensor._version) for tensor in (*fixed, *depends)]
        self._executor = Executor()
        self._pruned: Optional[Program] = None

    def __deepcopy__(self, memo: Dict[int, Any]) -> "Trace":
        bound = [(name, copy.deepcopy(tensor, memo)) for name, tensor, _ in self._bound]
        return Trace(self.program, self.feeds, self.outputs, Scope(), bound)

    def is_current(self) -> bool:
        """Whether no tensor changed that was read only while tracing."""
        return all(tensor._version == version for tensor, version in self._read)

    def update(self) -> None:
        """Brings values of parameters and buffers into the scope."""
        for entry in self._bound:
            name, tensor, version = entry
            if tensor._version != version:
                kind = "int64" if tensor._stored in ("i64", "u64") else "float32"
                self.scope._core.set(name, tensor.numpy().astype(kind, copy=False))
                entry[2] = tensor._version

    def bindings(self) -> Dict[str, Any]:
        """Tensors by their names in the program."""
        return {name: tensor for name, tensor, _ in self._bound}

    def pruned(self) -> Program:
        """What predicts the outputs, and nothing else."""
        if self._pruned is None:
            self._pruned = self.program.clone(for_test=True)._prune(self.fetches)
        return self._pruned

    def used_feeds(self) -> List[str]:
        """The inputs on which the outputs depend."""
        core = self.pruned()._core
        return [name for name in self.feeds if core.has_var(name)]

    def run(self, inputs: Sequence[Any]) -> Any:
        """The outputs for tensors."""
        from ..tensor import to_tensor

        program, used = self.pruned(), set(self.used_feeds())
        self.update()
        feed = {n: tensor.numpy() for n, tensor in zip(self.feeds, inputs) if n in used}
        names = [v.name for v in self.fetches]
        found = iter(self._executor.run(program, feed, names, scope=self.scope))

        def value(leaf: Any, _: str) -> Any:
            if not isinstance(leaf, Variable):
                return leaf
            array = next(found)
            # A fetch of one element is an array of any shape; the variable knows which.
            shape = [d if d >= 0 else -1 for d in leaf.shape]
            return to_tensor(array.reshape(shape), dtype=leaf.dtype)

        return replaced(self.outputs, value)


def trace(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Dict[str, Any], layer: Any = None,
) -> Trace:
    """Calls a function with variables in the place of the tensors and specifications among its
    arguments. ``layer`` is whose method it is.

    Raises TypeError, with the line, if it needs the value of one."""
    program, startup, scope = Program(), Program(), Scope()
    feeds: List[str] = []
    with program_guard(program, startup), unique_name.guard(), scope_guard(scope):
        def variable(leaf: Any, path: str) -> Any:
            if not is_tensor(leaf) and not is_spec(leaf):
                return leaf
            from ..static import data

            name = getattr(leaf, "name", None) if is_spec(leaf) else None
            name = _free(name or path or "input", feeds)
            feeds.append(name)
            made = data(name, [-1 if d is None or d < 0 else d for d in leaf.shape], leaf.dtype)
            made.stop_gradient = bool(leaf.stop_gradient)
            return made

        named = _named(function, args)
        ready = [replaced(value, variable, name) for name, value in named]
        more = {k: replaced(v, variable, k) for k, v in kwargs.items()}
        outputs = replaced(function(*ready, **more), _checked)
    bound, fixed = _imports(program)
    # Tensors that were computed while tracing may come from any value of the layer.
    depends = [*layer.parameters(), *layer.buffers()] if fixed and layer is not None else []
    return Trace(program, feeds, outputs, scope, bound, fixed, depends)


def is_spec(value: Any) -> bool:
    """Whether a value is an InputSpec."""
    from ..static import InputSpec

    return isinstance(value, InputSpec)


def _free(name: str, taken: Sequence[str]) -> str:
    at, free = 0, name
    while free in taken:
        at += 1
        free = f"{name}_{at}"
    return free


def _named(function: Callable[..., Any], args: Sequence[Any]) -> List[Tuple[str, Any]]:
    """Arguments with the names that the function gives them."""
    try:
        names = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        names = []
    single = [p.name for p in names if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in names if p.kind is p.VAR_POSITIONAL), "input")
    out = []
    for at, value in enumerate(args):
        out.append((single[at] if at < len(single) else f"{rest}_{at - len(single)}", value))
    return out


def _checked(leaf: Any, path: str) -> Any:
    if not is_tensor(leaf):
        return leaf
    # An output that does not depend on inputs is part of the program like any other.
    program, name = framework.default_main_program(), unique_name.generate("output")
    framework.append_op(program, "assign", {"X": leaf}, {"Out": name})
    program._note_dtype(name, leaf.dtype)
    return program._variable(name)


def _imports(program: Program) -> Tuple[List[Tuple[str, Any]], List[Any]]:
    """The tensors that a program reads: parameters and states by name, and those that were written
    into it as constants."""
    bound, fixed, owners = [], [], {}  # type: ignore[var-annotated]
    for tensor, name in program._imported.values():
        if owners.setdefault(name, tensor) is not tensor:
            raise ValueError(
                f"two parameters or buffers are called '{name}'; give one of them another name "
                "(ParamAttr(name=...)) before the network is traced")
        if program._core.var(name)[3] in ("param", "persist"):
            bound.append((name, tensor))
        if not getattr(tensor, "persistable", False):
            fixed.append(tensor)
    return bound, fixed


def in_trace() -> bool:
    """Whether a function is being traced, or a program built."""
    from .._mode import in_dynamic_mode

    return not in_dynamic_mode()


def key_of(args: Any, kwargs: Dict[str, Any]) -> Any:
    """What decides about a trace: shapes and types of tensors, and all other values."""
    def part(leaf: Any, path: str) -> Any:
        if is_tensor(leaf) or is_spec(leaf):
            return (path, tuple(leaf.shape), str(leaf.dtype))
        try:
            hash(leaf)
            return (path, type(leaf).__name__, leaf)
        except TypeError:
            return (path, id(leaf))

    found: List[Any] = []
    replaced((list(args), kwargs), lambda leaf, path: found.append(part(leaf, path)))
    return tuple(found)
