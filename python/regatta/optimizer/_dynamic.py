"""Updates of tensors: what an optimizer does in the dynamic mode.

One native optimizer updates each group of parameters. Groups differ in the learning rate, the
regularization, the clip, and the numbers of the rule.
"""
from __future__ import annotations

import itertools
import weakref
from typing import Any, Callable, Dict, List, Tuple

from .. import _core
from ..framework import Tensor
from ..tensor._common import _ERRORS, located

# The names of the states of rules, and Paddle's for them.
_NAMES = (
    "avg_squared_grad", "avg_squared_update", "beta1_pow", "beta2_pow", "linear", "mean_grad",
    "mean_square", "moment", "moment1", "moment2", "momentum", "squared", "velocity",
)
_PADDLE = {
    **{name: name for name in _NAMES}, "beta1_pow": "beta1_pow_acc", "beta2_pow": "beta2_pow_acc",
    "avg_squared_grad": "_avg_squared_grad", "avg_squared_update": "_avg_squared_update",
}

# The updates of this process, for ranks that look whether they train the same parameters.
live: "weakref.WeakSet[Updates]" = weakref.WeakSet()
_numbers = itertools.count()


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


def divided(group: Group, decays: Callable[[Tensor], bool]) -> List[Group]:
    """The parameters of a group that decay, and those that do not."""
    yes = [p for p in group.parameters if decays(p)]
    no = [p for p in group.parameters if not decays(p)]
    parts = [Group(yes, group.settings), Group(no, {**group.settings, "weight_decay": 0.0})]
    return [part for part in parts if part.parameters]


def _clip_together(group: Group, norm: float) -> List[Tuple[Tensor, Tensor]]:
    """Scales the gradients of a group to a common length. Returns what they were."""
    clipped = [p for p in group.parameters if p._has_grad and getattr(p, "need_clip", True)]
    before = [(p, p.grad) for p in clipped]
    if before:
        grads = [grad for _, grad in before]
        factor = _core.eager_op("global_norm_factor", {"X": grads}, {"clip_norm": norm})
        for parameter, grad in before:
            parameter.grad = _core.eager_op("scale_by", {"X": grad, "Factor": factor})
    return before


class Updates:
    """The native optimizers of an optimizer, one for each group."""

    def __init__(self, optimizer: Any, groups: List[Group]) -> None:
        self._optimizer = optimizer
        self.steps, self.number = 0, next(_numbers)
        live.add(self)
        self._groups: List[Group] = []
        # Groups that are divided and whose parts are clipped together, with the length.
        self._shared: List[Tuple[Group, float]] = []
        for group in groups:
            parts = optimizer._parts_of(group)
            spec = optimizer._spec_of(group.settings).get("clip")
            if len(parts) > 1 and spec is not None and spec[0] == "global_norm":
                self._shared.append((group, spec[1]))
                parts = [Group(p.parameters, {**p.settings, "grad_clip": None}) for p in parts]
            self._groups += parts
        self._natives = [self._native(group) for group in self._groups]
        self._only = self._natives[0] if len(self._natives) == 1 else None

    def _native(self, group: Group) -> Any:
        optimizer, settings = self._optimizer, group.settings
        spec = optimizer._spec_of(settings)
        native = _core.EagerOptimizer(spec, optimizer._lazy())
        rate = float(settings.get("learning_rate", 1.0))
        scales, regularizers, clips = [], [], []
        for parameter in group.parameters:
            own = getattr(parameter, "optimize_attr", None) or {}
            factor = float(own.get("learning_rate", 1.0)) * optimizer._rate_of(parameter)
            scales.append(rate * factor)
            regularizer = optimizer._regularizer_of(parameter)
            regularizers.append(regularizer)
            clips.append(bool(getattr(parameter, "need_clip", True)))
        native.bind(group.parameters, scales, regularizers, clips)
        return native

    def parameters(self) -> List[Tensor]:
        """All parameters."""
        return [parameter for group in self._groups for parameter in group.parameters]

    def step(self) -> None:
        """Updates the parameters that have gradients."""
        self.steps += 1
        rate = self._optimizer._learning_rate
        if type(rate) is not float:
            rate = self._optimizer.get_lr()
        try:
            if self._only is not None:
                self._only.step(rate)
                return
            before = [_clip_together(group, norm) for group, norm in self._shared]
            for native in self._natives:
                native.step(rate)
            for grads in before:
                for parameter, grad in grads:
                    parameter.grad = grad
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
                found = {}
                for name, theirs in _PADDLE.items():
                    value = state.get(f"{parameter.name}_{theirs}_0")
                    if value is not None:
                        found[name] = np.asarray(value, "float32")
                if found:
                    native.set_state(parameter, found)
