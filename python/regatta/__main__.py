"""The command line: ``python -m regatta`` is ``regatta``."""
from __future__ import annotations

import sys
from typing import List, Optional


def main(argv: Optional[List[str]] = None) -> int:
    """Runs the command line and returns its exit code."""
    import signal

    from . import _core

    # Python's handler would wait for native code to return; the command line ends at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    arguments = sys.argv[1:] if argv is None else list(argv)
    sys.stdout.flush()
    return _core.main(arguments, [sys.executable, "-m", "regatta"])


if __name__ == "__main__":
    sys.exit(main())
