"""Networks of a few layers, under the names of Fluid."""
from __future__ import annotations

from typing import Any

from . import layers
from .._missing import missing

__all__ = ["glu", "scaled_dot_product_attention"]


def glu(input: Any, dim: int = -1) -> Any:
    """A gated linear unit: the first half of a dimension times the sigmoid of the second."""
    first, second = layers.split(input, num_or_sections=2, dim=dim)
    return layers.elementwise_mul(first, layers.sigmoid(second))


def scaled_dot_product_attention(
    queries: Any, keys: Any, values: Any, num_heads: int = 1, dropout_rate: float = 0.0
) -> Any:
    """``softmax(queries keys^T / sqrt(d)) values``, with one head."""
    if num_heads != 1:
        raise NotImplementedError(
            f"scaled_dot_product_attention: num_heads is {num_heads}; one head is supported"
        )
    scaled = layers.scale(queries, scale=float(keys.shape[-1]) ** -0.5)
    weights = layers.softmax(layers.matmul(scaled, keys, transpose_y=True))
    if dropout_rate:
        weights = layers.dropout(weights, dropout_prob=dropout_rate)
    return layers.matmul(weights, values)


def __getattr__(name: str) -> Any:
    if name in ("simple_img_conv_pool", "img_conv_group", "sequence_conv_pool"):
        raise AttributeError(f"fluid.nets.{name} is not in Regatta: it has no convolutions")
    return missing(__name__)(name)
