"""``Inferencer``: predicts with parameters that a trainer has saved."""
from __future__ import annotations

from typing import Any, Callable, Dict, List

from ..framework import Program, Scope, Variable, program_guard, scope_guard, unique_name
from . import io

__all__ = ["Inferencer"]


class Inferencer:
    """Runs what ``infer_func`` builds, with the parameters of ``param_path`` (what
    :meth:`Trainer.save_params <regatta.fluid.Trainer.save_params>` wrote). The layers should be made
    in the same order as in training, so that parameters have the same names."""

    def __init__(
        self,
        infer_func: Callable[[], Any],
        param_path: str,
        place: Any = None,
        parallel: bool = False,
    ) -> None:
        from .executor import Executor

        if not callable(infer_func):
            raise TypeError("Inferencer takes infer_func, a function that returns the prediction")
        self.scope = Scope()
        program, startup = Program(), Program()
        with program_guard(program, startup), unique_name.guard():
            outputs = infer_func()
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        if not all(isinstance(var, Variable) for var in outputs):
            raise TypeError("infer_func should return a variable or a list of variables")
        self.predict_vars: List[Variable] = outputs
        self.inference_program = program.clone(for_test=True)
        self.exe = Executor(place)
        with scope_guard(self.scope):
            io.load_params(self.exe, param_path, program)

    def infer(self, inputs: Dict[str, Any], return_numpy: bool = True) -> List[Any]:
        """The predictions for a feed."""
        if not isinstance(inputs, dict):
            raise TypeError("Inferencer.infer takes a dict from names to values")
        with scope_guard(self.scope):
            return self.exe.run(
                self.inference_program, feed=inputs, fetch_list=self.predict_vars,
                return_numpy=return_numpy,
            )
