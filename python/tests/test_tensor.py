"""Tensors with values: functions against numpy, gradients against differences, and what a tensor is
to Python."""
from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import regatta as rg

RNG = np.random.RandomState(0)
A = RNG.randn(3, 4).astype("float32")
B = RNG.randn(3, 4).astype("float32")
C = RNG.randn(2, 3, 4).astype("float32")
P = np.abs(A) + 0.5
V = RNG.randn(4).astype("float32")
I = np.array([[1, 5, 2], [0, 3, 3]])  # noqa: E741
M = A > 0

# Functions of floats with the same meaning in numpy: both, and their arguments.
SMOOTH = {
    "exp": (rg.exp, np.exp, A), "log": (rg.log, np.log, P), "sqrt": (rg.sqrt, np.sqrt, P),
    "rsqrt": (rg.rsqrt, lambda x: 1 / np.sqrt(x), P), "square": (rg.square, np.square, A),
    "tanh": (rg.tanh, np.tanh, A), "sin": (rg.sin, np.sin, A), "cos": (rg.cos, np.cos, A),
    "log1p": (rg.log1p, np.log1p, P), "expm1": (rg.expm1, np.expm1, A),
    "reciprocal": (rg.reciprocal, lambda x: 1 / x, P), "abs": (rg.abs, np.abs, A),
    "add": (rg.add, np.add, A, B), "broadcast": (lambda x, y: x + y, np.add, A, V),
    "subtract": (lambda x, y: x - y, np.subtract, A, B), "divide": (rg.divide, np.divide, A, P),
    "multiply": (lambda x, y: x * y, np.multiply, A, B),
    "rsub": (lambda x: 1 - x, lambda x: 1 - x, A),
    "rdiv": (lambda x: 2 / x, lambda x: 2 / x, P), "pow": (lambda x: x ** 3, lambda x: x ** 3, A),
    "power": (rg.pow, np.power, P, B), "maximum": (rg.maximum, np.maximum, A, B),
    "sum": (lambda x: x.sum(1), lambda x: x.sum(1), A), "mean": (rg.mean, np.mean, A),
    "prod": (lambda x: rg.prod(x, 1), lambda x: x.prod(1), A),
    "max": (lambda x: x.max(0), lambda x: x.max(0), A), "std": (rg.std, lambda x: x.std(ddof=1), A),
    "logsumexp": (rg.logsumexp, lambda x: np.log(np.exp(x).sum()), A),
    "norm": (rg.norm, np.linalg.norm, A),
    "cumsum": (lambda x: rg.cumsum(x, 1), lambda x: x.cumsum(1), A),
    "matmul": (lambda x, y: rg.matmul(x, y, transpose_y=True), lambda x, y: x @ y.T, A, B),
    "at": (lambda x, y: x @ y, np.matmul, C, C[0].T.copy()), "dot": (rg.dot, np.dot, V, V + 1),
    "einsum": (lambda x, y: rg.einsum("bij,kj->bik", x, y),
               lambda x, y: np.einsum("bij,kj->bik", x, y), C, B),
    "einsum of three": (lambda x, y, z: rg.einsum("ij,kj,kl->il", x, y, z),
                        lambda x, y, z: np.einsum("ij,kj,kl->il", x, y, z), A, B, B),
    "concat": (lambda x, y: rg.concat([x, y], -1), lambda x, y: np.concatenate([x, y], -1), A, B),
    "stack": (lambda x, y: rg.stack([x, y], 1), lambda x, y: np.stack([x, y], 1), A, B),
    "reshape": (lambda x: x.reshape([0, -1]), lambda x: x.reshape(2, -1), C),
    "transpose": (lambda x: x.transpose([2, 0, 1]), lambda x: x.transpose(2, 0, 1), C),
    "tile": (lambda x: rg.tile(x, [2, 1, 3]), lambda x: np.tile(x, [2, 1, 3]), A),
    "expand": (lambda x: x.expand([3, -1]), lambda x: np.broadcast_to(x, [3, 4]), V),
    "flip": (lambda x: rg.flip(x, [1]), lambda x: x[:, ::-1], A),
    "roll": (lambda x: rg.roll(x, 1, 1), lambda x: np.roll(x, 1, 1), A),
    "tril": (rg.tril, np.tril, A), "diag": (lambda x: rg.diag(x, 1), lambda x: np.diag(x, 1), V),
    "gather": (lambda x: rg.gather(x, [2, 0, 0]), lambda x: x[[2, 0, 0]], A),
    "where": (lambda x, y: rg.where(x > 0, x, y), lambda x, y: np.where(x > 0, x, y), A, B),
    "sort": (lambda x: rg.sort(x, 0), lambda x: np.sort(x, 0), A),
    "masked_select": (lambda x: rg.masked_select(x, x > 0), lambda x: x[x > 0], A),
    "clip": (lambda x: rg.clip(x, -0.5, 0.5), lambda x: np.clip(x, -0.5, 0.5), A),
    "kron": (rg.kron, np.kron, A, B), "outer": (rg.outer, np.outer, V, V),
    "take_along_axis": (lambda x: rg.take_along_axis(x, rg.to_tensor([[0, 2], [1, 1], [3, 0]]), 1),
                        lambda x: np.take_along_axis(x, np.array([[0, 2], [1, 1], [3, 0]]), 1), A),
}


