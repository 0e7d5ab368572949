"""Attention, and the encoders and decoders that are made of it."""
from __future__ import annotations

import collections
from typing import Any, Dict, List, Optional, Tuple

from .._missing import missing
from ..framework import ParamAttr, Variable
from ..tensor import creation, linalg, manipulation, math
from ..tensor._common import cast_to, namer_of
from . import functional as F
from .common import Dropout, Linear
from .container import LayerList
from .layers import Layer
from .norm import LayerNorm

__all__ = [
    "MultiHeadAttention", "Transformer", "TransformerDecoder", "TransformerDecoderLayer",
    "TransformerEncoder", "TransformerEncoderLayer",
]


def _mask(mask: Any) -> Any:
    """What is added to the scores: a mask of truth values becomes 0 and -1e9."""
    if mask is None or "float" in str(mask.dtype):
        return mask
    kept = cast_to(mask, "float32", namer_of(mask, "cast").tmp())
    return (kept - 1.0) * 1e9 if mask.dtype == "bool" else kept


def _attrs(attr: Any, count: int) -> List[Any]:
    """One attribute for each of ``count`` layers. A named one gets a number for each."""
    if isinstance(attr, (list, tuple)):
        if len(attr) == 1:
            return list(attr) * count
        if len(attr) != count:
            raise ValueError(f"{len(attr)} attributes for {count} layers")
        return list(attr)
    if not isinstance(attr, ParamAttr) or attr.name is None:
        return [attr] * count
    import copy

    out = []
    for i in range(count):
        own = copy.copy(attr)
        own.name = f"{attr.name}_{i}"
        out.append(own)
    return out


class MultiHeadAttention(Layer):
    """Attention in several heads side by side."""

    Cache = collections.namedtuple("Cache", ["k", "v"])
    StaticCache = collections.namedtuple("StaticCache", ["k", "v"])

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, kdim: Optional[int] = None,
        vdim: Optional[int] = None, need_weights: bool = False, weight_attr: Any = None,
        bias_attr: Any = None,
    ) -> None:
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0 or embed_dim % num_heads:
            raise ValueError(f"MultiHeadAttention: embed_dim {embed_dim} cannot be divided into "
                             f"{num_heads} heads")
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.dropout, self.need_weights = dropout, need_weights
        self.q_proj = Linear(embed_dim, embed_dim, weight_attr, bias_attr)
        self.k_proj = Linear(self.kdim, embed_dim, weight_attr, bias_attr)
        self.v_proj = Linear(self.vdim, embed_dim, weight_attr, bias_attr)
        self.out_proj = Linear(embed_dim, embed_dim, weight_attr, bias_attr)

    def _heads(self, x: Any) -> Any:
        split = manipulation.reshape(x, [0, 0, self.num_heads, self.head_dim])
        return linalg.transpose(split, [0, 2, 1, 3])

    def compute_kv(self, key: Any, value: Any) -> Tuple[Any, Any]:
        """Keys and values in heads."""
        return self._heads(self.k_proj(key)), self._heads(self.v_proj(value))

    def gen_cache(self, key: Any, value: Any = None, type: Any = None) -> Any:
        """What is kept between steps of decoding: empty, or keys and values that stay."""
        if type is self.StaticCache:
            return self.StaticCache(*self.compute_kv(key, key if value is None else value))
        if value is None:
            shape = [key.shape[0], self.num_heads, 0, self.head_dim]
            return self.Cache(creation.zeros(shape), creation.zeros(shape))
        return self.Cache(key, value)

    def _qkv(self, query: Any, key: Any, value: Any, cache: Any) -> Tuple[Any, Any, Any, Any]:
        q = self._heads(self.q_proj(query))
        if isinstance(cache, self.StaticCache):
            return q, cache.k, cache.v, cache
        k, v = self.compute_kv(key, value)
        if isinstance(cache, self.Cache):
            if cache.k.shape[2]:
                k = manipulation.concat([cache.k, k], 2)
                v = manipulation.concat([cache.v, v], 2)
            cache = self.Cache(k, v)
        return q, k, v, cache

    def forward(
        self, query: Variable, key: Any = None, value: Any = None, attn_mask: Any = None,
        cache: Any = None,
    ) -> Any:
        """What the queries find; also weights and cache, if asked for."""
        key = query if key is None else key
        value = key if value is None else value
        q, k, v, cache = self._qkv(query, key, value, cache)
        scores = linalg.matmul(math.scale(q, self.head_dim ** -0.5), k, transpose_y=True)
        if attn_mask is not None:
            scores = scores + _mask(attn_mask)
        weights = F.softmax(scores)
        if self.dropout:
            weights = F.dropout(weights, self.dropout, training=self.training)
        found = linalg.transpose(linalg.matmul(weights, v), [0, 2, 1, 3])
        out = self.out_proj(manipulation.reshape(found, [0, 0, self.embed_dim]))
        outs = [out]
        if self.need_weights:
            outs.append(weights)
        if cache is not None:
            outs.append(cache)
        return out if len(outs) == 1 else tuple(outs)


