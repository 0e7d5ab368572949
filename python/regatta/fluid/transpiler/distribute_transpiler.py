"""``DistributeTranspiler``: a training program becomes a job of trainers and parameter servers, or
of ranks."""
from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from ... import _core
from ...framework import Program, default_main_program, default_startup_program
from ..compiler import _Options, say_once
from .job import Job

__all__ = ["DistributeTranspiler", "DistributeTranspilerConfig", "HashName", "RoundRobin"]


class PSDispatcher:
    """How Fluid deals parameters to servers. Here every server gets an equal part."""

    def __init__(self, pserver_endpoints: Sequence[str] = ()) -> None:
        self.eps = list(pserver_endpoints)


class HashName(PSDispatcher):
    """By the hash of the name."""


class RoundRobin(PSDispatcher):
    """In turn."""


class DistributeTranspilerConfig(_Options):
    """Options of :class:`DistributeTranspiler`.

    ``mode`` is ``pserver`` (parameter servers), ``nccl2`` or ``collective`` (ranks that add up
    their gradients); ``sync_mode``, ``geo_sgd_mode`` and ``geo_sgd_need_push_nums`` say how trainers
    and servers exchange; ``collective_mode`` is ``grad_allreduce`` or ``local_sgd``."""

    _kind = "DistributeTranspilerConfig"
    _defaults = {
        "mode": "pserver", "sync_mode": True, "geo_sgd_mode": False, "geo_sgd_need_push_nums": 100,
        "collective_mode": None, "slice_var_up": True, "split_method": None,
        "min_block_size": 8192, "enable_dc_asgd": False, "print_log": False, "wait_port": True,
        "runtime_split_send_recv": False, "completely_not_async": False, "half_async": False,
        "nccl_comm_num": 1, "use_hierarchical_allreduce": False,
        "hierarchical_allreduce_inter_nranks": 0,
    }

    def _check(self, name: str, value: Any) -> None:
        if name == "mode" and value not in ("pserver", "nccl2", "collective"):
            raise ValueError(
                f"DistributeTranspilerConfig.mode should be pserver, nccl2 or collective, not {value!r}"
            )
        if name == "collective_mode" and value not in (None, "grad_allreduce", "local_sgd"):
            raise ValueError(
                "DistributeTranspilerConfig.collective_mode should be grad_allreduce or local_sgd, "
                f"not {value!r}"
            )
        if value == self._defaults[name]:
            return
        if name == "enable_dc_asgd":
            raise NotImplementedError(
                "DistributeTranspilerConfig.enable_dc_asgd: delay compensation is not supported; "
                "use sync_mode or geo_sgd_mode"
            )
        if name == "use_hierarchical_allreduce":
            raise NotImplementedError(
                "DistributeTranspilerConfig.use_hierarchical_allreduce: pass it to "
                "fleet.DistributedStrategy"
            )
        if name in ("slice_var_up", "split_method", "min_block_size", "runtime_split_send_recv"):
            say_once(
                f"DistributeTranspilerConfig.{name}: every server holds an equal part of every "
                "parameter; the option changes nothing"
            )


class TrainerProgram(Program):
    """The program of a trainer. It has the variables of the whole program, and prints what a
    trainer does: what it receives, forward and backward, what it sends."""

    def __init__(self, main: Program, job: Job) -> None:
        super().__init__(main._core.clone())
        self._logical, self._lines, self._seed = dict(main._logical), dict(main._lines), main._seed
        self._lr_name = main._lr_name
        self._worker_job = job

    def to_string(self, throw_on_error: bool = True, with_details: bool = False) -> str:
        """What a trainer does, as text."""
        return self._worker_job.worker_text()

    def __str__(self) -> str:
        return self.to_string()

    __repr__ = __str__


