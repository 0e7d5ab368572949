"""Runs programs: :class:`Executor`, and what its runs return."""
from __future__ import annotations

import os
import re
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import _core, framework
from .framework import Program, Scope, Variable

__all__ = ["Executor", "Fetched", "fetch_names"]


class Fetched(np.ndarray):
    """An array of one element that is also a number: ``"%f" % cost`` and ``cost[0] < 10`` work."""

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        value = self.item()
        if not isinstance(value, int):
            raise TypeError("only an integer can be an index")
        return value

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __getitem__(self, key: Any) -> Any:
        # `value[0]` of shape [1] is a number; of more dimensions it is such an array again.
        value = np.ndarray.__getitem__(self, key)
        return value

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        if return_scalar or array.ndim == 0:
            return array[()]
        return array.view(np.ndarray) if array.size != 1 else array.view(Fetched)

    def __reduce__(self) -> Any:
        return self.view(np.ndarray).__reduce__()


def _one_or_many(array: Any) -> Any:
    return array.view(Fetched) if array.size == 1 else array


def fetch_names(fetch_list: Any) -> List[str]:
    """Names of what a fetch list holds: variables, names, or lists of them."""
    if fetch_list is None:
        return []
    if isinstance(fetch_list, (str, Variable)):
        fetch_list = [fetch_list]
    names: List[str] = []
    for item in fetch_list:
        if isinstance(item, str):
            names.append(item)
        elif isinstance(item, (list, tuple)):
            names.extend(fetch_names(item))
        elif hasattr(item, "name"):
            names.append(item.name)
        else:
            raise TypeError(f"fetch_list: {item!r} is neither a variable nor a name")
    return names


_QUOTED = re.compile(r"'([^']+)'")


def _with_line(error: BaseException, program: Program) -> BaseException:
    """The same exception with the line of the user's script that made the op."""
    for name in _QUOTED.findall(str(error)):
        line = program._lines.get(name)
        if line is not None:
            try:
                return type(error)(f"{error}\n  '{name}' was made at {line}")
            except TypeError:
                break
    return error


_LOCATED = (ValueError, RuntimeError, MemoryError)


