"""Mixed precision: ops that compute in 16 bits, and gradients that are scaled so that they survive.

>>> import regatta as rg
>>> x, w = rg.ones([2, 4]), rg.ones([4, 3])
>>> with rg.amp.auto_cast(dtype="bfloat16"):
...     rg.matmul(x, w).dtype
regatta.bfloat16
"""
from __future__ import annotations

import contextlib
from typing import Any, Iterable, Iterator, List, Optional, Set, Tuple

from .. import _core
from .._missing import missing
from ..framework import to_dtype
from .grad_scaler import AmpScaler, GradScaler

__all__ = [
    "AmpScaler", "GradScaler", "amp_guard", "auto_cast", "decorate", "is_bfloat16_supported",
    "is_float16_supported",
]

# Products gain most by 16 bits.
WHITE = frozenset({"fc", "matmul", "conv2d", "conv2d_transpose", "lstm", "gru", "simple_rnn"})
# Sums, exponentials and losses lose most.
BLACK = frozenset({
    "batch_norm", "cos_sim", "cross_entropy", "cumsum", "elementwise_pow", "exp", "group_norm",
    "hinge_loss", "huber_loss", "layer_norm", "log", "log1p", "log_loss", "logsumexp", "mean",
    "p_norm", "pow", "reduce_mean", "reduce_prod", "reduce_sum", "rsqrt", "sigmoid_cross_entropy",
    "softmax", "softmax_with_cross_entropy", "square", "square_error_cost", "sum",
})
# What only moves numbers, or has 32-bit tables.
_LEFT = frozenset({
    "assign", "cast", "concat", "embedding", "expand", "expand_as", "fill_constant", "fill_like",
    "flip", "gather", "gather_nd", "one_hot", "pad", "reshape", "roll", "scatter", "slice", "split",
    "strided_slice", "tile", "transpose", "where",
})

# Ops of Paddle under their names here.
_NAMES = {
    "linear": "fc", "mul": "matmul", "matmul_v2": "matmul", "bmm": "matmul", "mv": "matmul",
    "depthwise_conv2d": "conv2d", "pool2d": "pool2d", "rnn": "lstm", "add": "elementwise_add",
    "subtract": "elementwise_sub", "multiply": "elementwise_mul", "divide": "elementwise_div",
    "reduce_sum": "reduce_sum", "lookup_table_v2": "embedding",
}


def _kinds(names: Optional[Iterable[str]], what: str) -> Set[str]:
    if names is None:
        return set()
    if isinstance(names, str):
        raise TypeError(f"auto_cast: {what} should be a set of names of ops, not a text")
    return {_NAMES.get(name, name) for name in names}


def _lists(level: str, white: Any, black: Any) -> Tuple[List[str], List[str]]:
    more, fewer = _kinds(white, "custom_white_list"), _kinds(black, "custom_black_list")
    both = more & fewer
    if both:
        raise ValueError(f"auto_cast: {', '.join(sorted(both))} is in both lists")
    blacks = (BLACK - more) | fewer
    if level == "O2":
        every = {k for k in _core.op_kinds() if not k.endswith("_grad")}
        return sorted(every - blacks - _LEFT), sorted(blacks)
    return sorted((WHITE | more) - fewer), sorted(blacks)


@contextlib.contextmanager
def auto_cast(
    enable: bool = True, custom_white_list: Any = None, custom_black_list: Any = None,
    level: str = "O1", dtype: Any = "float16", use_promote: bool = True,
) -> Iterator[None]:
    """Ops inside ``with`` compute in 16 bits: with the level 'O1' products of matrices and
    convolutions, with 'O2' all but those that lose by it. Parameters stay 32 bits wide."""
    if level not in ("O0", "OD", "O1", "O2"):
        raise ValueError(f"auto_cast: level should be O0, OD, O1 or O2, but is {level!r}")
    if not enable or level == "O0":
        before = _core.set_autocast(None, [], [])
    else:
        kind = to_dtype(dtype)
        if kind not in ("float16", "bfloat16"):
            raise ValueError(f"auto_cast: dtype should be float16 or bfloat16, but is {dtype}")
        white, black = _lists(level, custom_white_list, custom_black_list)
        before = _core.set_autocast("f16" if kind == "float16" else "bf16", white, black)
    try:
        yield
    finally:
        if before is None:
            _core.set_autocast(None, [], [])
        else:
            _core.set_autocast(*before)


amp_guard = auto_cast


def decorate(
    models: Any, optimizers: Any = None, level: str = "O1", dtype: Any = "float16",
    master_weight: Optional[bool] = None, save_dtype: Any = None, master_grad: bool = False,
    excluded_layers: Any = None,
) -> Any:
    """Models and optimizers as they are: parameters are 32 bits wide, which is what master weights
    are for, and ops cast what they take."""
    if level not in ("O0", "O1", "O2"):
        raise ValueError(f"decorate: level should be O0, O1 or O2, but is {level!r}")
    if save_dtype is not None and to_dtype(save_dtype) != "float32":
        raise NotImplementedError(f"decorate: save_dtype={save_dtype}; parameters are saved as "
                                  "float32")
    return models if optimizers is None else (models, optimizers)


amp_decorate = decorate


def is_float16_supported(device: Any = None) -> bool:
    """True: float16 is stored, and computed with in 32 bits."""
    return True


def is_bfloat16_supported(device: Any = None) -> bool:
    """True: bfloat16 is stored, and computed with in 32 bits."""
    return True


__getattr__ = missing(__name__)
