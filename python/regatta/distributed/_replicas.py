"""Ranks that train the same model have the same parameters, to the bit. Models that were not
wrapped drift apart, and nothing else notices."""
from __future__ import annotations

import os
import pickle
import zlib
from typing import Any, Dict, List, Optional, Tuple

from .. import _core

# 0 says that ranks train different parameters under the same names on purpose.
_SWITCH = "REGATTA_CHECK_REPLICAS"


def trained() -> Dict[str, Any]:
    """Parameters that optimizers of this process have updated, by name."""
    import sys

    dynamic = sys.modules.get("regatta.optimizer._dynamic")
    found: Dict[str, Any] = {}
    for updates in sorted(getattr(dynamic, "live", ()), key=lambda each: each.number):
        if updates.steps:
            for parameter in updates.parameters():
                if not getattr(parameter, "is_distributed", False):
                    found.setdefault(parameter.name, parameter)
    return found


def check(world: _core.Group, where: str) -> None:
    """Raises RuntimeError if ranks have trained the same parameter to different values. All ranks
    call it."""
    if os.environ.get(_SWITCH) == "0":
        return
    parameters = trained()
    prints = _core.fingerprints(list(parameters.values()))
    own = dict(zip(parameters, prints))
    # A few bytes as long as all is well.
    short = zlib.crc32(repr(own).encode()).to_bytes(4, "little")
    if len(set(world.all_gather_bytes(short, where))) == 1:
        return
    found = _different([pickle.loads(part) for part in
                        world.all_gather_bytes(pickle.dumps(own), f"{where}: parameters")])
    if found is not None:
        name, rank, other = found
        raise RuntimeError(
            f"{where}: parameter '{name}' of rank {rank} is not that of rank {other}: these ranks "
            "train apart. Wrap the model (model = paddle.DataParallel(model)) before the first "
            f"step, on all ranks; {_SWITCH}=0 allows it")


def _different(ranks: List[Dict[str, int]]) -> Optional[Tuple[str, int, int]]:
    """The first parameter that two ranks have with different values: its name, and the ranks."""
    first: Dict[str, Tuple[int, int]] = {}
    for rank, prints in enumerate(ranks):
        for name, number in prints.items():
            other, had = first.setdefault(name, (rank, number))
            if had != number:
                return name, rank, other
    return None
