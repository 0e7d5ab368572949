"""The calls that a distributed training script makes. ``fleet`` has them as functions."""
from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple, Union

from ...._missing import missing
from .... import _core, framework
from ...parallel import _note_rank_asked
from .. import _dynamic as dynamic
from .._job import Job
from .distributed_strategy import DistributedStrategy
from .distributed_strategy import of as _strategy
from .role_maker import PaddleCloudRoleMaker, RoleMakerBase
from .util_factory import UtilBase

__all__ = ["DistributedOptimizer", "Fleet"]

__getattr__ = missing(__name__)

_GONE = {
    "main_program": "default_main_program",
    "_origin_program": "default_main_program",
    "startup_program": "default_startup_program",
}


def gone(name: str) -> AttributeError:
    """The error for a program that fleets had before version 2."""
    return AttributeError(
        f"fleet.{name} is gone: use paddle.static.{_GONE[name]}() "
        f"(regatta.static.{_GONE[name]}())"
    )


class Fleet:
    """This process and its job.

    >>> from regatta.distributed import fleet
    >>> fleet.init()
    >>> fleet.worker_num(), fleet.is_first_worker()
    (1, True)
    """

    def __init__(self) -> None:
        self._job: Optional[Job] = None
        self._role_maker: Optional[RoleMakerBase] = None
        self._strategy: Optional[DistributedStrategy] = None
        self._optimizer: Optional["DistributedOptimizer"] = None
        self._util = UtilBase(self)

    def __getattr__(self, name: str) -> Any:
        if name in _GONE:
            raise gone(name)
        raise AttributeError(f"'Fleet' object has no attribute '{name}'")

    def _job_or_raise(self, call: str) -> Job:
        if self._job is None:
            raise RuntimeError(f"fleet.{call}: call fleet.init() first")
        return self._job

    def _place(self, call: str) -> _core.Fleet:
        return self._job_or_raise(call).core

    # --- what this process is

    def init(
        self,
        role_maker: Optional[RoleMakerBase] = None,
        is_collective: bool = False,
        strategy: Optional[DistributedStrategy] = None,
        log_level: Union[int, str] = "INFO",
    ) -> None:
        """Finds out what this process is: by the role maker, or from the environment.

        ``is_collective`` chooses between workers that reduce gradients among themselves and
        parameter servers. ``strategy`` is for optimizers that are given none. A process without a
        job trains alone. Called again, it begins another job; programs that were minimized before
        stay with theirs.
        """
        if role_maker is None:
            role_maker = PaddleCloudRoleMaker(is_collective=is_collective)
        elif not isinstance(role_maker, RoleMakerBase):
            raise TypeError(
                f"role_maker should be a PaddleCloudRoleMaker or a UserDefinedRoleMaker, but is a "
                f"{type(role_maker).__name__}"
            )
        if not isinstance(is_collective, bool):
            raise TypeError(f"is_collective should be True or False, but is {is_collective!r}")
        set_log_level(log_level)
        collective = is_collective or role_maker._is_collective
        strategy = _strategy(strategy)
        native = _core.Fleet(role_maker._role_dict(), collective, _native(strategy, collective))
        self._job = Job(native)
        self._role_maker, self._strategy, self._optimizer = role_maker, strategy, None

    def is_first_worker(self) -> bool:
        """Whether this process trains and is the first of those that do."""
        return self._place("is_first_worker").is_first_worker()

    def worker_index(self) -> int:
        """The number of this worker, from 0."""
        _note_rank_asked()
        return self._place("worker_index").worker_index()

    def worker_num(self) -> int:
        """Number of workers."""
        return self._place("worker_num").worker_num()

    def is_worker(self) -> bool:
        """Whether this process trains."""
        return self._place("is_worker").is_worker()

    def worker_endpoints(self, to_string: bool = False) -> Union[str, List[str]]:
        """Addresses of workers as far as they are known."""
        endpoints = self._place("worker_endpoints").worker_endpoints()
        if not endpoints and self._role_maker is not None:
            endpoints = self._role_maker._get_trainer_endpoints()
        return ",".join(endpoints) if to_string else endpoints

    def server_num(self) -> int:
        """Number of servers."""
        return self._place("server_num").server_num()

    def server_index(self) -> int:
        """The number of this server, from 0."""
        return self._place("server_index").server_index()

    def server_endpoints(self, to_string: bool = False) -> Union[str, List[str]]:
        """Addresses of servers."""
        endpoints = self._place("server_endpoints").server_endpoints()
        return ",".join(endpoints) if to_string else endpoints

    def is_server(self) -> bool:
        """Whether this process holds parameters for others."""
        return self._place("is_server").is_server()

    def is_coordinator(self) -> bool:
        """False: there is no federated training."""
        self._place("is_coordinator")
        return False

    def rank(self) -> int:
        """The number of this worker, from 0."""
        return self.worker_index()

    def nranks(self) -> int:
        """Number of workers."""
        return self.worker_num()

    world_size = nranks

    def node_num(self) -> int:
        """Number of machines."""
        self._place("node_num")
        return self._role_maker._node_num() if self._role_maker is not None else 1

    def local_rank(self) -> int:
        """The number of this rank within its machine."""
        import os

        self._place("local_rank")
        for name in ("PADDLE_LOCAL_RANK", "PADDLE_RANK_IN_NODE"):
            if os.environ.get(name):
                return int(os.environ[name])
        return self.worker_index() if self.node_num() == 1 else 0

    rank_in_node = local_rank

    def local_device_ids(self) -> List[str]:
        """Devices that the launcher gave to this rank."""
        return _devices("PADDLE_LOCAL_DEVICE_IDS")

    def world_device_ids(self) -> List[str]:
        """Devices that the launcher gave to all ranks."""
        return _devices("PADDLE_WORLD_DEVICE_IDS")

    @property
    def util(self) -> UtilBase:
        """Exchanges of small values among workers."""
        return self._util

    def all_reduce(self, input: Any, mode: str = "sum") -> Any:
        """As ``fleet.util.all_reduce``."""
        return self._util.all_reduce(input, mode)

    # --- the life of workers and servers

    def barrier_worker(self) -> None:
        """Waits until all workers have come this far."""
        place = self._place("barrier_worker")
        if dynamic.has_joined():
            return dynamic.barrier()
        place.barrier_worker()

    def begin_pass(self) -> DataPass:
        """Begins a pass over the data: until :meth:`end_pass` this worker may hold rows of its
        servers. Use it in a ``with`` statement, which ends the pass whatever happens, or call both.
        It is an error if a pass has begun already."""
        job = self._job_or_raise("begin_pass")
        job.ensure_prepared()
        job.core.begin_pass()
        return DataPass(self)

    def end_pass(self) -> None:
        """Ends a pass over the data: the servers have all that this worker has changed."""
        self._job_or_raise("end_pass").core.end_pass()

    def init_worker(self, scopes: Any = None) -> None:
        """Connects to the others and gives all workers the same parameters: those of the first.
        Run the startup program before. The first step does it if it was not done."""
        job = self._job_or_raise("init_worker")
        scope = scopes[0] if isinstance(scopes, (list, tuple)) and scopes else scopes
        job.prepare()
        job.core.init_worker((scope or job.the_scope())._core)

    def init_server(self, *args: Any, **kwargs: Any) -> None:
        """Makes this server's part of the parameters.

        ``model_dir`` is a folder of :meth:`save_persistables`: values are taken from there, of all
        variables or of those in ``var_names``."""
        model_dir, var_names = _server_arguments(args, kwargs)
        job = self._job_or_raise("init_server")
        job.prepare()
        job.core.init_server(model_dir, var_names)

    def run_server(self) -> None:
        """Serves until all workers have left."""
        job = self._job_or_raise("run_server")
        job.prepare()
        job.core.run_server()

    def stop_worker(self) -> None:
        """Completes what is in flight, takes the latest parameters and leaves the job. Servers end
        when all workers have left. The end of a script does it if it was not done."""
        job = self._job_or_raise("stop_worker")
        if job.main is None and dynamic.has_joined():
            return dynamic.leave()
        job.stop()

    # --- optimizers

    def distributed_optimizer(
        self, optimizer: Any, strategy: Optional[DistributedStrategy] = None
    ) -> "DistributedOptimizer":
        """An optimizer whose program trains on one machine or many. ``strategy`` goes before that
        of :meth:`init`. In the dynamic mode it is :meth:`distributed_model` that exchanges
        gradients, and the optimizer stays what it is."""
        job = self._job_or_raise("distributed_optimizer")
        strategy = _strategy(strategy) or self._strategy
        self._optimizer = DistributedOptimizer(job, optimizer, strategy)
        return self._optimizer

    def minimize(
        self,
        loss: framework.Variable,
        startup_program: Optional[framework.Program] = None,
        parameter_list: Optional[Sequence[Any]] = None,
        no_grad_set: Optional[Any] = None,
    ) -> Tuple[List[Any], List[Any]]:
        """``minimize`` of the last :meth:`distributed_optimizer`."""
        if self._optimizer is None:
            raise RuntimeError("fleet.minimize: call fleet.distributed_optimizer(optimizer) first")
        return self._optimizer.minimize(loss, startup_program, parameter_list, no_grad_set)

    def distributed_model(self, model: Any) -> Any:
        """In the dynamic mode the model of all ranks: a :class:`~regatta.DataParallel` with the
        sizes of buckets of the strategy. A model of static programs is returned as it is:
        :meth:`distributed_optimizer` makes those distributed."""
        job = self._job_or_raise("distributed_model")
        return dynamic.distributed_model(job.core, model, self._final_strategy())

    def amp_init(
        self, place: Any, scope: Any = None, test_program: Any = None, use_fp16_test: bool = False
    ) -> None:
        """``amp_init`` of the last :meth:`distributed_optimizer`."""
        if self._optimizer is None:
            raise RuntimeError("fleet.amp_init: call fleet.distributed_optimizer(optimizer) first")
        self._optimizer.amp_init(place, scope, test_program, use_fp16_test)

    def _final_strategy(self) -> Optional[DistributedStrategy]:
        """The strategy that is in force."""
        return self._optimizer._strategy if self._optimizer is not None else self._strategy

    # --- files

    def save_persistables(
        self, executor: Any, dirname: str, main_program: Any = None, mode: int = 0
    ) -> None:
        """Saves what training resumes from: parameters, tables and optimizer state. The first
        worker saves; the same call does nothing on others."""
        job = self._saving("save_persistables", main_program, mode)
        job.core.save_persistables(job.the_scope()._core, _folder(dirname))

    def save_inference_model(
        self,
        executor: Any,
        dirname: str,
        feeded_var_names: Sequence[Any],
        target_vars: Any,
        main_program: Any = None,
        export_for_deployment: bool = True,
        mode: int = 0,
    ) -> None:
        """Saves the part of the program that makes the targets from the named inputs, for
        prediction on one machine. The first worker saves."""
        job = self._saving("save_inference_model", main_program, mode)
        feeds, targets = _names(feeded_var_names), _names(target_vars)
        job.core.save_inference_model(job.the_scope()._core, _folder(dirname), feeds, targets)

    def load_model(self, path: str, mode: int = 0) -> None:
        """Takes the values of a folder of :meth:`save_persistables`. Put :meth:`barrier_worker`
        after it, so that nobody continues with earlier values."""
        job = self._saving("load_model", None, mode)
        job.core.load_model(job.the_scope()._core, _folder(path))

    def load_inference_model(self, path: str, mode: int = 0) -> None:
        """Not for fleets: a saved inference model is loaded where it predicts."""
        raise NotImplementedError(
            "fleet.load_inference_model: an inference model is loaded by "
            "paddle.static.load_inference_model(path, executor); fleet.load_model loads what "
            "fleet.save_persistables has saved"
        )

    def shrink(self, threshold: Optional[int] = None) -> int:
        """Ages all rows of tables by a day and drops those that were not seen for ``threshold``
        days. Returns how many rows are gone."""
        if threshold is None:
            raise TypeError("fleet.shrink: pass after how many days without use a row is dropped")
        job = self._job_or_raise("shrink")
        job.ensure_prepared()
        return job.core.shrink(job.the_scope()._core, int(threshold))

    def save_one_table(self, table_id: int, path: str, mode: int) -> None:
        """Not implemented: servers save all of their tables together."""
        raise _all_tables("save_one_table", "save_persistables")

    def load_one_table(self, table_id: int, path: str, mode: int) -> None:
        """Not implemented: use ``fleet.init_server(dir, var_names=[...])``."""
        raise _all_tables("load_one_table", "init_server(dir, var_names=[name])")

    def save_cache_model(self, dirname: str, **configs: Any) -> int:
        """Not implemented: tables have no cache of their own."""
        raise _all_tables("save_cache_model", "save_persistables")

    def save_cache_table(
        self, table_id: int, pass_id: int, mem_cache_key_threshold: int = 4000000000
    ) -> int:
        """Not implemented: tables have no cache of their own."""
        raise _all_tables("save_cache_table", "save_persistables")

    def save_dense_params(
        self, executor: Any, dirname: str, scope: Any, program: Any, var_names: Any = None
    ) -> None:
        """Not implemented: parameters are saved together."""
        raise _all_tables("save_dense_params", "save_persistables")

    def save(self, dirname: str, feed: Any = (), fetch: Any = (), **configs: Any) -> None:
        """An inference model if there are inputs and targets, everything otherwise."""
        if feed and fetch:
            return self.save_inference_model(None, dirname, feed, fetch)
        return self.save_persistables(None, dirname)

    def _saving(self, call: str, main_program: Any, mode: int) -> Job:
        job = self._job_or_raise(call)
        if mode != 0:
            raise NotImplementedError(
                f"fleet.{call}: mode {mode} is not implemented; 0 is everything"
            )
        if main_program is not None and job.main is not None and main_program is not job.main:
            same = getattr(main_program, "_core", None)
            if same is None or same.text() != job.main._core.text():
                raise ValueError(
                    f"fleet.{call}: main_program is not the one that the distributed optimizer "
                    "has minimized; leave it out"
                )
        job.ensure_prepared()
        return job


