"""Calls on values of a scope that trainers of jobs share."""
from __future__ import annotations

import logging
from typing import Any, Optional

from ....framework import Scope, global_scope
from ...._missing import missing

__all__ = ["FleetUtil", "GPUPSUtil"]

_log = logging.getLogger("regatta")


class FleetUtil:
    """Resets counters, and computes the area under the curve of all workers.

    >>> import numpy as np, regatta as rg
    >>> rg.static.global_scope().var("hits").get_tensor().set(np.ones(3, "float32"))
    >>> FleetUtil().set_zero("hits")
    >>> rg.static.global_scope().find_var("hits").get_tensor().numpy()
    array([0., 0., 0.], dtype=float32)
    """

    def __init__(self, mode: str = "pslib") -> None:
        if mode not in ("pslib", "transpiler"):
            raise ValueError(f"FleetUtil: mode should be pslib or transpiler, not {mode!r}")

    # Messages
    def rank0_print(self, s: str) -> None:
        """Prints on the first worker."""
        if _is_first():
            print(s, flush=True)

    def rank0_info(self, s: str) -> None:
        """Logs on the first worker."""
        if _is_first():
            _log.info(s)

    def rank0_error(self, s: str) -> None:
        """Logs an error on the first worker."""
        if _is_first():
            _log.error(s)

    # Values
    def set_zero(
        self, var_name: str, scope: Optional[Scope] = None, place: Any = None,
        param_type: str = "int64",
    ) -> None:
        """Sets a value of a scope to zero everywhere; its shape and type stay."""
        import numpy as np

        scope = scope if scope is not None else global_scope()
        found = scope.find_var(var_name)
        if found is None:
            raise ValueError(f"set_zero: '{var_name}' has no value in this scope")
        tensor = found.get_tensor()
        tensor.set(np.zeros_like(tensor.numpy()))

    def get_global_auc(
        self, scope: Optional[Scope] = None, stat_pos: str = "_generated_var_2",
        stat_neg: str = "_generated_var_3",
    ) -> Optional[float]:
        """The area under the curve over the examples of all workers, from counters by name; None if
        the scope has no such counters."""
        from ....distributed.fleet.metrics import auc

        scope = scope if scope is not None else global_scope()
        if scope.find_var(stat_pos) is None or scope.find_var(stat_neg) is None:
            return None
        return auc(stat_pos, stat_neg, scope)

    def print_global_auc(
        self, scope: Optional[Scope] = None, stat_pos: str = "_generated_var_2",
        stat_neg: str = "_generated_var_3", print_prefix: str = "",
    ) -> None:
        """Prints :meth:`get_global_auc` on the first worker."""
        self.rank0_print(f"{print_prefix} global auc = {self.get_global_auc(scope, stat_pos, stat_neg)}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"FleetUtil.{name} is not in Regatta (it has set_zero, get_global_auc, "
            "print_global_auc, rank0_print, rank0_info, rank0_error); models are saved with "
            "paddle.distributed.fleet.save_persistables and save_inference_model"
        )


class GPUPSUtil(FleetUtil):
    """As :class:`FleetUtil`."""


def _is_first() -> bool:
    from ....distributed import fleet

    try:
        return fleet.is_first_worker()
    except RuntimeError:
        return True  # fleet.init was not called: this process is alone


__getattr__ = missing(__name__)
