"""Options of Paddle's graph executors, and programs that carry them.

Programs are compiled anyway when they first run: ops are fused, memory is shared, batches are
divided among threads. So most options only say what happens already. Those that would change
results are honoured or refused.
"""
from __future__ import annotations

import logging
import os
from typing import Any, Dict, List, Optional, Sequence

from ..framework import Program, Scope
from .lod_tensor import LoDTensor

__all__ = ["BuildStrategy", "CompiledProgram", "ExecutionStrategy"]

_log = logging.getLogger("regatta")
_said: set = set()


def say_once(message: str) -> None:
    """Logs something the first time."""
    if message not in _said:
        _said.add(message)
        _log.info(message)


class _Options:
    """Named options with defaults. Unknown names are errors."""

    _defaults: Dict[str, Any] = {}
    _kind = "options"

    def __init__(self) -> None:
        for name, value in self._defaults.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._defaults:
            known = ", ".join(sorted(self._defaults))
            raise AttributeError(f"{self._kind} has no option '{name}' (known: {known})")
        self._check(name, value)
        object.__setattr__(self, name, value)

    def _check(self, name: str, value: Any) -> None:
        """Raises if the value cannot be honoured."""

    def __repr__(self) -> str:
        changed = {n: getattr(self, n) for n, d in self._defaults.items() if getattr(self, n) != d}
        return f"{self._kind}({', '.join(f'{n}={v!r}' for n, v in changed.items())})"


class ExecutionStrategy(_Options):
    """How a program is run: ``num_threads`` threads share a batch (0: as the executor has it)."""

    class ExecutorType:
        """Kinds of executors; there is one here."""

        Default, Experimental = 0, 1

    _kind = "ExecutionStrategy"
    _defaults = {
        "num_threads": 0, "allow_op_delay": False, "num_iteration_per_drop_scope": 100,
        "num_iteration_per_run": 1, "use_cuda": False, "use_experimental_executor": False,
        "use_thread_barrier": False, "dry_run": False, "type": 0,
    }

    def _check(self, name: str, value: Any) -> None:
        if name == "num_threads" and (not isinstance(value, int) or value < 0):
            raise ValueError(f"ExecutionStrategy.num_threads should be 0 or more, not {value!r}")
        if name == "dry_run" and value:
            raise NotImplementedError("ExecutionStrategy.dry_run: programs run or they do not")
        if name == "num_iteration_per_run" and value != 1:
            raise NotImplementedError(
                f"ExecutionStrategy.num_iteration_per_run is {value}: a run is one step here; call "
                "run in a loop"
            )
        if name in ("allow_op_delay", "num_iteration_per_drop_scope", "use_thread_barrier"):
            say_once(
                f"ExecutionStrategy.{name} concerns Paddle's graph executors and changes nothing here"
            )


class BuildStrategy(_Options):
    """How a program is compiled. Results do not depend on it."""

    class ReduceStrategy:
        """Where gradients of several devices are added."""

        AllReduce, Reduce, _NoReduce = 0, 1, 2

    class GradientScaleStrategy:
        """What the gradient of the loss is on each of several devices."""

        CoeffNumDevice, One, Customized = 0, 1, 2

    _kind = "BuildStrategy"
    _defaults = {
        "reduce_strategy": 0, "gradient_scale_strategy": 0, "debug_graphviz_path": "",
        "enable_sequential_execution": False, "remove_unnecessary_lock": True, "num_trainers": 1,
        "trainer_id": 0, "trainers_endpoints": (), "fuse_elewise_add_act_ops": False,
        "fuse_bn_act_ops": False, "fuse_bn_add_act_ops": True, "fuse_relu_depthwise_conv": False,
        "fuse_broadcast_ops": False, "fuse_all_optimizer_ops": False, "fuse_all_reduce_ops": True,
        "fuse_gemm_epilogue": False, "enable_auto_fusion": False, "sync_batch_norm": False,
        "memory_optimize": None, "enable_inplace": True, "is_distribution": False,
        "async_mode": False, "nccl_comm_num": 1, "use_hierarchical_allreduce": False,
        "hierarchical_allreduce_inter_nranks": 0, "cache_runtime_context": False,
        "mkldnn_enabled_op_types": (), "enable_addto": False, "allow_cuda_graph_capture": False,
        "enable_backward_optimizer_op_deps": True, "build_cinn_pass": False,
    }
    _REFUSED = {
        "gradient_scale_strategy": "the gradient of a mean loss is that of the whole batch here",
        "debug_graphviz_path": "print(program) shows the program instead",
        "sync_batch_norm": "pass it to fleet.DistributedStrategy",
        "async_mode": "pass a_sync to fleet.DistributedStrategy",
        "use_hierarchical_allreduce": "pass it to fleet.DistributedStrategy",
        "allow_cuda_graph_capture": "there are no CUDA devices",
        "build_cinn_pass": "there is no CINN compiler",
    }

    def _check(self, name: str, value: Any) -> None:
        if value == self._defaults[name]:
            return
        if name in self._REFUSED:
            raise NotImplementedError(f"BuildStrategy.{name} = {value!r}: {self._REFUSED[name]}")
        if name not in ("num_trainers", "trainer_id", "trainers_endpoints", "is_distribution"):
            say_once(
                f"BuildStrategy.{name}: the executor fuses ops and shares memory by itself; the "
                "option changes nothing"
            )

    def _finalize_strategy_and_create_passes(self) -> Any:
        raise NotImplementedError("compiler passes are chosen by the executor, not by lists")


