"""Scaling of losses, so that small gradients survive in 16 bits."""
from __future__ import annotations

from typing import Any, Dict, List

from .. import _core
from .._missing import missing
from ..framework import Tensor

__all__ = ["AmpScaler", "GradScaler"]


def _tensors(optimizer: Any) -> List[Tensor]:
    """The parameters of an optimizer that have gradients."""
    groups = getattr(optimizer, "_groups", None)
    if not groups:
        raise TypeError(f"GradScaler: {type(optimizer).__name__} has no parameters with values")
    return [p for group in groups for p in group.parameters if p._has_grad]


class AmpScaler:
    """Scales losses by a factor that grows while gradients stay finite, and shrinks when they do
    not; such a step is left out.

    >>> import regatta as rg
    >>> layer = rg.nn.Linear(2, 1)
    >>> sgd = rg.optimizer.SGD(0.1, parameters=layer.parameters())
    >>> scaler = rg.amp.GradScaler(init_loss_scaling=1024)
    >>> scaler.scale(layer(rg.ones([3, 2])).mean()).backward()
    >>> scaler.step(sgd)
    >>> scaler.update()
    >>> sgd.clear_grad()
    """

    def __init__(
        self, enable: bool = True, init_loss_scaling: float = 2.0 ** 15, incr_ratio: float = 2.0,
        decr_ratio: float = 0.5, incr_every_n_steps: int = 1000,
        decr_every_n_nan_or_inf: int = 1, use_dynamic_loss_scaling: bool = True,
    ) -> None:
        if incr_ratio <= 1.0:
            raise ValueError(f"GradScaler: incr_ratio ({incr_ratio}) must be above 1")
        if not 0.0 < decr_ratio < 1.0:
            raise ValueError(f"GradScaler: decr_ratio ({decr_ratio}) must be between 0 and 1")
        self._enable, self._dynamic = bool(enable), bool(use_dynamic_loss_scaling)
        self._scale, self._init = float(init_loss_scaling), float(init_loss_scaling)
        self._incr_ratio, self._decr_ratio = float(incr_ratio), float(decr_ratio)
        self._incr_every, self._decr_every = int(incr_every_n_steps), int(decr_every_n_nan_or_inf)
        self._good, self._bad = 0, 0
        self._found_inf = False
        self._unscaled = False

    def scale(self, var: Tensor) -> Tensor:
        """The loss times the factor."""
        return var * self._scale if self._enable else var

    def unscale_(self, optimizer: Any) -> None:
        """Divides the gradients by the factor, and looks whether all are finite."""
        if not self._enable:
            return
        if self._unscaled:
            raise RuntimeError("unscale_ was called already since the last update()")
        self._found_inf = _core.unscale(_tensors(optimizer), 1.0 / self._scale)
        self._unscaled = True

    _unscale = unscale_

    def step(self, optimizer: Any) -> None:
        """Updates the parameters, unless a gradient is not finite."""
        if self._enable and not self._unscaled:
            self.unscale_(optimizer)
        if not self._enable or not self._found_inf:
            optimizer.step()

    def update(self) -> None:
        """Changes the factor by what was found."""
        if self._enable and self._dynamic:
            self._change()
        self._unscaled = False

    def _change(self) -> None:
        if self._found_inf:
            self._good, self._bad = 0, self._bad + 1
            if self._bad == self._decr_every:
                self._scale = max(self._scale * self._decr_ratio, 1.0)
                self._bad = 0
            return
        self._bad, self._good = 0, self._good + 1
        if self._good == self._incr_every:
            self._scale *= self._incr_ratio
            self._good = 0

    def minimize(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """:meth:`step` and :meth:`update`."""
        self.step(optimizer)
        self.update()
        return [], []

    # Settings
    def is_enable(self) -> bool:
        """Whether losses are scaled."""
        return self._enable

    def is_use_dynamic_loss_scaling(self) -> bool:
        """Whether the factor changes."""
        return self._dynamic

    def get_init_loss_scaling(self) -> float:
        """The factor at the beginning."""
        return self._init

    def set_init_loss_scaling(self, value: float) -> None:
        """Begins with another factor."""
        self._init = self._scale = float(value)

    def get_incr_ratio(self) -> float:
        """By how much the factor grows."""
        return self._incr_ratio

    def set_incr_ratio(self, value: float) -> None:
        """Sets by how much the factor grows."""
        self._incr_ratio = float(value)

    def get_decr_ratio(self) -> float:
        """By how much the factor shrinks."""
        return self._decr_ratio

    def set_decr_ratio(self, value: float) -> None:
        """Sets by how much the factor shrinks."""
        self._decr_ratio = float(value)

    def get_incr_every_n_steps(self) -> int:
        """After how many good steps the factor grows."""
        return self._incr_every

    def set_incr_every_n_steps(self, value: int) -> None:
        """Sets after how many good steps the factor grows."""
        self._incr_every = int(value)

    def get_decr_every_n_nan_or_inf(self) -> int:
        """After how many bad steps the factor shrinks."""
        return self._decr_every

    def set_decr_every_n_nan_or_inf(self, value: int) -> None:
        """Sets after how many bad steps the factor shrinks."""
        self._decr_every = int(value)

    def state_dict(self) -> Dict[str, Any]:
        """Everything about the factor; empty if losses are not scaled."""
        if not self._enable:
            return {}
        import numpy as np

        return {
            "scale": np.array([self._scale], "float32"), "incr_ratio": self._incr_ratio,
            "decr_ratio": self._decr_ratio, "incr_every_n_steps": self._incr_every,
            "decr_every_n_nan_or_inf": self._decr_every, "incr_count": self._good,
            "decr_count": self._bad, "use_dynamic_loss_scaling": self._dynamic,
        }

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Takes what :meth:`state_dict` gave."""
        import numpy as np

        if not self._enable:
            return
        if not state_dict:
            raise RuntimeError("load_state_dict: the state is empty; was the scaler enabled?")
        self._scale = float(np.asarray(state_dict["scale"]).reshape(-1)[0])
        self._init = self._scale
        self._incr_ratio = float(state_dict["incr_ratio"])
        self._decr_ratio = float(state_dict["decr_ratio"])
        self._incr_every = int(state_dict["incr_every_n_steps"])
        self._decr_every = int(state_dict["decr_every_n_nan_or_inf"])
        self._good, self._bad = int(state_dict["incr_count"]), int(state_dict["decr_count"])
        self._dynamic = bool(state_dict["use_dynamic_loss_scaling"])


class GradScaler(AmpScaler):
    """As :class:`AmpScaler`, with Paddle 2.x's defaults."""

    def __init__(
        self, enable: bool = True, init_loss_scaling: float = 2.0 ** 16, incr_ratio: float = 2.0,
        decr_ratio: float = 0.5, incr_every_n_steps: int = 2000,
        decr_every_n_nan_or_inf: int = 1, use_dynamic_loss_scaling: bool = True,
    ) -> None:
        super().__init__(enable, init_loss_scaling, incr_ratio, decr_ratio, incr_every_n_steps,
                         decr_every_n_nan_or_inf, use_dynamic_loss_scaling)


__getattr__ = missing(__name__)
