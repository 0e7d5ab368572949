"""Recurrent layers: cells, what walks a cell along time, and whole networks of layers.

>>> import regatta as rg
>>> out, (h, c) = rg.nn.LSTM(3, 4, num_layers=2)(rg.ones([2, 5, 3]))
>>> out.shape, h.shape, c.shape
([2, 5, 4], [2, 2, 4], [2, 2, 4])
"""
from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

from .._missing import missing
from ..framework import Tensor, Variable
from ..tensor import creation, linalg, manipulation, math
from ..tensor._common import Values, namer_of, several
from . import functional as F
from .container import LayerList
from .initializer import Uniform
from .layers import Layer

__all__ = [
    "BiRNN", "GRU", "GRUCell", "LSTM", "LSTMCell", "RNN", "RNNCellBase", "SimpleRNN",
    "SimpleRNNCell",
]

# The op of a cell, how many gates it has, and how many states.
_KINDS = {"lstm": (4, 2), "gru": (3, 1), "simple_rnn": (1, 1)}


class RNNCellBase(Layer):
    """One step: ``cell(inputs, states)`` gives an output and the next states."""

    def get_initial_states(
        self, batch_ref: Variable, shape: Any = None, dtype: Any = None, init_value: float = 0.0,
        batch_dim_idx: int = 0,
    ) -> Any:
        """States of one number, for the batch size of ``batch_ref``."""
        shape = self.state_shape if shape is None else shape
        if isinstance(shape, (list, tuple)) and shape and isinstance(shape[0], (list, tuple)):
            return tuple(_state_like(batch_ref, s, init_value, batch_dim_idx) for s in shape)
        return _state_like(batch_ref, shape, init_value, batch_dim_idx)

    @property
    def state_shape(self) -> Any:
        """Dimensions of a state without the batch."""
        raise NotImplementedError(f"{type(self).__name__} does not say the shape of its states")


def _state_like(ref: Any, dims: Sequence[int], value: float, batch_at: int) -> Any:
    dims = [int(d) for d in dims]
    if isinstance(ref, Tensor):
        return creation.full([ref.shape[batch_at]] + dims, value, "float32")
    if ref.shape[batch_at] >= 0:
        return creation.full([ref.shape[batch_at]] + dims, value, "float32")
    # A column of the batch, times a row of zeros.
    first = manipulation.slice(ref, [d for d in range(len(ref.shape)) if d != batch_at],
                               [0] * (len(ref.shape) - 1), [1] * (len(ref.shape) - 1))
    column = manipulation.reshape(first, [-1] + [1] * len(dims))
    ones = creation.full_like(column, value, "float32")
    return manipulation.expand(ones, [-1] + dims)


class _Cell(RNNCellBase):
    """A cell whose step is an op of its kind over one time."""

    _kind = ""

    def __init__(
        self, input_size: int, hidden_size: int, weight_ih_attr: Any = None,
        weight_hh_attr: Any = None, bias_ih_attr: Any = None, bias_hh_attr: Any = None,
    ) -> None:
        super().__init__()
        if hidden_size <= 0:
            raise ValueError(f"{type(self).__name__}: hidden_size ({hidden_size}) must be above 0")
        gates, _ = _KINDS[self._kind]
        bound = 1.0 / hidden_size ** 0.5
        init = Uniform(-bound, bound)
        rows = gates * hidden_size
        self.input_size, self.hidden_size = input_size, hidden_size
        self.weight_ih = self.create_parameter(
            [rows, input_size], weight_ih_attr, default_initializer=init)
        self.weight_hh = self.create_parameter(
            [rows, hidden_size], weight_hh_attr, default_initializer=init)
        self.bias_ih = self.create_parameter(
            [rows], bias_ih_attr, is_bias=True, default_initializer=init)
        self.bias_hh = self.create_parameter(
            [rows], bias_hh_attr, is_bias=True, default_initializer=init)

    @property
    def state_shape(self) -> Any:
        """Dimensions of a state without the batch."""
        return (self.hidden_size,)

    def _attrs(self) -> Dict[str, Any]:
        return {}

    def run(self, x: Any, states: Sequence[Any], lengths: Any, reverse: bool) -> List[Any]:
        """All times of ``x`` ``[n, time, size]`` at once: the outputs and the last states."""
        inputs = {
            "X": x, "WeightIh": self.weight_ih, "WeightHh": self.weight_hh,
            "BiasIh": self.bias_ih, "BiasHh": self.bias_hh, "SequenceLength": lengths,
        }
        inputs.update(zip(("InitH", "InitC"), states))
        namer = namer_of(x, self._kind)
        slots = ["Out", "LastH", "LastC", "Reserve"]
        if len(states or (0,)) < 2 and self._kind != "lstm":
            slots.remove("LastC")
        outputs = {slot: namer.tmp() for slot in slots}
        attrs = {"is_reverse": bool(reverse), **self._attrs()}
        return several(self._kind, inputs, outputs, attrs)[:-1]

    def _step(self, inputs: Any, states: Sequence[Any]) -> Tuple[Any, List[Any]]:
        line = manipulation.unsqueeze(inputs, 1)
        out, *last = self.run(line, states, None, False)
        return manipulation.squeeze(out, 1), last

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}"


