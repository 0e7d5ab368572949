"""Updates of tensors: what an optimizer does in the dynamic mode.

One native optimizer updates each group of parameters. Groups differ in the learning rate, the
regularization, the clip, and the numbers of the rule.
"""
from __future__ import annotations

from typing import Any, Dict, List, Optional

from .. import _core
from ..framework import Tensor
from ..tensor._common import _ERRORS, located

# Names of states that differ from Paddle's.
_PADDLE = {"beta1_pow": "beta1_pow_acc", "beta2_pow": "beta2_pow_acc"}
_OURS = {theirs: ours for ours, theirs in _PADDLE.items()}


class Group:
    """Parameters with settings of their own."""

    def __init__(self, parameters: List[Tensor], settings: Dict[str, Any]) -> None:
        self.parameters, self.settings = parameters, settings

    @staticmethod
    def of(given: Dict[str, Any]) -> "Group":
        """A group as users write it: ``{"params": [...], "learning_rate": 0.1, ...}``."""
        if "params" not in given:
            raise ValueError("parameters: a group is a dictionary with 'params'")
        params = given["params"]
        tensors = [params] if isinstance(params, Tensor) else list(params)
        wrong = next((t for t in tensors if not isinstance(t, Tensor)), None)
        if wrong is not None:
            raise TypeError(f"parameters: a group holds parameters with values, not {wrong!r:.60}")
        return Group(tensors, {k: v for k, v in given.items() if k != "params"})


class Updates:
    """The native optimizers of an optimizer, one for each group."""

    def __init__(self, optimizer: Any, groups: List[Group]) -> None:
        self._optimizer = optimizer
        self._groups = groups
        self._natives = [self._native(group) for group in groups]
        self._only = self._natives[0] if len(groups) == 1 else None
        self._count = [len(group.parameters) for group in groups]

    def _native(self, group: Group) -> Any:
        optimizer, settings = self._optimizer, group.settings
        spec = optimizer._spec_of(settings)
        native = _core.EagerOptimizer(spec, optimizer._lazy())
        rate = float(settings.get("learning_rate", 1.0))
        scales, regularizers, clips = [], [], []
        for parameter in group.parameters:
            own = getattr(parameter, "optimize_attr", None) or {}
            scales.append(rate * float(own.get("learning_rate", 1.0)))
            regularizer = optimizer._regularizer_of(parameter)
            regularizers.append(regularizer)
            clips.append(bool(getattr(parameter, "need_clip", True)))
        native.bind(group.parameters, scales, regularizers, clips)
        return native

    def step(self) -> None:
        """Updates the parameters that have gradients."""
        rate = self._optimizer._learning_rate
        if type(rate) is not float:
            rate = self._optimizer.get_lr()
        try:
            if self._only is not None:
                self._only.step(rate)
                return
            for native in self._natives:
                native.step(rate)
        except _ERRORS as error:
            raise located(error) from None

    def clear(self, set_to_zero: bool) -> None:
        """Forgets the gradients, or makes those of zeros that there are."""
        for native in self._natives:
            native.clear_grad(set_to_zero)

    def state(self) -> Dict[str, Any]:
        """States by Paddle's names: ``linear_0.w_0_moment1_0``."""
        state: Dict[str, Any] = {}
        for group, native in zip(self._groups, self._natives):
            for parameter in group.parameters:
                for name, value in native.state(parameter).items():
                    key = f"{parameter.name}_{_PADDLE.get(name, name)}_0"
                    made = state[key] = Tensor(value, "float32")
                    made.name, made.persistable = key, True
        return state

    def set_state(self, state: Dict[str, Any]) -> None:
        """Takes states by Paddle's names; parameters without states begin anew."""
        import numpy as np

        for group, native in zip(self._groups, self._natives):
            for parameter in group.parameters:
                begin = parameter.name + "_"
                found: Dict[str, Any] = {}
                for key, value in state.items():
                    if key.startswith(begin) and key.endswith("_0"):
                        name = key[len(begin):-2]
                        found[_OURS.get(name, name)] = np.asarray(value, "float32")
                known = self._names(native, parameter)
                found = {k: v for k, v in found.items() if known is None or k in known}
                if found:
                    native.set_state(parameter, found)

    def _names(self, native: Any, parameter: Tensor) -> Optional[List[str]]:
        names = list(native.state(parameter))
        return names or None
