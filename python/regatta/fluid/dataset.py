"""``fluid.DatasetFactory``: datasets by name."""
from __future__ import annotations

from typing import Any

from .._missing import missing

__all__ = ["DatasetFactory", "InMemoryDataset", "QueueDataset"]


class DatasetFactory:
    """Makes datasets: ``DatasetFactory().create_dataset("InMemoryDataset")``."""

    def create_dataset(self, datafeed_class: str = "QueueDataset") -> Any:
        """A dataset of a kind: ``QueueDataset`` reads while training, ``InMemoryDataset`` loads
        first."""
        if datafeed_class not in ("QueueDataset", "InMemoryDataset"):
            raise ValueError(
                f"create_dataset: '{datafeed_class}' is not a kind of dataset (known: QueueDataset, "
                "InMemoryDataset)"
            )
        from ..distributed import fleet

        return getattr(fleet, datafeed_class)()


def __getattr__(name: str) -> Any:
    if name in ("InMemoryDataset", "QueueDataset"):
        from ..distributed import fleet

        return getattr(fleet, name)
    return missing(__name__)(name)
