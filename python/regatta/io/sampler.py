"""Which examples come when: numbers, and batches of numbers."""
from __future__ import annotations

import math
from typing import Any, Iterator, List, Optional, Sequence, Sized


def _generator(seed: Any = None) -> Any:
    """Random numbers: numpy's global ones, those of a seed, or a generator that is given."""
    import numpy as np

    if seed is None:
        return np.random
    if isinstance(seed, int):
        return np.random.RandomState(seed)
    return seed


class Sampler:
    """Numbers of examples: subclasses define ``__iter__``."""

    def __init__(self, data_source: Optional[Sized] = None) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")


class SequenceSampler(Sampler):
    """0, 1, 2, ..."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.data_source)  # type: ignore[arg-type]


class RandomSampler(Sampler):
    """All numbers in random order, or ``num_samples`` of them with replacement."""

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: Optional[int] = None,
        generator: Any = None,
    ) -> None:
        super().__init__(data_source)
        if num_samples is not None and num_samples <= 0:
            raise ValueError(f"num_samples ({num_samples}) must be above 0")
        if num_samples is not None and not replacement and num_samples > len(data_source):
            raise ValueError(
                f"num_samples ({num_samples}) must not exceed the {len(data_source)} examples "
                "without replacement"
            )
        self.replacement, self._num_samples, self.generator = replacement, num_samples, generator

    @property
    def num_samples(self) -> int:
        """How many numbers one iteration gives."""
        return self._num_samples or len(self.data_source)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[int]:
        if hasattr(self.generator, "__next__"):
            return (int(next(self.generator)) for _ in range(self.num_samples))
        random, n = _generator(self.generator), len(self.data_source)  # type: ignore[arg-type]
        return iter(random.choice(n, self.num_samples, replace=self.replacement).tolist())

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """Given numbers in random order."""

    def __init__(self, indices: Sequence[int]) -> None:
        if not len(indices):
            raise ValueError("SubsetRandomSampler: there are no numbers")
        self.indices = list(indices)

    def __iter__(self) -> Iterator[int]:
        return iter([self.indices[i] for i in _generator().permutation(len(self.indices))])

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler):
    """Numbers with probabilities in proportion to weights."""

    def __init__(
        self, weights: Sequence[float], num_samples: int, replacement: bool = True
    ) -> None:
        import numpy as np

        self.weights = np.asarray(weights, "float64").ravel()
        if (self.weights < 0).any() or not self.weights.sum() > 0:
            raise ValueError("WeightedRandomSampler: weights must not be negative, nor all zero")
        if num_samples <= 0:
            raise ValueError(f"num_samples ({num_samples}) must be above 0")
        if not replacement and num_samples > int((self.weights > 0).sum()):
            raise ValueError("WeightedRandomSampler: too few weights above 0 without replacement")
        self.num_samples, self.replacement = num_samples, replacement

    def __iter__(self) -> Iterator[int]:
        p = self.weights / self.weights.sum()
        drawn = _generator().choice(len(p), self.num_samples, replace=self.replacement, p=p)
        return iter(drawn.tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler):
    """Lists of numbers, one for each batch."""

    def __init__(
        self,
        dataset: Any = None,
        sampler: Optional[Sampler] = None,
        shuffle: bool = False,
        batch_size: int = 1,
        drop_last: bool = False,
    ) -> None:
        if (dataset is None) == (sampler is None):
            raise ValueError("BatchSampler: pass a dataset or a sampler, and not both")
        if sampler is not None and shuffle:
            raise ValueError("BatchSampler: shuffle is for a dataset; the sampler has its order")
        if not isinstance(batch_size, int) or batch_size <= 0:
            raise ValueError(f"batch_size ({batch_size!r}) must be a whole number above 0")
        if sampler is None:
            sampler = RandomSampler(dataset) if shuffle else SequenceSampler(dataset)
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, bool(drop_last)

    def __iter__(self) -> Iterator[List[int]]:  # type: ignore[override]
        batch: List[int] = []
        for number in self.sampler:
            batch.append(number)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        n = len(self.sampler)  # type: ignore[arg-type]
        return n // self.batch_size if self.drop_last else math.ceil(n / self.batch_size)


class DistributedBatchSampler(BatchSampler):
    """The batches of one rank: ranks take turns, batch by batch. Numbers from the beginning are
    given again at the end, so that all ranks have as many."""

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        num_replicas: Optional[int] = None,
        rank: Optional[int] = None,
        shuffle: bool = False,
        drop_last: bool = False,
    ) -> None:
        if not isinstance(batch_size, int) or batch_size <= 0:
            raise ValueError(f"batch_size ({batch_size!r}) must be a whole number above 0")
        from .. import distributed

        self.nranks = num_replicas if num_replicas is not None else distributed.get_world_size()
        self.local_rank = rank if rank is not None else distributed.get_rank()
        if not 0 <= self.local_rank < self.nranks:
            raise ValueError(f"rank ({self.local_rank}) must be below {self.nranks}")
        self.dataset, self.batch_size = dataset, batch_size
        self.shuffle, self.drop_last, self.epoch = bool(shuffle), bool(drop_last), 0
        self.num_samples = math.ceil(len(dataset) / self.nranks)
        self.total_size = self.num_samples * self.nranks

    def set_epoch(self, epoch: int) -> None:
        """Another epoch has another order."""
        self.epoch = int(epoch)

    def _numbers(self) -> List[int]:
        """The numbers of this rank."""
        import numpy as np

        n = len(self.dataset)
        order = np.arange(n)
        if n:
            order = np.resize(order, self.total_size)
        if self.shuffle:
            np.random.RandomState(self.epoch).shuffle(order)
            self.epoch += 1
        if self.nranks == 1:
            return order.tolist()
        # Whole rounds of batches go round; what is left is split evenly.
        whole = self.total_size // (self.batch_size * self.nranks)
        rounds = order[: whole * self.batch_size * self.nranks]
        rounds = rounds.reshape(whole, self.nranks, self.batch_size)
        rest = order[rounds.size:].reshape(self.nranks, -1)
        return [*rounds[:, self.local_rank].ravel().tolist(), *rest[self.local_rank].tolist()]

    def __iter__(self) -> Iterator[List[int]]:  # type: ignore[override]
        numbers = self._numbers()
        for at in range(0, len(numbers), self.batch_size):
            batch = numbers[at:at + self.batch_size]
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        n = self.num_samples
        return n // self.batch_size if self.drop_last else math.ceil(n / self.batch_size)
