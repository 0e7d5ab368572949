"""Models, transforms and datasets of images."""
import gzip
import io as bytes_io
import pickle
import random
import tarfile

import numpy as np
import pytest

import regatta as rg
from regatta.vision import datasets, models, transforms

F = transforms.functional

# --- transforms ----------------------------------------------------------------------------------

IMAGE = np.arange(4 * 6 * 3, dtype="uint8").reshape(4, 6, 3)


def test_bilinear_keeps_a_slope():
    ramp = np.tile(np.arange(8, dtype="float32"), (4, 1))
    small = F.resize(ramp, (2, 4))
    np.testing.assert_allclose(small, np.tile([0.5, 2.5, 4.5, 6.5], (2, 1)))
    large = F.resize(ramp, (4, 16))
    np.testing.assert_allclose(large[0, 1:-1], np.arange(1, 15) / 2 - 0.25)
    assert F.resize(IMAGE, (8, 12)).dtype == np.uint8


def test_sizes():
    assert F.resize(IMAGE, 2).shape == (2, 3, 3)  # the shorter side
    np.testing.assert_array_equal(F.resize(IMAGE, (2, 3), "nearest"), IMAGE[::2, ::2])
    with pytest.raises(NotImplementedError, match="bicubic"):
        F.resize(IMAGE, 2, "bicubic")
    assert transforms.CenterCrop(2)(IMAGE).tolist() == IMAGE[1:3, 2:4].tolist()
    assert transforms.Pad((1, 2))(IMAGE).shape == (8, 8, 3)
    with pytest.raises(ValueError, match="does not fit"):
        F.crop(IMAGE, 3, 0, 2, 2)


def test_flips_are_drawn():
    np.testing.assert_array_equal(transforms.RandomHorizontalFlip(1.0)(IMAGE), IMAGE[:, ::-1])
    np.testing.assert_array_equal(transforms.RandomVerticalFlip(1.0)(IMAGE), IMAGE[::-1])
    random.seed(1)
    flip = transforms.RandomHorizontalFlip()
    flipped = sum(not np.array_equal(flip(IMAGE), IMAGE) for _ in range(200))
    assert 70 < flipped < 130


def test_random_crops_stay_inside():
    crop = transforms.RandomCrop(3, padding=1)
    shapes = {crop(IMAGE).shape for _ in range(20)}
    assert shapes == {(3, 3, 3)}
    assert {transforms.RandomResizedCrop(5)(IMAGE).shape for _ in range(20)} == {(5, 5, 3)}


def test_values():
    chain = transforms.Compose([
        transforms.Transpose(), transforms.Normalize([10, 20, 30], [2, 2, 2])])
    np.testing.assert_allclose(
        chain(IMAGE), (IMAGE.transpose(2, 0, 1) - np.reshape([10, 20, 30], (3, 1, 1))) / 2.0)
    # Paddle's first tutorial: a gray image gets its channel by the shape of the mean.
    gray = transforms.Normalize(mean=[127.5], std=[127.5], data_format="CHW")(IMAGE[:, :, 0])
    assert gray.shape == (1, 4, 6) and gray.dtype == np.float32
    bright = F.to_grayscale(IMAGE)
    assert bright.shape == (4, 6, 1)
    np.testing.assert_array_equal(bright[..., 0], np.rint(IMAGE @ [0.299, 0.587, 0.114]))


def test_an_error_names_the_transform():
    with pytest.raises(ValueError, match=r"in the transform CenterCrop, on .* \[4, 6, 3\]"):
        transforms.Compose([transforms.CenterCrop(9)])(IMAGE)


def test_tensors_have_channels_first():
    tensor = transforms.ToTensor()(IMAGE)
    assert tensor.shape == [3, 4, 6] and str(tensor.dtype) == "float32"
    np.testing.assert_allclose(tensor.numpy(), IMAGE.transpose(2, 0, 1) / 255.0, rtol=1e-6)
    assert transforms.ToTensor()(IMAGE[:, :, 0]).shape == [1, 4, 6]
    assert F.resize(tensor, (2, 3)).shape == [3, 2, 3]
    np.testing.assert_array_equal(F.hflip(tensor).numpy(), tensor.numpy()[:, :, ::-1])
    assert F.normalize(tensor, 0.5, 0.5).shape == [3, 4, 6]


def test_fields_of_tuples():
    class Both(transforms.BaseTransform):
        def _apply_image(self, image):
            return image + 1

    assert Both()((1, 5)) == (2, 5)
    assert Both(keys=("image", "image"))((1, 5)) == (2, 6)


# --- datasets ------------------------------------------------------------------------------------


def idx(array, code=8):
    head = bytes([0, 0, code, array.ndim])
    return head + b"".join(d.to_bytes(4, "big") for d in array.shape) + array.tobytes()


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_from_local_files(tmp_path, packed):
    images = np.arange(3 * 28 * 28, dtype="uint32").astype("uint8").reshape(3, 28, 28)
    labels = np.array([7, 0, 9], "uint8")
    pack = gzip.compress if packed else bytes
    (tmp_path / "images").write_bytes(pack(idx(images)))
    (tmp_path / "labels").write_bytes(pack(idx(labels)))
    data = datasets.MNIST(str(tmp_path / "images"), str(tmp_path / "labels"))
    assert len(data) == 3
    image, label = data[2]
    np.testing.assert_array_equal(image, images[2].astype("float32"))
    assert image.dtype == np.float32 and label.dtype == np.int64 and label.tolist() == [9]
    assert data[-1][1].tolist() == [9]
    seen = []
    datasets.FashionMNIST(
        str(tmp_path / "images"), str(tmp_path / "labels"), transform=seen.append)[0]
    assert seen[0].dtype == np.uint8


