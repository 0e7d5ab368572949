"""One process of a transpiled job: a worker of parameter servers, a server, or a rank."""
from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

from ... import _core
from ...distributed.fleet._job import Job as FleetJob
from ...framework import Program, Scope

__all__ = ["Job"]


class Job(FleetJob):
    """A job whose roles the script has said, and whose program was minimized before.

    Executors call it instead of running the programs. A worker leaves its job when its process ends
    normally, or when it is closed."""

    def __init__(
        self, role: Dict[str, Any], is_collective: bool, strategy: str, main: Program,
        startup: Program,
    ) -> None:
        super().__init__(_core.Fleet(role, is_collective, _core.Strategy(strategy)))
        self.role, self.is_collective = role, is_collective
        self.main, self.startup = main, startup

    @property
    def is_server(self) -> bool:
        """Whether this process is a server."""
        return self.role.get("role") == "server"

    @property
    def is_first(self) -> bool:
        """Whether this is the worker that saves."""
        return not self.is_server and self.role["current_id"] == 0

    def check(self, num_trainers: int, trainer_id: int) -> None:
        """Raises if a job of ranks is another than that."""
        has = len(self.role["worker_endpoints"]), self.role["current_id"]
        if has != (num_trainers, trainer_id):
            raise ValueError(
                f"num_trainers is {num_trainers} and trainer_id {trainer_id}, but transpile was "
                f"given {has[0]} trainers and the trainer_id {has[1]}"
            )

    # Texts
    def worker_text(self) -> str:
        """The program of a trainer."""
        self.prepare()
        return self.core.worker_program_text()

    def server_texts(self, index: int) -> Tuple[str, str]:
        """Main and startup program of a server."""
        self.prepare()
        return self.core.server_program_texts(index)

    # What executors call for servers
    def run_server_startup(
        self, executor: Any, feed: Any, fetch: Sequence[str], scope: Scope, kind: Any = "run"
    ) -> List[Any]:
        """Makes the part of the parameters that this server holds."""
        self.prepare()
        self.core.init_server(None, [])
        return []

    def run_server(
        self, executor: Any, feed: Any, fetch: Sequence[str], scope: Scope, kind: Any = "run"
    ) -> List[Any]:
        """Serves until all workers have left."""
        self.prepare()
        self.core.run_server()
        return []

    # Values
    def save_persistables(self, executor: Any, scope: Scope, dirname: str) -> None:
        """As :func:`regatta.fluid.io.save_persistables`; only the first worker writes."""
        self.begin(executor, scope)
        self.core.save_persistables(scope._core, dirname)

    def load_persistables(self, executor: Any, scope: Scope, dirname: str) -> None:
        """Has the servers load what was saved; nobody trains on before that."""
        self.begin(executor, scope)
        self.core.init_worker(scope._core)
        self.core.load_model(scope._core, dirname)
        self.core.barrier_worker()

    def save_inference_model(
        self, executor: Any, scope: Scope, dirname: str, feeds: Sequence[str],
        fetches: Sequence[str],
    ) -> None:
        """As :func:`regatta.fluid.io.save_inference_model`; only the first worker writes."""
        self.begin(executor, scope)
        self.core.save_inference_model(scope._core, dirname, list(feeds), list(fetches))
