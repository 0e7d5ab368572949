"""Layers of Fluid. Most are functions of :mod:`regatta.tensor`, :mod:`regatta.nn.functional` and
:mod:`regatta.static.nn`, which know Fluid's spellings; here are those that mean something else.

>>> import regatta.fluid as fluid
>>> with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
...     x = fluid.layers.data("x", [4])
...     y = fluid.layers.fc(input=x, size=2, act="softmax")
>>> x.shape, y.shape
((-1, 4), (-1, 2))
"""
from __future__ import annotations

import importlib
from typing import Any

from . import control_flow, io, learning_rate_scheduler, loss, metric_op, nn, tensor  # noqa: F401
from .control_flow import *  # noqa: F401,F403
from .io import *  # noqa: F401,F403
from .learning_rate_scheduler import *  # noqa: F401,F403
from .loss import *  # noqa: F401,F403
from .metric_op import *  # noqa: F401,F403
from .nn import *  # noqa: F401,F403
from .tensor import *  # noqa: F401,F403
from ..._missing import missing

__all__ = sorted({
    *control_flow.__all__, *io.__all__, *learning_rate_scheduler.__all__, *loss.__all__,
    *metric_op.__all__, *nn.__all__, *tensor.__all__,
})

# Layers whose ops do not exist, and why.
_ABSENT = {
    "convolutions": (
        "conv2d", "conv3d", "conv2d_transpose", "pool2d", "pool3d", "adaptive_pool2d",
        "sequence_conv", "im2sequence", "image_resize", "resize_bilinear", "resize_nearest", "lrn",
    ),
    "recurrent layers": (
        "dynamic_lstm", "dynamic_gru", "dynamic_lstmp", "gru_unit", "lstm", "lstm_unit", "rnn",
        "StaticRNN", "DynamicRNN", "beam_search", "beam_search_decode",
    ),
    "control flow": (
        "While", "while_loop", "cond", "case", "switch_case", "Switch", "IfElse", "array_write",
        "array_read", "array_length", "create_array",
    ),
    "sequences of vectors": (
        "sequence_expand", "sequence_expand_as", "sequence_first_step", "sequence_last_step",
        "sequence_softmax", "sequence_concat", "sequence_slice", "sequence_reverse",
        "sequence_pool", "sequence_pad", "sequence_unpad", "sequence_reshape", "lod_reset",
        "lod_append", "linear_chain_crf", "crf_decoding", "warpctc", "edit_distance",
    ),
    "readers inside programs": (
        "py_reader", "create_py_reader_by_data", "double_buffer", "read_file", "open_files",
    ),
}
_INSTEAD = {
    "readers inside programs": "feed arrays, or use a dataset and Executor.train_from_dataset",
    "sequences of vectors": "pass ids with lod_level=1 to embedding, which sums them by example",
}


def __getattr__(name: str) -> Any:
    for what, names in _ABSENT.items():
        if name in names:
            hint = f"; {_INSTEAD[what]}" if what in _INSTEAD else ""
            raise AttributeError(
                f"paddle.fluid.layers.{name} is not in Regatta, which has no {what}{hint}"
            )
    for module in ("regatta.tensor", "regatta.static.nn", "regatta.nn.functional"):
        found = importlib.import_module(module)
        if name in getattr(found, "__all__", ()):
            return getattr(found, name)
    return missing(__name__)(name)
