"""A model that several ranks train as one: each on its own examples, with the mean of all
gradients."""
from __future__ import annotations

import contextlib
import itertools
import zlib
from typing import Any, Dict, Iterator, List, Optional, Tuple

from .. import _core
from .._missing import missing
from ..framework import Tensor
from ..nn import Embedding, Layer
from ._exchange import Group, ranks_of
from .collective import broadcast

__all__ = ["DataParallel"]

__getattr__ = missing(__name__)

_MB = 1 << 20

#: After how many steps ranks compare their parameters.
_CHECK_EVERY = 100

# Ranks make their models in the same order, so the numbers are the same on all.
_numbers = itertools.count()


class DataParallel(Layer):
    """The model of all ranks: they get the parameters and buffers of rank 0 now, and the mean of
    their gradients in every ``backward()``.

    Gradients travel in buckets of ``comm_buffer_size`` megabytes, the last of them of
    ``last_comm_buffer_size``, while backward still computes those of the layers before. Those of
    ``Embedding(sparse=True)`` travel as rows. All ranks count alike, also with batches of different
    sizes. All make the same number of steps: one that has fewer is named in the error of others.

    A parameter that gets no gradient is an error that names it; with
    ``find_unused_parameters=True`` ranks that do not use it give zeros. In a process without other
    ranks nothing is exchanged.

    >>> import regatta as rg
    >>> model = rg.DataParallel(rg.nn.Linear(2, 1))
    >>> model(rg.ones([3, 2])).shape, list(model.state_dict())
    ([3, 1], ['weight', 'bias'])
    """

    def __init__(
        self, layers: Layer, strategy: Any = None, comm_buffer_size: float = 25,
        last_comm_buffer_size: float = 1, find_unused_parameters: bool = False,
        group: Optional[Group] = None,
    ) -> None:
        if not isinstance(layers, Layer):
            raise TypeError(f"DataParallel takes a layer, not a {type(layers).__name__}")
        super().__init__(layers.full_name() + "_data_parallel")
        for name, size in (("comm_buffer_size", comm_buffer_size),
                           ("last_comm_buffer_size", last_comm_buffer_size)):
            if not size > 0:
                raise ValueError(f"DataParallel: {name} should be above 0, but is {size}")
        self._layers = layers
        self.find_unused_parameters = bool(find_unused_parameters)
        self.grad_need_sync = True
        object.__setattr__(self, "_reducer", None)
        number = next(_numbers)
        world = self._ranks(group)
        if world is None:
            return
        named = [(n, p) for n, p in layers.named_parameters() if not p.stop_gradient]
        if not named:
            raise RuntimeError("DataParallel: the layer has no parameter that is trained")
        _check_same(world, layers)
        _broadcast(layers)
        tables = _tables(layers)
        object.__setattr__(self, "_reducer", _core.Reducer(
            world, f"DataParallel {number}", [n for n, _ in named], [p for _, p in named],
            [id(p) in tables for _, p in named], int(comm_buffer_size * _MB),
            int(last_comm_buffer_size * _MB), self.find_unused_parameters, _CHECK_EVERY,
        ))

    @staticmethod
    def _ranks(group: Optional[Group]) -> Optional[_core.Group]:
        world = ranks_of("DataParallel", group)
        return world if world is not None and world.size() > 1 else None

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """That of the layer."""
        if self._reducer is not None and _core.is_grad_enabled():
            self._reducer.set_sync(self.grad_need_sync)
        return self._layers(*inputs, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """What is computed inside ``with`` adds to the gradients of this rank only; the first
        backward of a forward outside exchanges the sums. For batches in several parts."""
        before, self.grad_need_sync = self.grad_need_sync, False
        try:
            yield
        finally:
            self.grad_need_sync = before

    def share_buffers(self) -> None:
        """Gives all ranks the buffers of rank 0, such as statistics of norms: then all compute the
        same in evaluation. All ranks call it."""
        if self._reducer is not None:
            for _, buffer in self._layers.named_buffers():
                broadcast(buffer, 0)

    # What older scripts call
    def scale_loss(self, loss: Any) -> Any:
        """The loss as it is: gradients become means by themselves."""
        return loss

    def apply_collective_grads(self) -> None:
        """Nothing: backward exchanges gradients."""

    # The layer inside
    def state_dict(
        self, destination: Optional[Dict[str, Any]] = None, include_sublayers: bool = True,
        structured_name_prefix: str = "", use_hook: bool = True,
    ) -> Dict[str, Any]:
        """That of the layer: the same names as without DataParallel."""
        return self._layers.state_dict(destination, include_sublayers, structured_name_prefix)

    def set_state_dict(
        self, state_dict: Dict[str, Any], use_structured_name: bool = True
    ) -> Tuple[List[str], List[str]]:
        """That of the layer. All ranks load the same values."""
        return self._layers.set_state_dict(state_dict, use_structured_name)

    set_dict = load_dict = set_state_dict

    def __getattr__(self, name: str) -> Any:
        layers = self.__dict__.get("_layers")
        if layers is None or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(f"DataParallel has no attribute '{name}'")
        return getattr(layers, name)


def _tables(layers: Layer) -> Dict[int, Any]:
    """Parameters whose gradients name rows."""
    every = layers.sublayers(include_self=True)
    return {id(layer.weight): layer.weight for layer in every
            if isinstance(layer, Embedding) and getattr(layer, "_sparse", False)}


def _values(layers: Layer) -> List[Tuple[str, Tensor]]:
    return [*layers.named_parameters(), *layers.named_buffers()]


def _check_same(world: _core.Group, layers: Layer) -> None:
    """All ranks must have made the same model: otherwise they would wait for each other."""
    import pickle

    own = [(name, list(p.shape), str(p.dtype), p.stop_gradient) for name, p in _values(layers)]
    short = zlib.crc32(repr(own).encode()).to_bytes(4, "little")
    if len(set(world.all_gather_bytes(short, "DataParallel"))) == 1:
        return
    every = [pickle.loads(part) for part in
             world.all_gather_bytes(pickle.dumps(own), "DataParallel: parameters")]
    for rank, theirs in enumerate(every):
        for first, other in itertools.zip_longest(every[0], theirs):
            if first != other:
                raise RuntimeError(
                    "DataParallel: all ranks must make the same model, but "
                    f"rank 0 has {_shown(first)} where rank {rank} has {_shown(other)}")


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    name, shape, dtype, stopped = value
    return f"'{name}' {shape} {dtype}" + (" (frozen)" if stopped else "")


def _broadcast(layers: Layer, root: int = 0) -> None:
    """Gives all ranks the parameters and buffers of one of them."""
    with_values = [value for _, value in _values(layers) if isinstance(value, Tensor)]
    for value in with_values:
        broadcast(value, root)
