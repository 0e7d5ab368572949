"""Networks traced to programs: run, saved, loaded, served."""
import copy
import json
import os
import re
import subprocess
import sys
import urllib.request

import numpy as np
import pytest

import regatta as rg
from regatta import jit, nn
from regatta.nn import functional as F
from regatta.static import InputSpec


@pytest.fixture(autouse=True)
def fresh():
    rg.seed(3)
    yield


class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.wide, self.out = nn.Linear(4, 8), nn.Linear(8, 2)
        self.norm, self.drop = nn.BatchNorm1D(8), nn.Dropout(0.5)

    def forward(self, x):
        return self.out(self.drop(self.norm(F.relu(self.wide(x)))))


def rows(n, width=4):
    return rg.to_tensor(np.random.RandomState(n).rand(n, width).astype("float32"))


SPEC = [InputSpec([None, 4], "float32", "x")]


def expected(net, x):
    net.eval()
    return net(x).numpy()


# --- calls ---------------------------------------------------------------------------------------


def test_a_program_runs_where_no_gradients_are_wanted():
    net = Net()
    before = expected(net, rows(3))
    jit.to_static(net, input_spec=SPEC)
    with rg.no_grad():
        np.testing.assert_allclose(net(rows(3)).numpy(), before, rtol=1e-6)
        np.testing.assert_allclose(net(rows(5)).numpy(), expected(net, rows(5)), rtol=1e-6)
    assert len(net.forward._traces) == 1
    text = str(net.forward.main_program)
    assert "data x: f32[-1, 4]" in text and net.wide.weight.name in text


def test_training_runs_as_written():
    net = jit.to_static(Net())
    optimizer = rg.optimizer.SGD(0.5, parameters=net.parameters())
    x = rows(6)
    with rg.no_grad():
        net.eval()
        first = net(x).numpy()
    net.train()
    for _ in range(3):
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
    net.eval()
    assert not net(x).stop_gradient
    with rg.no_grad():  # the program has the values of now
        after = net(x)
    np.testing.assert_allclose(after.numpy(), net(x).numpy(), rtol=1e-5)
    assert np.abs(after.numpy() - first).max() > 1e-3


def test_decorated_functions_and_methods():
    @jit.to_static
    def both(x, scale=2.0):
        return {"twice": x * scale, "sum": [x.sum(), "text"]}

    class Twice(nn.Layer):
        @jit.to_static(input_spec=[InputSpec([None, 3], "float32")])
        def forward(self, x):
            return x + x

    x = rows(2, 3)
    with rg.no_grad():
        found = both(x, scale=3.0)
        np.testing.assert_allclose(found["twice"].numpy(), x.numpy() * 3)
        assert found["sum"][1] == "text" and found["sum"][0].size == 1
        layers = [Twice(), Twice()]
        for layer in layers:
            layer.eval()
            np.testing.assert_allclose(layer(x).numpy(), x.numpy() * 2)
        assert layers[0].forward is layers[0].forward is not layers[1].forward
        with pytest.raises(ValueError, match=r"shape \[2, 4\].*-1, 3"):
            layers[0](rows(2))


def test_shapes_without_a_specification():
    net = jit.to_static(Net())
    net.eval()
    with rg.no_grad():
        for n in (2, 3, 2):
            np.testing.assert_allclose(net(rows(n)).numpy(), expected(net, rows(n)), rtol=1e-6)
        assert net(rows(2).numpy()).shape == [2, 2]
    assert len(net.forward._traces) == 2


def test_tensors_that_are_read_only_while_tracing():
    class Scaled(nn.Layer):
        def __init__(self):
            super().__init__()
            self.v = self.create_parameter([3])
            self.mask = rg.to_tensor([1.0, 0.0, 1.0])

        def forward(self, x):
            w = self.v * 2.0  # of tensors alone: computed while tracing
            return x * w * self.mask

    net = jit.to_static(Scaled())
    net.eval()
    x = rows(2, 3)
    with rg.no_grad():
        for _ in range(2):
            found = net(x).numpy()
            np.testing.assert_allclose(
                found, x.numpy() * 2 * net.v.numpy() * net.mask.numpy(), rtol=1e-6)
            net.v.set_value(np.array([1.0, 2.0, 3.0], "float32"))


def test_switches():
    calls = []

    @jit.to_static
    def f(x):
        calls.append(type(x).__name__)
        return x * 2

    with rg.no_grad():
        f(rows(2))
        jit.enable_to_static(False)
        try:
            f(rows(2))
        finally:
            jit.enable_to_static(True)
        f(rows(2))
    assert calls == ["Variable", "Tensor"]
    assert jit.not_to_static(f) is f and jit.not_to_static()(f) is f
    jit.ignore_module([os])
    net = Net()
    forward = net.forward
    jit.to_static(net)
    assert net.forward.rollback() == forward and not isinstance(net.forward, jit.StaticFunction)


