"""ResNet (He et al., Deep residual learning for image recognition, 2015)."""
from __future__ import annotations

from typing import Any, Callable, List, Optional, Type, Union

from ... import nn
from .pretrained import refuse

_BLOCKS = {
    18: [2, 2, 2, 2], 34: [3, 4, 6, 3], 50: [3, 4, 6, 3], 101: [3, 4, 23, 3], 152: [3, 8, 36, 3],
}


def _conv(inputs: int, outputs: int, size: int, stride: int = 1, **more: Any) -> nn.Layer:
    return nn.Conv2D(inputs, outputs, size, stride=stride, bias_attr=False, **more)


class BasicBlock(nn.Layer):
    """Two convolutions of 3 x 3 beside a shortcut."""

    expansion = 1

    def __init__(
        self, inplanes: int, planes: int, stride: int = 1,
        downsample: Optional[nn.Layer] = None, groups: int = 1, base_width: int = 64,
        dilation: int = 1, norm_layer: Optional[Callable[[int], nn.Layer]] = None,
    ) -> None:
        super().__init__()
        if groups != 1 or base_width != 64 or dilation != 1:
            raise NotImplementedError("BasicBlock has neither groups nor a width nor dilation")
        norm = norm_layer or nn.BatchNorm2D
        self.conv1 = _conv(inplanes, planes, 3, stride, padding=1)
        self.bn1 = norm(planes)
        self.relu = nn.ReLU()
        self.conv2 = _conv(planes, planes, 3, padding=1)
        self.bn2 = norm(planes)
        self.downsample, self.stride = downsample, stride

    def forward(self, x: Any) -> Any:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.relu(out + shortcut)


class BottleneckBlock(nn.Layer):
    """Convolutions of 1 x 1, 3 x 3 and 1 x 1 beside a shortcut. The 3 x 3 one has the stride."""

    expansion = 4

    def __init__(
        self, inplanes: int, planes: int, stride: int = 1,
        downsample: Optional[nn.Layer] = None, groups: int = 1, base_width: int = 64,
        dilation: int = 1, norm_layer: Optional[Callable[[int], nn.Layer]] = None,
    ) -> None:
        super().__init__()
        norm = norm_layer or nn.BatchNorm2D
        width = int(planes * base_width / 64) * groups
        self.conv1 = _conv(inplanes, width, 1)
        self.bn1 = norm(width)
        self.conv2 = _conv(
            width, width, 3, stride, padding=dilation, groups=groups, dilation=dilation)
        self.bn2 = norm(width)
        self.conv3 = _conv(width, planes * self.expansion, 1)
        self.bn3 = norm(planes * self.expansion)
        self.relu = nn.ReLU()
        self.downsample, self.stride = downsample, stride

    def forward(self, x: Any) -> Any:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.relu(out + shortcut)


Block = Union[Type[BasicBlock], Type[BottleneckBlock]]


class ResNet(nn.Layer):
    """For images ``[batch, 3, height, width]``. With ``num_classes=0`` only the features, without
    ``with_pool`` not averaged."""

    def __init__(
        self, block: Block, depth: int = 50, width: int = 64, num_classes: int = 1000,
        with_pool: bool = True, groups: int = 1,
    ) -> None:
        super().__init__()
        if depth not in _BLOCKS:
            raise ValueError(f"ResNet: depth should be one of {sorted(_BLOCKS)}, but is {depth}")
        self.num_classes, self.with_pool = num_classes, with_pool
        self.groups, self.base_width, self.inplanes, self.dilation = groups, width, 64, 1
        counts = _BLOCKS[depth]
        self.conv1 = _conv(3, 64, 7, 2, padding=3)
        self.bn1 = nn.BatchNorm2D(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2D(kernel_size=3, stride=2, padding=1)
        self.layer1 = self._make_layer(block, 64, counts[0])
        self.layer2 = self._make_layer(block, 128, counts[1], stride=2)
        self.layer3 = self._make_layer(block, 256, counts[2], stride=2)
        self.layer4 = self._make_layer(block, 512, counts[3], stride=2)
        if with_pool:
            self.avgpool = nn.AdaptiveAvgPool2D((1, 1))
        if num_classes > 0:
            self.fc = nn.Linear(512 * block.expansion, num_classes)

    def _make_layer(self, block: Block, planes: int, count: int, stride: int = 1) -> nn.Layer:
        downsample, outputs = None, planes * block.expansion
        if stride != 1 or self.inplanes != outputs:
            downsample = nn.Sequential(
                _conv(self.inplanes, outputs, 1, stride), nn.BatchNorm2D(outputs))
        more: Any = {"groups": self.groups, "base_width": self.base_width}
        layers: List[nn.Layer] = [block(self.inplanes, planes, stride, downsample, **more)]
        self.inplanes = outputs
        layers += [block(outputs, planes, **more) for _ in range(1, count)]
        return nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        if self.with_pool:
            x = self.avgpool(x)
        if self.num_classes > 0:
            from ...tensor import flatten

            x = self.fc(flatten(x, 1))
        return x


def resnet18(pretrained: bool = False, **kwargs: Any) -> ResNet:
    """18 layers."""
    refuse(pretrained, "resnet18")
    return ResNet(BasicBlock, 18, **kwargs)


def resnet34(pretrained: bool = False, **kwargs: Any) -> ResNet:
    """34 layers."""
    refuse(pretrained, "resnet34")
    return ResNet(BasicBlock, 34, **kwargs)


def resnet50(pretrained: bool = False, **kwargs: Any) -> ResNet:
    """50 layers."""
    refuse(pretrained, "resnet50")
    return ResNet(BottleneckBlock, 50, **kwargs)


def resnet101(pretrained: bool = False, **kwargs: Any) -> ResNet:
    """101 layers."""
    refuse(pretrained, "resnet101")
    return ResNet(BottleneckBlock, 101, **kwargs)


def resnet152(pretrained: bool = False, **kwargs: Any) -> ResNet:
    """152 layers."""
    refuse(pretrained, "resnet152")
    return ResNet(BottleneckBlock, 152, **kwargs)
