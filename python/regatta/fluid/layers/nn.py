"""Layers whose arguments or meaning differ from those of later versions."""
from __future__ import annotations

from typing import Any, List, Optional, Sequence, Union

from ... import tensor as _tensor
from ...framework import Variable, unique_name
from ...nn import functional as _functional
from ...static import nn as _static
from ...tensor._common import Namer, activate, check, op, part_of, to_shape

__all__ = [
    "autoincreased_step_counter", "clip", "clip_by_norm", "cos_sim", "dropout", "embedding",
    "expand", "flatten", "l2_normalize", "matmul", "mean", "one_hot", "one_hot_v2", "pow",
    "reduce_max", "reduce_mean", "reduce_min", "reduce_sum", "softmax", "split", "squeeze", "stack",
    "swish", "topk", "transpose", "unsqueeze",
]


def mean(x: Variable, name: Optional[str] = None) -> Variable:
    """The mean of all elements."""
    return _tensor.mean(x, name=name)


def embedding(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: Optional[int] = None,
    param_attr: Any = None,
    dtype: Any = "float32",
) -> Variable:
    """Rows of a table by id. Ids of the shape ``[..., 1]`` give rows of ``[..., size[1]]``."""
    rows = _static.embedding(
        input, size, is_sparse=is_sparse, is_distributed=is_distributed, padding_idx=padding_idx,
        param_attr=param_attr, dtype=dtype,
    )
    shape = input.shape
    if input.lod_level or not shape or shape[-1] != 1 or rows.ndim != len(shape) + 1:
        return rows
    dims = [*shape[:-1], int(size[1])]
    return to_shape(rows, dims, part_of(rows.name))


def dropout(
    x: Variable,
    dropout_prob: float,
    is_test: Optional[bool] = None,
    seed: Optional[int] = None,
    name: Optional[str] = None,
    dropout_implementation: str = "downgrade_in_infer",
) -> Variable:
    """Zeros at random places while training. By default the rest stays as it is, and prediction
    multiplies by ``1 - dropout_prob``; ``upscale_in_train`` divides the rest while training."""
    modes = {"downgrade_in_infer": "downscale_in_infer", "upscale_in_train": "upscale_in_train"}
    if dropout_implementation not in modes:
        raise ValueError(
            f"dropout: dropout_implementation should be {' or '.join(modes)}, not "
            f"{dropout_implementation!r}"
        )
    if seed:
        raise NotImplementedError("dropout: seed: set program.random_seed or call regatta.seed")
    return _functional.dropout(
        x, p=dropout_prob, training=not is_test, mode=modes[dropout_implementation], name=name
    )


def softmax(
    input: Variable, use_cudnn: bool = False, name: Optional[str] = None, axis: int = -1
) -> Variable:
    """Probabilities from scores."""
    return _functional.softmax(input, axis=axis, name=name)


def swish(x: Variable, beta: float = 1.0, name: Optional[str] = None) -> Variable:
    """``x * sigmoid(beta * x)``."""
    gate = _tensor.sigmoid(_tensor.scale(x, scale=beta) if beta != 1.0 else x)
    return _tensor.multiply(x, gate, name=name)


# --- reductions ----------------------------------------------------------------------------------


def reduce_sum(
    input: Variable, dim: Any = None, keep_dim: bool = False, name: Optional[str] = None
) -> Variable:
    """The sum over dimensions, or of everything."""
    return _tensor.reduce_sum(input, dim, keep_dim, name)


def reduce_mean(
    input: Variable, dim: Any = None, keep_dim: bool = False, name: Optional[str] = None
) -> Variable:
    """The mean over dimensions, or of everything."""
    return _tensor.reduce_mean(input, dim, keep_dim, name)


def reduce_max(
    input: Variable, dim: Any = None, keep_dim: bool = False, name: Optional[str] = None
) -> Variable:
    """The largest over dimensions, or of everything."""
    return _tensor.reduce_max(input, dim, keep_dim, name)


def reduce_min(
    input: Variable, dim: Any = None, keep_dim: bool = False, name: Optional[str] = None
) -> Variable:
    """The smallest over dimensions, or of everything."""
    return _tensor.reduce_min(input, dim, keep_dim, name)


# --- shapes --------------------------------------------------------------------------------------


def split(
    input: Variable, num_or_sections: Union[int, Sequence[int]], dim: int = -1,
    name: Optional[str] = None,
) -> List[Variable]:
    """Equal parts of a dimension, or parts of given sizes."""
    return _tensor.split(input, num_or_sections, axis=dim, name=name)


def squeeze(input: Variable, axes: Sequence[int], name: Optional[str] = None) -> Variable:
    """Without dimensions of size 1."""
    return _tensor.squeeze(input, list(axes), name)


