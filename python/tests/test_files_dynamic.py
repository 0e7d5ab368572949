"""State dictionaries, tensors and safetensors on disk; exchange with PaddlePaddle."""
import io
import os
import pickle

import numpy as np
import pytest

import regatta as rg
from regatta import _files, nn

DATA = os.path.join(os.path.dirname(__file__), "data")
TABLE = "StructuredToParameterName@@"


@pytest.fixture(autouse=True)
def fresh():
    rg.seed(2)
    with rg.unique_name.guard():
        yield


def trained():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1D(3))
    schedule = rg.optimizer.lr.StepDecay(0.1, 2)
    optimizer = rg.optimizer.Adam(schedule, parameters=net.parameters())
    for _ in range(2):
        net(rg.to_tensor([[1.0, 2.0], [3.0, -1.0]])).square().sum().backward()
        optimizer.step()
        optimizer.clear_grad()
        schedule.step()
    return net, optimizer


def test_state_dictionaries_are_written_as_paddle_does(tmp_path):
    net, optimizer = trained()
    rg.save(net.state_dict(), str(tmp_path / "n.pdparams"))
    with open(tmp_path / "n.pdparams", "rb") as file:
        raw = pickle.load(file)
    # What PaddlePaddle 2.6.2 writes for this network.
    assert raw.pop(TABLE) == {
        "0.weight": "linear_0.w_0", "0.bias": "linear_0.b_0", "1.weight": "batch_norm1d_0.w_0",
        "1.bias": "batch_norm1d_0.b_0", "1._mean": "batch_norm1d_0.w_1",
        "1._variance": "batch_norm1d_0.w_2"}
    assert {k: (type(v), v.dtype.name, v.shape) for k, v in raw.items()} == {
        k: (np.ndarray, "float32", tuple(v.shape)) for k, v in net.state_dict().items()}
    rg.save(optimizer.state_dict(), str(tmp_path / "n.pdopt"))
    with open(tmp_path / "n.pdopt", "rb") as file:
        raw = pickle.load(file)
    assert raw["LR_Scheduler"]["last_epoch"] == 2
    assert raw["linear_0.w_0_moment1_0"].shape == (2, 3)
    assert raw["batch_norm1d_0.b_0_beta2_pow_acc_0"].shape == (1,)
    assert raw[TABLE]["linear_0.w_0_moment1_0"] == "linear_0.w_0_moment1_0"


def test_states_come_back(tmp_path):
    net, optimizer = trained()
    path = str(tmp_path / "n")
    rg.save(net.state_dict(), path + ".pdparams")
    rg.save(optimizer.state_dict(), path + ".pdopt")
    with rg.unique_name.guard():
        other, its = trained()
    for parameter in other.parameters():
        parameter.set_value(np.zeros(parameter.shape, "float32"))
    state = rg.load(path + ".pdparams")
    assert isinstance(state["0.weight"], rg.Tensor) and state["0.weight"].name == "linear_0.w_0"
    other.set_state_dict(state)
    its.set_state_dict(rg.load(path + ".pdopt"))
    for a, b in ((net, optimizer), (other, its)):
        a(rg.to_tensor([[1.0, 2.0], [3.0, -1.0]])).square().sum().backward()
        b.step()
    for a, b in zip(net.parameters(), other.parameters()):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_states_of_paddle_are_read():
    net = nn.Linear(2, 3)
    state = rg.load(os.path.join(DATA, "linear.pdparams"))
    assert net.set_state_dict(state) == ([], [])
    np.testing.assert_array_equal(net.weight.numpy(), state["weight"].numpy())
    assert state["weight"].name == "linear_0.w_0"
    optimizer = rg.optimizer.Adam(0.1, parameters=net.parameters())
    saved = rg.load(os.path.join(DATA, "linear.pdopt"))
    assert saved["linear_0.w_0_moment1_0"].shape == [2, 3]
    optimizer.set_state_dict(saved)
    arrays = rg.load(os.path.join(DATA, "linear.pdparams"), return_numpy=True)
    assert type(arrays["weight"]) is np.ndarray


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_nested_values(tmp_path, protocol):
    net, optimizer = trained()
    value = {"net": net.state_dict(), "opt": optimizer.state_dict(), "epoch": 3,
             "best": [rg.to_tensor([1, 2]), {"half": rg.to_tensor([True, False])}, "text", None]}
    rg.save(value, str(tmp_path / "c"), protocol=protocol)
    with open(tmp_path / "c", "rb") as file:
        raw = pickle.load(file)
    assert raw["net"]["0.weight"][0] == "linear_0.w_0"  # pairs of name and array, as Paddle has
    back = rg.load(str(tmp_path / "c"))
    np.testing.assert_array_equal(back["net"]["0.weight"].numpy(), net[0].weight.numpy())
    assert back["net"]["0.weight"].name == "linear_0.w_0" and back["epoch"] == 3
    assert back["opt"]["LR_Scheduler"] == optimizer.state_dict()["LR_Scheduler"]
    assert back["best"][0].tolist() == [1, 2] and str(back["best"][1]["half"].dtype) == "bool"
    assert back["best"][2:] == ["text", None]
    single = str(tmp_path / "t")
    rg.save(net[0].weight, single)
    np.testing.assert_array_equal(rg.load(single).numpy(), net[0].weight.numpy())