class Executor:
    """Runs programs on arrays.

    >>> import numpy as np, regatta as rg
    >>> main, startup = rg.static.Program(), rg.static.Program()
    >>> with rg.static.program_guard(main, startup), rg.unique_name.guard():
    ...     x = rg.static.data("x", [None, 2], "float32")
    ...     y = rg.static.nn.fc(x, 1)
    >>> exe = rg.static.Executor()
    >>> exe.run(startup)
    []
    >>> exe.run(main, feed={"x": np.ones((3, 2), "float32")}, fetch_list=[y])[0].shape
    (3, 1)
    """

    def __init__(self, place: Any = None, threads: Optional[int] = None) -> None:
        self.place = place
        self._threads = threads or _threads_from_environment()
        self._check = os.environ.get("FLAGS_check_nan_inf", "0").lower() in ("1", "true")
        self._core = _core.Executor(self._threads, self._check)
        self._closed = False

    # --- one run -----------------------------------------------------------------------------

    def run(
        self,
        program: Any = None,
        feed: Any = None,
        fetch_list: Any = None,
        feed_var_name: str = "feed",
        fetch_var_name: str = "fetch",
        scope: Optional[Scope] = None,
        return_numpy: bool = True,
        use_program_cache: bool = False,
        return_merged: bool = True,
        use_prune: bool = False,
    ) -> List[Any]:
        """Runs a program once and returns what ``fetch_list`` names, in order.

        Raises ValueError if a feed or fetch does not fit, with the line that made the op."""
        if self._closed:
            raise RuntimeError("this executor is closed")
        if program is None:
            program = framework.default_main_program()
        names = fetch_names(fetch_list)
        if scope is None:
            scope = framework.global_scope()
        if not isinstance(program, Program):
            run = getattr(program, "_run", None)
            if run is None:
                raise TypeError(f"Executor.run takes a Program, not {type(program).__name__}")
            return run(self, feed, names, scope, return_numpy)
        if feed is None and getattr(program, "_loader", None) is not None:
            feed = program._loader.next_feed()
        feed = _as_feed(feed, program)
        if program._lr_scheduler is not None and program._lr_name is not None:
            self._set_rate(program, scope)
        try:
            if program._runner is not None:
                fetched = program._runner(self, feed, names, scope, "run")
            else:
                if framework.refreshers:
                    framework.refresh(program, scope)
                fetched = self._core.run(program._core, scope._core, feed, names)
        except _LOCATED as error:
            located = _with_line(error, program)
            if located is error:
                raise
            raise located from None
        return self._results(program, names, fetched or [], return_numpy)

    def _results(self, program: Program, names: Sequence[str], fetched: Sequence[Any], numpy: bool) -> List[Any]:
        logical = program._logical
        if logical:
            fetched = [
                value.astype(str(logical[name])) if name in logical else value
                for name, value in zip(names, fetched)
            ]
        return [_one_or_many(value) for value in fetched]

    def _set_rate(self, program: Program, scope: Scope) -> None:
        rate = program._lr_scheduler()
        scope._core.set(program._lr_name, np.array([rate], dtype=np.float32))

    # --- data passes -------------------------------------------------------------------------

    def train_from_dataset(
        self,
        program: Any = None,
        dataset: Any = None,
        scope: Optional[Scope] = None,
        thread: int = 0,
        debug: bool = False,
        fetch_list: Any = None,
        fetch_info: Optional[Sequence[str]] = None,
        print_period: int = 100,
        fetch_handler: Any = None,
    ) -> Tuple[int, int]:
        """One data pass over a dataset, at the full speed of the reader. Every ``print_period``
        steps it prints what ``fetch_list`` names. Returns steps and examples. ``thread`` and
        ``debug`` change nothing: the dataset says how many threads read."""
        return self._pass(program, dataset, scope, fetch_list, fetch_info, print_period, fetch_handler)

    def infer_from_dataset(
        self,
        program: Any = None,
        dataset: Any = None,
        scope: Optional[Scope] = None,
        thread: int = 0,
        debug: bool = False,
        fetch_list: Any = None,
        fetch_info: Optional[Sequence[str]] = None,
        print_period: int = 100,
        fetch_handler: Any = None,
    ) -> Tuple[int, int]:
        """As :meth:`train_from_dataset` without gradients and updates."""
        program = program if program is not None else framework.default_main_program()
        source = getattr(program, "_program", program)
        test = source if source._is_test else _test_program(source)
        return self._pass(test, dataset, scope, fetch_list, fetch_info, print_period, fetch_handler)

    def _pass(
        self,
        program: Any,
        dataset: Any,
        scope: Optional[Scope],
        fetch_list: Any,
        fetch_info: Optional[Sequence[str]],
        print_period: int,
        fetch_handler: Any,
    ) -> Tuple[int, int]:
        if self._closed:
            raise RuntimeError("this executor is closed")
        if dataset is None:
            raise RuntimeError("a data pass needs a dataset: pass dataset=")
        program = program if program is not None else framework.default_main_program()
        program = getattr(program, "_program", program)
        scope = scope or framework.global_scope()
        names = fetch_names(fetch_list)
        handler = None
        if fetch_handler is not None:
            names, handler, print_period = _handler(fetch_handler)
        elif names:
            handler = _printer(names, fetch_info)
        native = dataset._prepare_to_read()
        if program._lr_scheduler is not None and program._lr_name is not None:
            self._set_rate(program, scope)
        try:
            if program._runner is not None:
                return program._runner(
                    self, {}, names, scope, ("train", native, max(1, print_period), handler)
                )
            if framework.refreshers:
                framework.refresh(program, scope)
            return self._core.train(
                program._core, scope._core, native, names, max(1, print_period), handler
            )
        except _LOCATED as error:
            located = _with_line(error, program)
            if located is error:
                raise
            raise located from None

    def close(self) -> None:
        """Frees what was prepared. In a job with servers the worker leaves it."""
        self._closed = True
        self._core.close()

    def __repr__(self) -> str:
        return f"Executor({self.place if self.place is not None else 'CPUPlace'}, threads={self._threads})"


