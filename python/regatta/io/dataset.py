"""What data loaders read: examples by number, or one after the other."""
from __future__ import annotations

import bisect
from typing import Any, Iterable, Iterator, List, Optional, Sequence

from .sampler import _generator


class Dataset:
    """Examples by number: subclasses define ``__getitem__`` and ``__len__``."""

    def __init__(self) -> None:
        pass

    def __getitem__(self, idx: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no __getitem__")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} has no __len__")


class IterableDataset(Dataset):
    """Examples one after the other: subclasses define ``__iter__``.

    No example comes twice, whoever reads:

    - With ``num_workers`` one worker process reads everything, because several that iterate over
      the same stream do the same work. Only a dataset whose ``__iter__`` asks
      :func:`get_worker_info` before its first example is read by all workers: it then says itself
      what each of them gives.
    - In dynamic mode, ranks take turns: rank ``r`` of ``n`` takes the examples ``r``, ``r + n``,
      ..., so the order must be the same on all ranks. A dataset that divides itself is not divided
      again: one whose methods ask for the rank (``get_rank``, ``get_world_size``,
      ``ParallelEnv``), one that sets ``divides_itself = True``, and any dataset of a process that
      has called ``fleet.util.get_file_shard``.
    """

    #: Whether the dataset gives different examples on every rank by itself.
    divides_itself = False

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")

    def __getitem__(self, idx: int) -> Any:
        raise RuntimeError(f"{type(self).__name__} has no numbers: iterate over it")

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} has no length: iterate over it")


class TensorDataset(Dataset):
    """Rows of arrays that have the same number of them."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        import numpy as np

        # Workers of a loader compute without the engine: rows are those of arrays.
        self.tensors = [np.asarray(each) for each in tensors]
        lengths = {len(each) for each in self.tensors}
        if len(lengths) > 1:
            raise ValueError(f"TensorDataset: arrays have different lengths {sorted(lengths)}")

    def __getitem__(self, index: int) -> Any:
        return tuple(each[index] for each in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0])


class ComposeDataset(Dataset):
    """Datasets side by side: the fields of all."""

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("ComposeDataset: there are no datasets")
        if len({len(each) for each in self.datasets}) > 1:
            raise ValueError("ComposeDataset: datasets have different lengths")

    def __len__(self) -> int:
        return len(self.datasets[0])

    def __getitem__(self, idx: int) -> Any:
        fields: List[Any] = []
        for dataset in self.datasets:
            example = dataset[idx]
            fields.extend(example if isinstance(example, (list, tuple)) else [example])
        return tuple(fields)


class ChainDataset(IterableDataset):
    """Iterable datasets one after the other."""

    def __init__(self, datasets: Sequence[IterableDataset]) -> None:
        self.datasets = list(datasets)

    def __iter__(self) -> Iterator[Any]:
        for dataset in self.datasets:
            yield from dataset


class ConcatDataset(Dataset):
    """Datasets one after the other, by number."""

    def __init__(self, datasets: Iterable[Dataset]) -> None:
        self.datasets = list(datasets)
        self.cumulative_sizes: List[int] = []
        total = 0
        for dataset in self.datasets:
            total += len(dataset)
            self.cumulative_sizes.append(total)

    def __len__(self) -> int:
        return self.cumulative_sizes[-1] if self.cumulative_sizes else 0

    def __getitem__(self, idx: int) -> Any:
        at = idx + len(self) if idx < 0 else idx
        if not 0 <= at < len(self):
            raise IndexError(f"example {idx} of {len(self)}")
        which = bisect.bisect_right(self.cumulative_sizes, at)
        before = self.cumulative_sizes[which - 1] if which else 0
        return self.datasets[which][at - before]


class Subset(Dataset):
    """Some examples of a dataset."""

    def __init__(self, dataset: Dataset, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, idx: int) -> Any:
        return self.dataset[self.indices[idx]]

    def __len__(self) -> int:
        return len(self.indices)


def random_split(
    dataset: Dataset, lengths: Sequence[float], generator: Optional[Any] = None
) -> List[Subset]:
    """Parts of a dataset, of the given lengths or fractions that add up to 1, in random order."""
    if any(isinstance(each, float) for each in lengths):
        lengths = _lengths(len(dataset), lengths)
    if sum(lengths) != len(dataset):
        raise ValueError(f"random_split: {list(lengths)} do not add up to {len(dataset)} examples")
    order = _generator(generator).permutation(len(dataset)).tolist()
    parts, at = [], 0
    for length in lengths:
        parts.append(Subset(dataset, order[at:at + int(length)]))
        at += int(length)
    return parts


def _lengths(n: int, fractions: Sequence[float]) -> List[int]:
    """Numbers of examples; those that rounding leaves go to the first parts, one each."""
    if abs(sum(fractions) - 1) > 1e-6:
        raise ValueError(f"random_split: the fractions {list(fractions)} do not add up to 1")
    lengths = [int(n * each) for each in fractions]
    for i in range(n - sum(lengths)):
        lengths[i % len(lengths)] += 1
    return lengths