class SimpleRNNCell(_Cell):
    """``h = act(W x + b + U h + c)``."""

    _kind = "simple_rnn"

    def __init__(
        self, input_size: int, hidden_size: int, activation: str = "tanh",
        weight_ih_attr: Any = None, weight_hh_attr: Any = None, bias_ih_attr: Any = None,
        bias_hh_attr: Any = None, name: Optional[str] = None,
    ) -> None:
        if activation not in ("tanh", "relu"):
            raise ValueError(f"SimpleRNNCell: activation should be 'tanh' or 'relu', but is "
                             f"{activation!r}")
        super().__init__(input_size, hidden_size, weight_ih_attr, weight_hh_attr, bias_ih_attr,
                         bias_hh_attr)
        self.activation = activation

    def _attrs(self) -> Dict[str, Any]:
        return {"activation": self.activation}

    def forward(self, inputs: Variable, states: Any = None) -> Any:
        """The output and the next state, which are one."""
        states = self.get_initial_states(inputs) if states is None else states
        out, last = self._step(inputs, [states])
        return out, last[0]

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        return text if self.activation == "tanh" else f"{text}, activation={self.activation}"


class GRUCell(_Cell):
    """A gated recurrent unit."""

    _kind = "gru"

    def __init__(
        self, input_size: int, hidden_size: int, weight_ih_attr: Any = None,
        weight_hh_attr: Any = None, bias_ih_attr: Any = None, bias_hh_attr: Any = None,
        name: Optional[str] = None,
    ) -> None:
        super().__init__(input_size, hidden_size, weight_ih_attr, weight_hh_attr, bias_ih_attr,
                         bias_hh_attr)

    def forward(self, inputs: Variable, states: Any = None) -> Any:
        """The output and the next state, which are one."""
        states = self.get_initial_states(inputs) if states is None else states
        out, last = self._step(inputs, [states])
        return out, last[0]


class LSTMCell(_Cell):
    """A cell with a long and a short memory; its states are two, ``(h, c)``."""

    _kind = "lstm"

    def __init__(
        self, input_size: int, hidden_size: int, weight_ih_attr: Any = None,
        weight_hh_attr: Any = None, bias_ih_attr: Any = None, bias_hh_attr: Any = None,
        name: Optional[str] = None,
    ) -> None:
        super().__init__(input_size, hidden_size, weight_ih_attr, weight_hh_attr, bias_ih_attr,
                         bias_hh_attr)

    @property
    def state_shape(self) -> Any:
        """Dimensions of both states without the batch."""
        return ((self.hidden_size,), (self.hidden_size,))

    def forward(self, inputs: Variable, states: Any = None) -> Any:
        """The output and the next states ``(h, c)``."""
        states = self.get_initial_states(inputs) if states is None else states
        out, last = self._step(inputs, list(states))
        return out, (last[0], last[1])


# --- along time ----------------------------------------------------------------------------------


def _states_of(cell: Any, states: Any) -> List[Any]:
    if states is None:
        return []
    return list(states) if isinstance(states, (list, tuple)) else [states]