def test_files_that_are_missing_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("REGATTA_DATA", str(tmp_path))
    monkeypatch.setattr("regatta.dataset.common.DATA_HOME", str(tmp_path / "home"))
    with pytest.raises(FileNotFoundError, match="t10k-images-idx3-ubyte.gz.*image_path"):
        datasets.MNIST(mode="test")
    with pytest.raises(FileNotFoundError, match="cifar-10-python.tar.gz.*data_file"):
        datasets.Cifar10()
    with pytest.raises(ValueError, match="'train' or 'test'"):
        datasets.MNIST(mode="valid")
    (tmp_path / "mnist").mkdir()
    for name, array in (("images-idx3", np.zeros((1, 28, 28), "uint8")),
                        ("labels-idx1", np.zeros(1, "uint8"))):
        (tmp_path / "mnist" / f"train-{name}-ubyte").write_bytes(idx(array))
    assert len(datasets.MNIST()) == 1
    (tmp_path / "mnist" / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(2, "uint8"))[:-1])
    with pytest.raises(ValueError, match="damaged"):
        datasets.MNIST()


def test_cifar_from_its_archive(tmp_path):
    path = tmp_path / "cifar.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for at, name in enumerate(["data_batch_1", "data_batch_2", "test_batch"]):
            batch = {b"data": np.full((2, 3072), at, "uint8"), b"labels": [at, at + 1]}
            data = pickle.dumps(batch, protocol=2)
            about = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            about.size = len(data)
            archive.addfile(about, bytes_io.BytesIO(data))
    data = datasets.Cifar10(str(path))
    assert len(data) == 4 and [int(data[i][1]) for i in range(4)] == [0, 1, 1, 2]
    assert data[3][0].shape == (32, 32, 3) and (data[3][0] == 1).all()
    assert len(datasets.Cifar10(str(path), mode="test")) == 2


def test_generated_digits_are_the_same_every_time():
    first, second = datasets.GeneratedDigits(20), datasets.GeneratedDigits(20)
    for i in range(20):
        np.testing.assert_array_equal(first[i][0], second[i][0])
    assert first[-1][1] == first[19][1]
    test = datasets.GeneratedDigits(20, mode="test")
    assert any((first[i][0] != test[i][0]).any() for i in range(20))
    images = np.stack([first[i][0] for i in range(20)])
    assert images.min() >= -1 and images.max() <= 1 and images.std() > 0.2
    with pytest.raises(IndexError):
        first[20]


# --- models --------------------------------------------------------------------------------------


def shapes(net):
    return {name: list(value.shape) for name, value in net.state_dict().items()}


def test_names_are_those_of_paddle():
    assert shapes(models.LeNet()) == {
        "features.0.weight": [6, 1, 3, 3], "features.0.bias": [6],
        "features.3.weight": [16, 6, 5, 5], "features.3.bias": [16],
        "fc.0.weight": [400, 120], "fc.0.bias": [120], "fc.1.weight": [120, 84],
        "fc.1.bias": [84], "fc.2.weight": [84, 10], "fc.2.bias": [10]}
    found = shapes(models.resnet18())
    # Lengths and the number of elements of PaddlePaddle 2.6.2.
    assert len(found) == 102 and sum(int(np.prod(s)) for s in found.values()) == 11_699_112
    assert found["layer2.0.downsample.0.weight"] == [128, 64, 1, 1]
    assert found["layer4.1.bn2._variance"] == [512] and found["fc.weight"] == [512, 1000]


def test_summaries():
    lenet = models.LeNet()
    assert rg.summary(lenet, (1, 1, 28, 28))["total_params"] == 61_610
    made = rg.Model(lenet, rg.static.InputSpec([None, 1, 28, 28]))
    assert made.summary()["total_params"] == 61_610 and lenet.training


def test_bottlenecks():
    block = models.BottleneckBlock(8, 4, stride=2, downsample=rg.nn.Sequential(
        rg.nn.Conv2D(8, 16, 1, stride=2, bias_attr=False), rg.nn.BatchNorm2D(16)))
    assert [n for n in shapes(block) if "conv" in n] == [
        "conv1.weight", "conv2.weight", "conv3.weight"]
    assert block(rg.ones([2, 8, 6, 6])).shape == [2, 16, 3, 3]


def test_a_small_resnet_learns():
    rg.seed(1)
    net = models.resnet18(num_classes=3)
    x = rg.to_tensor(np.random.RandomState(0).rand(6, 3, 32, 32).astype("float32"))
    y = rg.to_tensor(np.array([0, 1, 2, 0, 1, 2]))
    optimizer = rg.optimizer.Adam(1e-3, parameters=net.parameters())
    losses = []
    for _ in range(4):
        loss = rg.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    assert losses[-1] < losses[0] * 0.6
    assert net(x).shape == [6, 3]


def test_no_weights_from_elsewhere():
    with pytest.raises(NotImplementedError, match="nothing is downloaded"):
        models.resnet18(pretrained=True)


def test_lenet_learns_digits():
    rg.seed(0)
    np.random.seed(0)
    net = models.LeNet()
    optimizer = rg.optimizer.Adam(2e-3, parameters=net.parameters())
    loader = rg.io.DataLoader(datasets.GeneratedDigits(3000), batch_size=32, shuffle=True)
    for _ in range(3):
        for image, label in loader:
            loss = rg.nn.functional.cross_entropy(net(image), label)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
    net.eval()
    accuracy = rg.metric.Accuracy()
    with rg.no_grad():
        for image, label in rg.io.DataLoader(
                datasets.GeneratedDigits(1000, mode="test"), batch_size=250):
            accuracy.update(accuracy.compute(net(image), label))
    assert accuracy.accumulate() >= 0.97
