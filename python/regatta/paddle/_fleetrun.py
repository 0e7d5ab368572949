"""``fleetrun``: starts the processes of a job."""
from __future__ import annotations

import sys


def main() -> None:
    """Runs ``paddle.distributed.launch``, with children that see the same ``paddle``."""
    import runpy

    from . import install

    install(quiet=True)
    sys.argv[0] = "fleetrun"
    runpy.run_module("regatta.distributed.launch", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