def _walk(
    cell: Layer, inputs: Any, states: Any, lengths: Any, time_major: bool, reverse: bool,
    more: Dict[str, Any],
) -> Tuple[Any, Any]:
    """A cell along time: outputs of all times, and the last states."""
    if isinstance(cell, _Cell) and type(cell).forward in _FORWARDS:
        line = linalg.transpose(inputs, [1, 0, 2]) if time_major else inputs
        out, *last = cell.run(line, _states_of(cell, states), lengths, reverse)
        out = linalg.transpose(out, [1, 0, 2]) if time_major else out
        return out, tuple(last) if isinstance(cell, LSTMCell) else last[0]
    return _walk_steps(cell, inputs, states, lengths, time_major, reverse, more)


def _walk_steps(
    cell: Layer, inputs: Any, states: Any, lengths: Any, time_major: bool, reverse: bool,
    more: Dict[str, Any],
) -> Tuple[Any, Any]:
    axis = 0 if time_major else 1
    if states is None:
        states = cell.get_initial_states(inputs, batch_dim_idx=1 - axis)
    steps = manipulation.unbind(inputs, axis)
    mask = None
    if lengths is not None:
        mask = manipulation.unbind(F.sequence_mask(lengths, len(steps), "float32"), 1)
    outs: List[Any] = []
    order = range(len(steps))[::-1] if reverse else range(len(steps))
    for t in order:
        out, after = cell(steps[t], states, **more)
        states = after if mask is None else _kept(mask[t], after, states)
        outs.append(out if mask is None else math.multiply(out, _column(mask[t], out)))
    return manipulation.stack(outs[::-1] if reverse else outs, axis), states


def _column(mask: Any, like: Any) -> Any:
    return manipulation.reshape(mask, [-1] + [1] * (len(like.shape) - 1))


def _kept(mask: Any, after: Any, before: Any) -> Any:
    """States where a sequence has ended stay as they were."""
    if isinstance(after, (list, tuple)):
        return type(after)(_kept(mask, a, b) for a, b in zip(after, before))
    column = _column(mask, after)
    return after * column + before * (1.0 - column)


_FORWARDS = (SimpleRNNCell.forward, GRUCell.forward, LSTMCell.forward)


class RNN(Layer):
    """Walks a cell along time."""

    def __init__(self, cell: Layer, is_reverse: bool = False, time_major: bool = False) -> None:
        super().__init__()
        self.cell = cell
        self.is_reverse, self.time_major = is_reverse, time_major

    def forward(
        self, inputs: Variable, initial_states: Any = None, sequence_length: Any = None,
        **kwargs: Any,
    ) -> Tuple[Any, Any]:
        """Outputs of all times, and the last states."""
        return _walk(self.cell, inputs, initial_states, sequence_length, self.time_major,
                     self.is_reverse, kwargs)


class BiRNN(Layer):
    """Walks one cell forwards and one backwards, and joins their outputs."""

    def __init__(self, cell_fw: Layer, cell_bw: Layer, time_major: bool = False) -> None:
        super().__init__()
        self.cell_fw, self.cell_bw = cell_fw, cell_bw
        self.time_major = time_major

    def forward(
        self, inputs: Variable, initial_states: Any = None, sequence_length: Any = None,
        **kwargs: Any,
    ) -> Tuple[Any, Any]:
        """Outputs of both side by side, and the last states of both."""
        first, second = initial_states if initial_states is not None else (None, None)
        out_fw, last_fw = _walk(self.cell_fw, inputs, first, sequence_length, self.time_major,
                                False, kwargs)
        out_bw, last_bw = _walk(self.cell_bw, inputs, second, sequence_length, self.time_major,
                                True, kwargs)
        return manipulation.concat([out_fw, out_bw], -1), (last_fw, last_bw)


# --- networks ------------------------------------------------------------------------------------


