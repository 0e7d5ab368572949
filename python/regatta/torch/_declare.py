"""The programs that say what a table is: its size, its initial values, its update rule.

For each table a small program looks rows up, multiplies them by the gradients that PyTorch has
computed, and adds the products up. The gradient of that sum with respect to the rows is what was
fed, so that minimizing it updates the rows by the table's rule. A process alone runs these
programs; servers take from them what they have to keep.
"""
from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

from .. import _core

# Kinds of initial values that servers can make for one row at a time.
_PER_ROW = ("fill_constant", "uniform_random", "gaussian_random", "truncated_gaussian_random")


class Declared:
    """A table and its programs."""

    def __init__(
        self, name: str, rows: int, dim: int, optimizer: Any, initializer: Any, seed: int
    ) -> None:
        self.name, self.rows, self.dim = name, rows, dim
        self.rate, self.spec = _updates(name, optimizer)
        self.init: Tuple[str, Dict[str, Any]] = initializer._init_op([rows, dim], seed)
        self.main, self.startup = _core.Program("main"), _core.Program("startup")
        self._declare(self.main, self.startup)
        out = f"{name}.rows"
        self.main.append_op("embedding", {"W": [name], "Ids": [self.ids]}, {"Out": [out]}, {})
        self.lookup = self.main.prune([out])
        product, loss = f"{name}.product", f"{name}.loss"
        self.main.append_op(
            "elementwise_mul", {"X": [out], "Y": [self.grads]}, {"Out": [product]}, {}
        )
        self.main.append_op("reduce_sum", {"X": [product]}, {"Out": [loss]}, {})
        _core.minimize(self.main, self.startup, loss, self.spec, [name], [])
        self.loss = loss

    @property
    def ids(self) -> str:
        """The input of ids."""
        return f"{self.name}.ids"

    @property
    def grads(self) -> str:
        """The input of gradients."""
        return f"{self.name}.grads"

    def _declare(self, main: _core.Program, startup: _core.Program) -> None:
        main.param(startup, self.name, [self.rows, self.dim], self.init, True, self.rate)
        main.data(self.ids, "i64", [-1])
        main.data(self.grads, "f32", [-1, self.dim])

    def check_for_servers(self) -> None:
        """Raises ValueError if servers cannot make the initial values."""
        if self.init[0] not in _PER_ROW:
            raise ValueError(
                f"Embedding '{self.name}': servers make a row when its id first comes, so a table "
                "starts with constant, uniform or normal values; load given ones with Job.load"
            )


def _updates(name: str, optimizer: Any) -> Tuple[float, Dict[str, Any]]:
    """The table's own rate and the rest of its optimizer. What the program of a table cannot
    honour is refused."""
    if not hasattr(optimizer, "_spec"):
        raise TypeError(
            f"Embedding '{name}': optimizer should be one of regatta.optimizer, such as "
            f"Adagrad(0.05), but is {optimizer!r}"
        )
    spec = optimizer._spec(for_servers=True)
    for setting, argument in (("clip", "grad_clip"), ("regularizer", "weight_decay")):
        if spec.pop(setting, None) is not None:
            raise ValueError(
                f"Embedding '{name}': the optimizer's {argument} would need whole gradients or "
                "rows; PyTorch computes the loss, so add such a term there"
            )
    for setting in ("amp", "recompute"):
        if spec.pop(setting, None) is not None:
            raise ValueError(f"Embedding '{name}': {setting} is about programs of Regatta")
    if "schedule" in spec:
        return 1.0, spec
    # The rate of a job is one number; that of a table is its factor.
    return float(spec["learning_rate"]), {**spec, "learning_rate": 1.0}


def joined(tables: Sequence[Declared]) -> Tuple[_core.Program, _core.Program]:
    """One program with all tables, for servers."""
    rates: Dict[str, str] = {}
    for table in tables:
        spec = table.spec
        rates.setdefault(repr((spec["learning_rate"], spec.get("schedule"))), table.name)
        if len(rates) > 1:
            first, other = list(rates.values())[:2]
            raise ValueError(
                f"the tables '{first}' and '{other}' have different schedules of their learning "
                "rates, but servers keep one for a job; give all tables the same schedule, or "
                "constant rates"
            )
    main, startup = _core.Program("main"), _core.Program("startup")
    for table in tables:
        table._declare(main, startup)
        for kind, _, outputs, attrs, _ in table.startup.ops():
            (name,) = [name for names in outputs.values() for name in names]
            if kind == "fill_constant" and not main.has_var(name):
                dtype, _, shape, _, _ = table.main.var(name)
                value: Any = attrs["value"]
                main.state(startup, name, dtype, shape, float(value))
        for kind, inputs, outputs, attrs, _ in table.main.ops():
            if kind == "lr_schedule" and any(op[0] == kind for op in main.ops()):
                continue
            main.append_op(kind, inputs, outputs, attrs)
    return main, startup


def values_of(table: Declared) -> List[str]:
    """Names of everything that the table keeps."""
    program = table.main
    return [n for n in program.var_names() if program.var(n)[3] in ("param", "persist")]
