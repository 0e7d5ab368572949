"""Images: models, transforms of arrays, and datasets from local files."""
from __future__ import annotations

from . import datasets, models, transforms
from .._missing import missing
from .models import LeNet, resnet18, resnet34, resnet50

__all__ = [
    "LeNet", "datasets", "get_image_backend", "models", "resnet18", "resnet34", "resnet50",
    "set_image_backend", "transforms",
]


def get_image_backend() -> str:
    """``"cv2"``: images are arrays of height, width and channels."""
    return "cv2"


def set_image_backend(backend: str) -> None:
    """Accepts ``"cv2"``: images are arrays, and PIL is not needed."""
    if backend != "cv2":
        raise ValueError(f"set_image_backend: images are arrays ('cv2'), not of '{backend}'")


__getattr__ = missing(__name__)