class _Network(LayerList):
    """Layers of cells, in one direction or both, with dropout between the layers."""

    _cell: Any = None

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, direction: str = "forward",
        time_major: bool = False, dropout: float = 0.0, weight_ih_attr: Any = None,
        weight_hh_attr: Any = None, bias_ih_attr: Any = None, bias_hh_attr: Any = None,
        **more: Any,
    ) -> None:
        super().__init__()
        if direction not in ("forward", "bidirect", "bidirectional"):
            raise ValueError(f"{type(self).__name__}: direction should be 'forward' or 'bidirect', "
                             f"but is {direction!r}")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.num_directions = 1 if direction == "forward" else 2
        self.direction, self.time_major, self.dropout = direction, time_major, dropout
        attrs = (weight_ih_attr, weight_hh_attr, bias_ih_attr, bias_hh_attr)
        for layer in range(num_layers):
            size = input_size if layer == 0 else hidden_size * self.num_directions
            self.append(self._layer(size, attrs, more))
        self._name_parameters()

    def _layer(self, size: int, attrs: Any, more: Any) -> Layer:
        words = ("weight_ih_attr", "weight_hh_attr", "bias_ih_attr", "bias_hh_attr")
        named = dict(zip(words, attrs))
        cells = [self._cell(size, self.hidden_size, **named, **more)
                 for _ in range(self.num_directions)]
        return RNN(cells[0], False, self.time_major) if len(cells) == 1 else BiRNN(
            cells[0], cells[1], self.time_major)

    def _name_parameters(self) -> None:
        """The parameters under the names that saved models use: ``weight_ih_l0_reverse``."""
        for layer, walker in enumerate(list(self._sub_layers.values())):
            cells = [walker.cell] if isinstance(walker, RNN) else [walker.cell_fw, walker.cell_bw]
            for cell, end in zip(cells, ("", "_reverse")):
                for name, parameter in cell._parameters.items():
                    if parameter is not None:
                        self.add_parameter(f"{name}_l{layer}{end}", parameter)

    def forward(
        self, inputs: Variable, initial_states: Any = None, sequence_length: Any = None
    ) -> Tuple[Any, Any]:
        """Outputs of all times, and the last states of all layers and directions."""
        states = self._split(initial_states)
        out, last = inputs, []
        for at, walker in enumerate(self._sub_layers.values()):
            if at and self.dropout:
                out = F.dropout(out, self.dropout, training=self.training)
            out, ended = walker(out, None if states is None else states[at], sequence_length)
            last += [ended] if self.num_directions == 1 else list(ended)
        return out, self._joined(last)

    def _split(self, states: Any) -> Any:
        """States of each layer, from ``[layers * directions, n, size]``."""
        if states is None:
            return None
        several_states = isinstance(states, (list, tuple)) and not isinstance(states, Values)
        parts = [manipulation.unbind(s, 0) for s in (states if several_states else [states])]
        every = [tuple(p[i] for p in parts) for i in range(len(parts[0]))]
        every = every if several_states and len(parts) > 1 else [e[0] for e in every]
        if self.num_directions == 1:
            return every
        return [(every[2 * i], every[2 * i + 1]) for i in range(self.num_layers)]

    def _joined(self, last: List[Any]) -> Any:
        if isinstance(last[0], tuple):
            return tuple(manipulation.stack([s[i] for s in last], 0) for i in range(len(last[0])))
        return manipulation.stack(last, 0)

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        if self.num_layers != 1:
            text += f", num_layers={self.num_layers}"
        if self.time_major:
            text += f", time_major={self.time_major}"
        return text + (f", dropout={self.dropout}" if self.dropout else "")

    def flatten_parameters(self) -> None:
        """Nothing: the op reads the parameters where they are."""


class SimpleRNN(_Network):
    """Layers of :class:`SimpleRNNCell`."""

    _cell = SimpleRNNCell

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, direction: str = "forward",
        time_major: bool = False, dropout: float = 0.0, activation: str = "tanh",
        weight_ih_attr: Any = None, weight_hh_attr: Any = None, bias_ih_attr: Any = None,
        bias_hh_attr: Any = None, name: Optional[str] = None,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, direction, time_major, dropout,
                         weight_ih_attr, weight_hh_attr, bias_ih_attr, bias_hh_attr,
                         activation=activation)


class GRU(_Network):
    """Layers of :class:`GRUCell`."""

    _cell = GRUCell

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, direction: str = "forward",
        time_major: bool = False, dropout: float = 0.0, weight_ih_attr: Any = None,
        weight_hh_attr: Any = None, bias_ih_attr: Any = None, bias_hh_attr: Any = None,
        name: Optional[str] = None,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, direction, time_major, dropout,
                         weight_ih_attr, weight_hh_attr, bias_ih_attr, bias_hh_attr)


class LSTM(GRU):
    """Layers of :class:`LSTMCell`."""

    _cell = LSTMCell


__getattr__ = missing(__name__)