def leaf(array):
    return rg.to_tensor(array, stop_gradient=False)


@pytest.mark.parametrize("name", SMOOTH)
def test_values_and_gradients(name):
    function, expected, *arrays = SMOOTH[name]
    tensors = [leaf(a) for a in arrays]
    out = function(*tensors)
    want = np.asarray(expected(*[a.astype("float64") for a in arrays]))
    assert out.shape == list(want.shape) and out.dtype == "float32"
    np.testing.assert_allclose(out.numpy(), want, rtol=2e-5, atol=1e-6)
    weights = np.asarray(np.random.RandomState(1).randn(*want.shape))
    (out * rg.to_tensor(weights.astype("float32"))).sum().backward()
    for at, (tensor, array) in enumerate(zip(tensors, arrays)):
        slope = differences(expected, arrays, at, weights)
        np.testing.assert_allclose(tensor.grad.numpy(), slope, rtol=2e-3, atol=2e-3)


def differences(function, arrays, at, weights, eps=1e-5):
    arrays = [a.astype("float64") for a in arrays]
    slope = np.zeros(arrays[at].shape)
    for position in np.ndindex(*slope.shape):
        sides = []
        for sign in (1, -1):
            moved = [a.copy() for a in arrays]
            moved[at][position] += sign * eps
            sides.append((np.asarray(function(*moved)) * weights).sum())
        slope[position] = (sides[0] - sides[1]) / (2 * eps)
    return slope


