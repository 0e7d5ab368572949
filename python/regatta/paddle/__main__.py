"""``python -m regatta.paddle script.py``: runs a script that says ``import paddle``."""
from __future__ import annotations

import os
import sys
from typing import List

_USAGE = """\
usage: python -m regatta.paddle script.py [argument ...]
       python -m regatta.paddle -m module [argument ...]
       python -m regatta.paddle -c code [argument ...]

Runs a Python program in which `import paddle` gives Regatta, and so do the processes it starts.
"""


def main(argv: List[str]) -> None:
    """Runs what the arguments name, as ``python`` would."""
    if not argv or argv[0] in ("-h", "--help"):
        print(_USAGE, end="", file=sys.stdout if argv else sys.stderr)
        sys.exit(0 if argv else 2)
    if argv[0] in ("-m", "-c") and len(argv) < 2:
        sys.exit(f"python -m regatta.paddle: {argv[0]} needs an argument")
    if argv[0].startswith("-") and argv[0] not in ("-m", "-c"):
        sys.exit(f"python -m regatta.paddle: unknown option {argv[0]}\n{_USAGE}")

    from . import install

    if argv[0] == "-m":
        _set_first_path(os.getcwd())
        install()
        _run_module(argv[1], argv[2:])
    elif argv[0] == "-c":
        _set_first_path("")
        install()
        _run_code(argv[1], argv[2:])
    else:
        script = argv[0]
        if not os.path.exists(script):
            sys.exit(f"python -m regatta.paddle: no such file: {script}")
        # A folder or an archive with a __main__.py is put there by runpy itself.
        if os.path.isfile(script):
            _set_first_path(os.path.dirname(os.path.realpath(script)))
        install()
        _run_script(script, argv[1:])


def _set_first_path(path: str) -> None:
    """The first place that modules are looked for; ``-m`` has put the current folder there."""
    safe = getattr(sys.flags, "safe_path", False) or sys.flags.isolated
    if not safe and sys.path:
        sys.path[0] = path


def _run_script(script: str, arguments: List[str]) -> None:
    import runpy

    sys.argv[:] = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def _run_module(module: str, arguments: List[str]) -> None:
    import runpy

    sys.argv[:] = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _run_code(code: str, arguments: List[str]) -> None:
    import types

    sys.argv[:] = ["-c", *arguments]
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    exec(compile(code, "<string>", "exec"), module.__dict__)


if __name__ == "__main__":
    main(sys.argv[1:])
