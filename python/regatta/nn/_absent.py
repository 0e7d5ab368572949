"""Layers that do not exist here. Scripts often import more than they use, so the names can be
imported; making such a layer is an error that says what is missing."""
from __future__ import annotations

from typing import Any, Dict

from .layers import Layer

_CONVOLUTION = "convolutions are not in the op set"
_POOLING = "pooling over space is not in the op set"
_RECURRENT = "recurrent cells are not in the op set"
_SPACE = "batch normalization of images is not in the op set"
_ATTENTION = "build attention of Linear, matmul and softmax"

ABSENT: Dict[str, str] = {
    **dict.fromkeys(
        ("Conv1D", "Conv2D", "Conv3D", "Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"),
        _CONVOLUTION,
    ),
    **dict.fromkeys(
        ("MaxPool1D", "MaxPool2D", "MaxPool3D", "AvgPool1D", "AvgPool2D", "AvgPool3D",
         "AdaptiveAvgPool1D", "AdaptiveAvgPool2D", "AdaptiveMaxPool1D", "AdaptiveMaxPool2D"),
        _POOLING,
    ),
    **dict.fromkeys(
        ("RNN", "BiRNN", "SimpleRNN", "SimpleRNNCell", "LSTM", "LSTMCell", "GRU", "GRUCell"),
        _RECURRENT,
    ),
    **dict.fromkeys(("BatchNorm2D", "BatchNorm3D", "GroupNorm", "InstanceNorm2D"), _SPACE),
    **dict.fromkeys(
        ("MultiHeadAttention", "Transformer", "TransformerEncoder", "TransformerEncoderLayer",
         "TransformerDecoder", "TransformerDecoderLayer"),
        _ATTENTION,
    ),
}

_made: Dict[str, type] = {}


def placeholder(name: str) -> type:
    """A class of that name that cannot be made."""
    if name not in _made:
        reason = ABSENT[name]

        def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
            raise NotImplementedError(f"nn.{name}: {reason}")

        body = {"__init__": refuse, "__doc__": f"Not here: {reason}.", "__module__": __name__}
        _made[name] = type(name, (Layer,), body)
    return _made[name]
