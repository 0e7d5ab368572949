"""Sets of images from local files, and one that is generated. Nothing is downloaded."""
from __future__ import annotations

from ..._missing import missing
from .cifar import Cifar10, Cifar100
from .generated import GeneratedDigits
from .mnist import MNIST, FashionMNIST

__all__ = ["Cifar10", "Cifar100", "FashionMNIST", "GeneratedDigits", "MNIST"]

__getattr__ = missing(__name__)
