"""Layers as functions: each call makes its parameters and adds its ops.

>>> import regatta as rg
>>> with rg.static.program_guard(rg.static.Program(), rg.static.Program()), rg.unique_name.guard():
...     x = rg.static.data("x", [None, 13])
...     y = rg.static.nn.fc(x, 32, activation="relu")
>>> y.name, y.shape
('fc_0.tmp_2', (-1, 32))
"""
from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

from .. import framework
from ..framework import Variable, default_main_program, unique_name
from .._missing import missing
from ..nn import functional as F
from ..nn.functional import Vectors
from ..nn.initializer import Constant, default_for
from ..nn.norm import batch_norm_with
from ..tensor import math
from ..tensor._common import (
    Namer, activate, activation_name, check, int_list, op, part_of, product, to_shape,
)

__all__ = [
    "batch_norm", "continuous_value_model", "cos_sim", "create_parameter", "cross_entropy",
    "dropout", "embedding", "fc", "layer_norm", "log_loss", "mean", "prelu", "sequence_mask",
    "sequence_pool", "softmax_with_cross_entropy", "sparse_embedding", "square_error_cost",
]

# What the op `fc` applies itself.
_FUSED = ("", "relu", "tanh", "sigmoid")


def _given(first: Any, *others: Any) -> Any:
    """What was passed under one of several names."""
    return next((v for v in (first, *others) if v is not None), None)


def _attrs(weight_attr: Any, param_attr: Any) -> Any:
    return param_attr if weight_attr is None else weight_attr


def _flat(x: Variable, dims: int, out: str) -> Tuple[Variable, List[int]]:
    """``x`` with everything from dimension ``dims`` on joined, and the dimensions before."""
    rank = len(x.shape)
    at = dims + rank if dims < 0 else dims
    if not 0 < at < rank:
        raise ValueError(f"fc: num_flatten_dims {dims} of '{x.name}' {list(x.shape)} should be "
                         f"between 1 and {rank - 1}")
    if -1 in x.shape[at:]:
        raise ValueError(f"fc: '{x.name}' {list(x.shape)} has no known width from dimension {at} "
                         "on")
    if at == rank - 1:
        return x, list(x.shape[:at])
    lead = list(x.shape[:at])
    return to_shape(x, lead + [product(x.shape[at:])], part_of(out)), lead


def fc(
    x: Any = None,
    size: Optional[int] = None,
    num_flatten_dims: int = 1,
    weight_attr: Any = None,
    bias_attr: Any = None,
    activation: Optional[str] = None,
    name: Optional[str] = None,
    input: Any = None,
    act: Optional[str] = None,
    param_attr: Any = None,
    is_test: bool = False,
) -> Variable:
    """Fully connected layer: ``activation(x @ w + b)``. Dimensions from ``num_flatten_dims`` on are
    joined. Several inputs have a weight each and are added."""
    x = _given(x, input)
    if x is None or size is None:
        raise TypeError("fc: the input (x) and the size are needed")
    values = list(x) if isinstance(x, (list, tuple)) else [x]
    act = activation_name(_given(activation, act))
    weights = _attrs(weight_attr, param_attr)
    weights = list(weights) if isinstance(weights, (list, tuple)) else [weights] * len(values)
    if len(weights) != len(values) or not values:
        raise ValueError(f"fc: {len(values)} inputs and {len(weights)} weight_attr")
    namer = Namer("fc", name)
    size = int(size)
    flat = []
    for value, attr in zip(values, weights):
        value, _ = _flat(check(value, "fc: x"), num_flatten_dims, namer.name)
        shape = [value.shape[-1], size]
        init = default_for(False)
        flat.append((value, framework.create_parameter(namer.name, "w", shape, attr, init)))
    if any(w is None for _, w in flat):
        raise ValueError("fc: weight_attr is False, but a layer without weights computes nothing")
    if len(flat) > 1:
        return _fc_of_many(flat, size, bias_attr, act, namer)
    (value, weight), = flat
    bias = framework.create_parameter(namer.name, "b", [size], bias_attr, default_for(True))
    fused = act if act in _FUSED else ""
    namer.skip((bias is not None) + bool(fused))
    inputs = {"X": value, "W": weight, "Bias": bias}
    made = op("fc", inputs, namer.tmp(), {"act": fused})
    return made if fused == act else activate(made, act, namer)