class DistributeTranspiler:
    """Divides a training program between trainers and parameter servers, or prepares it for ranks.

    The programs that it returns run: ``exe.run(t.get_pserver_program(endpoint))`` serves until all
    trainers have left, and every ``exe.run(t.get_trainer_program(), feed=...)`` is a step of the job.

    ::

        optimizer.minimize(loss)
        t = fluid.DistributeTranspiler()
        t.transpile(trainer_id, pservers="127.0.0.1:6174", trainers=2)
        if role == "PSERVER":
            program = t.get_pserver_program("127.0.0.1:6174")
            exe.run(t.get_startup_program("127.0.0.1:6174", program))
            exe.run(program)
        else:
            exe.run(fluid.default_startup_program())
            exe.run(t.get_trainer_program(), feed=...)
    """

    def __init__(self, config: Optional[DistributeTranspilerConfig] = None) -> None:
        if config is not None and not isinstance(config, DistributeTranspilerConfig):
            raise TypeError("DistributeTranspiler takes a DistributeTranspilerConfig")
        self.config = config or DistributeTranspilerConfig()
        self._main: Optional[Program] = None
        self._startup: Optional[Program] = None
        self._worker: Optional[Job] = None
        self._servers: Dict[str, Tuple[Job, Program, Program]] = {}

    def transpile(self, *args: Any, **kwargs: Any) -> None:
        """Says who takes part. The arguments are, in one of the orders of Fluid's versions::

            transpile(trainer_id, program=None, pservers="127.0.0.1:6174", trainers=1,
                      sync_mode=True, startup_program=None, current_endpoint="127.0.0.1:6174")
            transpile(optimize_ops, params_grads, trainer_id, program=None, pservers=..., trainers=1)
            transpile(optimize_ops, params_grads, pservers=..., trainers=1)

        Without ``trainer_id`` it is that of the variable PADDLE_TRAINER_ID, or 0. In the modes
        ``nccl2`` and ``collective`` ``trainers`` is a list of endpoints."""
        given = _arguments(args, kwargs)
        if self._main is not None:
            raise RuntimeError("transpile was called before: make a new DistributeTranspiler")
        main = given["program"] or default_main_program()
        startup = given["startup_program"] or default_startup_program()
        _check_minimized(main, given["params_grads"])
        trainer_id = _trainer_id(given["trainer_id"])
        if self.config.mode == "pserver":
            self._endpoints = _endpoints("pservers", given["pservers"])
            self._trainers = _count(given["trainers"])
            if not 0 <= trainer_id:
                raise ValueError(f"trainer_id should be 0 or more, but is {trainer_id}")
            self._sync = bool(given["sync_mode"]) and self.config.sync_mode
        else:
            self._endpoints = _endpoints("trainers", given["trainers"])
            _check_rank(trainer_id, self._endpoints, given["current_endpoint"])
        self._trainer_id = trainer_id
        self._main, self._startup = main, startup
        if self.config.mode != "pserver":
            role = {
                "kind": "user", "current_id": trainer_id, "worker_endpoints": self._endpoints,
            }
            local_sgd = "localsgd: true\n" if self.config.collective_mode == "local_sgd" else ""
            self._worker = Job(role, True, local_sgd, main, startup)
            _attach(main, startup, self._worker)

    # Trainers
    def get_trainer_program(self, wait_port: bool = True) -> Program:
        """The program that a trainer runs, step by step. It is the same each time."""
        main, startup = self._transpiled("get_trainer_program")
        if self._worker is None:
            if self._trainer_id >= self._trainers:
                raise ValueError(
                    f"trainer_id is {self._trainer_id}, but with {self._trainers} trainers it is "
                    f"below {self._trainers}"
                )
            self._worker = self._job("worker", self._trainer_id)
            _attach(main, startup, self._worker)
            self._trainer = TrainerProgram(main, self._worker)
            _mark(self._trainer, self._worker, self._worker.run_main)
        elif self._worker.is_collective:
            return main
        return self._trainer

    # Servers
    def get_pserver_program(self, endpoint: str) -> Program:
        """What the server at an endpoint holds and how it updates it. It serves when it is run."""
        return self._server("get_pserver_program", endpoint)[1]

    def get_pserver_programs(self, endpoint: str) -> Tuple[Program, Program]:
        """Main and startup program of the server at an endpoint."""
        return self._server("get_pserver_programs", endpoint)[1:]

    def get_startup_program(
        self,
        endpoint: str,
        pserver_program: Optional[Program] = None,
        startup_program: Optional[Program] = None,
    ) -> Program:
        """The initial values of everything that a server's program holds."""
        _, main, startup = self._server("get_startup_program", endpoint)
        if pserver_program is not None and pserver_program is not main:
            raise ValueError(
                f"get_startup_program: this is not the program of the server {endpoint}: pass what "
                f"get_pserver_program({endpoint!r}) returns"
            )
        return startup

    def _server(self, call: str, endpoint: str) -> Tuple[Job, Program, Program]:
        self._transpiled(call)
        if self.config.mode != "pserver":
            raise ValueError(f"{call}: there are no servers in the mode {self.config.mode}")
        endpoint = endpoint.strip()
        if endpoint not in self._endpoints:
            raise ValueError(
                f"{call}: there is no server at '{endpoint}' (servers: {', '.join(self._endpoints)})"
            )
        if endpoint not in self._servers:
            index = self._endpoints.index(endpoint)
            job = self._job("server", index)
            main, startup = (Program(_core.Program.parse(t)) for t in job.server_texts(index))
            _mark(main, job, job.run_server)
            _mark(startup, job, job.run_server_startup)
            main._is_server_program = startup._is_server_program = True  # type: ignore[attr-defined]
            self._servers[endpoint] = job, main, startup
        return self._servers[endpoint]

    def _job(self, role: str, index: int) -> Job:
        main, startup = self._transpiled("transpile")
        spec = {
            "kind": "user", "current_id": index, "role": role, "worker_num": self._trainers,
            "server_endpoints": self._endpoints,
        }
        return Job(spec, False, self._strategy(), main, startup)

    def _strategy(self) -> str:
        if self.config.geo_sgd_mode:
            every = int(self.config.geo_sgd_need_push_nums)
            return f"a_sync: true\na_sync_configs:\n  k_steps: {every}\n"
        return f"a_sync: {'false' if self._sync else 'true'}\n"

    def _transpiled(self, call: str) -> Tuple[Program, Program]:
        if self._main is None or self._startup is None:
            raise RuntimeError(f"{call}: call transpile first")
        return self._main, self._startup


