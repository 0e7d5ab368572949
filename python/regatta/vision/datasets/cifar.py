"""CIFAR-10 and CIFAR-100 from their archives."""
from __future__ import annotations

import tarfile
from typing import Any, Callable, List, Optional, Tuple

from ..._files import unpickle
from ...io.dataset import Dataset
from .mnist import _check_backend, local_file


class Cifar10(Dataset):
    """Colour images of 32 x 32 bytes, with labels of type int64, from ``data_file``:
    ``cifar-10-python.tar.gz``. ``transform`` gets the image as an array of height, width and
    channels; without it the image is such an array of floats."""

    _FILE = "cifar-10-python.tar.gz"
    _PARTS = {"train": "data_batch", "test": "test_batch"}
    _LABELS = "labels"

    def __init__(
        self, data_file: Optional[str] = None, mode: str = "train",
        transform: Optional[Callable[[Any], Any]] = None, download: bool = True,
        backend: Optional[str] = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        mode = mode.lower()
        if mode not in self._PARTS:
            raise ValueError(f"{name}: mode should be 'train' or 'test', but is {mode!r}")
        _check_backend(name, backend)
        self.mode, self.transform = mode, transform
        self.data_file = local_file(name, "data_file", data_file, "cifar", self._FILE)
        self.images, self.labels = self._read(self._PARTS[mode])

    def _read(self, part: str) -> Tuple[Any, Any]:
        import numpy as np

        images: List[Any] = []
        labels: List[int] = []
        with tarfile.open(self.data_file) as archive:
            for member in sorted(archive.getnames()):
                if not member.rsplit("/", 1)[-1].startswith(part):
                    continue
                file = archive.extractfile(member)
                if file is None:
                    continue
                batch = unpickle(file.read(), f"{self.data_file}:{member}")
                # Keys are texts if Python 2 wrote the file.
                batch = {k.decode() if isinstance(k, bytes) else k: v for k, v in batch.items()}
                images.append(np.asarray(batch["data"]).reshape(-1, 3, 32, 32))
                labels.extend(batch[self._LABELS])
        if not images:
            raise ValueError(f"{self.data_file} holds no file that begins with '{part}'")
        return np.concatenate(images).transpose(0, 2, 3, 1), np.asarray(labels, "int64")

    def __getitem__(self, idx: int) -> Tuple[Any, Any]:
        import numpy as np

        image, label = self.images[idx], np.array(self.labels[idx])
        if self.transform is not None:
            return self.transform(image), label
        return image.astype("float32"), label

    def __len__(self) -> int:
        return len(self.labels)


class Cifar100(Cifar10):
    """As :class:`Cifar10` with 100 classes, from ``cifar-100-python.tar.gz``."""

    _FILE = "cifar-100-python.tar.gz"
    _PARTS = {"train": "train", "test": "test"}
    _LABELS = "fine_labels"
