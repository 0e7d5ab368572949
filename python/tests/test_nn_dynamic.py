"""Layers with values: against formulas, against the same layers in a program, and as containers of
parameters."""
from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import regatta as rg
import regatta.nn as nn
import regatta.nn.functional as F

RNG = np.random.RandomState(3)
X = RNG.randn(5, 4).astype("float32")
IMAGE = RNG.randn(2, 3, 6, 6).astype("float32")
LINE = RNG.randn(2, 5, 4).astype("float32")


def given(layer, seed=1):
    """The layer with parameters that follow from a seed."""
    rng = np.random.RandomState(seed)
    for parameter in layer.parameters():
        parameter.set_value((rng.randn(*parameter.shape) * 0.5).astype("float32"))
    return layer


# Layers that a program can hold too, and an input.
LAYERS = {
    "Linear": (lambda: nn.Linear(4, 3), X),
    "Embedding": (lambda: nn.Embedding(9, 4), [[1, 8], [0, 3]]),
    "Sequential": (lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), X),
    "LayerNorm": (lambda: nn.LayerNorm([5, 4]), LINE),
    "BatchNorm1D": (lambda: nn.BatchNorm1D(4), X),
    "BatchNorm2D": (lambda: nn.BatchNorm2D(3), IMAGE),
    "GroupNorm": (lambda: nn.GroupNorm(3, 3), IMAGE),
    "Conv2D": (lambda: nn.Conv2D(3, 4, 3, stride=2, padding=1), IMAGE),
    "Conv1D": (lambda: nn.Conv1D(5, 4, 3, padding=1), LINE),
    "Conv2DTranspose": (lambda: nn.Conv2DTranspose(3, 2, 3, stride=2), IMAGE),
    "MaxPool2D": (lambda: nn.MaxPool2D(2), IMAGE),
    "AvgPool2D": (lambda: nn.AvgPool2D(3, 2, 1), IMAGE),
    "AdaptiveAvgPool2D": (lambda: nn.AdaptiveAvgPool2D(2), IMAGE),
    "LSTM": (lambda: nn.LSTM(4, 3, 2, "bidirect"), LINE), "GRU": (lambda: nn.GRU(4, 3), LINE),
    "SimpleRNN": (lambda: nn.SimpleRNN(4, 3), LINE), "PReLU": (lambda: nn.PReLU(3), IMAGE),
    "MultiHeadAttention": (lambda: nn.MultiHeadAttention(4, 2), LINE),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), LINE),
    "GELU": (nn.GELU, X), "SELU": (nn.SELU, X), "Softmax": (lambda: nn.Softmax(0), X),
    "Hardswish": (nn.Hardswish, X), "ELU": (nn.ELU, X), "Softplus": (nn.Softplus, X),
    "LogSoftmax": (nn.LogSoftmax, X), "Mish": (nn.Mish, X), "Pad2D": (lambda: nn.Pad2D(1), IMAGE),
    "Upsample": (lambda: nn.Upsample(scale_factor=2), IMAGE), "Flatten": (nn.Flatten, IMAGE),
}


def first(value):
    while isinstance(value, (list, tuple)):
        value = value[0]
    return value


@pytest.mark.parametrize("name", LAYERS)
def test_layers_compute_what_programs_compute(name):
    make, array = LAYERS[name]
    array = np.asarray(array)
    with rg.unique_name.guard():
        dynamic = given(make())
    main, startup = rg.static.Program(), rg.static.Program()
    with rg.static.program_guard(main, startup), rg.unique_name.guard():
        x = rg.static.data("x", [None, *array.shape[1:]], str(array.dtype))
        x.stop_gradient = array.dtype.kind != "f"
        layer = make()
        loss = (first(layer(x)) * 1.5).square().sum()
        parameters = [p.name for p in layer.parameters()]
        grads = rg.fluid.backward.append_backward(loss) if parameters else []
    tensor = rg.to_tensor(array, stop_gradient=array.dtype.kind != "f")
    mine = (first(dynamic(tensor)) * 1.5).square().sum()
    if parameters:
        mine.backward()
    scope = rg.static.Scope()
    with rg.static.scope_guard(scope):
        exe = rg.static.Executor()
        exe.run(startup)
        assert [p.name for p in dynamic.parameters()] == parameters
        for parameter in dynamic.parameters():
            scope.var(parameter.name).get_tensor().set(parameter.numpy())
        fetches = [loss] + [g for _, g in grads]
        theirs, *found = exe.run(main, feed={"x": array}, fetch_list=fetches)
    np.testing.assert_allclose(mine.numpy(), np.asarray(theirs).reshape([]), rtol=2e-5)
    by_name = {p.name: p for p in dynamic.parameters()}
    for (parameter, _), grad in zip(grads, found):
        mine = by_name[parameter.name].grad.numpy()
        np.testing.assert_allclose(mine, grad, rtol=1e-3, atol=2e-4)