@pytest.mark.parametrize("kind", [
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
])
@pytest.mark.parametrize("end", ["pdparams", "safetensors"])
def test_element_types(tmp_path, kind, end):
    tensor = rg.to_tensor([[0.0, 1.0], [2.0, 3.0]]).astype(kind)
    path = str(tmp_path / f"v.{end}")
    rg.save({"w": tensor, "b": tensor[0]}, path)
    back = rg.load(path)["w"]
    assert back.dtype == tensor.dtype and back.shape == [2, 2]
    np.testing.assert_array_equal(
        back.astype("float32").numpy(), tensor.astype("float32").numpy())
    if end == "pdparams" and kind == "bfloat16":
        with open(path, "rb") as file:  # as Paddle writes it
            assert pickle.load(file)["w"].dtype == np.uint16


def test_streams():
    stream = io.BytesIO()
    rg.save({"w": rg.to_tensor([1.0, 2.0])}, stream)
    stream.seek(0)
    assert rg.load(stream)["w"].tolist() == [1.0, 2.0]


def test_large_arrays_are_cut_for_old_protocols(tmp_path, monkeypatch):
    monkeypatch.setattr(_files, "_PART_BYTES", 40)
    values = {"w": rg.to_tensor(np.arange(24, dtype="float32").reshape(4, 6)),
              "b": rg.to_tensor([1.0])}
    rg.save(values, str(tmp_path / "v"), protocol=2)
    with open(tmp_path / "v", "rb") as file:
        raw = pickle.load(file)
    assert raw["UnpackBigParamInfor@@"] == {
        "w": {"OriginShape": (4, 6), "slices": ["w@@.0", "w@@.1", "w@@.2"]}}
    assert [raw[f"w@@.{i}"].size for i in range(3)] == [10, 10, 4] and "w" not in raw
    back = rg.load(str(tmp_path / "v"))
    np.testing.assert_array_equal(back["w"].numpy(), values["w"].numpy())
    assert set(back) == {"w", "b"} and back["w"].name == values["w"].name


def test_safetensors(tmp_path):
    net, _ = trained()
    path = str(tmp_path / "n.safetensors")
    rg.save(net.state_dict(), path)
    with open(path, "rb") as file:
        data = file.read()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0 and data[8:9] == b"{"
    values = rg.load(path, return_numpy=True)
    assert values["0.weight"].dtype == np.float32 and set(values) == set(net.state_dict())
    other = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1D(3))
    assert other.set_state_dict(rg.load(path)) == ([], [])
    np.testing.assert_array_equal(other[1]._mean.numpy(), net[1]._mean.numpy())
    with pytest.raises(TypeError, match="'epoch' is a int"):
        rg.save({"w": np.ones(2), "epoch": 3}, path)
    with pytest.raises(TypeError, match="tensors by name, not a list"):
        rg.save([1], path)
    for broken in (data[:-4], data[:100]):
        with open(path, "wb") as file:
            file.write(broken)
        with pytest.raises((ValueError, pickle.UnpicklingError), match="n.safetensors"):
            rg.load(path)


def test_a_layer_is_not_a_value(tmp_path):
    with pytest.raises(TypeError, match=r"state_dict\(\)"):
        rg.save(nn.Linear(2, 2), str(tmp_path / "x"))
    assert not os.listdir(tmp_path)
