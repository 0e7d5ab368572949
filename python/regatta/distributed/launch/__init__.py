"""``python -m regatta.distributed.launch train.py``: a script as the processes of a job."""
from __future__ import annotations

import os
import sys
from typing import List, Optional, Set, Tuple

__all__ = ["launch"]

# What `launch_ps` starts if nobody says how many.
_SERVERS, _WORKERS = 2, 2

# Flags without a value.
_SWITCHES = ("--timing", "--paddle", "--help", "-h", "--use_paddlecloud", "--print_config")


def launch(argv: Optional[List[str]] = None) -> int:
    """Starts the script of the arguments and stays until the job has ended; its exit code.

    ``--server_num 2 --worker_num 2 train.py`` is a job with parameter servers,
    ``--nproc_per_node 2 train.py`` or ``--gpus=0,1 train.py`` one of ranks. Where ``paddle`` is
    Regatta, it is in the processes of the job, too."""
    from ...__main__ import main

    arguments = list(sys.argv[1:] if argv is None else argv)
    flags, script = _flags(arguments)
    if script < len(arguments) and arguments[script].endswith(".py") and "--emit" not in flags:
        arguments[script:script] = _python()
    return main(["launch", *arguments])


def _python() -> List[str]:
    """How a script is run: by this interpreter, lines written at once, with the same ``paddle``."""
    paddle = ["-m", "regatta.paddle"] if os.environ.get("REGATTA_PADDLE") == "1" else []
    return [sys.executable, "-u", *paddle]


def launch_ps(argv: Optional[List[str]] = None) -> int:
    """As :func:`launch`, for a job with parameter servers: two and two workers, unless flags or
    variables say otherwise."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    flags, _ = _flags(arguments)
    if "--help" in flags or "-h" in flags or not arguments:
        return launch(arguments)
    env = os.environ
    if not flags & {"--server_num", "--server-num", "--servers"} and not (
        env.get("PADDLE_SERVER_NUM") or env.get("PADDLE_SERVERS_ENDPOINTS")
    ):
        arguments = ["--server_num", str(_SERVERS), *arguments]
    workers = {"--worker_num", "--worker-num", "--trainer_num", "--workers", "--trainers"}
    if not flags & workers and not (
        env.get("PADDLE_TRAINER_NUM") or env.get("PADDLE_TRAINERS_ENDPOINTS")
    ):
        arguments = ["--worker_num", str(_WORKERS), *arguments]
    return launch(arguments)


def _flags(arguments: List[str]) -> Tuple[Set[str], int]:
    """Names of the flags before the script, and where the script is; flags that follow are its."""
    flags = set()
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        name, equals, _ = arguments[at].partition("=")
        flags.add(name)
        at += 1 if equals or name in _SWITCHES else 2
    return flags, min(at, len(arguments))
