"""Functions and operators on variables against numpy."""
from __future__ import annotations

import numpy as np
import pytest

import regatta as rg
from regatta import tensor

RNG = np.random.RandomState(7)
X = RNG.uniform(0.3, 2.0, [5, 4]).astype("float32")
Y = RNG.uniform(-2.0, 2.0, [5, 4]).astype("float32")
Z = RNG.uniform(-1.0, 1.0, [5, 3, 4]).astype("float32")
I = RNG.randint(0, 3, [5, 1]).astype("int64")
J = RNG.randint(0, 3, [5]).astype("int64")
FEEDS = {"x": X, "y": Y, "z": Z, "i": I, "j": J}


def run(build, batch=None):
    """Builds with x, y, z, i, j and returns the values of what was built."""
    main, startup = rg.static.Program(), rg.static.Program()
    with rg.static.program_guard(main, startup), rg.unique_name.guard():
        inputs = {
            k: rg.static.data(k, [None, *v.shape[1:]], str(v.dtype)) for k, v in FEEDS.items()
        }
        made = build(**inputs)
    several = isinstance(made, (list, tuple))
    exe, scope = rg.static.Executor(), rg.static.Scope()
    with rg.static.scope_guard(scope):
        exe.run(startup)
        feed = {k: v[:batch] for k, v in FEEDS.items()}
        values = exe.run(main, feed=feed, fetch_list=list(made) if several else [made])
    for variable, value in zip(made if several else [made], values):
        dims = [v for v in variable.shape]
        assert len(dims) == value.ndim, (variable, value.shape)
        assert all(d in (-1, n) for d, n in zip(dims, value.shape)), (variable, value.shape)
    return values if several else values[0]


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