def _fc_of_many(
    flat: List[Tuple[Variable, Any]], size: int, bias_attr: Any, act: str, namer: Namer
) -> Variable:
    parts = [op("fc", {"X": x, "W": w}, namer.tmp()) for x, w in flat]
    made = op("sum", {"X": parts}, namer.tmp())
    bias = framework.create_parameter(namer.name, "b", [size], bias_attr, default_for(True))
    if bias is not None:
        made = op("elementwise_add", {"X": made, "Y": bias}, namer.tmp())
    return activate(made, act, namer)


def _table(
    namer: Namer, size: Sequence[int], attr: Any, dtype: Any, what: str
) -> Any:
    dims = int_list(size, f"{what}: size")
    if len(dims) != 2 or min(dims) < 1:
        raise ValueError(f"{what}: the size should be [rows, floats per row], but is {dims}")
    table = framework.create_parameter(namer.name, "w", dims, attr, default_for(False), dtype)
    if table is None:
        raise ValueError(f"{what}: param_attr is False, but there is no lookup without a table")
    return table


def embedding(
    input: Any = None,
    size: Optional[Sequence[int]] = None,
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: Optional[int] = None,
    param_attr: Any = None,
    dtype: Any = "float32",
    x: Any = None,
    weight_attr: Any = None,
    name: Optional[str] = None,
) -> Any:
    """Rows of a table by id: the shape of ``input`` with ``size[1]`` behind it. Parameters of one
    name are one table. Of inputs with any number of ids per example (``lod_level=1``) the vectors
    have to be pooled with :func:`sequence_pool`."""
    ids = check(_given(input, x), "embedding: input")
    if size is None:
        raise TypeError("embedding: the size, [rows, floats per row], is needed")
    namer = Namer("embedding", name)
    table = _table(namer, size, _attrs(weight_attr, param_attr), dtype, "embedding")
    padding = F.padding_row(padding_idx, table.shape[0], "embedding")
    return F.lookup(ids, table, padding, is_sparse or is_distributed, namer.tmp())


def sparse_embedding(
    input: Variable,
    size: Sequence[int],
    padding_idx: Optional[int] = None,
    is_test: bool = False,
    entry: Any = None,
    table_class: str = "MemorySparseTable",
    param_attr: Any = None,
    dtype: Any = "float32",
    slot: Any = None,
    name: Optional[str] = None,
) -> Any:
    """Rows of a table that servers hold in training with parameter servers, and that is an ordinary
    table with row-sparse gradients otherwise. Ids ``[..., 1]`` give ``[..., size[1]]``.

    ``entry`` says which ids get a row on servers, for example
    ``regatta.distributed.CountFilterEntry(10)``."""
    if table_class not in ("MemorySparseTable", "CommonSparseTable", "SSDSparseTable"):
        raise ValueError(f"sparse_embedding: table_class {table_class!r} is not MemorySparseTable, "
                         "CommonSparseTable or SSDSparseTable")
    ids = check(input, "sparse_embedding: input")
    namer = Namer("sparse_embedding", name)
    table = _table(namer, size, param_attr, dtype, "sparse_embedding")
    if entry is not None:
        _note_entry(table.name, entry)
    out = namer.tmp()
    padding = F.padding_row(padding_idx, table.shape[0], "sparse_embedding")
    column = not ids.lod_level and len(ids.shape) > 1 and ids.shape[-1] == 1
    made = F.lookup(ids, table, padding, True, part_of(out) if column else out)
    if column:
        made = to_shape(made, list(ids.shape[:-1]) + [table.shape[1]], out)
    if is_test:
        made.stop_gradient = True
    return made


