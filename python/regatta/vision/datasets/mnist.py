"""MNIST and sets in its file format (idx)."""
from __future__ import annotations

import gzip
import os
from typing import Any, Callable, Optional, Tuple

from ...io.dataset import Dataset

_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_idx(path: str) -> Any:
    """The array of an idx file, compressed with gzip or not.

    Raises ValueError if it is not one, or shorter than it says."""
    import numpy as np

    with open(path, "rb") as file:
        data = file.read()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _TYPES:
        raise ValueError(f"{path} is not an idx file: it begins with {data[:4]!r}")
    kind, rank = np.dtype(_TYPES[data[2]]), data[3]
    start = 4 + 4 * rank
    shape = [int.from_bytes(data[at:at + 4], "big") for at in range(4, start, 4)]
    n_elements = 1
    for d in shape:
        n_elements *= d
    if len(data) - start != n_elements * kind.itemsize:
        raise ValueError(
            f"{path} is damaged: {len(data) - start} bytes of values for the shape {shape}")
    return np.frombuffer(data, kind, n_elements, start).reshape(shape)


def local_file(owner: str, argument: str, given: Optional[str], folder: str, name: str) -> str:
    """The path of a file that was given or lies where Paddle keeps data sets."""
    if given is not None:
        if not os.path.isfile(given):
            raise FileNotFoundError(f"{owner}: {argument} ({given}) does not exist")
        return given
    from ...dataset.common import DATA_HOME, find

    for each in (name, name[:-3] if name.endswith(".gz") else name):
        path = find(folder, each)
        if path:
            return path
    raise FileNotFoundError(
        f"{owner} needs the file {name}, and nothing is downloaded: pass its path as {argument}, "
        f"or put it in {os.path.join(DATA_HOME, folder)} or in the folder of the variable "
        "REGATTA_DATA"
    )


class MNIST(Dataset):
    """Images of 28 x 28 bytes with labels ``[1]``, of type int64, from ``image_path`` and
    ``label_path``: idx files, compressed or not. ``transform`` gets the image as an array of bytes;
    without it the image is an array of floats."""

    NAME = "mnist"
    _FILES = {
        "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
        "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
    }

    def __init__(
        self, image_path: Optional[str] = None, label_path: Optional[str] = None,
        mode: str = "train", transform: Optional[Callable[[Any], Any]] = None,
        download: bool = True, backend: Optional[str] = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        mode = mode.lower()
        if mode not in self._FILES:
            raise ValueError(f"{name}: mode should be 'train' or 'test', but is {mode!r}")
        _check_backend(name, backend)
        self.mode, self.transform = mode, transform
        images, labels = self._FILES[mode]
        self.image_path = local_file(name, "image_path", image_path, self.NAME, images)
        self.label_path = local_file(name, "label_path", label_path, self.NAME, labels)
        self.images, self.labels = read_idx(self.image_path), read_idx(self.label_path)
        if self.images.ndim != 3 or self.labels.ndim != 1 or len(self.images) != len(self.labels):
            raise ValueError(
                f"{name}: {self.image_path} has the shape {list(self.images.shape)} and "
                f"{self.label_path} {list(self.labels.shape)}; expected images and their labels")

    def __getitem__(self, idx: int) -> Tuple[Any, Any]:
        image, label = self.images[idx], self.labels[idx:idx + 1] if idx >= 0 else (
            self.labels[len(self) + idx:len(self) + idx + 1])
        if self.transform is not None:
            return self.transform(image), label.astype("int64")
        return image.astype("float32"), label.astype("int64")

    def __len__(self) -> int:
        return len(self.labels)


class FashionMNIST(MNIST):
    """Images of clothes, in files like those of :class:`MNIST`."""

    NAME = "fashion-mnist"


def _check_backend(name: str, backend: Optional[str]) -> None:
    if backend not in (None, "cv2"):
        raise ValueError(f"{name}: images are arrays (backend 'cv2'), not of '{backend}'")