class DistributedOptimizer:
    """An optimizer whose program trains on one machine or many. What it does not have itself is
    that of the optimizer it was made from."""

    def __init__(
        self, job: Job, optimizer: Any, strategy: Optional[DistributedStrategy]
    ) -> None:
        if not hasattr(optimizer, "_spec"):
            raise TypeError(
                f"distributed_optimizer takes an optimizer, not a {type(optimizer).__name__}"
            )
        self._job, self._strategy = job, strategy
        self.user_defined_optimizer = optimizer
        collective = job.core.is_collective()
        self._native = _native(strategy, collective)
        if self._native is not None:
            self._native.check(collective)
        if getattr(optimizer, "_groups", None):
            dynamic.check_strategy(job.core, strategy)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "user_defined_optimizer":
            raise AttributeError(name)
        return getattr(self.user_defined_optimizer, name)

    def minimize(
        self,
        loss: framework.Variable,
        startup_program: Optional[framework.Program] = None,
        parameter_list: Optional[Sequence[Any]] = None,
        no_grad_set: Optional[Any] = None,
        parameters: Optional[Sequence[Any]] = None,
    ) -> Tuple[List[Any], List[Any]]:
        """Appends gradients and updates to the program of the loss. From then on the executor runs
        it as this process's part of the job. Returns the update ops, and parameters with their
        gradients."""
        if isinstance(loss, (list, tuple)):
            if len(loss) != 1:
                raise NotImplementedError("minimize: several losses in one job; add them up")
            loss = loss[0]
        job, optimizer = self._job, self.user_defined_optimizer
        if isinstance(loss, framework.Tensor):
            return optimizer.minimize(loss)
        if not isinstance(loss, framework.Variable):
            raise TypeError(f"minimize takes a variable, not a {type(loss).__name__}")
        if parameters is None:
            parameters = parameter_list
        main, startup = optimizer._programs_of(loss, startup_program)
        chosen = optimizer._parameter_list if parameters is None else _names(parameters)
        has_servers = job.core.server_num() > 0
        if has_servers:
            optimizer._check_tables(main)
        optimizer._take_names(main, chosen)
        ops, pairs = job.core.minimize(
            main._core, startup._core, loss.name, optimizer._spec(for_servers=has_servers),
            self._native, chosen, _names(no_grad_set or []),
        )
        optimizer._note(main)
        if has_servers:
            main._lr_scheduler = None  # servers hold the rate
        if main._fleet_opt is None:
            main._fleet_opt = {}
        job.attach(main, startup)
        return optimizer._made(main, ops, pairs)

    def amp_init(
        self, place: Any, scope: Any = None, test_program: Any = None, use_fp16_test: bool = False
    ) -> None:
        """Parameters are kept in float32 and cast where they are used, so there is nothing left to
        prepare; it is an error if mixed precision is off."""
        if self._strategy is None or not self._strategy.amp:
            raise RuntimeError("amp_init: mixed precision is off; set strategy.amp = True")