def test_copies_have_their_own_parameters():
    net = jit.to_static(Net(), input_spec=SPEC)
    twin = copy.deepcopy(net)
    twin.wide.weight.set_value(np.zeros([4, 8], "float32"))
    net.eval(), twin.eval()
    with rg.no_grad():
        assert np.abs(net(rows(3)).numpy() - twin(rows(3)).numpy()).max() > 1e-3
        np.testing.assert_allclose(twin(rows(3)).numpy(), expected(twin, rows(3)), rtol=1e-6)


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [
    lambda x: bool(x.sum() > 0), lambda x: float(x.sum()), lambda x: int(x.sum()),
    lambda x: x.numpy(), lambda x: x.sum().item(), lambda x: x.tolist(), lambda x: np.asarray(x),
    lambda x: x[x.sum().astype("int64").__index__()],
], ids=["bool", "float", "int", "numpy", "item", "tolist", "asarray", "index"])
def test_values_are_not_known_while_tracing(read):
    @jit.to_static(input_spec=[InputSpec([None, 2])])
    def f(x):
        read(x)
        return x

    with rg.no_grad(), pytest.raises(TypeError, match=r"(?s)at .*test_jit.py:\d+.*traced"):
        f(rows(2, 2))


def test_an_if_is_refused_with_its_line(tmp_path):
    class Branch(nn.Layer):
        def forward(self, x):
            if x.sum() > 0:
                return x
            return -x

    line = Branch.forward.__code__.co_firstlineno + 1
    with pytest.raises(TypeError, match=f"test_jit.py:{line}"):
        jit.save(Branch(), str(tmp_path / "b"), input_spec=[InputSpec([None, 2])])


def test_names_that_two_parameters_have(tmp_path):
    class Twins(nn.Layer):
        def __init__(self):
            super().__init__()
            with rg.unique_name.guard():
                self.a = nn.Linear(2, 2)
            with rg.unique_name.guard():
                self.b = nn.Linear(2, 2)

        def forward(self, x):
            return self.a(x) + self.b(x)

    net = Twins()
    assert net.a.weight.name == net.b.weight.name
    with pytest.raises(ValueError, match="two parameters or buffers are called 'linear_0"):
        jit.save(net, str(tmp_path / "t"), input_spec=[InputSpec([None, 2])])


# --- files ---------------------------------------------------------------------------------------


def test_a_saved_network_answers_everywhere(tmp_path):
    net, path = Net(), str(tmp_path / "deep" / "net")
    for _ in range(3):
        net(rows(16))  # moves the statistics of the batch norm
    modes = [part.training for part in net.sublayers(include_self=True)]
    jit.save(net, path, input_spec=SPEC)
    assert [part.training for part in net.sublayers(include_self=True)] == modes
    assert os.path.isfile(path + ".pdmodel") and os.path.isfile(path + ".pdiparams")
    x = rows(3)
    answer = expected(net, x)
    loaded = jit.load(path)
    np.testing.assert_allclose(loaded(x).numpy(), answer, rtol=1e-5)
    np.testing.assert_allclose(loaded(x.numpy()).numpy(), answer, rtol=1e-5)
    model = rg.Model.open(path)
    assert [each.name for each in model.inputs] == ["x"]
    np.testing.assert_allclose(
        model.predict({"x": x.numpy()}, return_list=True)[0], answer, rtol=1e-5)
    exe = rg.static.Executor()
    program, feeds, fetches = rg.static.load_inference_model(path, exe)
    (found,) = exe.run(program, feed={feeds[0]: x.numpy()}, fetch_list=fetches)
    np.testing.assert_allclose(found, answer, rtol=1e-5)


def test_a_loaded_network_learns_and_is_saved_again(tmp_path):
    net, x = Net(), rows(8)
    jit.save(net, str(tmp_path / "a"), input_spec=SPEC)
    loaded = jit.load(str(tmp_path / "a"))
    names = {p.name for p in loaded.parameters()}
    assert names == {p.name for p in net.parameters()}
    optimizer = rg.optimizer.SGD(0.3, parameters=loaded.parameters())
    loaded.train()
    losses = []
    for _ in range(10):
        loss = loaded(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    assert losses[-1] < losses[0] * 0.5
    loaded.eval()
    jit.save(loaded, str(tmp_path / "b"))
    np.testing.assert_allclose(
        jit.load(str(tmp_path / "b"))(x).numpy(), loaded(x).numpy(), rtol=1e-5)


def test_several_inputs_outputs_and_functions(tmp_path):
    class Pair(nn.Layer):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(10, 3)

        def forward(self, ids, dense, unused=None):
            rows = self.table(ids)
            return rows.sum(axis=1) + dense, dense * 2

    net, path = Pair(), str(tmp_path / "p")
    ids = rg.to_tensor(np.array([[1, 2], [3, 9]]))
    dense = rows(2, 3)
    jit.save(net, path, input_spec=[InputSpec([None, 2], "int64"), InputSpec([None, 3])])
    loaded = jit.load(path)
    for found, wanted in zip(loaded(ids, dense), net(ids, dense)):
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-6)
    assert [each.name for each in rg.Model.open(path).inputs] == ["ids", "dense"]
    with pytest.raises(TypeError, match="takes 2 inputs"):
        loaded(ids)
    with pytest.warns(UserWarning, match="no output depends on dense"):
        jit.save(lambda ids, dense: ids * 2, str(tmp_path / "u"), input_spec=[
            InputSpec([None, 2], "int64"), InputSpec([None, 3])])
    assert jit.load(str(tmp_path / "u"))(ids).tolist() == [[2, 4], [6, 18]]
    jit.save(lambda x: x * 3, str(tmp_path / "f"), input_spec=[rows(2)])
    np.testing.assert_allclose(
        jit.load(str(tmp_path / "f"))(rows(2)).numpy(), rows(2).numpy() * 3, rtol=1e-6)


