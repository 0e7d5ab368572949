"""Runs a program on a batch in parts, one part per device."""
from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

from ..framework import Program, Scope, default_main_program, global_scope
from .compiler import BuildStrategy, CompiledProgram, ExecutionStrategy, check_loss, cpu_num

__all__ = ["ParallelExecutor"]


class ParallelExecutor:
    """Runs a program on feeds for several devices.

    Devices are threads of this process that share a batch. A list of feeds is one batch: the parts,
    which may be unequal, are joined, and a mean loss is the mean over *all* examples. (Paddle takes
    the mean of every device and then the mean of those, so that an example of a smaller part weighs
    more. The results are the same for equal parts.)

    What is fetched has the shape that Paddle gives it: results per example are those of all parts,
    one after the other; a result per batch, such as a mean loss, appears once for every part.

    ``num_trainers`` and ``trainer_id`` are those of a job of ranks that
    :class:`~regatta.fluid.DistributeTranspiler` (mode ``nccl2``) has prepared; with parameter
    servers they are 1 and 0.
    """

    def __init__(
        self,
        use_cuda: bool = False,
        loss_name: Optional[str] = None,
        main_program: Optional[Program] = None,
        share_vars_from: Optional["ParallelExecutor"] = None,
        exec_strategy: Optional[ExecutionStrategy] = None,
        build_strategy: Optional[BuildStrategy] = None,
        num_trainers: int = 1,
        trainer_id: int = 0,
        scope: Optional[Scope] = None,
    ) -> None:
        from ..device import CPUPlace, CUDAPlace
        from ..executor import Executor

        if share_vars_from is not None and not isinstance(share_vars_from, ParallelExecutor):
            raise TypeError("share_vars_from should be a ParallelExecutor")
        program = main_program if main_program is not None else default_main_program()
        if isinstance(program, CompiledProgram):
            program = program._program
        if loss_name is not None:
            check_loss(program, loss_name)
        _check_trainers(program, num_trainers, trainer_id)
        self._compiled = CompiledProgram(program).with_data_parallel(
            None, build_strategy, exec_strategy
        )
        self._program = program
        self._scope = scope or (share_vars_from._scope if share_vars_from is not None else None)
        self._executor = Executor(CUDAPlace(0) if use_cuda else CPUPlace())

    @property
    def device_count(self) -> int:
        """Devices of a feed that is not a list: what the variable CPU_NUM says, or 1."""
        return cpu_num() or 1

    def run(
        self,
        fetch_list: Optional[Sequence[Any]] = None,
        feed: Any = None,
        feed_dict: Any = None,
        return_numpy: bool = True,
    ) -> List[Any]:
        """One step. ``feed`` is a dict, or a list of dicts with one part of the batch each."""
        feed = feed if feed is not None else feed_dict
        for part in feed if isinstance(feed, (list, tuple)) else [feed or {}]:
            self._check_feed(part)
        return self._executor.run(
            self._compiled, feed=feed, fetch_list=fetch_list, scope=self._scope or global_scope(),
            return_numpy=return_numpy,
        )

    def _check_feed(self, feed: Dict[str, Any]) -> None:
        block = self._program.global_block()
        unknown = [name for name in feed if not block.has_var(name)]
        if unknown:
            inputs = [v.name for v in self._program.list_vars() if v.is_data]
            has = f"its inputs: {', '.join(inputs)}" if inputs else "it has no inputs"
            raise ValueError(
                f"ParallelExecutor: the feed has {', '.join(map(repr, unknown))}, but the program "
                f"has no such variables ({has})"
            )

    def drop_local_exe_scopes(self) -> None:
        """Nothing to do: memory of a step is reused by the next."""

    _need_create_local_exe_scopes = False


def _check_trainers(program: Program, num_trainers: int, trainer_id: int) -> None:
    if num_trainers < 1 or not 0 <= trainer_id < num_trainers:
        raise ValueError(f"trainer_id is {trainer_id}, but num_trainers is {num_trainers}")
    job = getattr(program, "_job", None)
    if num_trainers > 1 and (job is None or not job.is_collective):
        raise ValueError(
            f"num_trainers is {num_trainers}, but this program exchanges nothing with other "
            "trainers: transpile it with config.mode = \"nccl2\" first; with parameter servers "
            "num_trainers is 1"
        )
    if job is not None and job.is_collective and num_trainers > 1:
        job.check(num_trainers, trainer_id)
