"""Small helpers."""
from __future__ import annotations

from typing import Any, Optional

from .._missing import missing

__all__ = ["dlpack", "run_check", "try_import", "unique_name"]


def run_check() -> None:
    """Trains a line and reports whether it was found."""
    import numpy as np

    import regatta as rg

    main, startup = rg.static.Program(), rg.static.Program()
    with rg.static.program_guard(main, startup), rg.unique_name.guard():
        x = rg.static.data("x", [None, 2], "float32")
        y = rg.static.data("y", [None, 1], "float32")
        cost = rg.mean(rg.nn.functional.square_error_cost(rg.static.nn.fc(x, 1), y))
        rg.optimizer.SGD(learning_rate=0.2).minimize(cost)
    exe = rg.static.Executor()
    loss = float("nan")
    with rg.static.scope_guard(rg.static.Scope()):
        exe.run(startup)
        points = np.array([[0, 1], [1, 0], [1, 1]], "float32")
        for _ in range(300):
            fetched = exe.run(main, feed={"x": points, "y": points.sum(1, keepdims=True)},
                              fetch_list=[cost])
            loss = float(np.asarray(fetched[0]).ravel()[0])
    if not loss < 1e-3:
        raise RuntimeError(f"Regatta {rg.__version__} trains wrongly: the loss is {loss}")
    print(f"Regatta {rg.__version__} works: a line was trained to a loss of {loss:.2g}.")


def try_import(module_name: str, err_msg: Optional[str] = None) -> Any:
    """Imports a module, with advice if it is not installed."""
    import importlib

    try:
        return importlib.import_module(module_name)
    except ImportError:
        raise ImportError(
            err_msg or f"{module_name} is not installed: pip install {module_name}"
        ) from None


__getattr__ = missing(__name__)
