"""Files that become batches."""
from ...._missing import missing
from .dataset import DatasetBase, DatasetFactory, InMemoryDataset, QueueDataset

__all__ = ["DatasetBase", "DatasetFactory", "InMemoryDataset", "QueueDataset"]

__getattr__ = missing(__name__)