def _mark(program: Program, job: Job, runner: Any) -> None:
    program._job = job  # type: ignore[attr-defined]
    program._runner = runner


def _attach(main: Program, startup: Program, job: Job) -> None:
    """From now on these programs are run as parts of the job."""
    job.attach(main, startup)
    _mark(main, job, job.run_main)
    _mark(startup, job, job.run_startup)


_NEW = ("trainer_id", "program", "pservers", "trainers", "sync_mode", "startup_program",
        "current_endpoint")
_OLD = ("optimize_ops", "params_grads", "trainer_id", "program", "pservers", "trainers",
        "split_method")


def _arguments(args: Sequence[Any], kwargs: Dict[str, Any]) -> Dict[str, Any]:
    """The arguments by name, in whichever order they were given."""
    is_old = bool(args) and isinstance(args[0], (list, tuple)) or "optimize_ops" in kwargs
    order = _OLD if is_old else _NEW
    if len(args) > len(order):
        raise TypeError(f"transpile takes at most {len(order)} arguments ({', '.join(order)})")
    given: Dict[str, Any] = {
        "optimize_ops": None, "params_grads": None, "trainer_id": None, "program": None,
        "pservers": "127.0.0.1:6174", "trainers": 1, "sync_mode": True, "startup_program": None,
        "current_endpoint": None, "split_method": None,
    }
    for name, value in zip(order, args):
        given[name] = value
    for name, value in kwargs.items():
        if name not in given:
            raise TypeError(f"transpile has no argument '{name}' (known: {', '.join(given)})")
        if name in order[: len(args)]:
            raise TypeError(f"transpile was given '{name}' twice")
        given[name] = value
    for name in ("program", "startup_program"):
        if given[name] is not None and not isinstance(given[name], Program):
            raise TypeError(f"transpile: {name} should be a Program, not {given[name]!r}")
    return given


def _check_minimized(main: Program, params_grads: Any) -> None:
    if getattr(main, "_job", None) is not None or main._runner is not None:
        raise ValueError("transpile: this program is part of a job already")
    roles = {op[4] for op in main._core.ops()}
    if "optimize" not in roles:
        raise ValueError(
            "transpile: the program updates no parameters: call optimizer.minimize(loss) first"
        )
    for param, _ in params_grads or ():
        if not main.global_block().has_var(param.name):
            raise ValueError(
                f"transpile: params_grads has '{param.name}', which the program lacks: pass what "
                "minimize returned for it, or the program with program="
            )


def _trainer_id(value: Any) -> int:
    if value is None:
        value = os.environ.get("PADDLE_TRAINER_ID", "0")
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ValueError(f"transpile: trainer_id should be a number, but is {value!r}") from None


def _count(trainers: Any) -> int:
    try:
        count = int(trainers)
    except (TypeError, ValueError):
        raise ValueError(
            f"transpile: trainers should be the number of trainers, but is {trainers!r} (a list of "
            "endpoints is for config.mode = \"nccl2\")"
        ) from None
    if count < 1:
        raise ValueError(f"transpile: trainers should be positive, but is {count}")
    return count


def _endpoints(name: str, value: Union[str, Sequence[str]]) -> List[str]:
    if isinstance(value, int):
        raise ValueError(
            f"transpile: {name} should be endpoints such as \"ip:port,ip:port\", but is {value}"
        )
    parts = value.split(",") if isinstance(value, str) else value
    endpoints = [part.strip() for part in parts if part.strip()]
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"transpile: {name}: '{endpoint}' is not of the form host:port")
    if not endpoints:
        raise ValueError(f"transpile: {name} is empty")
    return endpoints


def _check_rank(trainer_id: int, endpoints: List[str], current: Optional[str]) -> None:
    if not 0 <= trainer_id < len(endpoints):
        raise ValueError(f"trainer_id is {trainer_id}, but there are {len(endpoints)} trainers")
    if current is not None and current.strip() != endpoints[trainer_id]:
        raise ValueError(
            f"current_endpoint is {current}, but trainer {trainer_id} is at {endpoints[trainer_id]}"
        )