def _threads_from_environment() -> int:
    text = os.environ.get("CPU_NUM", "1")
    try:
        return max(1, int(text))
    except ValueError:
        raise ValueError(f"CPU_NUM should be a number of threads, but is '{text}'") from None


def _as_feed(feed: Any, program: Program) -> Dict[str, Any]:
    if feed is None:
        return {}
    if isinstance(feed, dict):
        plain = True
        for value in feed.values():
            if type(value) is not np.ndarray and type(value) is not tuple:
                plain = False
                break
        if plain:
            return feed
        return {_name(name): _plain(value) for name, value in feed.items()}
    if isinstance(feed, (list, tuple)):
        if len(feed) == 1 and isinstance(feed[0], dict):
            return _as_feed(feed[0], program)
        raise TypeError(
            "feed: a list has one dictionary per device; use CompiledProgram or ParallelExecutor "
            "for several"
        )
    raise TypeError(f"feed should be a dictionary of arrays by name, not {type(feed).__name__}")


def _name(name: Any) -> str:
    return name if isinstance(name, str) else name.name


def _plain(value: Any) -> Any:
    """An array of anything that can be fed."""
    feed = getattr(value, "_as_feed", None)
    if feed is not None:
        return feed()
    if isinstance(value, (np.ndarray, tuple)):
        return value
    if hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    return np.asarray(value)


def _test_program(program: Program) -> Program:
    """The part of a program that predicts, made once per state of the program."""
    version = program._core.version
    cached = getattr(program, "_test_cache", None)
    if cached is None or cached[0] != version:
        test = program.clone(for_test=True)
        follow = getattr(program, "_test_runner", None)
        if follow is not None:
            test._runner = follow(test)
        cached = (version, test)
        program._test_cache = cached  # type: ignore[attr-defined]
    return cached[1]


def _printer(
    names: Sequence[str], info: Optional[Sequence[str]]
) -> Callable[[int, List[Any]], None]:
    if info is not None and len(info) != len(names):
        raise ValueError(f"fetch_info has {len(info)} texts for {len(names)} variables")
    labels = list(info) if info is not None else list(names)

    def show(step: int, values: List[Any]) -> None:
        parts = ", ".join(f"{label}: {np.array2string(v)}" for label, v in zip(labels, values))
        print(f"step: {step}, {parts}", flush=True)

    return show


def _handler(fetch_handler: Any) -> Tuple[List[str], Callable[[int, List[Any]], None], int]:
    """Paddle's FetchHandler: a dictionary of variables and a method that gets their values."""
    variables = dict(fetch_handler.var_dict)
    labels = list(variables)
    names = fetch_names([variables[label] for label in labels])
    period = getattr(fetch_handler, "period_secs", 60)
    import time

    last = [time.monotonic()]

    def call(step: int, values: List[Any]) -> None:
        now = time.monotonic()
        if now - last[0] >= period:
            last[0] = now
            fetch_handler.handler(dict(zip(labels, values)))

    return names, call, 1


class FetchHandler:
    """Values of a running data pass: ``handler`` gets them every ``period_secs`` seconds."""

    def __init__(self, var_dict: Dict[str, Union[str, Variable]], period_secs: float = 60) -> None:
        if not var_dict:
            raise ValueError("FetchHandler needs a dictionary of variables")
        self.var_dict, self.period_secs = var_dict, period_secs

    def handler(self, res_dict: Dict[str, Any]) -> None:
        """Overwrite it; this one prints."""
        for name, value in res_dict.items():
            print(f"{name}: {value}", flush=True)
