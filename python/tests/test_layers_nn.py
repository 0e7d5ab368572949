"""Functional, layers, static layers, initializers and metrics against numpy."""
from __future__ import annotations

import math

import numpy as np
import pytest

import regatta as rg
import regatta.nn.functional as F
from regatta import nn

RNG = np.random.RandomState(11)
X = RNG.uniform(-2.0, 2.0, [6, 4]).astype("float32")
P = RNG.uniform(0.05, 0.95, [6, 4]).astype("float32")
Q = (P / P.sum(1, keepdims=True)).astype("float32")
T = (RNG.uniform(size=[6, 4]) > 0.5).astype("float32")
Z = RNG.uniform(-1.0, 1.0, [6, 3, 4]).astype("float32")
I = RNG.randint(0, 4, [6, 1]).astype("int64")
J = I[:, 0].copy()
FEEDS = {"x": X, "p": P, "q": Q, "t": T, "z": Z, "i": I, "j": J}


class Built:
    """A program over x, p, q, t, z, i, j that can be run many times."""

    def __init__(self, build, seed=3):
        self.main, self.startup = rg.static.Program(), rg.static.Program()
        self.main.random_seed = seed
        with rg.static.program_guard(self.main, self.startup), rg.unique_name.guard():
            inputs = {
                k: rg.static.data(k, [None, *v.shape[1:]], str(v.dtype)) for k, v in FEEDS.items()
            }
            self.made = build(**inputs)
        self.scope, self.exe = rg.static.Scope(), rg.static.Executor()
        with rg.static.scope_guard(self.scope):
            self.exe.run(self.startup)

    def run(self, *fetches, feed=None, program=None):
        with rg.static.scope_guard(self.scope):
            return self.exe.run(program or self.main, feed=feed or FEEDS, fetch_list=list(fetches))

    def value(self):
        return self.run(self.made)[0]

    def get(self, name):
        return self.scope.find_var(name).get_tensor().numpy()


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.log1p(np.exp(x))


PICKED = np.take_along_axis(np.log(softmax(X)), I, 1)  # [6, 1]
BCE = -(T * np.log(P) + (1 - T) * np.log(1 - P))
LOGITS = np.maximum(X, 0) - X * T + np.log1p(np.exp(-np.abs(X)))
W4 = np.array([0.5, 1.0, 2.0, 3.0], "float32")
VALID = (I != 2).astype("float32")