def _note_entry(table: str, entry: Any) -> None:
    """Remembers in the program which ids get a row on servers."""
    if not hasattr(entry, "_to_attr"):
        raise ValueError(f"sparse_embedding: the entry should be a CountFilterEntry, a "
                         f"ProbabilityEntry or a ShowClickEntry, but is {entry!r}")
    program = default_main_program()
    entries = program.__dict__.setdefault("_table_entries", {})
    text = entry._to_attr()
    if entries.setdefault(table, text) != text:
        raise ValueError(f"sparse_embedding: '{table}' has the entry {entries[table]} already, and "
                         f"cannot have {text} as well")


_POOLS = {"sum": "sum", "average": "mean", "mean": "mean", "max": "max", "sqrt": "sqrtn"}


def sequence_pool(
    input: Any, pool_type: str, is_test: bool = False, pad_value: float = 0.0
) -> Variable:
    """One vector for each example of the looked up vectors of its ids: their 'sum', 'average',
    'max' or 'sqrt' (sum by the square root of the count). Examples without ids give zeros."""
    kind = _POOLS.get(str(pool_type).lower())
    if kind is None:
        raise NotImplementedError(f"sequence_pool: {pool_type!r} is not one of sum, average, max "
                                  "and sqrt")
    if not isinstance(input, Vectors):
        raise TypeError("sequence_pool: pools what embedding or sparse_embedding makes of an input "
                        f"with lod_level=1, not {type(input).__name__}")
    if pad_value:
        raise NotImplementedError(f"sequence_pool: pad_value {pad_value}; examples without ids "
                                  "give zeros")
    namer = Namer("sequence_pool")
    out = namer.tmp()
    namer.skip()
    return input.pool(kind, out)


def continuous_value_model(input: Variable, cvm: Variable, use_cvm: bool = True) -> Variable:
    """Without ``use_cvm``, ``input`` without its first two columns (shows and clicks)."""
    x = check(input, "continuous_value_model: input")
    if use_cvm:
        raise NotImplementedError("continuous_value_model: use_cvm=True, logarithms of shows and "
                                  "clicks in the first two columns")
    attrs = {"axis": len(x.shape) - 1, "start": 2, "end": x.shape[-1]}
    return op("slice", {"X": x}, Namer("cvm").tmp(), attrs)


def batch_norm(
    input: Any = None,
    act: Optional[str] = None,
    is_test: bool = False,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    param_attr: Any = None,
    bias_attr: Any = None,
    data_layout: str = "NCHW",
    in_place: bool = False,
    name: Optional[str] = None,
    moving_mean_name: Optional[str] = None,
    moving_variance_name: Optional[str] = None,
    do_model_average_for_mean_and_var: bool = True,
    use_global_stats: bool = False,
    x: Any = None,
) -> Variable:
    """Normalises each channel over the batch; keeps running statistics for prediction."""
    value = check(_given(input, x), "batch_norm: input")
    if isinstance(momentum, Variable):
        raise NotImplementedError("batch_norm: momentum as a variable")
    namer = Namer("batch_norm", name)
    at = len(value.shape) - 1 if data_layout[-1] == "C" else 1
    width = [value.shape[at]]
    make = framework.create_parameter
    scale = make(namer.name, "w", width, param_attr, Constant(1.0))
    bias = make(namer.name, "b", width, bias_attr, Constant(0.0))
    mean_name = moving_mean_name or unique_name.generate(namer.name + ".w")
    mean = framework.create_state(mean_name, width, "float32", 0.0)
    variance_name = moving_variance_name or unique_name.generate(namer.name + ".w")
    variance = framework.create_state(variance_name, width, "float32", 1.0)
    return batch_norm_with(
        value, mean, variance, scale, bias, momentum, epsilon, is_test, use_global_stats,
        data_layout, act, namer,
    )