CASES = {
    "add": (lambda x, y, **_: rg.add(x, y), X + Y),
    "subtract": (lambda x, y, **_: rg.subtract(x, y), X - Y),
    "multiply": (lambda x, y, **_: rg.multiply(x=x, y=y), X * Y),
    "divide": (lambda x, y, **_: rg.divide(y, x), Y / X),
    "maximum": (lambda x, y, **_: rg.maximum(x, y), np.maximum(X, Y)),
    "minimum": (lambda x, y, **_: rg.minimum(x, y), np.minimum(X, Y)),
    "pow": (lambda x, **_: rg.pow(x, 1.5), X**1.5),
    "sqrt": (lambda x, **_: rg.sqrt(x), np.sqrt(X)),
    "rsqrt": (lambda x, **_: rg.rsqrt(x), 1 / np.sqrt(X)),
    "exp": (lambda x, **_: rg.exp(x), np.exp(X)),
    "expm1": (lambda x, **_: rg.expm1(x), np.expm1(X)),
    "log": (lambda x, **_: rg.log(x), np.log(X)),
    "log2": (lambda x, **_: rg.log2(x), np.log2(X)),
    "log10": (lambda x, **_: rg.log10(x), np.log10(X)),
    "log1p": (lambda x, **_: rg.log1p(x), np.log1p(X)),
    "abs": (lambda y, **_: rg.abs(y), np.abs(Y)),
    "square": (lambda y, **_: rg.square(y), Y * Y),
    "square of integers": (lambda i, **_: rg.square(i), I * I),
    "tanh": (lambda y, **_: rg.tanh(y), np.tanh(Y)),
    "sigmoid": (lambda y, **_: tensor.sigmoid(y), 1 / (1 + np.exp(-Y))),
    "sign": (lambda y, **_: rg.sign(y), np.sign(Y)),
    "floor": (lambda y, **_: rg.floor(y), np.floor(Y)),
    "reciprocal": (lambda x, **_: rg.reciprocal(x), 1 / X),
    "neg": (lambda x, **_: rg.neg(x), -X),
    "stanh": (lambda y, **_: rg.stanh(y), 1.7159 * np.tanh(0.67 * Y)),
    "scale": (lambda x, **_: rg.scale(x, 2.0, 1.0), 2 * X + 1),
    "scale, bias first": (
        lambda x, **_: rg.scale(x, 2.0, 1.0, bias_after_scale=False), 2 * (X + 1)
    ),
    "scale, act": (lambda y, **_: rg.scale(y, 2.0, act="relu"), np.maximum(2 * Y, 0)),
    "clip": (lambda y, **_: rg.clip(y, min=-1, max=0.5), np.clip(Y, -1, 0.5)),
    "clip below": (lambda y, **_: rg.clip(y, min=0.0), np.maximum(Y, 0)),
    "lerp": (lambda x, y, **_: rg.lerp(x, y, 0.25), X + 0.25 * (Y - X)),
    "add_n": (lambda x, y, **_: rg.add_n([x, y, y]), X + 2 * Y),
    "sum": (lambda x, **_: rg.sum(x), X.sum().reshape(1)),
    "sum axis": (lambda z, **_: rg.sum(z, axis=1), Z.sum(1)),
    "sum axes": (lambda z, **_: rg.sum(z, [1, -1], keepdim=True), Z.sum((1, 2), keepdims=True)),
    "sum of integers": (lambda i, **_: rg.sum(i, 1), I.sum(1)),
    "sum of batch": (lambda z, **_: rg.sum(z, 0), Z.sum(0)),
    "mean": (lambda z, **_: rg.mean(z), Z.mean().reshape(1)),
    "mean axis": (lambda z, **_: rg.mean(z, -1), Z.mean(-1)),
    "max": (lambda z, **_: rg.max(z, 1), Z.max(1)),
    "min": (lambda z, **_: rg.min(z, 1), Z.min(1)),
    "logsumexp": (lambda z, **_: rg.logsumexp(z, 2), np.log(np.exp(Z).sum(2))),
    "var": (lambda z, **_: rg.var(z, 2), Z.var(2, ddof=1)),
    "var of all": (lambda z, **_: rg.var(z), Z.var(ddof=1).reshape(1)),
    "std": (lambda z, **_: rg.std(z, 1, unbiased=False), Z.std(1)),
    "cumsum": (lambda z, **_: rg.cumsum(z, -1), Z.cumsum(-1)),
    "norm": (lambda z, **_: rg.norm(z, p=2, axis=2), np.sqrt((Z * Z).sum(2))),
    "norm 1": (
        lambda z, **_: rg.norm(z, p=1, axis=2, keepdim=True), np.abs(Z).sum(2, keepdims=True)
    ),
    "norm inf": (lambda z, **_: rg.norm(z, p=float("inf"), axis=1), np.abs(Z).max(1)),
    "norm 3": (lambda z, **_: rg.norm(z, p=3, axis=1), (np.abs(Z) ** 3).sum(1) ** (1 / 3)),
    "norm of all": (lambda z, **_: rg.norm(z), np.sqrt((Z * Z).sum()).reshape(1)),
    "dist": (lambda x, y, **_: rg.dist(x, y), np.sqrt(((X - Y) ** 2).sum()).reshape(1)),
    "matmul": (lambda z, **_: rg.matmul(z, z, transpose_y=True), Z @ Z.transpose(0, 2, 1)),
    "matmul transposed": (lambda x, y, **_: rg.matmul(x, y, transpose_x=True), X.T @ Y),
    "bmm": (lambda z, **_: rg.bmm(z, rg.transpose(z, [0, 2, 1])), Z @ Z.transpose(0, 2, 1)),
    "mm": (lambda x, **_: rg.mm(x, rg.ones([4, 2])), X @ np.ones([4, 2])),
    "mv": (lambda x, **_: rg.mv(x, rg.ones([4])), X.sum(1)),
    "dot": (lambda x, y, **_: rg.dot(x, y), (X * Y).sum(1)),
    "addmm": (
        lambda x, **_: rg.addmm(x, x, rg.ones([4, 4]), beta=2.0, alpha=0.5),
        2 * X + 0.5 * (X @ np.ones([4, 4])),
    ),
    "mul": (lambda z, **_: tensor.mul(z, rg.ones([12, 2])), Z.reshape(5, 12) @ np.ones([12, 2])),
    "outer": (
        lambda j, **_: rg.outer(j.astype("float32"), rg.ones([3])), np.outer(J, np.ones(3))
    ),
    "concat": (lambda x, y, **_: rg.concat([x, y], axis=-1), np.concatenate([X, Y], -1)),
    "concat of integers": (lambda i, **_: rg.concat(x=[i, i], axis=1), np.concatenate([I, I], 1)),
    "concat of batches": (lambda x, y, **_: rg.concat([x, y]), np.concatenate([X, Y])),
    "stack": (lambda x, y, **_: rg.stack([x, y]), np.stack([X, Y])),
    "stack 1": (lambda x, y, **_: rg.stack([x, y], axis=1), np.stack([X, Y], 1)),
    "stack -1": (lambda x, y, **_: rg.stack([x, y], axis=-1), np.stack([X, Y], -1)),
    "reshape": (lambda z, **_: rg.reshape(z, [0, -1]), Z.reshape(5, -1)),
    "reshape -1": (lambda z, **_: rg.reshape(z, shape=(-1, 12)), Z.reshape(-1, 12)),
    "reshape rows": (lambda z, **_: z.reshape([-1, 4]), Z.reshape(-1, 4)),
    "reshape by shape": (lambda z, **_: rg.reshape(z, (z.shape[0], 12)), Z.reshape(5, 12)),
    "transpose": (lambda z, **_: rg.transpose(z, perm=[0, 2, 1]), Z.transpose(0, 2, 1)),
    "transpose batch": (lambda z, **_: rg.transpose(z, [1, 0, 2]), Z.transpose(1, 0, 2)),
    "t": (lambda x, **_: rg.t(x), X.T),
    "squeeze": (lambda i, **_: rg.squeeze(i, axis=1), I[:, 0]),
    "squeeze all": (lambda i, **_: rg.squeeze(i), I[:, 0]),
    "squeeze before batch": (lambda x, **_: rg.squeeze(rg.unsqueeze(x, 0), 0), X),
    "unsqueeze": (lambda x, **_: rg.unsqueeze(x, axis=1), X[:, None]),
    "unsqueeze end": (lambda x, **_: rg.unsqueeze(x, -1), X[..., None]),
    "unsqueeze front": (lambda x, **_: rg.unsqueeze(x, 0), X[None]),
    "unsqueeze several": (lambda x, **_: rg.unsqueeze(x, [1, 3]), X[:, None, :, None]),
    "flatten": (lambda z, **_: rg.flatten(z, 1, 2), Z.reshape(5, 12)),
    "flatten all": (lambda z, **_: rg.flatten(z), Z.reshape(-1)),
    "slice": (lambda z, **_: rg.slice(z, axes=[1, 2], starts=[0, -3], ends=[2, 99]), Z[:, :2, 1:]),
    "cast": (lambda y, **_: rg.cast(y, "int64"), Y.astype("int64")),
    "cast to float": (lambda i, **_: rg.cast(i, dtype="float32"), I.astype("float32")),
    "cast to bool": (lambda y, **_: rg.cast(rg.clip(y, min=0.0), "bool"), (Y > 0).astype("int64")),
    "full": (lambda **_: rg.full([2, 3], 1.5), np.full([2, 3], 1.5)),
    "zeros": (lambda **_: rg.zeros([2], "int64"), np.zeros([2])),
    "ones": (lambda **_: rg.ones(shape=[2, 1]), np.ones([2, 1])),
    "full_like": (
        lambda i, **_: rg.full_like(i, fill_value=1, dtype="float32"), np.ones([5, 1])
    ),
    "ones_like": (lambda i, **_: rg.ones_like(i), np.ones([5, 1])),
    "zeros_like": (lambda x, **_: rg.zeros_like(x), np.zeros([5, 4])),
    "assign": (lambda x, **_: rg.assign(x), X),
    "assign array": (lambda **_: rg.assign(Y), Y),
    "to_tensor": (lambda **_: rg.to_tensor([[1, 2], [3, 2**60]]), np.array([[1, 2], [3, 2**60]])),
    "arange": (lambda **_: rg.arange(1, 7, 2), np.arange(1, 7, 2)),
    "linspace": (lambda **_: rg.linspace(0, 1, 5), np.linspace(0, 1, 5)),
    "eye": (lambda **_: rg.eye(3), np.eye(3)),
    "tril": (lambda z, **_: rg.tril(z), np.tril(Z)),
    "triu": (lambda z, **_: rg.triu(z, 1), np.triu(Z, 1)),
    "expand": (lambda i, **_: rg.expand(i, [-1, 3]), np.repeat(I, 3, 1)),
    "expand_as": (lambda i, x, **_: rg.expand_as(i.astype("float32"), x), np.repeat(I, 4, 1)),
    "tile": (lambda x, **_: rg.tile(x, [1, 2]), np.tile(X, [1, 2])),
    "tile with batch": (lambda z, **_: rg.tile(z, [1, 2, 3]), np.tile(Z, [1, 2, 3])),
    "moveaxis": (lambda z, **_: rg.moveaxis(z, 2, 1), np.moveaxis(Z, 2, 1)),
    "numel": (lambda x, **_: rg.numel(x), np.array([20])),
    "shape": (lambda **_: rg.shape(rg.ones([3, 2])), np.array([3, 2])),
    "rank": (lambda z, **_: rg.rank(z), np.array([3])),
    "elementwise_add": (
        lambda z, j, **_: rg.tensor.elementwise_add(z, j.astype("float32"), axis=0),
        Z + J[:, None, None],
    ),
    "elementwise_mul, act": (
        lambda x, y, **_: rg.tensor.elementwise_mul(x, y, act="relu"), np.maximum(X * Y, 0)
    ),
    "elementwise_sub in the middle": (
        lambda z, **_: rg.tensor.elementwise_sub(z, rg.ones([3]), axis=1), Z - 1
    ),
    "logical": (
        lambda i, **_: rg.logical_or(rg.logical_not(i.astype("bool")), i.astype("bool")),
        np.ones([5, 1]),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_function(name):
    build, expected = CASES[name]
    value = run(build)
    np.testing.assert_allclose(value, expected, rtol=2e-6, atol=2e-6)
    assert value.shape == np.asarray(expected).shape


OPERATORS = {
    "x + y": (lambda x, y, **_: x + y, X + Y),
    "x + 1": (lambda x, **_: x + 1, X + 1),
    "1 + x": (lambda x, **_: 1 + x, X + 1),
    "x - 0.5": (lambda x, **_: x - 0.5, X - 0.5),
    "1 - x": (lambda x, **_: 1 - x, 1 - X),
    "x * 2": (lambda x, **_: x * 2, X * 2),
    "0.5 * x": (lambda x, **_: 0.5 * x, X * 0.5),
    "x / 4.0": (lambda x, **_: x / 4.0, X / 4),
    "x / y": (lambda x, y, **_: y / x, Y / X),
    "2 / x": (lambda x, **_: 2 / x, 2 / X),
    "x ** 2": (lambda y, **_: y**2, Y**2),
    "x ** 3": (lambda x, **_: x**3, X**3),
    "2 ** x": (lambda y, **_: 2**y, 2**Y),
    "-x": (lambda x, **_: -x, -X),
    "z @ z": (lambda z, **_: z @ z.transpose([0, 2, 1]), Z @ Z.transpose(0, 2, 1)),
    "x @ array": (lambda x, **_: x @ np.ones([4, 2], "float32"), X @ np.ones([4, 2])),
    "array + x": (lambda x, **_: np.arange(4, dtype="float32") + x, X + np.arange(4)),
    "x - array": (lambda x, **_: x - np.arange(4), X - np.arange(4)),
    "numpy number": (lambda x, **_: np.float32(2) * x, X * 2),
    "i + 1": (lambda i, **_: i + 1, I + 1),
    "i * 3 - 1": (lambda i, **_: i * 3 - 1, I * 3 - 1),
    "3 - i": (lambda i, **_: 3 - i, 3 - I),
    "i / 2": (lambda i, **_: i / 2, I / 2),
    "i * 0.5": (lambda i, **_: i * 0.5, I * 0.5),
    "i + x": (lambda i, x, **_: i + x, I + X),
    "x * i": (lambda i, x, **_: x * i, X * I),
    "column": (lambda x, **_: x[:, 1], X[:, 1]),
    "last column": (lambda x, **_: x[:, -1], X[:, -1]),
    "two numbers": (lambda z, **_: z[:, 2, 1], Z[:, 2, 1]),
    "number and slice": (lambda z, **_: z[:, 1, 1:3], Z[:, 1, 1:3]),
    "negative slice": (lambda z, **_: z[:, -2:], Z[:, -2:]),
    "ellipsis": (lambda z, **_: z[..., 0], Z[..., 0]),
    "new dimension": (lambda x, **_: x[:, None], X[:, None]),
    "new dimension and slice": (lambda z, **_: z[:, None, 1:, 0], Z[:, None, 1:, 0]),
    "integers": (lambda i, **_: i[:, 0], I[:, 0]),
    "astype": (lambda i, **_: i.astype("float32"), I),
    "method chain": (
        lambda z, **_: z.abs().sum(axis=1).sqrt().unsqueeze(1).squeeze(1).scale(2.0),
        2 * np.sqrt(np.abs(Z).sum(1)),
    ),
    "T": (lambda x, **_: x.T, X.T),
    "mean method": (lambda z, **_: z.mean(-1, keepdim=True), Z.mean(-1, keepdims=True)),
    "matmul method": (lambda x, y, **_: x.t().matmul(y), X.T @ Y),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operator(name):
    build, expected = OPERATORS[name]
    value = run(build)
    np.testing.assert_allclose(value, expected, rtol=2e-6, atol=2e-6)
    assert value.shape == expected.shape


def test_split_unstack_and_many_parts():
    parts = run(lambda z, **_: rg.split(z, [1, -1], axis=2))
    np.testing.assert_array_equal(parts[0], Z[..., :1])
    np.testing.assert_array_equal(parts[1], Z[..., 1:])
    parts = run(lambda z, **_: rg.unbind(z, 1) + rg.unstack(z, 2) + rg.chunk(z, 2, -1))
    np.testing.assert_array_equal(parts[1], Z[:, 1])
    np.testing.assert_array_equal(parts[4], Z[:, :, 1])
    np.testing.assert_array_equal(parts[8], Z[:, :, 2:])
    # More parts than one op can have.
    parts = run(lambda x, **_: rg.split(rg.tile(x, [1, 40]), 160, axis=1))
    assert len(parts) == 160
    np.testing.assert_array_equal(parts[155], X[:, 3:])


def test_types_are_remembered():
    main = rg.static.Program()
    with rg.static.program_guard(main), rg.unique_name.guard():
        x = rg.static.data("x", [None, 2], "int32")
        assert (x + 1).dtype == "int32"
        assert rg.reshape(x, [-1, 1]).dtype == "int32"
        assert rg.split(x, 2, 1)[0].dtype == "int32"
        assert (x * 0.5).dtype == "float32"
        assert x.astype("bool").dtype == "bool"
        assert rg.cast(x, "float64").dtype == "float64"


def test_any_batch_size():
    for batch in (1, 2, 5):
        value = run(lambda z, **_: rg.stack([z, z]) @ rg.ones([4, 2]), batch)
        np.testing.assert_allclose(value, np.stack([Z[:batch]] * 2) @ np.ones([4, 2]), atol=1e-6)


def test_products_with_the_batch_behind():
    def build(z, **_):
        heads = rg.stack([z, 2 * z, -z])  # [3, n, 3, 4]
        return rg.matmul(heads, heads, transpose_y=True)

    heads = np.stack([Z, 2 * Z, -Z])
    np.testing.assert_allclose(run(build), heads @ heads.transpose(0, 1, 3, 2), rtol=1e-5)


def test_comparisons_with_others_build_nothing():
    main = rg.static.Program()
    with rg.static.program_guard(main):
        x = rg.static.data("x", [None, 2])
        y = rg.static.data("y", [None, 2])
        assert (x == None) is False and (x != None) is True  # noqa: E711
        assert x == main.global_block().var("x")
        assert {x: 1}[main.global_block().var("x")] == 1
        assert x in [x, y]
        assert main._core.num_ops() == 0


def test_errors_say_what_is_wrong():
    with rg.static.program_guard(rg.static.Program()):
        x = rg.static.data("x", [None, 2])
        i = rg.static.data("i", [None, 2], "int64")
        with pytest.raises(TypeError, match="neither 1 nor 2 is a variable"):
            rg.add(1, 2)
        with pytest.raises(TypeError, match="relu: x should be a variable"):
            rg.nn.functional.relu(np.ones(3))
        with pytest.raises(ValueError, match="op concat: X 'i' should be f32"):
            rg.concat([x, i], axis=1)
        with pytest.raises(ValueError, match="cannot be divided into 3 equal parts"):
            rg.split(x, 3, axis=1)
        with pytest.raises(ValueError, match="axis 2 does not exist"):
            rg.sum(x, axis=2)
        with pytest.raises(IndexError, match="5 is not in dimension 1"):
            x[:, 5]
        with pytest.raises(NotImplementedError, match="holds integers"):
            rg.mean(i)
        with pytest.raises(TypeError, match="known when the program runs"):
            bool(x)
        with pytest.raises(NotImplementedError, match="op 'strided_slice_of_all'"):
            rg.tensor._common.need_op("steps", "strided_slice_of_all")
        with pytest.raises(AttributeError, match="is not in Regatta"):
            rg.tensor.svd


def test_increment_and_assign_write_kept_variables():
    main, startup = rg.static.Program(), rg.static.Program()
    with rg.static.program_guard(main, startup), rg.unique_name.guard():
        step = rg.tensor.create_global_var([1], 3, "int64", persistable=True)
        rate = rg.tensor.create_global_var([1], 0.5, "float32", persistable=True)
        rg.increment(step)
        rg.assign(rate * 2.0, output=rate)
    exe, scope = rg.static.Executor(), rg.static.Scope()
    with rg.static.scope_guard(scope):
        exe.run(startup)
        for _ in range(3):
            exe.run(main)
        assert scope.find_var(step.name).get_tensor().numpy().tolist() == [6]
        assert scope.find_var(rate.name).get_tensor().numpy().tolist() == [4.0]


def test_the_size_of_the_batch_is_part_of_shapes():
    main = rg.static.Program()
    with rg.static.program_guard(main):
        x, w = rg.static.data("x", [None, 6]), rg.static.data("w", [1, 2, 3])
        rows = rg.shape(x)[0]
        made = [
            rg.full([rows, 2], 3.0), rg.reshape(x, [rows, -1, 3]), rg.tile(w, [rows, 1, 1]),
            rg.expand(w, [rows, 2, 3]), rg.reshape(x, rg.shape(x)), rg.zeros([rows, 1], "int64"),
        ]
        shape = rg.shape(x)
        with pytest.raises(NotImplementedError, match="numbers are needed"):
            rg.full([rg.sum(shape), 2], 3.0)
    assert [v.shape for v in made] == [(-1, 2)] + [(-1, 2, 3)] * 3 + [(-1, 6), (-1, 1)]
    feed = {"x": np.ones([4, 6], "float32"), "w": np.ones([1, 2, 3], "float32")}
    *values, sizes = rg.static.Executor().run(main, feed=feed, fetch_list=made + [shape])
    assert [len(v) for v in values] == [4] * 6 and sizes.tolist() == [4, 6]
    assert (values[0] == 3).all() and (values[2] == 1).all() and values[5].dtype == "int64"
