"""Layers that do not exist here. Scripts often import more than they use, so the names can be
imported; making such a layer is an error that says what is missing."""
from __future__ import annotations

from typing import Any, Dict

from .layers import Layer

_VOLUMES = "convolutions and pooling of volumes are not in the op set"

ABSENT: Dict[str, str] = {
    **dict.fromkeys(
        ("Conv3D", "Conv3DTranspose", "MaxPool3D", "AvgPool3D", "AdaptiveAvgPool3D",
         "AdaptiveMaxPool3D"),
        _VOLUMES,
    ),
    "CTCLoss": "the loss of connectionist temporal classification is not in the op set",
    "SpectralNorm": "spectral normalization is not here; use WeightNorm or clip",
}

_made: Dict[str, type] = {}


def placeholder(name: str) -> type:
    """A class of that name that cannot be made."""
    if name not in _made:
        reason = ABSENT[name]

        def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
            raise NotImplementedError(f"nn.{name}: {reason}")

        body = {"__init__": refuse, "__doc__": f"Not here: {reason}.", "__module__": __name__}
        _made[name] = type(name, (Layer,), body)
    return _made[name]