def layer_norm(
    input: Any = None,
    scale: bool = True,
    shift: bool = True,
    begin_norm_axis: int = 1,
    epsilon: float = 1e-5,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: Optional[str] = None,
    name: Optional[str] = None,
    x: Any = None,
) -> Variable:
    """Normalises each example over its dimensions from ``begin_norm_axis`` on."""
    value = check(_given(input, x), "layer_norm: input")
    rank = len(value.shape)
    begin = begin_norm_axis + rank if begin_norm_axis < 0 else begin_norm_axis
    if not 0 < begin < rank:
        raise ValueError(f"layer_norm: begin_norm_axis {begin_norm_axis} of '{value.name}' "
                         f"{list(value.shape)} should be between 1 and {rank - 1}")
    namer = Namer("layer_norm", name)
    width = [product(value.shape[begin:])]
    make = framework.create_parameter
    weight = make(namer.name, "w", width, param_attr, Constant(1.0)) if scale else None
    bias = make(namer.name, "b", width, bias_attr, Constant(0.0)) if shift else None
    names = [namer.tmp() for _ in range(3)]
    return activate(F.layer_norm_op(value, begin, weight, bias, epsilon, names), act, namer)


def prelu(
    x: Variable, mode: str, param_attr: Any = None, data_format: str = "NCHW",
    name: Optional[str] = None,
) -> Variable:
    """``x`` where positive, a learned factor times ``x`` elsewhere: one factor ('all'), or one for
    each channel ('channel')."""
    x = check(x, "prelu: x")
    if mode not in ("all", "channel"):
        raise NotImplementedError(f"prelu: the mode {mode!r}; 'all' and 'channel' are possible")
    at = len(x.shape) - 1 if data_format[-1] == "C" else 1
    namer = Namer("prelu", name)
    width = [1] if mode == "all" else [x.shape[at]]
    weight = framework.create_parameter(namer.name, "w", width, param_attr, Constant(0.25))
    return F.prelu(x, weight, data_format, namer.name)


def cross_entropy(
    input: Variable, label: Variable, soft_label: bool = False, ignore_index: int = -100
) -> Variable:
    """``-log p[label]`` of given probabilities, for each example: ``[n, 1]``."""
    namer = Namer("cross_entropy2" if not soft_label else "cross_entropy")
    attrs = {"soft_label": bool(soft_label), "ignore_index": int(ignore_index)}
    inputs = {"X": check(input, "cross_entropy: input"),
              "Label": check(label, "cross_entropy: label")}
    return op("cross_entropy", inputs, namer.tmp(), attrs)


def cos_sim(X: Variable, Y: Variable) -> Variable:
    """The cosine of the angle between rows, ``[n, 1]``."""
    namer = Namer("cos_sim")
    return op("cos_sim", {"X": check(X, "cos_sim: X"), "Y": check(Y, "cos_sim: Y")}, namer.tmp())


def dropout(
    x: Variable,
    dropout_prob: float = 0.5,
    is_test: bool = False,
    seed: Optional[int] = None,
    name: Optional[str] = None,
    dropout_implementation: str = "downgrade_in_infer",
) -> Variable:
    """Dropout with Fluid's arguments and default: prediction scales by ``1 - dropout_prob``."""
    return F.dropout(x, dropout_prob, training=not is_test, mode=dropout_implementation,
                     name=name, seed=seed)


def create_parameter(*args: Any, **kwargs: Any) -> Any:
    """As :func:`regatta.create_parameter`."""
    from ..tensor.creation import create_parameter as create

    return create(*args, **kwargs)


def mean(x: Variable, name: Optional[str] = None) -> Variable:
    """The mean of all elements, of shape ``[1]``."""
    return math.mean(x, name=name)


log_loss = F.log_loss
sequence_mask = F.sequence_mask
softmax_with_cross_entropy = F.softmax_with_cross_entropy
square_error_cost = F.square_error_cost

__getattr__ = missing(__name__)
