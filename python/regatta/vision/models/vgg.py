"""VGG (Simonyan and Zisserman, Very deep convolutional networks, 2014)."""
from __future__ import annotations

from typing import Any, List

from ... import nn
from .pretrained import refuse

# Outputs of convolutions; 0 halves height and width.
_LAYERS = {
    11: [64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0],
    13: [64, 64, 0, 128, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0],
    16: [64, 64, 0, 128, 128, 0, *[256] * 3, 0, *[512] * 3, 0, *[512] * 3, 0],
    19: [64, 64, 0, 128, 128, 0, *[256] * 4, 0, *[512] * 4, 0, *[512] * 4, 0],
}


class VGG(nn.Layer):
    """For images ``[batch, 3, 224, 224]``. With ``num_classes=0`` only the features."""

    def __init__(self, features: nn.Layer, num_classes: int = 1000, with_pool: bool = True) -> None:
        super().__init__()
        self.features, self.num_classes, self.with_pool = features, num_classes, with_pool
        if with_pool:
            self.avgpool = nn.AdaptiveAvgPool2D((7, 7))
        if num_classes > 0:
            self.classifier = nn.Sequential(
                nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Dropout(),
                nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, num_classes))

    def forward(self, x: Any) -> Any:
        x = self.features(x)
        if self.with_pool:
            x = self.avgpool(x)
        if self.num_classes > 0:
            from ...tensor import flatten

            x = self.classifier(flatten(x, 1))
        return x


def _features(depth: int, batch_norm: bool) -> nn.Layer:
    layers: List[nn.Layer] = []
    inputs = 3
    for outputs in _LAYERS[depth]:
        if outputs == 0:
            layers.append(nn.MaxPool2D(kernel_size=2, stride=2))
            continue
        layers.append(nn.Conv2D(inputs, outputs, kernel_size=3, padding=1))
        layers += [nn.BatchNorm2D(outputs), nn.ReLU()] if batch_norm else [nn.ReLU()]
        inputs = outputs
    return nn.Sequential(*layers)


def _vgg(depth: int, pretrained: bool, batch_norm: bool, **kwargs: Any) -> VGG:
    refuse(pretrained, f"vgg{depth}")
    return VGG(_features(depth, batch_norm), **kwargs)


def vgg11(pretrained: bool = False, batch_norm: bool = False, **kwargs: Any) -> VGG:
    """11 layers."""
    return _vgg(11, pretrained, batch_norm, **kwargs)


def vgg13(pretrained: bool = False, batch_norm: bool = False, **kwargs: Any) -> VGG:
    """13 layers."""
    return _vgg(13, pretrained, batch_norm, **kwargs)


def vgg16(pretrained: bool = False, batch_norm: bool = False, **kwargs: Any) -> VGG:
    """16 layers."""
    return _vgg(16, pretrained, batch_norm, **kwargs)


def vgg19(pretrained: bool = False, batch_norm: bool = False, **kwargs: Any) -> VGG:
    """19 layers."""
    return _vgg(19, pretrained, batch_norm, **kwargs)