class _Block(Layer):
    """What layers of encoders and decoders share."""

    def _settings(self, given: Dict[str, Any]) -> None:
        self._config = {k: v for k, v in given.items() if k not in ("self", "__class__")}

    def _make_feed_forward(
        self, d_model: int, width: int, dropout: float, activation: str, weight: Any, bias: Any
    ) -> None:
        self.linear1 = Linear(d_model, width, weight, bias)
        self.dropout = Dropout(dropout, mode="upscale_in_train")
        self.linear2 = Linear(width, d_model, weight, bias)
        self.activation = getattr(F, activation)

    def _feed_forward(self, x: Any) -> Any:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


def _or(value: Optional[float], other: float) -> float:
    return other if value is None else value


class TransformerEncoderLayer(_Block):
    """Attention of a sequence to itself, and two linear layers, with residuals and norms."""

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int, dropout: float = 0.1,
        activation: str = "relu", attn_dropout: Optional[float] = None,
        act_dropout: Optional[float] = None, normalize_before: bool = False,
        weight_attr: Any = None, bias_attr: Any = None, layer_norm_eps: float = 1e-5,
    ) -> None:
        given = dict(locals())
        super().__init__()
        self._settings(given)
        weights, biases = _attrs(weight_attr, 2), _attrs(bias_attr, 2)
        self.normalize_before = normalize_before
        self.self_attn = MultiHeadAttention(
            d_model, nhead, _or(attn_dropout, dropout), weight_attr=weights[0], bias_attr=biases[0]
        )
        self._make_feed_forward(d_model, dim_feedforward, _or(act_dropout, dropout), activation,
                                weights[1], biases[1])
        self.norm1, self.norm2 = LayerNorm(d_model, layer_norm_eps), LayerNorm(
            d_model, layer_norm_eps)
        self.dropout1 = Dropout(dropout, mode="upscale_in_train")
        self.dropout2 = Dropout(dropout, mode="upscale_in_train")

    def forward(self, src: Variable, src_mask: Any = None, cache: Any = None) -> Any:
        """The encoded sequence; with a cache also the next one."""
        x = self.norm1(src) if self.normalize_before else src
        found = self.self_attn(x, x, x, _mask(src_mask), cache)
        if cache is not None:
            found, cache = found
        src = src + self.dropout1(found)
        src = src if self.normalize_before else self.norm1(src)
        x = self.norm2(src) if self.normalize_before else src
        src = src + self.dropout2(self._feed_forward(x))
        src = src if self.normalize_before else self.norm2(src)
        return src if cache is None else (src, cache)

    def gen_cache(self, src: Any) -> Any:
        """An empty cache."""
        return self.self_attn.gen_cache(src, type=self.self_attn.Cache)


class TransformerEncoder(Layer):
    """Layers of an encoder, one after the other."""

    def __init__(self, encoder_layer: Layer, num_layers: int, norm: Any = None) -> None:
        super().__init__()
        more = [type(encoder_layer)(**encoder_layer._config) for _ in range(num_layers - 1)]
        self.layers = LayerList([encoder_layer] + more)
        self.num_layers, self.norm = num_layers, norm

    def forward(self, src: Variable, src_mask: Any = None, cache: Any = None) -> Any:
        """The encoded sequence; with caches also the next ones."""
        mask, caches = _mask(src_mask), []
        for i, layer in enumerate(self.layers):
            if cache is None:
                src = layer(src, mask)
            else:
                src, after = layer(src, mask, cache[i])
                caches.append(after)
        src = self.norm(src) if self.norm is not None else src
        return src if cache is None else (src, caches)

    def gen_cache(self, src: Any) -> Any:
        """Empty caches of all layers."""
        return [layer.gen_cache(src) for layer in self.layers]


