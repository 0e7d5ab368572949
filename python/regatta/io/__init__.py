"""Datasets of Python objects, and the loader that makes batches of them.

>>> import numpy as np
>>> class Squares(Dataset):
...     def __getitem__(self, i):
...         return np.array([i], "int64"), np.array([i * i], "float32")
...     def __len__(self):
...         return 5
>>> for x, y in DataLoader(Squares(), batch_size=2, drop_last=True):
...     print(x.flatten().tolist(), y.flatten().tolist())
[0, 1] [0.0, 1.0]
[2, 3] [4.0, 9.0]

Training from files at full speed is :class:`regatta.distributed.QueueDataset`'s and
:class:`regatta.distributed.InMemoryDataset`'s work.
"""
from __future__ import annotations

from .._missing import missing
from .collate import default_collate, default_collate_fn, default_convert_fn
from .dataset import (
    ChainDataset, ComposeDataset, ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset,
    random_split,
)
from .generator import GeneratorLoader
from .loader import DataLoader
from .sampler import (
    BatchSampler, DistributedBatchSampler, RandomSampler, Sampler, SequenceSampler,
    SubsetRandomSampler, WeightedRandomSampler,
)
from .worker import WorkerInfo, get_worker_info

__all__ = [
    "BatchSampler", "ChainDataset", "ComposeDataset", "ConcatDataset", "DataLoader", "Dataset",
    "DistributedBatchSampler", "GeneratorLoader", "IterableDataset", "RandomSampler", "Sampler",
    "SequenceSampler", "Subset", "SubsetRandomSampler", "TensorDataset", "WeightedRandomSampler",
    "WorkerInfo", "default_collate", "default_collate_fn", "default_convert_fn", "get_worker_info",
    "random_split",
]

__getattr__ = missing(__name__)