def test_loaded_networks_are_parts_of_others(tmp_path):
    jit.save(Net(), str(tmp_path / "inner"), input_spec=SPEC)

    class Outer(nn.Layer):
        def __init__(self):
            super().__init__()
            self.inner = jit.load(str(tmp_path / "inner"))

        def forward(self, x):
            return self.inner(x) * 2.0

    net, x = Outer(), rows(3)
    jit.save(net, str(tmp_path / "outer"), input_spec=SPEC)
    np.testing.assert_allclose(
        jit.load(str(tmp_path / "outer"))(x).numpy(), expected(net, x), rtol=1e-5)
    twin = copy.deepcopy(net)
    for parameter in twin.parameters():
        parameter.set_value(np.zeros(parameter.shape, "float32"))
    assert not expected(twin, x).any() and expected(net, x).any()


def test_the_specification_may_come_from_elsewhere(tmp_path):
    with pytest.raises(ValueError, match="needs input_spec"):
        jit.save(Net(), str(tmp_path / "n"))
    net = jit.to_static(Net())
    net.eval()
    with rg.no_grad():
        net(rows(3))
    jit.save(net, str(tmp_path / "n"))
    np.testing.assert_allclose(
        jit.load(str(tmp_path / "n"))(rows(3)).numpy(), expected(net, rows(3)), rtol=1e-5)
    jit.save(jit.to_static(Net(), SPEC), str(tmp_path / "m"))
    with pytest.raises(FileNotFoundError, match="model.program"):
        jit.load(str(tmp_path / "nowhere"))


def regatta(*arguments):
    command = [sys.executable, "-m", "regatta", *arguments]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


@pytest.fixture
def lenet(tmp_path):
    net = rg.vision.models.LeNet()
    path = str(tmp_path / "lenet")
    jit.save(net, path, input_spec=[InputSpec([None, 1, 28, 28], "float32", "image")])
    x = np.random.RandomState(0).rand(2, 1, 28, 28).astype("float32")
    return path, x, expected(net, rg.to_tensor(x))


def test_images(lenet):
    path, x, answer = lenet
    np.testing.assert_allclose(jit.load(path)(x).numpy(), answer, rtol=1e-4, atol=1e-6)
    model = rg.Model.open(path)
    assert model.inputs[0].shape == (-1, 1, 28, 28)
    for given in (x, x.reshape(2, 784)):
        found = model.predict({"image": given}, return_list=True)[0]
        np.testing.assert_allclose(found, answer, rtol=1e-4, atol=1e-6)


def test_a_saved_network_is_served(lenet):
    path, x, answer = lenet
    server = regatta("serve", "-m", path, "--listen", "127.0.0.1:0", "--threads", "1")
    try:
        address = re.search(r"http://\S+", server.stderr.readline()).group()
        body = {"instances": [{"image": row.ravel().tolist()} for row in x]}
        request = urllib.request.Request(
            address + "/predict", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            found = json.load(reply)
    finally:
        server.terminate()
        server.communicate()
    scores = [next(iter(each.values())) for each in found["predictions"]]
    np.testing.assert_allclose(scores, answer, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("form, file", [("onnx", "model.onnx"),
                                        ("safetensors", "weights.safetensors")])
def test_a_saved_network_is_exported(lenet, tmp_path, form, file):
    path, _, _ = lenet
    to = str(tmp_path / form)
    process = regatta("export", path, "--to", to, "--format", form)
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    if form == "onnx":
        assert "input image: float[batch, 1, 28, 28]" in out
        with open(os.path.join(to, file), "rb") as onnx:
            data = onnx.read()
        assert data.count(b"Conv") >= 2 and data.count(b"MaxPool") >= 2
    else:
        weights = rg.load(os.path.join(to, file), return_numpy=True)
        assert sum(v.size for v in weights.values()) == 61_610
    process = regatta("export", path, "--to", str(tmp_path / "again"))
    assert process.wait() != 0 and "name another --format" in process.communicate()[1]
