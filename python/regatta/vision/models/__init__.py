"""Networks for images. Parameters have Paddle's names, so state dictionaries exchange."""
from __future__ import annotations

from ..._missing import missing
from .lenet import LeNet
from .resnet import (
    BasicBlock, BottleneckBlock, ResNet, resnet18, resnet34, resnet50, resnet101, resnet152,
)
from .vgg import VGG, vgg11, vgg13, vgg16, vgg19

__all__ = [
    "BasicBlock", "BottleneckBlock", "LeNet", "ResNet", "VGG", "resnet101", "resnet152",
    "resnet18", "resnet34", "resnet50", "vgg11", "vgg13", "vgg16", "vgg19",
]

__getattr__ = missing(__name__)