def test_initial_values_are_those_of_programs():
    rg.seed(11)
    with rg.unique_name.guard():
        dynamic = nn.Sequential(nn.Linear(4, 3), nn.Embedding(5, 2), nn.Conv2D(1, 2, 3))
    main, startup = rg.static.Program(), rg.static.Program()
    with rg.static.program_guard(main, startup), rg.unique_name.guard():
        nn.Sequential(nn.Linear(4, 3), nn.Embedding(5, 2), nn.Conv2D(1, 2, 3))
    scope = rg.static.Scope()
    with rg.static.scope_guard(scope):
        rg.static.Executor().run(startup)
        for parameter in dynamic.parameters():
            value = scope.find_var(parameter.name).get_tensor().numpy()
            assert (parameter.numpy() == value).all(), parameter.name
    rg.seed(0)


def test_names_of_parameters_count_layers_alone():
    with rg.unique_name.guard():
        layer = nn.Linear(4, 4)
        x = rg.to_tensor(X)
        for _ in range(3):
            x = F.relu(layer(x)) + 1.0
        assert nn.Linear(4, 4).weight.name == "linear_1.w_0"
        assert nn.Embedding(2, 2).weight.name == "embedding_0.w_0"
        cell = nn.LSTM(2, 3)
        assert cell.weight_hh_l0.name == "lstm_cell_0.w_1" and cell.full_name() == "lstm_0"


def test_running_statistics_move_while_training():
    layer = nn.BatchNorm1D(4, momentum=0.8)
    out = layer(rg.to_tensor(X))
    np.testing.assert_allclose(out.numpy().mean(0), 0.0, atol=1e-6)
    np.testing.assert_allclose(layer._mean.numpy(), 0.2 * X.mean(0), rtol=1e-5)
    np.testing.assert_allclose(layer._variance.numpy(), 0.8 + 0.2 * X.var(0), rtol=1e-5)
    layer.eval()
    mean, variance = layer._mean.numpy(), layer._variance.numpy()
    expected = (X - mean) / np.sqrt(variance + 1e-5)
    np.testing.assert_allclose(layer(rg.to_tensor(X)).numpy(), expected, rtol=1e-5)
    assert (layer._mean.numpy() == mean).all()
    assert list(layer.state_dict()) == ["weight", "bias", "_mean", "_variance"]


