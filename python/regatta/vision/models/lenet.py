"""LeNet (LeCun et al., Gradient-based learning applied to document recognition, 1998)."""
from __future__ import annotations

from typing import Any

from ... import nn


class LeNet(nn.Layer):
    """For images ``[batch, 1, 28, 28]``. With ``num_classes=0`` only the features."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.features = nn.Sequential(
            nn.Conv2D(1, 6, 3, stride=1, padding=1), nn.ReLU(), nn.MaxPool2D(2, 2),
            nn.Conv2D(6, 16, 5, stride=1, padding=0), nn.ReLU(), nn.MaxPool2D(2, 2))
        if num_classes > 0:
            self.fc = nn.Sequential(
                nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, num_classes))

    def forward(self, inputs: Any) -> Any:
        x = self.features(inputs)
        if self.num_classes > 0:
            from ...tensor import flatten

            x = self.fc(flatten(x, 1))
        return x
