"""Layers that hold layers or parameters."""
from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, Optional, Tuple, Union

from .._missing import missing
from ..framework import Tensor
from .layers import Layer

__all__ = ["LayerDict", "LayerList", "ParameterList", "Sequential"]


class Sequential(Layer):
    """Layers one after the other: ``Sequential(a, b)`` or ``Sequential(("first", a), ...)``."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        if len(layers) == 1 and isinstance(layers[0], (list, dict)):
            given = layers[0]
            layers = tuple(given.items()) if isinstance(given, dict) else tuple(given)
        for i, layer in enumerate(layers):
            name, layer = layer if isinstance(layer, (tuple, list)) else (str(i), layer)
            self.add_sublayer(name, layer)

    def forward(self, input: Any) -> Any:
        """What the last layer makes."""
        if isinstance(input, Tensor):
            plan = self.__dict__.get("_plan")
            if plan is None or plan[0] != list(self._sub_layers.values()):
                plan = self._make_plan()
            for step in plan[1]:
                input = step(input)
            return input
        for layer in self._sub_layers.values():
            input = layer(input)
        return input

    def _make_plan(self) -> Any:
        """What is called one after the other: layers, and a Linear with its activation at once."""
        from .activation import joined_with

        layers, steps = list(self._sub_layers.values()), []
        for layer in layers:
            joined = joined_with(steps[-1], layer) if steps else None
            if joined is not None:
                steps[-1] = joined
            else:
                steps.append(layer)
        plan = (layers, steps)
        object.__setattr__(self, "_plan", plan)
        return plan

    def __getitem__(self, index: Union[int, str, slice]) -> Any:
        if isinstance(index, str):
            return self._sub_layers[index]
        if isinstance(index, slice):
            return type(self)(*list(self._sub_layers.values())[index])
        return list(self._sub_layers.values())[index]

    def __setitem__(self, name: Union[int, str], layer: Layer) -> None:
        key = name if isinstance(name, str) else list(self._sub_layers)[name]
        self.add_sublayer(key, layer)

    def __delitem__(self, name: Union[int, str]) -> None:
        key = name if isinstance(name, str) else list(self._sub_layers)[name]
        del self._sub_layers[key]

    def __len__(self) -> int:
        return len(self._sub_layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(list(self._sub_layers.values()))

    def append(self, layer: Layer) -> "Sequential":
        """Adds a layer at the end."""
        self.add_sublayer(str(len(self)), layer)
        return self


class _List(Layer):
    """Numbered parts."""

    _store = ""

    def _all(self) -> Dict[str, Any]:
        return getattr(self, self._store)

    def _put(self, values: Iterable[Any]) -> None:
        store = self._all()
        values = list(values)
        store.clear()
        for i, value in enumerate(values):
            self._add(str(i), value)

    def _add(self, name: str, value: Any) -> None:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._all())

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._all().values()))

    def __getitem__(self, index: Union[int, slice]) -> Any:
        values = list(self._all().values())
        return type(self)(values[index]) if isinstance(index, slice) else values[index]

    def __setitem__(self, index: int, value: Any) -> None:
        self._add(list(self._all())[index], value)

    def __delitem__(self, index: Union[int, slice]) -> None:
        values = list(self._all().values())
        del values[index]
        self._put(values)

    def append(self, value: Any) -> Any:
        """Adds one at the end."""
        self._add(str(len(self)), value)
        return self

    def extend(self, values: Iterable[Any]) -> Any:
        """Adds several at the end."""
        for value in values:
            self.append(value)
        return self

    def insert(self, index: int, value: Any) -> None:
        """Adds one before a place."""
        values = list(self._all().values())
        values.insert(index, value)
        self._put(values)


class LayerList(_List):
    """Layers by number."""

    _store = "_sub_layers"

    def __init__(self, sublayers: Optional[Iterable[Layer]] = None) -> None:
        super().__init__()
        self.extend(sublayers or ())

    def _add(self, name: str, value: Layer) -> None:
        self.add_sublayer(name, value)


class ParameterList(_List):
    """Parameters by number."""

    _store = "_parameters"

    def __init__(self, parameters: Optional[Iterable[Any]] = None) -> None:
        super().__init__()
        self.extend(parameters or ())

    def _add(self, name: str, value: Any) -> None:
        self.add_parameter(name, value)


class LayerDict(Layer):
    """Layers by name."""

    def __init__(self, sublayers: Any = None) -> None:
        super().__init__()
        if sublayers is not None:
            self.update(sublayers)

    def __getitem__(self, key: str) -> Layer:
        return self._sub_layers[key]

    def __setitem__(self, key: str, layer: Layer) -> None:
        self.add_sublayer(key, layer)

    def __delitem__(self, key: str) -> None:
        del self._sub_layers[key]

    def __len__(self) -> int:
        return len(self._sub_layers)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._sub_layers))

    def __contains__(self, key: object) -> bool:
        return key in self._sub_layers

    def clear(self) -> None:
        """Removes all."""
        self._sub_layers.clear()

    def pop(self, key: str) -> Layer:
        """Removes one and returns it."""
        return self._sub_layers.pop(key)

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._sub_layers.keys()

    def items(self) -> Iterable[Tuple[str, Layer]]:
        """Names and layers."""
        return self._sub_layers.items()

    def values(self) -> Iterable[Layer]:
        """The layers."""
        return self._sub_layers.values()

    def update(self, sublayers: Any) -> None:
        """Adds all of a dictionary or of pairs."""
        pairs = sublayers.items() if hasattr(sublayers, "items") else sublayers
        for name, layer in pairs:
            self.add_sublayer(name, layer)


__getattr__ = missing(__name__)