class TransformerDecoderLayer(_Block):
    """Attention of a sequence to itself and to a memory, and two linear layers."""

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int, dropout: float = 0.1,
        activation: str = "relu", attn_dropout: Optional[float] = None,
        act_dropout: Optional[float] = None, normalize_before: bool = False,
        weight_attr: Any = None, bias_attr: Any = None, layer_norm_eps: float = 1e-5,
    ) -> None:
        given = dict(locals())
        super().__init__()
        self._settings(given)
        weights, biases = _attrs(weight_attr, 3), _attrs(bias_attr, 3)
        self.normalize_before = normalize_before
        drop = _or(attn_dropout, dropout)
        self.self_attn = MultiHeadAttention(
            d_model, nhead, drop, weight_attr=weights[0], bias_attr=biases[0])
        self.cross_attn = MultiHeadAttention(
            d_model, nhead, drop, weight_attr=weights[1], bias_attr=biases[1])
        self._make_feed_forward(d_model, dim_feedforward, _or(act_dropout, dropout), activation,
                                weights[2], biases[2])
        self.norm1, self.norm2 = LayerNorm(d_model, layer_norm_eps), LayerNorm(
            d_model, layer_norm_eps)
        self.norm3 = LayerNorm(d_model, layer_norm_eps)
        self.dropout1 = Dropout(dropout, mode="upscale_in_train")
        self.dropout2 = Dropout(dropout, mode="upscale_in_train")
        self.dropout3 = Dropout(dropout, mode="upscale_in_train")

    def forward(
        self, tgt: Variable, memory: Variable, tgt_mask: Any = None, memory_mask: Any = None,
        cache: Any = None,
    ) -> Any:
        """The decoded sequence; with a cache also the next one."""
        before = self.normalize_before
        x = self.norm1(tgt) if before else tgt
        found = self.self_attn(x, x, x, _mask(tgt_mask), None if cache is None else cache[0])
        own = None
        if cache is not None:
            found, own = found
        tgt = tgt + self.dropout1(found)
        tgt = tgt if before else self.norm1(tgt)
        x = self.norm2(tgt) if before else tgt
        found = self.cross_attn(x, memory, memory, _mask(memory_mask),
                                None if cache is None else cache[1])
        if cache is not None:
            found = found[0]
        tgt = tgt + self.dropout2(found)
        tgt = tgt if before else self.norm2(tgt)
        x = self.norm3(tgt) if before else tgt
        tgt = tgt + self.dropout3(self._feed_forward(x))
        tgt = tgt if before else self.norm3(tgt)
        return tgt if cache is None else (tgt, (own, cache[1]))

    def gen_cache(self, memory: Any) -> Any:
        """An empty cache, and the keys and values of the memory."""
        attention = self.self_attn
        return (attention.gen_cache(memory, type=attention.Cache),
                self.cross_attn.gen_cache(memory, memory, self.cross_attn.StaticCache))


class TransformerDecoder(Layer):
    """Layers of a decoder, one after the other."""

    def __init__(self, decoder_layer: Layer, num_layers: int, norm: Any = None) -> None:
        super().__init__()
        more = [type(decoder_layer)(**decoder_layer._config) for _ in range(num_layers - 1)]
        self.layers = LayerList([decoder_layer] + more)
        self.num_layers, self.norm = num_layers, norm

    def forward(
        self, tgt: Variable, memory: Variable, tgt_mask: Any = None, memory_mask: Any = None,
        cache: Any = None,
    ) -> Any:
        """The decoded sequence; with caches also the next ones."""
        caches = []
        for i, layer in enumerate(self.layers):
            if cache is None:
                tgt = layer(tgt, memory, tgt_mask, memory_mask)
            else:
                tgt, after = layer(tgt, memory, tgt_mask, memory_mask, cache[i])
                caches.append(after)
        tgt = self.norm(tgt) if self.norm is not None else tgt
        return tgt if cache is None else (tgt, caches)

    def gen_cache(self, memory: Any, do_zip: bool = False) -> Any:
        """Empty caches of all layers."""
        caches = [layer.gen_cache(memory) for layer in self.layers]
        return list(zip(*caches)) if do_zip else caches


class Transformer(Layer):
    """An encoder and a decoder."""

    def __init__(
        self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6,
        num_decoder_layers: int = 6, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: str = "relu", attn_dropout: Optional[float] = None,
        act_dropout: Optional[float] = None, normalize_before: bool = False,
        weight_attr: Any = None, bias_attr: Any = None, custom_encoder: Any = None,
        custom_decoder: Any = None,
    ) -> None:
        super().__init__()
        shared = (d_model, nhead, dim_feedforward, dropout, activation, attn_dropout, act_dropout,
                  normalize_before, weight_attr, bias_attr)
        norm = LayerNorm if normalize_before else lambda size: None
        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*shared), num_encoder_layers, norm(d_model))
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*shared), num_decoder_layers, norm(d_model))
        self.d_model, self.nhead = d_model, nhead

    def forward(
        self, src: Variable, tgt: Variable, src_mask: Any = None, tgt_mask: Any = None,
        memory_mask: Any = None,
    ) -> Variable:
        """The decoded sequence."""
        memory = self.encoder(src, src_mask)
        return self.decoder(tgt, memory, tgt_mask, memory_mask)

    def generate_square_subsequent_mask(self, length: int) -> Any:
        """A mask that hides what comes later."""
        import numpy as np

        return creation.to_tensor(np.triu(np.full([length, length], -np.inf, "float32"), 1))


__getattr__ = missing(__name__)
