"""What models answer when they are asked for weights from elsewhere."""
from __future__ import annotations


def refuse(pretrained: bool, name: str) -> None:
    """Raises if weights are to be downloaded."""
    if pretrained:
        raise NotImplementedError(
            f"{name}(pretrained=True): nothing is downloaded; make the model and pass the contents "
            "of a .pdparams file to set_state_dict")