def unsqueeze(
    input: Variable, axes: Union[int, Sequence[int]], name: Optional[str] = None
) -> Variable:
    """With dimensions of size 1."""
    return _tensor.unsqueeze(input, axes if isinstance(axes, int) else list(axes), name)


def stack(x: Any, axis: int = 0, name: Optional[str] = None) -> Variable:
    """Variables of one shape along a new dimension."""
    return _tensor.stack(x if isinstance(x, (list, tuple)) else [x], axis, name)


def transpose(x: Variable, perm: Sequence[int], name: Optional[str] = None) -> Variable:
    """Dimensions in another order."""
    return _tensor.transpose(x, perm, name)


def expand(x: Variable, expand_times: Sequence[int], name: Optional[str] = None) -> Variable:
    """Every dimension repeated a number of times."""
    return _tensor.tile(x, expand_times, name)


def flatten(x: Variable, axis: int = 1, name: Optional[str] = None) -> Variable:
    """A matrix: dimensions before ``axis`` become rows, the others columns."""
    x = check(x, "flatten: x")
    shape = list(x.shape)
    if not 0 <= axis <= len(shape):
        raise ValueError(f"flatten: axis {axis} does not exist: there are {len(shape)} dimensions")

    def joined(dims: Sequence[int]) -> int:
        size = 1
        for d in dims:
            size = -1 if d < 0 or size < 0 else size * d
        return size

    dims = [joined(shape[:axis]), joined(shape[axis:])]
    if dims.count(-1) > 1:
        raise ValueError(f"flatten: both dimensions of the result of {shape} would be unknown")
    return to_shape(x, dims, Namer("flatten", name).tmp())


# --- arithmetic ----------------------------------------------------------------------------------


def matmul(
    x: Variable,
    y: Variable,
    transpose_x: bool = False,
    transpose_y: bool = False,
    alpha: float = 1.0,
    name: Optional[str] = None,
) -> Variable:
    """``alpha`` times the matrix product."""
    product = _tensor.matmul(x, y, transpose_x, transpose_y, name)
    return product if alpha == 1.0 else _tensor.scale(product, scale=alpha)


def pow(x: Variable, factor: float = 1.0, name: Optional[str] = None) -> Variable:
    """``x`` to the power of ``factor``."""
    return _tensor.pow(x, factor, name)


def clip(x: Variable, min: float, max: float, name: Optional[str] = None) -> Variable:
    """Every element within ``[min, max]``."""
    return _tensor.clip(x, min, max, name)


def clip_by_norm(x: Variable, max_norm: float, name: Optional[str] = None) -> Variable:
    """``x``, shortened to the length ``max_norm`` if it is longer."""
    from ...nn.clip import clip_by_norm as limited

    return limited(x, max_norm, name)


def cos_sim(X: Variable, Y: Variable) -> Variable:
    """The cosine of the angle between rows, of the shape ``[batch, 1]``."""
    x, y = check(X, "cos_sim: X"), check(Y, "cos_sim: Y")
    return op("cos_sim", {"X": x, "Y": y}, Namer("cos_sim").tmp())


def l2_normalize(
    x: Variable, axis: int, epsilon: float = 1e-12, name: Optional[str] = None
) -> Variable:
    """``x`` divided by its length along a dimension."""
    return _functional.normalize(x, p=2, axis=axis, epsilon=epsilon, name=name)


def topk(input: Variable, k: int, name: Optional[str] = None) -> Any:
    """The largest ``k`` of the last dimension, and where they are."""
    return _tensor.topk(input, k, name=name)


def one_hot(input: Variable, depth: int, allow_out_of_range: bool = False) -> Variable:
    """Vectors of ``depth`` elements with a 1; ids have the shape ``[..., 1]``."""
    if allow_out_of_range:
        raise NotImplementedError("one_hot: allow_out_of_range")
    shape = check(input, "one_hot: input").shape
    ids = _tensor.squeeze(input, [-1]) if len(shape) > 1 and shape[-1] == 1 else input
    return _functional.one_hot(ids, depth)


def one_hot_v2(input: Variable, depth: int, allow_out_of_range: bool = False) -> Variable:
    """Vectors of ``depth`` elements with a 1, for ids of any shape."""
    if allow_out_of_range:
        raise NotImplementedError("one_hot: allow_out_of_range")
    return _functional.one_hot(input, depth)


def autoincreased_step_counter(
    counter_name: Optional[str] = None, begin: int = 1, step: int = 1
) -> Variable:
    """A number that grows by ``step`` with every run, ``begin`` in the first."""
    from ...framework import create_state

    name = counter_name or unique_name.generate("@STEP_COUNTER@")
    counter = create_state(name, [1], "float32", float(begin - step))
    return _tensor.assign(_tensor.scale(counter, bias=float(step)), counter)