def test_dropout_drops_while_training_only():
    layer, x = nn.Dropout(0.25), rg.ones([4000])
    kept = layer(x).numpy()
    assert set(np.unique(kept)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((kept == 0).mean() - 0.25) < 0.05
    channels = nn.Dropout2D(0.5)(rg.ones([8, 16, 3, 3])).numpy().reshape(128, 9)
    assert (channels == channels[:, :1]).all() and 0 < (channels[:, 0] == 0).mean() < 1
    layer.eval()
    assert (layer(x).numpy() == 1).all()


def test_lengths_of_sequences():
    layer = given(nn.LSTM(4, 3))
    out, (h, c) = layer(rg.to_tensor(LINE), None, rg.to_tensor([2, 5]))
    short, (h2, _) = layer(rg.to_tensor(LINE[:1, :2]))
    assert (out.numpy()[0, 2:] == 0).all() and h.shape == [1, 2, 3] and c.shape == [1, 2, 3]
    np.testing.assert_allclose(out.numpy()[0, :2], short.numpy()[0], rtol=1e-5)
    np.testing.assert_allclose(h.numpy()[0, 0], h2.numpy()[0, 0], rtol=1e-5)


def test_a_cell_walks_as_its_network_does():
    network = given(nn.GRU(4, 3))
    cell = network[0].cell
    h, outs = rg.zeros([2, 3]), []
    for t in range(5):
        out, h = cell(rg.to_tensor(LINE[:, t]), h)
        outs.append(out)
    whole, last = network(rg.to_tensor(LINE))
    np.testing.assert_allclose(rg.stack(outs, 1).numpy(), whole.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(h.numpy(), last.numpy()[0], rtol=1e-5, atol=1e-6)

    class Own(nn.GRUCell):
        def forward(self, inputs, states=None):
            out, after = super().forward(inputs, states)
            return out * 2.0, after

    own = Own(4, 3)
    own.set_state_dict(cell.state_dict())
    doubled, _ = nn.RNN(own)(rg.to_tensor(LINE))
    np.testing.assert_allclose(doubled.numpy(), 2 * whole.numpy(), rtol=1e-5, atol=1e-6)


def test_attention_with_a_cache_decodes_step_by_step():
    layer = given(nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0))
    target, memory = rg.to_tensor(LINE), rg.to_tensor(LINE[:, :3])
    mask = rg.to_tensor(np.tril(np.ones([5, 5], bool)))
    whole = layer(target, memory, mask).numpy()
    cache, steps = layer.gen_cache(memory), []
    for t in range(5):
        out, cache = layer(target[:, t:t + 1], memory, None, None, cache)
        steps.append(out)
    np.testing.assert_allclose(rg.concat(steps, 1).numpy(), whole, rtol=1e-4, atol=1e-5)


class Tower(nn.Layer):
    def __init__(self):
        super().__init__()
        self.deep = nn.LayerList([nn.Linear(4, 4) for _ in range(2)])
        self.norm = nn.BatchNorm1D(4)
        self.scale = self.create_parameter([4])
        self.register_buffer("seen", rg.zeros([1]), persistable=False)
        self.act = F.relu

    def forward(self, x):
        for layer in self.deep:
            x = self.act(layer(x))
        return self.norm(x) * self.scale


def test_layers_hold_parts():
    tower = Tower()
    names = [name for name, _ in tower.named_parameters()]
    assert names == ["scale", "deep.0.weight", "deep.0.bias", "deep.1.weight", "deep.1.bias",
                     "norm.weight", "norm.bias"]
    assert "seen" not in tower.state_dict() and len(tower.buffers()) == 3
    tower.eval()
    assert not tower.norm.training and tower.train().norm.training
    old = tower.scale
    tower.scale = rg.create_parameter([4], "float32")
    assert tower.scale is not old and len(tower.parameters()) == 7
    tower.scale = None
    assert len(tower.parameters()) == 6 and tower.scale is None
    tower.extra = rg.ones([2])
    assert isinstance(tower.extra, rg.Tensor) and len(tower.buffers()) == 3
    del tower.norm
    with pytest.raises(AttributeError, match="norm"):
        tower.norm
    with pytest.raises(ValueError, match="super"):
        type("Late", (nn.Layer,), {"__init__": lambda self: setattr(self, "a", nn.ReLU())})()


def test_states_copies_and_pickles_of_layers():
    tower, x = Tower(), rg.to_tensor(X)
    tower.eval()
    expected = tower(x).numpy()
    fresh = Tower()
    assert fresh.set_state_dict(tower.state_dict()) == ([], [])
    arrays = {name: value.numpy() for name, value in tower.state_dict().items()}
    for same in (fresh, copy.deepcopy(tower), pickle.loads(pickle.dumps(tower))):
        same.set_state_dict(arrays)
        same.eval()
        np.testing.assert_allclose(same(x).numpy(), expected, rtol=1e-6)
        same.scale.set_value(np.zeros(4, "float32"))
    np.testing.assert_allclose(tower(x).numpy(), expected, rtol=1e-6)
    assert fresh.set_state_dict({"more": X})[1] == ["more"]
    with pytest.raises(ValueError, match="has the shape"):
        fresh.set_state_dict({"scale": np.zeros(5)})


def test_hooks_of_layers_also_inside_a_sequence():
    layers = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    x, seen = rg.to_tensor(X), []
    plain = layers(x).numpy()
    hook = layers[0].register_forward_post_hook(lambda layer, ins, out: seen.append(out) or out * 0)
    assert (layers(x).numpy() == 0).all() and len(seen) == 1
    hook.remove()
    np.testing.assert_allclose(layers(x).numpy(), plain)
    layers[1] = nn.Tanh()
    assert not np.allclose(layers(x).numpy(), plain)


def test_an_activation_after_a_linear_is_one_op_with_the_same_result():
    for act in (nn.ReLU(), nn.Tanh(), nn.Sigmoid()):
        linear = nn.Linear(4, 3)
        joined, x = nn.Sequential(linear, act), rg.to_tensor(X, stop_gradient=False)
        joined(x).square().sum().backward()
        grads = [p.grad.numpy() for p in linear.parameters()]
        linear.clear_gradients()
        act(linear(x)).square().sum().backward()
        for parameter, grad in zip(linear.parameters(), grads):
            np.testing.assert_allclose(parameter.grad.numpy(), grad, rtol=1e-5, atol=1e-6)


def test_losses_against_formulas():
    logits, labels = RNG.randn(6, 4).astype("float32"), np.array([0, 1, 2, 3, 1, 2])
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    each = -logs[np.arange(6), labels]
    x, y = rg.to_tensor(logits), rg.to_tensor(labels)

    def close(value, expected):
        np.testing.assert_allclose(value.numpy(), expected, rtol=1e-5, atol=1e-6)

    close(nn.CrossEntropyLoss()(x, y), each.mean())
    close(F.cross_entropy(x, y.unsqueeze(1), reduction="none"), each[:, None])
    close(F.cross_entropy(x, y, reduction="sum"), each.sum())
    close(F.cross_entropy(x, y, ignore_index=2), each[labels != 2].mean())
    hidden = rg.to_tensor(np.where(labels == 2, -100, labels))
    close(F.cross_entropy(x, hidden), each[labels != 2].mean())
    weight = np.array([1.0, 2.0, 0.5, 3.0], "float32")
    w = weight[labels]
    close(F.cross_entropy(x, y, weight=rg.to_tensor(weight)), (each * w).sum() / w.sum())
    soft = np.full([6, 4], 0.25, "float32")
    close(F.cross_entropy(x, rg.to_tensor(soft), soft_label=True), -(logs * soft).sum(1).mean())
    close(F.nll_loss(rg.to_tensor(logs), y), each.mean())
    target = (RNG.rand(6, 4) > 0.5).astype("float32")
    t, p = rg.to_tensor(target), 1 / (1 + np.exp(-logits))
    bce = -(target * np.log(p) + (1 - target) * np.log(1 - p))
    close(nn.BCEWithLogitsLoss()(x, t), bce.mean())
    close(nn.BCELoss(reduction="sum")(rg.to_tensor(p), t), bce.sum())
    close(nn.MSELoss()(x, t), ((logits - target) ** 2).mean())
    close(nn.L1Loss()(x, t), np.abs(logits - target).mean())


def test_utilities_of_parameters():
    layer = nn.Linear(4, 3)
    vector = nn.utils.parameters_to_vector(layer.parameters())
    nn.utils.vector_to_parameters(vector * 2.0, layer.parameters())
    np.testing.assert_allclose(nn.utils.parameters_to_vector(layer.parameters()).numpy(),
                               vector.numpy() * 2)
    layer(rg.to_tensor(X)).sum().backward()
    total = np.sqrt(sum((p.grad.numpy() ** 2).sum() for p in layer.parameters()))
    np.testing.assert_allclose(nn.utils.clip_grad_norm_(layer.parameters(), 0.1).numpy(), total,
                               rtol=1e-5)
    after = np.sqrt(sum((p.grad.numpy() ** 2).sum() for p in layer.parameters()))
    np.testing.assert_allclose(after, 0.1, rtol=1e-4)
    before = layer(rg.to_tensor(X)).numpy()
    nn.utils.weight_norm(layer)
    np.testing.assert_allclose(layer(rg.to_tensor(X)).numpy(), before, rtol=1e-5)
    nn.utils.remove_weight_norm(layer)
    np.testing.assert_allclose(layer(rg.to_tensor(X)).numpy(), before, rtol=1e-5)


def test_mixed_precision():
    layer, x = nn.Linear(4, 3), rg.to_tensor(X)
    exact = layer(x).numpy()
    for dtype in ("float16", "bfloat16"):
        with rg.amp.auto_cast(dtype=dtype):
            out = layer(x)
            assert out.dtype == dtype and rg.mean(out).dtype == "float32"
        np.testing.assert_allclose(out.astype("float32").numpy(), exact, rtol=0.05, atol=0.05)
    with rg.amp.auto_cast(custom_black_list={"linear"}):
        assert layer(x).dtype == "float32"
    sgd = rg.optimizer.SGD(0.1, parameters=layer.parameters())
    scaler = rg.amp.GradScaler(init_loss_scaling=8.0, incr_every_n_steps=1)
    scaler.scale(layer(x).mean()).backward()
    scaler.step(sgd)
    scaler.update()
    np.testing.assert_allclose(layer.bias.numpy(), [-0.1 / 3] * 3, rtol=1e-5)
    assert scaler.state_dict()["scale"].tolist() == [16.0]
    sgd.clear_grad()
    before = layer.bias.numpy()
    scaler.scale(layer(x).mean() * float("inf")).backward()
    scaler.minimize(sgd)
    assert (layer.bias.numpy() == before).all() and scaler.state_dict()["scale"].tolist() == [8.0]
