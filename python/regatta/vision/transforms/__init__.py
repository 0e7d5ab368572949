"""Transforms of images, to be composed: arrays of height, width and channels.

>>> import numpy as np
>>> image = np.full((4, 6, 3), 255, "uint8")
>>> Compose([Resize((2, 2)), Transpose(), Normalize(127.5, 127.5)])(image).shape
(3, 2, 2)
"""
from __future__ import annotations

from ..._missing import missing
from . import functional
from .functional import (
    center_crop, crop, hflip, normalize, pad, resize, to_grayscale, to_tensor, vflip,
)
from .transforms import (
    BaseTransform, CenterCrop, Compose, Grayscale, Normalize, Pad, RandomCrop,
    RandomHorizontalFlip, RandomResizedCrop, RandomVerticalFlip, Resize, ToTensor, Transpose,
)

__all__ = [
    "BaseTransform", "CenterCrop", "Compose", "Grayscale", "Normalize", "Pad", "RandomCrop",
    "RandomHorizontalFlip", "RandomResizedCrop", "RandomVerticalFlip", "Resize", "ToTensor",
    "Transpose", "center_crop", "crop", "functional", "hflip", "normalize", "pad", "resize",
    "to_grayscale", "to_tensor", "vflip",
]

__getattr__ = missing(__name__)
