"""What this process is in its job: from the environment, or from the program itself."""
from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

from ...._missing import missing
from .... import _core

__all__ = [
    "PaddleCloudRoleMaker", "Role", "RoleMakerBase", "UserDefinedCollectiveRoleMaker",
    "UserDefinedRoleMaker",
]

__getattr__ = missing(__name__)


class Role:
    """What a process does in a job."""

    WORKER = 1
    SERVER = 2
    HETER_WORKER = 3
    ALL = 4
    COORDINATOR = 5


class RoleMakerBase:
    """Says what this process is. Only the environment or its own arguments are read: nothing is
    connected before training begins."""

    def __init__(self, is_collective: bool = False) -> None:
        self._is_collective = bool(is_collective)
        self._native: Optional[_core.Fleet] = None

    def _role_dict(self) -> Optional[Dict[str, Any]]:
        """The role as the native fleet takes it; None reads the environment."""
        return None

    def _generate_role(self) -> None:
        """Reads the role, if that was not done."""
        self._place()

    generate_role = _generate_role

    def _place(self) -> _core.Fleet:
        if self._native is None:
            self._native = _core.Fleet(self._role_dict(), self._is_collective, None)
        return self._native

    # The names that scripts use
    def _is_worker(self) -> bool:
        return self._place().is_worker()

    def _is_server(self) -> bool:
        return self._place().is_server()

    def _is_first_worker(self) -> bool:
        return self._place().is_first_worker()

    def _is_coordinator(self) -> bool:
        return False

    def _is_heter_worker(self) -> bool:
        return False

    def _is_non_distributed(self) -> bool:
        """Whether this process trains alone."""
        return self._place().worker_num() == 1 and self._place().server_num() == 0

    def _worker_num(self) -> int:
        return self._place().worker_num()

    def _server_num(self) -> int:
        return self._place().server_num()

    def _worker_index(self) -> int:
        return self._place().worker_index()

    def _server_index(self) -> int:
        return self._place().server_index()

    def _role_id(self) -> int:
        return self._server_index() if self._is_server() else self._worker_index()

    def _get_trainer_endpoints(self) -> List[str]:
        return self._place().worker_endpoints()

    def _get_pserver_endpoints(self) -> List[str]:
        return self._place().server_endpoints()

    def _get_trainer_endpoint(self) -> str:
        endpoints = self._get_trainer_endpoints()
        index = self._worker_index()
        return endpoints[index] if index < len(endpoints) else ""

    def _node_num(self) -> int:
        """Number of machines: of different hosts among the endpoints."""
        place = self._place()
        endpoints = place.worker_endpoints() + place.server_endpoints()
        return max(1, len({endpoint.rsplit(":", 1)[0] for endpoint in endpoints}))

    _get_node_num = _node_num

    # The same without the underscore, as before version 2
    is_worker = _is_worker
    is_server = _is_server
    is_first_worker = _is_first_worker
    worker_num = _worker_num
    server_num = _server_num
    worker_index = _worker_index
    server_index = _server_index
    role_id = _role_id
    get_trainer_endpoints = _get_trainer_endpoints
    get_pserver_endpoints = _get_pserver_endpoints

    def to_string(self) -> str:
        """What this process is, and who else is in the job."""
        place = self._place()
        return (
            f"role: {place.place()}, workers: {place.worker_num()}, "
            f"worker endpoints: {place.worker_endpoints()}, "
            f"server endpoints: {place.server_endpoints()}"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.to_string()})"


class PaddleCloudRoleMaker(RoleMakerBase):
    """Reads what launchers write into the environment; a process without a job trains alone.

    >>> role = PaddleCloudRoleMaker()
    >>> role._worker_num()
    1
    """

    def __init__(self, is_collective: bool = False, **kwargs: Any) -> None:
        super().__init__(is_collective)
        # Where a store of Gloo would be; workers here meet at the servers or at rank 0.
        unknown = set(kwargs) - {"path", "init_gloo", "use_ps_gpu", "with_coordinator"}
        if unknown:
            raise TypeError(f"PaddleCloudRoleMaker has no argument '{sorted(unknown)[0]}'")
        for name in ("use_ps_gpu", "with_coordinator"):
            if kwargs.get(name):
                raise NotImplementedError(f"PaddleCloudRoleMaker: {name} is not implemented")


class UserDefinedRoleMaker(RoleMakerBase):
    """A role that the program knows, from flags or files of its own.

    >>> role = UserDefinedRoleMaker(
    ...     current_id=0, role=Role.SERVER, worker_num=2,
    ...     server_endpoints=["127.0.0.1:36011", "127.0.0.1:36012"])
    >>> role._is_server(), role._server_num()
    (True, 2)
    """

    def __init__(
        self,
        is_collective: bool = False,
        init_gloo: bool = False,
        current_id: int = 0,
        role: Optional[int] = None,
        worker_num: Optional[int] = None,
        server_endpoints: Optional[Sequence[str]] = None,
        worker_endpoints: Optional[Sequence[str]] = None,
        token: Optional[str] = None,
        **kwargs: Any,
    ) -> None:
        # `init_gloo` and `path` are about a library that jobs here do without.
        unknown = set(kwargs) - {"path"}
        if unknown:
            raise TypeError(f"UserDefinedRoleMaker has no argument '{sorted(unknown)[0]}'")
        server_endpoints = _endpoints("server_endpoints", server_endpoints)
        worker_endpoints = _endpoints("worker_endpoints", worker_endpoints)
        super().__init__(is_collective or (not server_endpoints and bool(worker_endpoints)))
        self._current_id, self._worker_count = int(current_id), worker_num
        self._servers, self._workers, self._token = server_endpoints, worker_endpoints, token
        if role not in (None, Role.WORKER, Role.SERVER):
            raise ValueError(f"role should be Role.WORKER or Role.SERVER, but is {role!r}")
        self._role = role
        self._generate_role()

    def _role_dict(self) -> Dict[str, Any]:
        role: Dict[str, Any] = {"kind": "user", "current_id": self._current_id}
        if self._token is not None:
            role["token"] = self._token
        if self._is_collective:
            if not self._workers:
                raise ValueError("UserDefinedRoleMaker: a collective job needs worker_endpoints")
            role["worker_endpoints"] = self._workers
            return role
        if not self._servers:
            raise ValueError(
                "UserDefinedRoleMaker: a job needs server_endpoints (or worker_endpoints for "
                "collective training)"
            )
        workers = self._worker_count
        if workers is None:
            workers = len(self._workers) or 1
        role["role"] = "server" if self._role == Role.SERVER else "worker"
        role["worker_num"] = int(workers)
        role["server_endpoints"] = self._servers
        return role

    def _get_trainer_endpoints(self) -> List[str]:
        return self._place().worker_endpoints() or list(self._workers)


class UserDefinedCollectiveRoleMaker(UserDefinedRoleMaker):
    """As :class:`UserDefinedRoleMaker`, for collective training; the name of version 1."""

    def __init__(
        self, current_id: int = 0, worker_endpoints: Optional[Sequence[str]] = None
    ) -> None:
        super().__init__(True, current_id=current_id, worker_endpoints=worker_endpoints)


def _endpoints(name: str, value: Any) -> List[str]:
    if value is None:
        return []
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    endpoints = list(value)
    for endpoint in endpoints:
        if not isinstance(endpoint, str):
            raise TypeError(f"{name} holds texts such as '127.0.0.1:6000', but has {endpoint!r}")
    return endpoints