class CompiledProgram:
    """A program with options. :meth:`Executor.run` takes it as it takes the program.

    >>> import regatta.fluid as fluid
    >>> compiled = fluid.CompiledProgram(fluid.Program()).with_data_parallel(loss_name=None)
    """

    def __init__(self, program_or_graph: Any, build_strategy: Optional[BuildStrategy] = None) -> None:
        if isinstance(program_or_graph, CompiledProgram):
            program_or_graph = program_or_graph._program
        if not isinstance(program_or_graph, Program):
            raise TypeError(
                f"CompiledProgram takes a Program, not {type(program_or_graph).__name__}"
            )
        _expect(build_strategy, BuildStrategy, "build_strategy")
        self._program = program_or_graph
        self._build_strategy = build_strategy
        self._exec_strategy: Optional[ExecutionStrategy] = None
        self._loss_name: Optional[str] = None
        self._share_vars_from: Optional[CompiledProgram] = None
        self._places: Any = None
        self._executor: Any = None

    def with_data_parallel(
        self,
        loss_name: Optional[str] = None,
        build_strategy: Optional[BuildStrategy] = None,
        exec_strategy: Optional[ExecutionStrategy] = None,
        share_vars_from: Optional["CompiledProgram"] = None,
        places: Any = None,
    ) -> "CompiledProgram":
        """Several threads share every batch: as many as ``exec_strategy.num_threads``, the places,
        or the variable CPU_NUM say. A list of feeds is one batch in parts."""
        _expect(build_strategy, BuildStrategy, "build_strategy")
        _expect(exec_strategy, ExecutionStrategy, "exec_strategy")
        if loss_name is not None:
            check_loss(self._program, loss_name)
        self._loss_name = loss_name
        self._build_strategy = build_strategy or self._build_strategy
        self._exec_strategy = exec_strategy
        self._share_vars_from = share_vars_from
        self._places = places
        return self

    def with_inference_optimize(self, config: Any) -> "CompiledProgram":
        """For programs that predict: nothing else is needed."""
        return self

    def _threads(self) -> int:
        """Threads that were asked for; 0 if nothing was said."""
        if self._exec_strategy is not None and self._exec_strategy.num_threads:
            return self._exec_strategy.num_threads
        if isinstance(self._places, (list, tuple)) and self._places:
            return len(self._places)
        return cpu_num()

    def _run(
        self, executor: Any, feed: Any, names: Sequence[str], scope: Scope, return_numpy: bool
    ) -> List[Any]:
        """What :meth:`Executor.run` calls."""
        parts = list(feed) if isinstance(feed, (list, tuple)) else None
        merged = merge_feeds(parts) if parts is not None else feed
        results = self._executor_like(executor).run(
            self._program, feed=merged, fetch_list=list(names), scope=scope,
            return_numpy=return_numpy,
        )
        if parts is None or len(parts) < 2:
            return results
        return [self._per_part(name, value, len(parts)) for name, value in zip(names, results)]

    def _executor_like(self, executor: Any) -> Any:
        """The executor, or one with as many threads as were asked for."""
        threads = self._threads()
        if threads in (0, executor._threads):
            return executor
        if self._executor is None or self._executor._threads != threads:
            self._executor = type(executor)(executor.place, threads=threads)
        return self._executor

    def _per_part(self, name: str, value: Any, many: int) -> Any:
        """A result per batch once for every part, as several devices give it."""
        import numpy as np

        shape = self._program.global_block().var(name).shape
        if any(d < 0 for d in shape):
            return value  # One row per example.
        return np.concatenate([np.asarray(value).reshape(shape or (1,))] * many)

    def __getattr__(self, name: str) -> Any:
        # Everything else is asked of the program itself.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(object.__getattribute__(self, "_program"), name)

    def __repr__(self) -> str:
        return f"CompiledProgram of\n{self._program}"


def merge_feeds(parts: Sequence[Dict[str, Any]]) -> Dict[str, Any]:
    """One feed of several: the examples of all parts, in order."""
    import numpy as np

    if not parts:
        return {}
    names = list(parts[0])
    for at, part in enumerate(parts):
        if not isinstance(part, dict):
            raise TypeError(f"part {at} of the feed should be a dict, not {type(part).__name__}")
        if set(part) != set(names):
            raise ValueError(
                f"part {at} of the feed has {sorted(part)}, but part 0 has {sorted(names)}"
            )
    merged: Dict[str, Any] = {}
    for name in names:
        values = [part[name] for part in parts]
        if any(isinstance(v, LoDTensor) and v.lod() for v in values):
            merged[name] = _join(values)
            continue
        try:
            merged[name] = np.concatenate([np.atleast_1d(np.asarray(v)) for v in values])
        except ValueError as error:
            raise ValueError(f"the parts of '{name}' cannot be joined: {error}") from None
    return merged


def _join(values: Sequence[LoDTensor]) -> LoDTensor:
    import numpy as np

    joined = LoDTensor(np.concatenate([np.asarray(v) for v in values]))
    joined.set_recursive_sequence_lengths(
        [[n for v in values for n in v.recursive_sequence_lengths()[0]]]
    )
    return joined


def cpu_num() -> int:
    """Devices that the variable CPU_NUM asks for; 0 if it is not set."""
    text = os.environ.get("CPU_NUM", "").strip()
    if not text:
        return 0
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"the variable CPU_NUM should be a positive number, but is {text!r}")
    return int(text)


def check_loss(program: Program, loss_name: Any) -> None:
    """Raises if the program has no such variable."""
    name = loss_name if isinstance(loss_name, str) else loss_name.name
    if not program.global_block().has_var(name):
        raise ValueError(f"loss_name is '{name}', but the program has no such variable")


def _expect(value: Any, kind: type, name: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name} should be a {kind.__name__}, not {type(value).__name__}")