class DataPass:
    """A pass over the data that has begun; a ``with`` statement ends it."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def __enter__(self) -> DataPass:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._fleet.end_pass()


def _native(strategy: Optional[DistributedStrategy], collective: bool) -> Optional[_core.Strategy]:
    """The native strategy. PaddleRec's tools ask every job for `adam_d2sum` and GPUBox for tables on
    cards, so that these are left out with a warning, not refused."""
    import warnings

    if strategy is None:
        return None
    if strategy.a_sync_configs["use_ps_gpu"] and not collective:
        warnings.warn(
            "strategy.a_sync_configs['use_ps_gpu']: Regatta computes on CPUs; the rows stay on the "
            "parameter servers",
            stacklevel=4,
        )
        strategy = strategy._without("a_sync_configs.use_ps_gpu")
    if strategy.adam_d2sum and not collective:
        warnings.warn(
            "strategy.adam_d2sum: dense parameters follow the optimizer of the script here; set "
            "it to False to be rid of this line",
            stacklevel=4,
        )
        strategy = strategy._without("adam_d2sum")
    return strategy._core


def set_log_level(level: Union[int, str]) -> None:
    """Which messages of :mod:`logging` this package shows."""
    if isinstance(level, bool) or not isinstance(level, (int, str)):
        raise TypeError(f"log_level should be a name such as 'INFO' or a number, not {level!r}")
    if level == "INFO":
        return
    import logging

    logging.getLogger("regatta").setLevel(level.upper() if isinstance(level, str) else level)


def _server_arguments(args: Tuple[Any, ...], kwargs: Any) -> Tuple[Optional[str], List[str]]:
    names = ["model_dir", "var_names"]
    if len(args) > 2:
        raise TypeError(f"init_server takes model_dir and var_names, but got {len(args)} arguments")
    given = dict(zip(names, args))
    for name, value in kwargs.items():
        name = {"dirname": "model_dir"}.get(name, name)
        if name not in names or name in given:
            raise TypeError(f"init_server takes model_dir and var_names once each, not '{name}'")
        given[name] = value
    model_dir = given.get("model_dir")
    if model_dir is not None and not isinstance(model_dir, str):
        model_dir = _folder(model_dir)
    return model_dir or None, _names(given.get("var_names") or [])


def _folder(path: Any) -> str:
    import os

    return os.fspath(path)


def _names(values: Any) -> List[str]:
    if isinstance(values, (str, framework.Variable)):
        values = [values]
    return [v if isinstance(v, str) else v.name for v in values]


def _devices(variable: str) -> List[str]:
    import os

    text = os.environ.get(variable, "")
    return [part.strip() for part in text.split(",") if part.strip()]


def _all_tables(call: str, instead: str) -> NotImplementedError:
    return NotImplementedError(
        f"fleet.{call} is not implemented: servers save and load their tables together; use "
        f"fleet.{instead}"
    )