PLAIN = {
    "integers add": (lambda i: i + i, lambda i: i + i, I),
    "integers by a float": (lambda i: i * 1.5, lambda i: (i * 1.5).astype("float32"), I),
    "integers divided": (lambda i: i / 2, lambda i: (i / 2).astype("float32"), I),
    "floor": (lambda i: i // 2, lambda i: i // 2, I), "mod": (lambda i: i % 3, lambda i: i % 3, I),
    "power": (lambda i: i ** 2, lambda i: i ** 2, I),
    "maximum": (lambda i: i.max(1), lambda i: i.max(1), I),
    "argmax": (lambda x: rg.argmax(x, 1), lambda x: x.argmax(1), A),
    "argmax of all": (rg.argmax, np.argmax, A),
    "argsort": (lambda x: rg.argsort(x, 1), lambda x: x.argsort(1), A),
    "topk": (lambda x: rg.topk(x, 2)[1], lambda x: (-x).argsort(1)[:, :2], A),
    "nonzero": (rg.nonzero, lambda x: np.argwhere(x), M),
    "unique": (rg.unique, np.unique, I), "bincount": (rg.bincount, np.bincount, I[1]),
    "equal": (lambda i: i == 3, lambda i: i == 3, I), "any": (rg.any, np.any, M),
    "all of rows": (lambda m: rg.all(m, 1), lambda m: m.all(1), M),
    "not": (lambda m: ~m, lambda m: ~m, M),
    "bits": (lambda i: (i & 3) | 4, lambda i: (i & 3) | 4, I), "isnan": (rg.isnan, np.isnan, A),
    "to bool": (lambda i: i.astype("bool"), lambda i: i.astype(bool), I),
    "to int32": (lambda x: x.astype("int32"), lambda x: x.astype("int32"), A),
    "scatter": (lambda x: rg.scatter(x, rg.to_tensor([2]), rg.zeros([1, 4])),
                lambda x: np.concatenate([x[:2], np.zeros([1, 4], "float32")]), A),
    "steps": (lambda x: x[::2, ::-1], lambda x: x[::2, ::-1], A),
    "mask": (lambda x: x[x > 0], lambda x: x[x > 0], A),
    "rows": (lambda x: x[[0, 2]], lambda x: x[[0, 2]], A),
    "pairs": (lambda x: x[[0, 1], [2, 3]], lambda x: x[[0, 1], [2, 3]], A),
    "new axis": (lambda x: x[:, None, 1:3], lambda x: x[:, None, 1:3], A),
    "dots": (lambda x: x[..., -1], lambda x: x[..., -1], C),
    "one": (lambda x: x[1, -2], lambda x: x[1, -2], A),
}


@pytest.mark.parametrize("name", PLAIN)
def test_values_and_types(name):
    function, expected, array = PLAIN[name]
    out, want = function(rg.to_tensor(array)), np.asarray(expected(array))
    assert out.shape == list(want.shape) and str(out.dtype) == want.dtype.name
    np.testing.assert_allclose(out.numpy(), want, rtol=1e-6)


def test_creation():
    assert rg.to_tensor([1, 2]).dtype == "int64" and rg.to_tensor([1.0, 2]).dtype == "float32"
    assert rg.to_tensor(np.zeros(2)).dtype == "float64" and rg.to_tensor(1.5).shape == []
    assert rg.to_tensor([True]).dtype == "bool" and rg.to_tensor(3, dtype="float32").item() == 3.0
    assert rg.full([2], 3).dtype == "float32" and rg.ones([2], "int32").dtype == "int32"
    assert rg.arange(1, 10, 3).tolist() == [1, 4, 7]
    assert rg.linspace(0, 1, 3).tolist() == [0, 0.5, 1]
    assert rg.eye(2, 3).shape == [2, 3] and rg.zeros([0, 3]).shape == [0, 3]
    assert rg.zeros_like(rg.ones([2], "int64")).dtype == "int64"
    x = rg.to_tensor([1.0, 2.0])
    assert rg.to_tensor([x[0], x[1]]).tolist() == [1.0, 2.0]
    assert [g.shape for g in rg.meshgrid(x, rg.ones([3]))] == [[2, 3], [2, 3]]
    with pytest.raises(TypeError, match="holds no numbers"):
        rg.to_tensor(["a"])


def test_random_values_follow_from_the_seed():
    makers = [
        lambda: rg.rand([50]), lambda: rg.randn([50]), lambda: rg.randint(0, 9, [50]),
        lambda: rg.randperm(50), lambda: rg.normal(1.0, 2.0, [50]),
        lambda: rg.bernoulli(rg.full([50], 0.5)), lambda: rg.nn.functional.dropout(rg.ones([50])),
        lambda: rg.multinomial(rg.ones([50]), 9),
    ]
    for make in makers:
        rg.seed(7)
        first, second = make().numpy(), make().numpy()
        rg.seed(7)
        assert (make().numpy() == first).all() and (first != second).any()
    assert sorted(rg.randperm(9).tolist()) == list(range(9))
    assert len(set(rg.multinomial(rg.ones([5]), 5).tolist())) == 5


def test_a_tensor_is_a_number_a_sequence_and_an_array():
    x = leaf(A)
    assert float(x[0, 0]) == A[0, 0] and int(rg.to_tensor([7])) == 7 and bool(rg.to_tensor(True))
    assert len(x) == 3 and [row.tolist() for row in x] == A.tolist() and x.tolist() == A.tolist()
    assert [10, 20][rg.to_tensor(1)] == 20 and np.asarray(x).dtype == "float32"
    for number in (np.ones(4, "float32"), np.float32(2)):
        assert isinstance(number * x, rg.Tensor)
    assert np.from_dlpack(x.detach()).shape == (3, 4)
    assert "%.2f" % x[0, 0] == "%.2f" % A[0, 0] and f"{x[0, 0]:.3f}" == f"{A[0, 0]:.3f}"
    assert x.ndim == x.dim() == 2 and x.size == x.numel().item() == 12 and x.T.shape == [4, 3]
    assert rg.is_tensor(x) and str(x.place) == "Place(cpu)" and x.cpu() is x
    with pytest.raises(ValueError, match="12 elements"):
        float(x)
    with pytest.raises(TypeError, match="no length"):
        len(x[0, 0])
    with pytest.raises(TypeError, match="no index"):
        [1][rg.to_tensor(0.5)]


def test_text():
    assert repr(rg.to_tensor([1.0, -2.5])) == (
        "Tensor(shape=[2], dtype=float32, place=Place(cpu), stop_gradient=True,\n"
        "       [ 1.        , -2.50000000])")
    assert repr(rg.to_tensor([[True, False]])) == (
        "Tensor(shape=[1, 2], dtype=bool, place=Place(cpu), stop_gradient=True,\n"
        "       [[True , False]])")
    assert "..." in repr(rg.zeros([2000]))
    assert repr(rg.nn.Linear(1, 1).weight).startswith("Parameter containing:\nTensor(")


def test_indices_can_be_set():
    x = rg.zeros([3, 4])
    x[0], x[1:, 2] = 5.0, rg.to_tensor([1.0, 2.0])
    x[x == 5.0] = 6.0
    expected = np.zeros([3, 4])
    expected[0], expected[1:, 2] = 6.0, [1, 2]
    assert x.tolist() == expected.tolist()
    source = leaf(A)
    changed = source * 1.0
    changed[0] = source[1] * 2.0
    changed.sum().backward()
    np.testing.assert_allclose(source.grad.numpy(), [[0] * 4, [3] * 4, [1] * 4])
    with pytest.raises(RuntimeError, match="leaf"):
        source[0] = source[1]


def test_changes_in_place():
    x = rg.to_tensor([1.0, 4.0])
    assert x.add_(rg.ones([2])) is x and x.tolist() == [2.0, 5.0]
    assert x.scale_(2.0).clip_(0, 9).tolist() == [4.0, 9.0] and x.sqrt_().tolist() == [2.0, 3.0]
    assert x.reshape_([2, 1]).shape == [2, 1] and x.fill_(3).tolist() == [[3.0], [3.0]]
    x.set_value(np.ones([2, 1], "float32"))
    assert x.zero_().tolist() == [[0.0], [0.0]] and rg.increment(x).tolist() == [[1.0], [1.0]]
    before = x.clone()
    x += 1
    assert before.tolist() == [[1.0], [1.0]] and x.tolist() == [[2.0], [2.0]]
    with pytest.raises(ValueError, match="shape"):
        x.set_value(np.ones(3))
    with pytest.raises(RuntimeError, match="leaf"):
        leaf(A).add_(rg.ones([4]))
    w = leaf(A)
    with rg.no_grad():
        w.scale_(0.5)
    assert not w.stop_gradient and w.is_leaf and w.tolist() == (A * 0.5).tolist()


def test_gradients_accumulate_until_they_are_cleared():
    x = leaf(A)
    (x * 2).sum().backward()
    (x * 3).sum().backward()
    assert (x.grad.numpy() == 5).all() and (x.gradient() == 5).all()
    x.clear_grad()
    assert x.grad is None or (x.grad.numpy() == 0).all()
    loss = (x * x).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    np.testing.assert_allclose(x.grad.numpy(), 4 * A, rtol=1e-6)
    with pytest.raises(RuntimeError, match="freed.*\n.*test_tensor.py"):
        loss.backward()
    y = leaf(A)
    (y * 2).backward(rg.to_tensor(B))
    np.testing.assert_allclose(y.grad.numpy(), 2 * B, rtol=1e-6)


def test_grad_leaves_the_tensors_alone():
    x, other = leaf(A), leaf(B)
    found = rg.grad((x ** 2).sum(), [x])[0]
    np.testing.assert_allclose(found.numpy(), 2 * A, rtol=1e-6)
    assert x.grad is None
    assert rg.grad((x ** 2).sum(), [x, other], allow_unused=True)[1] is None
    with pytest.raises(ValueError, match="not used"):
        rg.grad((x ** 2).sum(), [x, other])
    with pytest.raises(NotImplementedError, match="create_graph"):
        rg.grad(x.sum(), x, create_graph=True)


def test_where_gradients_are_recorded():
    x = leaf(A)
    with rg.no_grad():
        assert (x * 2).stop_gradient and not rg.is_grad_enabled()
        with rg.enable_grad():
            assert not (x * 2).stop_gradient
    assert not (x * 2).stop_gradient and x.detach().stop_gradient and not x.clone().stop_gradient

    @rg.no_grad()
    def off(value):
        return value * 2

    @rg.no_grad
    def parts(value):
        for _ in range(2):
            yield value * 2

    assert off(x).stop_gradient and rg.is_grad_enabled()
    for part in parts(x):
        assert part.stop_gradient and not (x * 2).stop_gradient
    with rg.set_grad_enabled(False):
        assert (x * 2).stop_gradient
    assert rg.is_grad_enabled()


def test_hooks_see_and_change_gradients():
    x = leaf(A)
    y = x * 2
    seen = []
    hook = y.register_hook(lambda g: seen.append(g.shape) or g * 10)
    y.sum().backward()
    assert seen == [[3, 4]] and (x.grad.numpy() == 20).all()
    hook.remove()
    with pytest.raises(RuntimeError, match="stop_gradient"):
        rg.ones([2]).register_hook(lambda g: g)


def test_copies_and_pickles():
    x = leaf(A)
    for same in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert same.tolist() == x.tolist() and not same.stop_gradient
    w = rg.create_parameter([2, 3], "float32")
    w.optimize_attr["learning_rate"] = 0.5
    again = pickle.loads(pickle.dumps(w))
    assert again.name == w.name and again.optimize_attr == {"learning_rate": 0.5}
    assert copy.deepcopy(w).name.startswith(w.name + "_deepcopy_")
    with pytest.raises(RuntimeError, match="leaf"):
        copy.deepcopy(x * 2)


@pytest.mark.parametrize("wrong, error", [
    (lambda x: rg.matmul(x, rg.ones([3, 3])), ValueError), (lambda x: x + rg.ones([5]), ValueError),
    (lambda x: rg.concat([x, rg.ones([3, 5])], 0), ValueError), (lambda x: x[7], IndexError),
    (lambda x: rg.nn.functional.embedding(x, x), TypeError),
    (lambda x: rg.reshape(x, [5]), ValueError),
    (lambda x: rg.sum(x, axis=4), ValueError), (lambda x: rg.nn.Linear(3, 2)(x), ValueError),
    (lambda x: rg.gather(x, [9]), ValueError),
    (lambda x: rg.concat([x, rg.ones([3, 4], "int64")]), TypeError),
])
def test_errors_carry_the_line(wrong, error):
    with pytest.raises(error) as caught:
        wrong(rg.to_tensor(A))
    if "axis" not in str(caught.value):
        assert "test_tensor.py:" in str(caught.value)


def test_tensors_stand_beside_variables_of_a_program():
    main, startup = rg.static.Program(), rg.static.Program()
    shift, layer = rg.to_tensor(V), rg.nn.Linear(4, 2)
    with rg.static.program_guard(main, startup), rg.unique_name.guard():
        x = rg.static.data("x", [None, 4])
        y = layer(x + shift) + (shift * x).sum(axis=1, keepdim=True)
    exe, scope = rg.static.Executor(), rg.static.Scope()
    with rg.static.scope_guard(rg.static.global_scope()):
        exe.run(startup)
        got, = exe.run(main, feed={"x": A}, fetch_list=[y])
    want = layer(rg.to_tensor(A + V)).numpy() + (A * V).sum(1, keepdims=True)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert layer.weight.name in [p.name for p in main.all_parameters()]


def test_numbers_of_numpy_keep_type_and_shape():
    for value, dtype in ((np.float64(2.5), "float64"), (np.array(True), "bool"),
                         (np.float32(1.0), "float32"), (np.int32(3), "int32")):
        made = rg.to_tensor(value)
        assert (made.shape, str(made.dtype)) == ([], dtype)
        assert made.numpy() == value


def test_messages_name_slots_and_not_positions():
    with pytest.raises(ValueError, match=r"op fc: W should be f32\[5, 3\], but is f32\[2, 3\]"):
        rg.nn.Linear(2, 3)(rg.ones([4, 5]))
