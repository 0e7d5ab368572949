"""Measures over the examples of all workers: each adds up its own counters, and the formula is
applied to their sums. Every worker makes the same calls in the same order."""
from __future__ import annotations

import math
from typing import Any

from ...._missing import missing

__all__ = ["acc", "auc", "mae", "max", "min", "mse", "rmse", "sum"]

__getattr__ = missing(__name__)


def sum(input: Any, scope: Any = None, util: Any = None) -> Any:
    """The sum over all workers, element by element. ``input`` is an array, a variable or the name
    of one, whose value is taken from the scope."""
    return _util(util).all_reduce(_value(input, scope), "sum")


def max(input: Any, scope: Any = None, util: Any = None) -> Any:
    """The largest value of any worker, element by element."""
    return _util(util).all_reduce(_value(input, scope), "max")


def min(input: Any, scope: Any = None, util: Any = None) -> Any:
    """The smallest value of any worker, element by element."""
    return _util(util).all_reduce(_value(input, scope), "min")


def auc(stat_pos: Any, stat_neg: Any, scope: Any = None, util: Any = None) -> float:
    """Area under the curve, from the numbers of positive and negative examples per bucket of
    scores, lowest scores first. 0.5 if there are only positive or only negative ones."""
    import numpy as np

    positive = np.asarray(_value(stat_pos, scope), dtype=np.float64).ravel()
    negative = np.asarray(_value(stat_neg, scope), dtype=np.float64).ravel()
    if positive.size != negative.size:
        raise ValueError(
            f"auc: {positive.size} buckets of positive and {negative.size} of negative examples"
        )
    both = _util(util).all_reduce(np.concatenate([positive, negative]), "sum")
    positive, negative = both[:positive.size][::-1], both[positive.size:][::-1]
    # Every negative example counts the positive ones above it, and half of those in its bucket.
    above = np.cumsum(positive) - positive
    area = float(np.sum(negative * (above + positive / 2)))
    pairs = float(positive.sum() * negative.sum())
    return area / pairs if pairs > 0 else 0.5


def mae(abserr: Any, total_ins_num: Any, scope: Any = None, util: Any = None) -> float:
    """The mean of absolute errors, from their sum and the number of examples."""
    return _mean("mae", abserr, total_ins_num, scope, util)


def mse(sqrerr: Any, total_ins_num: Any, scope: Any = None, util: Any = None) -> float:
    """The mean of squared errors, from their sum and the number of examples."""
    return _mean("mse", sqrerr, total_ins_num, scope, util)


def rmse(sqrerr: Any, total_ins_num: Any, scope: Any = None, util: Any = None) -> float:
    """The root of the mean of squared errors, from their sum and the number of examples."""
    return math.sqrt(_mean("rmse", sqrerr, total_ins_num, scope, util))


def acc(correct: Any, total: Any, scope: Any = None, util: Any = None) -> float:
    """The share of right answers, from their number and the number of examples."""
    return _mean("acc", correct, total, scope, util)


def _mean(call: str, amount: Any, examples: Any, scope: Any, util: Any) -> float:
    import numpy as np

    mine = [float(np.sum(_value(v, scope))) for v in (amount, examples)]
    amount, examples = _util(util).all_reduce(np.asarray(mine, dtype=np.float64), "sum")
    if not examples > 0:
        raise ValueError(f"{call}: no worker has an example")
    return float(amount / examples)


def _util(util: Any) -> Any:
    if util is None:
        from ... import fleet

        util = fleet.util
    return util


def _value(input: Any, scope: Any) -> Any:
    import numpy as np

    from .... import framework

    if isinstance(input, framework.Variable):
        input = input.name
    if isinstance(input, str):
        found = (scope or framework.global_scope()).find_var(input)
        if found is None:
            raise ValueError(f"'{input}' has no value in this scope")
        return np.asarray(found.get_tensor())
    return np.asarray(input)