CASES = {
    "relu": (lambda x, **_: F.relu(x), np.maximum(X, 0)),
    "sigmoid": (lambda x, **_: F.sigmoid(x), sigmoid(X)),
    "tanh": (lambda x, **_: F.tanh(x), np.tanh(X)),
    "gelu": (
        lambda x, **_: F.gelu(x),
        X * 0.5 * (1 + np.vectorize(math.erf)(X / math.sqrt(2))),
    ),
    "gelu approximated": (
        lambda x, **_: F.gelu(x, approximate=True),
        0.5 * X * (1 + np.tanh(math.sqrt(2 / math.pi) * (X + 0.044715 * X**3))),
    ),
    "leaky_relu": (lambda x, **_: F.leaky_relu(x), np.where(X > 0, X, 0.01 * X)),
    "relu6": (lambda x, **_: F.relu6(4 * x), np.clip(4 * X, 0, 6)),
    "hardtanh": (lambda x, **_: F.hardtanh(x), np.clip(X, -1, 1)),
    "hardsigmoid": (lambda x, **_: F.hardsigmoid(x), np.clip(X * 0.1666667 + 0.5, 0, 1)),
    "hardswish": (lambda x, **_: F.hardswish(x), X * np.clip(X + 3, 0, 6) / 6),
    "silu": (lambda x, **_: F.silu(x), X * sigmoid(X)),
    "swish": (lambda x, **_: F.swish(x), X * sigmoid(X)),
    "softplus": (lambda x, **_: F.softplus(x), softplus(X)),
    "softplus beta": (lambda x, **_: F.softplus(x, beta=2), softplus(2 * X) / 2),
    "log_sigmoid": (lambda x, **_: F.log_sigmoid(x), np.log(sigmoid(X))),
    "mish": (lambda x, **_: F.mish(x), X * np.tanh(softplus(X))),
    "elu": (lambda x, **_: F.elu(x, 0.7), np.where(X > 0, X, 0.7 * np.expm1(X))),
    "softsign": (lambda x, **_: F.softsign(x), X / (1 + np.abs(X))),
    "tanhshrink": (lambda x, **_: F.tanhshrink(x), X - np.tanh(X)),
    "prelu": (lambda x, **_: F.prelu(x, rg.assign(W4)), np.where(X > 0, X, W4 * X)),
    "prelu of channels": (
        lambda z, **_: F.prelu(z, rg.assign(W4[:3])), np.where(Z > 0, Z, W4[:3, None] * Z)
    ),
    "glu": (lambda x, **_: F.glu(x), X[:, :2] * sigmoid(X[:, 2:])),
    "softmax": (lambda x, **_: F.softmax(x), softmax(X)),
    "softmax axis": (lambda z, **_: F.softmax(z, axis=1), softmax(Z, 1)),
    "log_softmax": (lambda z, **_: F.log_softmax(z, 1), np.log(softmax(Z, 1))),
    "one_hot": (lambda j, **_: F.one_hot(j, 5), np.eye(5)[J]),
    "one_hot of columns": (lambda i, **_: F.one_hot(i, 5), np.eye(5)[I]),
    "sequence_mask": (
        lambda j, **_: F.sequence_mask(j, maxlen=4), (np.arange(4) < J[:, None]).astype("int64")
    ),
    "normalize": (
        lambda x, **_: F.normalize(x), X / np.sqrt((X * X).sum(1, keepdims=True))
    ),
    "cosine_similarity": (
        lambda x, p, **_: F.cosine_similarity(x, p),
        (X * P).sum(1) / np.sqrt((X * X).sum(1) * (P * P).sum(1)),
    ),
    "pad": (
        lambda z, **_: F.pad(z, [0, 0, 1, 0, 0, 2], value=7.0),
        np.pad(Z, [(0, 0), (1, 0), (0, 2)], constant_values=7),
    ),
    "label_smooth": (lambda t, **_: F.label_smooth(t, epsilon=0.2), 0.8 * T + 0.05),
    "layer_norm": (
        lambda z, **_: F.layer_norm(z, 4),
        (Z - Z.mean(-1, keepdims=True)) / np.sqrt(Z.var(-1, keepdims=True) + 1e-5),
    ),
    "layer_norm of two dimensions": (
        lambda z, **_: F.layer_norm(z, [3, 4]),
        (Z - Z.mean((1, 2), keepdims=True)) / np.sqrt(Z.var((1, 2), keepdims=True) + 1e-5),
    ),
    "cross_entropy": (lambda x, i, **_: F.cross_entropy(x, i), -PICKED.mean().reshape(1)),
    "cross_entropy flat": (lambda x, j, **_: F.cross_entropy(x, j), -PICKED.mean().reshape(1)),
    "cross_entropy none": (lambda x, i, **_: F.cross_entropy(x, i, reduction="none"), -PICKED),
    "cross_entropy flat none": (
        lambda x, j, **_: F.cross_entropy(x, j, reduction="none"), -PICKED[:, 0]
    ),
    "cross_entropy sum": (
        lambda x, i, **_: F.cross_entropy(x, i, reduction="sum"), -PICKED.sum().reshape(1)
    ),
    "cross_entropy soft": (
        lambda x, q, **_: F.cross_entropy(x, q, soft_label=True),
        -(Q * np.log(softmax(X))).sum(1).mean().reshape(1),
    ),
    "cross_entropy ignored": (
        lambda x, i, **_: F.cross_entropy(x, i, ignore_index=2),
        -((PICKED * VALID).sum() / VALID.sum()).reshape(1),
    ),
    "cross_entropy of probabilities": (
        lambda q, i, **_: F.cross_entropy(q, i, use_softmax=False),
        -np.log(np.take_along_axis(Q, I, 1)).mean().reshape(1),
    ),
    "cross_entropy weighted": (
        lambda x, i, **_: F.cross_entropy(x, i, weight=rg.assign(W4)),
        -((PICKED * W4[I]).sum() / W4[I].sum()).reshape(1),
    ),
    "cross_entropy smoothed": (
        lambda x, i, **_: F.cross_entropy(x, i, label_smoothing=0.1),
        -((0.9 * np.eye(4)[J] + 0.025) * np.log(softmax(X))).sum(1).mean().reshape(1),
    ),
    "cross_entropy axis": (
        lambda z, q, **_: F.cross_entropy(
            z, F.softmax(z * 2, axis=1), soft_label=True, axis=1, reduction="none"
        ),
        -(softmax(2 * Z, 1) * np.log(softmax(Z, 1))).sum(1, keepdims=True),
    ),
    "softmax_with_cross_entropy": (
        lambda x, i, **_: F.softmax_with_cross_entropy(x, i), -PICKED
    ),
    "bce": (lambda p, t, **_: F.binary_cross_entropy(p, t), BCE.mean().reshape(1)),
    "bce none": (lambda p, t, **_: F.binary_cross_entropy(p, t, reduction="none"), BCE),
    "bce weighted": (
        lambda p, t, **_: F.binary_cross_entropy(p, t, weight=p, reduction="sum"),
        (BCE * P).sum().reshape(1),
    ),
    "bce logits": (
        lambda x, t, **_: F.binary_cross_entropy_with_logits(x, t), LOGITS.mean().reshape(1)
    ),
    "bce logits weighted": (
        lambda x, t, **_: F.binary_cross_entropy_with_logits(
            x, t, weight=rg.assign(W4), pos_weight=rg.assign(W4), reduction="none"
        ),
        LOGITS * (1 + T * (W4 - 1)) * W4,
    ),
    "sigmoid cross entropy": (
        lambda x, t, **_: F.sigmoid_cross_entropy_with_logits(x, t), LOGITS
    ),
    "sigmoid cross entropy ignored": (
        lambda x, t, **_: F.sigmoid_cross_entropy_with_logits(x, t, ignore_index=1),
        LOGITS * (T != 1),
    ),
    "log_loss": (
        lambda p, t, **_: F.log_loss(input=p, label=t),
        -T * np.log(P + 1e-4) - (1 - T) * np.log(1 - P + 1e-4),
    ),
    "square_error_cost": (lambda x, t, **_: F.square_error_cost(x, t), (X - T) ** 2),
    "mse_loss": (lambda x, t, **_: F.mse_loss(x, t), ((X - T) ** 2).mean().reshape(1)),
    "l1_loss": (lambda x, t, **_: F.l1_loss(x, t, "sum"), np.abs(X - T).sum().reshape(1)),
    "smooth_l1_loss": (
        lambda x, t, **_: F.smooth_l1_loss(x, t, "none"),
        np.where(np.abs(X - T) < 1, 0.5 * (X - T) ** 2, np.abs(X - T) - 0.5),
    ),
    "margin_ranking_loss": (
        lambda x, p, t, **_: F.margin_ranking_loss(x, p, 2 * t - 1, margin=0.1, reduction="none"),
        np.maximum(-(2 * T - 1) * (X - P) + 0.1, 0),
    ),
    "kl_div": (
        lambda x, q, **_: F.kl_div(x, q, reduction="batchmean"),
        ((Q * (np.log(Q) - X)).sum() / 6).reshape(1),
    ),
    "nll_loss": (
        lambda x, j, **_: F.nll_loss(x, j), -np.take_along_axis(X, I, 1).mean().reshape(1)
    ),
    "hinge_loss": (
        lambda x, t, **_: F.hinge_loss(x, t), np.maximum(0, 1 - (2 * T - 1) * X)
    ),
    "static cross_entropy": (
        lambda q, i, **_: rg.static.nn.cross_entropy(q, i), -np.log(np.take_along_axis(Q, I, 1))
    ),
    "static cross_entropy soft": (
        lambda p, q, **_: rg.static.nn.cross_entropy(p, q, soft_label=True),
        -(Q * np.log(P)).sum(1, keepdims=True),
    ),
    "cos_sim": (
        lambda x, p, **_: rg.static.nn.cos_sim(x, p),
        ((X * P).sum(1) / np.sqrt((X * X).sum(1) * (P * P).sum(1)))[:, None],
    ),
    "clip_by_norm": (
        lambda x, **_: nn.clip.clip_by_norm(x, 1.5), X * 1.5 / np.sqrt((X * X).sum())
    ),
    "accuracy": (
        lambda x, i, **_: rg.static.accuracy(x, i), (X.argmax(1) == J).mean().reshape(1)
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_function(name):
    build, expected = CASES[name]
    built = Built(build)
    value = built.value()
    np.testing.assert_allclose(value, expected, rtol=3e-6, atol=3e-6)
    assert value.shape == np.asarray(expected).shape


# --- gradients -----------------------------------------------------------------------------------

GRADIENTS = {
    "gelu approximated": lambda w, **_: F.gelu(w, True),
    "elu": lambda w, **_: F.elu(w),
    "mish": lambda w, **_: F.mish(w),
    "log_softmax": lambda w, **_: F.log_softmax(w) * w,
    "logsumexp": lambda w, **_: rg.logsumexp(w, 1),
    "var": lambda w, **_: rg.var(w, 1),
    "norm": lambda w, **_: rg.norm(w, axis=1),
    "normalize": lambda w, x, **_: F.normalize(w) * x,
    "cosine": lambda w, x, **_: F.cosine_similarity(w, x),
    "bce": lambda w, t, **_: F.binary_cross_entropy(F.sigmoid(w), t),
    "bce logits": lambda w, t, **_: F.binary_cross_entropy_with_logits(w, t),
    "ignored": lambda w, i, **_: F.cross_entropy(w, i, ignore_index=2),
    "weighted": lambda w, i, **_: F.cross_entropy(w, i, weight=rg.assign(W4)),
    "smoothed": lambda w, i, **_: F.cross_entropy(w, i, label_smoothing=0.1),
    "columns": lambda w, **_: w[:, 1:3] * w[:, 0:1] + w[:, 3:],
    "heads": lambda w, **_: rg.matmul(rg.stack([w, w * w]), w, transpose_x=True),
    "pieces": lambda w, **_: rg.concat(rg.split(w, [1, 3], 1)[::-1], 1) / (1 + w * w),
    "powers": lambda w, **_: 2**w + (w * w + 1) ** 1.5 + 1 / (w * w + 1),
    "cumsum": lambda w, **_: rg.cumsum(w, 1) * w,
    "pad": lambda w, **_: rg.square(F.pad(w, [0, 0, 1, 1])),
    "layer norm": lambda w, x, **_: F.layer_norm(w, 4) * x,
    "dice": lambda w, **_: rg.min(w, 1) * rg.max(w, 1),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient_against_differences(name):
    start = RNG.uniform(-1.0, 1.0, [6, 4]).astype("float32")

    def build(**inputs):
        w = rg.create_parameter([6, 4], "float32", default_initializer=nn.initializer.Assign(start))
        loss = rg.mean(GRADIENTS[name](w, **inputs))
        (pair,) = rg.static.append_backward(loss)
        return [loss, pair[1]]

    built = Built(build)
    loss, gradient = built.made
    _, found = built.run(loss, gradient)
    name = built.main.all_parameters()[0].name
    tensor = built.scope.find_var(name).get_tensor()
    for at in ((0, 0), (2, 1), (5, 3), (3, 2)):
        sides = []
        for step in (1e-2, -1e-2):
            moved = start.copy()
            moved[at] += step
            tensor.set(moved)
            sides.append(float(built.run(loss)[0].reshape(-1)[0]))
        assert abs((sides[0] - sides[1]) / 2e-2 - found[at]) < 2e-3, at


# --- layers --------------------------------------------------------------------------------------


def test_linear_of_two_and_three_dimensions():
    def build(x, z, **_):
        layer = nn.Linear(4, 5, bias_attr=nn.initializer.Constant(0.5))
        return [layer(x), layer(z)]

    built = Built(build)
    weight, bias = built.get("linear_0.w_0"), built.get("linear_0.b_0")
    flat, deep = built.run(*built.made)
    np.testing.assert_allclose(flat, X @ weight + bias, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(deep, Z @ weight + bias, rtol=1e-5, atol=1e-6)
    assert built.made[0].name == "linear_1.tmp_1"


@pytest.mark.parametrize("padding", [None, 1, -1])
def test_embedding(padding):
    def build(i, j, **_):
        layer = nn.Embedding(4, 3, padding_idx=padding, sparse=True)
        return [layer(i), layer(j), rg.static.nn.embedding(i, [4, 2], padding_idx=padding)]

    built = Built(build)
    table = built.get("embedding_0.w_0").copy()
    other = built.get("embedding_3.w_0").copy()
    assert np.abs(table).min() > 0  # the row of the padding keeps its initial values
    if padding is not None:
        table[padding] = other[padding] = 0
    two, one, static = built.run(*built.made)
    np.testing.assert_array_equal(two, table[I])
    np.testing.assert_array_equal(one, table[J])
    np.testing.assert_array_equal(static, other[I])


def test_embedding_refuses_what_cannot_be():
    with rg.static.program_guard(rg.static.Program(), rg.static.Program()):
        with pytest.raises(ValueError, match=r"padding_idx 4 is not in \[-4, 4\)"):
            nn.Embedding(4, 2, padding_idx=4)
        x = rg.static.data("x", [None, 2])
        with pytest.raises(TypeError, match="ids are integers"):
            nn.Embedding(4, 2)(x)
        with pytest.raises(ValueError, match=r"\[rows, floats per row\]"):
            rg.static.nn.embedding(rg.static.data("i", [None], "int64"), [4])


def test_sequences_of_ids_are_pooled():
    main, startup = rg.static.Program(), rg.static.Program()
    with rg.static.program_guard(main, startup), rg.unique_name.guard():
        ids = rg.static.data("ids", [None, 1], "int64", lod_level=1)
        shared = rg.ParamAttr(name="table")
        made = [
            rg.static.nn.sequence_pool(
                rg.static.nn.sparse_embedding(ids, [5, 2], param_attr=shared), kind
            )
            for kind in ("sum", "average", "max", "sqrt")
        ]
        with pytest.raises(TypeError, match="should be a variable"):
            F.relu(rg.static.nn.embedding(ids, [5, 2], param_attr=shared))
    exe, scope = rg.static.Executor(), rg.static.Scope()
    with rg.static.scope_guard(scope):
        exe.run(startup)
        table = scope.find_var("table").get_tensor().numpy()
        ids = (np.array([1, 2, 2, 4], "uint64"), np.array([0, 1, 4]))
        values = exe.run(main, feed={"ids": ids}, fetch_list=made)
    rows = [table[[1]], table[[2, 2, 4]]]
    for value, pool in zip(values, (
        lambda r: r.sum(0), lambda r: r.mean(0), lambda r: r.max(0),
        lambda r: r.sum(0) / math.sqrt(len(r)),
    )):
        np.testing.assert_allclose(value, [pool(r) for r in rows], rtol=1e-6)


def test_sparse_embedding_notes_its_entry():
    main, startup = rg.static.Program(), rg.static.Program()
    with rg.static.program_guard(main, startup), rg.unique_name.guard():
        ids = rg.static.data("ids", [None, 1], "int64")
        entry = rg.distributed.CountFilterEntry(10)
        made = rg.static.nn.sparse_embedding(ids, [100, 8], entry=entry)
        assert made.name == "sparse_embedding_0.tmp_0" and made.shape == (-1, 8)
        assert main._table_entries == {"sparse_embedding_0.w_0": "count_filter_entry:10"}
        with pytest.raises(ValueError, match="the entry should be"):
            rg.static.nn.sparse_embedding(ids, [100, 8], entry=10)


def test_dropout_modes():
    ones = {**FEEDS, "x": np.ones([400, 4], "float32")}
    ones = {k: v if k == "x" else np.resize(v, [400, *v.shape[1:]]) for k, v in ones.items()}

    def build(x, **_):
        return [
            F.dropout(x, 0.25), F.dropout(x, 0.25),
            F.dropout(x, 0.25, mode="downscale_in_infer"), F.dropout(x, 0.25, training=False),
            F.dropout(x, 0.25, mode="downscale_in_infer", training=False), F.dropout(x, 1.0),
        ]

    built = Built(build)
    up, again, down, test, down_test, nothing = built.run(*built.made, feed=ones)
    assert set(np.unique(np.round(up, 5))) == {0.0, np.float32(np.round(4 / 3, 5))}
    assert abs((up == 0).mean() - 0.25) < 0.05
    assert (up != again).any()
    assert set(np.unique(np.round(down, 5))) == {0.0, 1.0}
    assert (test == 1).all() and np.allclose(down_test, 0.75) and (nothing == 0).all()
    predicted = built.run(*built.made[:3], feed=ones, program=built.main.clone(for_test=True))
    assert np.allclose(predicted[0], 1) and np.allclose(predicted[2], 0.75)
    assert F.dropout(built.main.global_block().var("x"), 0).name == "x"


@pytest.mark.parametrize("kind", ["layer", "static"])
def test_batch_norm(kind):
    def build(x, z, **_):
        if kind == "static":
            return [rg.static.nn.batch_norm(x, act="relu"), rg.static.nn.batch_norm(z)]
        return [F.relu(nn.BatchNorm1D(4)(x)), nn.BatchNorm1D(3)(z)]

    built = Built(build)
    flat, deep = built.run(*built.made)
    expected = (X - X.mean(0)) / np.sqrt(X.var(0) + 1e-5)
    np.testing.assert_allclose(flat, np.maximum(expected, 0), atol=1e-5)
    mean, var = Z.mean((0, 2), keepdims=True), Z.var((0, 2), keepdims=True)
    np.testing.assert_allclose(deep, (Z - mean) / np.sqrt(var + 1e-5), atol=1e-5)
    prefix = "batch_norm_0" if kind == "static" else "batch_norm1d_0"
    np.testing.assert_allclose(built.get(prefix + ".w_1"), 0.1 * X.mean(0), atol=1e-6)
    np.testing.assert_allclose(built.get(prefix + ".w_2"), 0.9 + 0.1 * X.var(0), atol=1e-6)
    test = built.main.clone(for_test=True)
    running = (X - 0.1 * X.mean(0)) / np.sqrt(0.9 + 0.1 * X.var(0) + 1e-5)
    for _ in range(2):  # prediction changes nothing
        flat, _ = built.run(*built.made, program=test)
        np.testing.assert_allclose(flat, np.maximum(running, 0), atol=1e-5)


def test_layer_norm_and_its_parameters():
    def build(z, **_):
        named = rg.static.nn.layer_norm(z, begin_norm_axis=2, act="relu")
        return [named, nn.LayerNorm([3, 4])(z), rg.static.nn.layer_norm(z, scale=False)]

    built = Built(build)
    names = [p.name for p in built.main.all_parameters()]
    assert names == ["layer_norm_0.w_0", "layer_norm_0.b_0", "layer_norm_1.w_0",
                     "layer_norm_1.b_0", "layer_norm_3.b_0"]
    first, second, third = built.run(*built.made)
    norm = (Z - Z.mean(-1, keepdims=True)) / np.sqrt(Z.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(first, np.maximum(norm, 0), atol=1e-5)
    np.testing.assert_allclose(second, third, atol=1e-6)


class Tower(nn.Layer):
    """Two layers, one of them twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.again = self.first
        self.stack = nn.Sequential(nn.ReLU(), ("named", nn.Linear(4, 2)))
        self.extra = self.create_parameter([2], is_bias=True)
        self.norm = nn.BatchNorm1D(2)
        self.plain = [1, 2]

    def forward(self, x):
        return self.norm(self.stack(self.first(x)) + self.extra)


def test_layer_keeps_parts_under_names():
    with rg.static.program_guard(rg.static.Program(), rg.static.Program()), rg.unique_name.guard():
        tower = Tower()
        assert tower.full_name() == "tower_0"
        assert [n for n, _ in tower.named_parameters()] == [
            "extra", "first.weight", "first.bias", "stack.named.weight", "stack.named.bias",
            "norm.weight", "norm.bias",
        ]
        assert [p.name for p in tower.parameters()][:2] == ["tower_0.b_0", "linear_0.w_0"]
        assert [n for n, _ in tower.named_sublayers()] == [
            "first", "stack", "stack.0", "stack.named", "norm"
        ]
        assert [n for n, _ in tower.named_buffers()] == ["norm._mean", "norm._variance"]
        assert tower.eval().norm.training is False and tower.train().norm.training is True
        assert tower.plain == [1, 2] and "first" in dir(tower)
        assert "(named): Linear(in_features=4, out_features=2" in repr(tower)
        del tower.extra
        with pytest.raises(AttributeError, match="Tower has no attribute 'extra'"):
            tower.extra
        with pytest.raises(TypeError, match="not a Layer"):
            tower.add_sublayer("wrong", 3)

    class Early(nn.Layer):
        def __init__(self):
            self.part = nn.Identity()

    with pytest.raises(ValueError, match="before 'part' is set"):
        Early()


def test_hooks_and_containers():
    with rg.static.program_guard(rg.static.Program(), rg.static.Program()), rg.unique_name.guard():
        x = rg.static.data("x", [None, 4])
        layers = nn.LayerList([nn.Linear(4, 4) for _ in range(3)])
        layers.append(nn.Linear(4, 2))
        layers.insert(0, nn.Identity())
        assert len(layers) == 5 and layers[-1].out_features == 2
        assert len(layers[1:3]) == 2 and len(layers.parameters()) == 8
        for layer in layers:
            x = layer(x)
        assert x.shape == (-1, 2)
        named = nn.LayerDict({"a": nn.Linear(2, 2), "b": nn.ReLU()})
        assert list(named) == ["a", "b"] and "a" in named and named.pop("b") is not None
        extra = nn.ParameterList([rg.create_parameter([2], "float32") for _ in range(2)])
        assert len(extra.parameters()) == 2
        seen = []
        layer = named["a"]
        hook = layer.register_forward_post_hook(lambda l, i, o: seen.append(o.name) or o * 2)
        layer.register_forward_pre_hook(lambda l, i: (i[0] + 1,))
        y = layer(x)
        assert y.name.startswith("tmp_") and len(seen) == 1
        hook.remove()
        assert layer(x).name.startswith("linear_")
        with pytest.raises(NotImplementedError, match="nn.Conv3D: convolutions"):
            nn.Conv3D(1, 1, 1)


def test_state_of_layers_is_that_of_the_scope():
    main, startup = rg.static.Program(), rg.static.Program()
    with rg.static.program_guard(main, startup), rg.unique_name.guard():
        tower = Tower()
    with rg.static.scope_guard(rg.static.Scope()):
        with pytest.raises(RuntimeError, match="has no value"):
            tower.state_dict()
        rg.static.Executor().run(startup)
        state = tower.state_dict()
        assert list(state)[-2:] == ["norm._mean", "norm._variance"]
        state["first.weight"] = np.full([4, 4], 2.0)
        state["more"] = np.zeros(1)
        del state["extra"]
        assert tower.set_state_dict(state) == (["extra"], ["more"])
        assert (tower.state_dict()["first.weight"] == 2).all()
        by_name = {"linear_0.w_0": np.ones([4, 4])}
        missing, unexpected = tower.set_state_dict(by_name, use_structured_name=False)
        assert unexpected == [] and "linear_0.b_0" in missing
        assert (tower.first.weight.numpy() == 1).all()
        with pytest.raises(ValueError, match="has the shape"):
            tower.set_state_dict({"first.weight": np.ones([2, 2])})


# --- static layers -------------------------------------------------------------------------------


def test_fc_in_all_spellings():
    def build(x, p, z, **_):
        weight = rg.ParamAttr(name="w", initializer=nn.initializer.Normal(0.0, 0.5))
        return [
            rg.static.nn.fc(x, 3, weight_attr=weight, activation="tanh"),
            rg.static.nn.fc(input=x, size=3, param_attr=weight, act="relu", bias_attr=False),
            rg.static.nn.fc(x=z, size=2, num_flatten_dims=2),
            rg.static.nn.fc(z, 2),
            rg.static.nn.fc([x, p], 2, activation="sigmoid"),
            rg.static.nn.fc(x, 3, weight_attr=weight, activation="softmax", name="named"),
        ]

    built = Built(build)
    assert [v.name for v in built.made] == [
        "fc_0.tmp_2", "fc_1.tmp_1", "fc_2.tmp_1", "fc_3.tmp_1", "fc_4.tmp_4", "named.tmp_2"
    ]
    values = built.run(*built.made)
    w = built.get("w")
    np.testing.assert_allclose(values[0], np.tanh(X @ w), atol=1e-6)
    np.testing.assert_allclose(values[1], np.maximum(X @ w, 0), atol=1e-6)
    np.testing.assert_allclose(values[2], Z @ built.get("fc_2.w_0"), atol=1e-6)
    np.testing.assert_allclose(values[3], Z.reshape(6, 12) @ built.get("fc_3.w_0"), atol=1e-6)
    both = X @ built.get("fc_4.w_0") + P @ built.get("fc_4.w_1")
    np.testing.assert_allclose(values[4], sigmoid(both), atol=1e-6)
    np.testing.assert_allclose(values[5], softmax(X @ w), atol=1e-6)
    kinds = [op.type for op in built.main.global_block().ops]
    assert kinds.count("fc") == 7 and "relu" not in kinds and "tanh" not in kinds


def test_auc_and_its_counters():
    score = np.array([0.1, 0.4, 0.35, 0.8, 0.65, 0.9], "float32")
    truth = np.array([0, 0, 1, 1, 0, 1], "int64")

    def area(score, truth):
        pairs = [(a > b) + 0.5 * (a == b) for a in score[truth == 1] for b in score[truth == 0]]
        return np.mean(pairs)

    main, startup = rg.static.Program(), rg.static.Program()
    with rg.static.program_guard(main, startup), rg.unique_name.guard():
        p = rg.static.data("p", [None, 1])
        label = rg.static.data("label", [None, 1], "int64")
        both = rg.concat([1 - p, p], axis=1)
        whole, recent, counters = rg.static.auc(both, label, num_thresholds=2**12, slide_steps=1)
        plain = rg.static.auc(both, label, slide_steps=0)
    assert [whole.name, recent.name] == ["auc_0.tmp_0", "auc_0.tmp_1"]
    assert [c.name for c in counters] == [f"_generated_var_{k}" for k in range(4)]
    assert counters[2].shape == (1, 4097) and counters[2].persistable
    exe, scope = rg.static.Executor(), rg.static.Scope()
    with rg.static.scope_guard(scope):
        exe.run(startup)
        for part in (slice(0, 4), slice(2, 6)):
            feed = {"p": score[part, None], "label": truth[part, None]}
            values = exe.run(main, feed=feed, fetch_list=[whole, recent, plain[0], plain[1]])
        pos = scope.find_var(counters[2].name).get_tensor().numpy()
    seen = np.r_[0:4, 2:6]
    expected = area(score[seen], truth[seen])
    wanted = [expected, area(score[2:], truth[2:]), expected, expected]
    np.testing.assert_allclose([v[0] for v in values], wanted, rtol=1e-5)
    assert pos.sum() == truth[seen].sum()


# --- initial values ------------------------------------------------------------------------------


def test_formulas_of_initializers():
    init = nn.initializer
    fans = [30, 50]
    limit = math.sqrt(6 / 80)
    assert init.XavierUniform()._init_op(fans, 5) == (
        "uniform_random", {"shape": fans, "low": -limit, "high": limit, "seed": 5}
    )
    assert init.Xavier(uniform=False, seed=9)._init_op(fans, 5)[1] == {
        "shape": fans, "mean": 0.0, "std": math.sqrt(2 / 80), "seed": 9
    }
    assert init.XavierNormal(fan_in=3, fan_out=5)._init_op([7], 0)[1]["std"] == 0.5
    assert init.KaimingUniform()._init_op(fans, 0)[1]["high"] == math.sqrt(6 / 30)
    assert init.KaimingNormal(fan_in=8)._init_op(fans, 0)[1]["std"] == 0.5
    assert init.MSRA(uniform=False)._init_op([8, 4], 0)[1]["std"] == 0.5
    assert init.UniformInitializer(-0.1, 0.1, 4)._init_op([1], 0)[1]["seed"] == 4
    assert init.Normal(loc=1.0, scale=2.0)._init_op([1], 0)[1]["std"] == 2.0
    assert init.TruncatedNormal()._init_op([1], 0)[0] == "truncated_gaussian_random"
    assert init.calculate_gain("leaky_relu", 1.0) == 1.0
    with pytest.raises(ValueError, match="high is"):
        init.Uniform(1.0, 0.0)


def test_initial_values_in_a_program():
    init = nn.initializer
    given = RNG.normal(size=[3, 2])

    def build(**_):
        make = rg.create_parameter
        make([2000], "float32", name="uniform", default_initializer=init.Uniform(-0.5, 1.5))
        make([2000], "float32", name="normal", default_initializer=init.Normal(1.0, 0.5))
        make([2000], "float32", name="cut", default_initializer=init.TruncatedNormal(0.0, 2.0))
        make([3, 2], "float32", name="given", default_initializer=init.Assign(given))
        make([2, 2], "float32", name="five", attr=init.Constant(5.0))
        init.set_global_initializer(init.Constant(7.0), init.Constant(8.0))
        try:
            rg.static.nn.fc(rg.ones([1, 3]), 2)
        finally:
            init.set_global_initializer(None)
        return rg.ones([1])

    built, again, other = Built(build), Built(build), Built(build, seed=4)
    uniform = built.get("uniform")
    assert uniform.min() >= -0.5 and uniform.max() < 1.5 and abs(uniform.mean() - 0.5) < 0.05
    normal = built.get("normal")
    assert abs(normal.mean() - 1) < 0.05 and abs(normal.std() - 0.5) < 0.03
    assert np.abs(built.get("cut")).max() <= 4.0
    np.testing.assert_array_equal(built.get("given"), given.astype("float32"))
    assert (built.get("five.w_0") == 5).all()
    assert (built.get("fc_0.w_0") == 7).all() and (built.get("fc_0.b_0") == 8).all()
    np.testing.assert_array_equal(uniform, again.get("uniform"))
    assert (uniform != other.get("uniform")).any()


def test_regularizers_and_clips_describe_themselves():
    assert rg.regularizer.L1Decay(0.1)._regularizer_spec() == ("l1", 0.1)
    assert rg.regularizer.L2Decay(coeff=0)._regularizer_spec() == ("l2", 0.0)
    assert rg.regularizer.L2DecayRegularizer(regularization_coeff=0.5)._regularizer_spec()[1] == 0.5
    assert nn.ClipGradByGlobalNorm(1.0)._clip_spec() == ["global_norm", 1.0]
    assert nn.ClipGradByNorm(clip_norm=2)._clip_spec() == ["norm", 2.0]
    assert nn.GradientClipByValue(3)._clip_spec() == ["value", -3.0, 3.0]
    with pytest.raises(ValueError, match="above 0"):
        nn.ClipGradByNorm(0.0)
    with pytest.raises(ValueError, match="above max"):
        nn.ClipGradByValue(max=1.0, min=2.0)
