"""Processes that this one starts as the ranks of a job."""
from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import threading
import traceback
from multiprocessing import connection as connections
from typing import Any, Callable, Dict, List, Optional, Sequence

__all__ = ["MultiprocessContext", "spawn"]

#: How long ranks may take to end by themselves after another has failed, before they are killed.
_END_S = 10.0


def spawn(
    func: Callable[..., Any], args: Sequence[Any] = (), nprocs: int = -1, join: bool = True,
    daemon: bool = False, **options: Any,
) -> Any:
    """Calls a function in several processes, which are the ranks of a job on this machine.

    The function and its arguments are pickled, so the function is at the top level of a module, and
    the script calls ``spawn`` under ``if __name__ == "__main__":``. It begins with
    :func:`init_parallel_env`. ``nprocs`` is as many as there are processors unless it is given. If
    a rank fails, the others are ended, and its exception is raised here with its traceback. With
    ``join=False`` the processes are returned, to ``join()`` them later.
    """
    if not callable(func):
        raise TypeError(f"spawn: func should be a function, but is {func!r:.60}")
    unknown = set(options) - {"start_method", "gpus", "ips", "backend"}
    if unknown:
        raise ValueError(f"spawn: there is no option '{sorted(unknown)[0]}'")
    gpus = options.get("gpus")
    if gpus is not None and nprocs == -1:
        nprocs = len([part for part in str(gpus).split(",") if part.strip()])
    if nprocs == -1:
        nprocs = os.cpu_count() or 1
    if isinstance(nprocs, bool) or not isinstance(nprocs, int) or nprocs < 1:
        raise ValueError(f"spawn: nprocs should be a number above 0 or -1, but is {nprocs!r}")
    context = MultiprocessContext(func, tuple(args), nprocs, daemon, options.get("start_method"))
    if not join:
        return context
    context.join()
    return None


class MultiprocessContext:
    """Ranks that :func:`spawn` has started."""

    def __init__(
        self, func: Any, args: Any, nprocs: int, daemon: bool, start_method: Optional[str]
    ) -> None:
        context: Any = multiprocessing.get_context(start_method or "spawn")
        self._lines: List[Any] = []
        self.processes: List[Any] = []
        try:
            for variables in _places(nprocs):
                here, there = context.Pipe(duplex=False)
                process = context.Process(
                    target=_rank, args=(func, args, variables, there), daemon=daemon)
                self._lines.append(here)
                self.processes.append(process)
                process.start()
                there.close()
        except BaseException:
            self._end()
            raise

    def join(self, timeout: Optional[float] = None) -> bool:
        """Waits for all ranks; False if ``timeout`` seconds were not enough. Raises RuntimeError
        with the traceback of the rank that failed first, after the others have ended."""
        try:
            return self._wait(timeout)
        except BaseException:
            self._end()
            raise

    def _wait(self, timeout: Optional[float]) -> bool:
        left = {process.sentinel: rank for rank, process in enumerate(self.processes)
                if process.exitcode is None}
        while left:
            ended = connections.wait(list(left), timeout)
            if not ended:
                return False
            for sentinel in ended:
                left.pop(sentinel)
            self._raise_failure()
        self._raise_failure()
        self._end()
        return True

    def _raise_failure(self) -> None:
        """Raises what made a rank fail. A rank that only lost another is not the reason."""
        texts = {rank: self._text(rank) for rank, process in enumerate(self.processes)
                 if process.exitcode not in (None, 0)}
        if not texts:
            return
        # The one that took the others with it may be a moment behind them.
        if all(lost for _, lost in texts.values()):
            for process in self.processes:
                process.join(1.0)
            texts = {rank: self._text(rank) for rank, process in enumerate(self.processes)
                     if process.exitcode not in (None, 0)}
        rank = min(texts, key=lambda rank: (texts[rank][1], rank))
        raise RuntimeError(f"spawn: {texts[rank][0]}")

    def _text(self, rank: int) -> Any:
        """What is known of the failure of a rank, and whether it is the loss of another."""
        line, process = self._lines[rank], self.processes[rank]
        if not hasattr(process, "_regatta_text"):
            try:
                found = line.recv() if line.poll() else None
            except (EOFError, OSError):
                found = None
            if found is None:
                code = process.exitcode
                how = f"exit code {code}"
                if code < 0:
                    how = f"signal {signal.Signals(-code).name}"
                process._regatta_text = (f"rank {rank} (process {process.pid}) ended with {how}",
                                         False)
            else:
                text, lost = found
                process._regatta_text = (f"rank {rank} failed:\n\n{text}", lost)
        return process._regatta_text

    def _end(self) -> None:
        """No process stays behind."""
        started = [process for process in self.processes if process.pid is not None]
        for process in started:
            if process.exitcode is None:
                process.terminate()
        for process in started:
            process.join(_END_S)
            if process.exitcode is None:
                process.kill()
                process.join()
        for line in self._lines:
            line.close()


def _places(nprocs: int) -> List[Dict[str, str]]:
    """What a launcher says to each rank of one machine."""
    import secrets

    sockets = [socket.socket() for _ in range(nprocs)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        endpoints = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    finally:
        for each in sockets:
            each.close()
    token = os.environ.get("REGATTA_JOB_TOKEN") or secrets.token_hex(16)
    return [
        {
            "TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": str(rank),
            "PADDLE_TRAINERS_NUM": str(nprocs), "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
            "PADDLE_CURRENT_ENDPOINT": endpoints[rank], "PADDLE_RANK_IN_NODE": str(rank),
            "PADDLE_LOCAL_RANK": str(rank), "PADDLE_LOCAL_SIZE": str(nprocs),
            "PADDLE_NNODES": "1", "FLAGS_selected_gpus": str(rank),
            "REGATTA_JOB_TOKEN": token,
        }
        for rank in range(nprocs)
    ]


def _end_with_parent() -> None:
    """A rank does not outlive the process that started it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connections.wait([parent.sentinel])
        os._exit(1)


def _rank(func: Any, args: Any, variables: Dict[str, str], line: Any) -> None:
    """The life of a rank."""
    from . import _world
    from ..errors import PeerLost

    os.environ.update(variables)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        func(*args)
        _world.leave(is_end=True)
    except SystemExit as end:
        if end.code not in (None, 0):
            _world.abandon()
            line.send((f"it called sys.exit({end.code!r})", False))
        raise
    except KeyboardInterrupt:
        _world.abandon()
        sys.exit(130)
    except BaseException as error:  # noqa: BLE001 - the parent raises it
        _world.abandon()
        line.send((traceback.format_exc(), isinstance(error, PeerLost)))
        sys.exit(1)
