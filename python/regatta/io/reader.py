"""How examples of a dataset become batches, in whichever process."""
from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, List, Optional, Tuple

from . import division
from .dataset import ChainDataset


class Odd:
    """An example of the last round of ranks, in which not every rank has one. It joins the batch
    before it: all ranks make the same number of batches, as those that train together must."""

    def __init__(self, example: Any) -> None:
        self.example = example


class Reader:
    """A dataset with the way to make batches of it; ``batch_size`` None is one example at a time.

    ``at`` is the number of the example that was read last, for error messages."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], batch_size: Optional[int],
                 drop_last: bool, rank: int = 0, world: int = 1) -> None:
        self.dataset, self.collate = dataset, collate
        self.batch_size, self.drop_last = batch_size, drop_last
        self.rank, self.world = rank, world
        self.at: Optional[int] = None

    def fetch(self, indices: Any) -> Any:
        """The batch of some numbers, or the example of one."""
        self.at = None
        if self.batch_size is None:
            self.at = indices
            return self.collate(self.dataset[indices])
        examples = []
        for index in indices:
            self.at = index
            examples.append(self.dataset[index])
        self.at = None
        return self.collate(examples)

    def examples(self) -> Iterator[Any]:
        """The examples of an iterable dataset that belong to this rank; the last one may be
        :class:`Odd`."""
        self.at = 0
        dealt, mine = 0, None
        for part in _parts(self.dataset):
            divide = None
            for example in part:
                if divide is None:  # now the dataset has had its chance to ask
                    divide = self._divides(part)
                if not divide:
                    yield example
                else:
                    mine = example if dealt == self.rank else mine
                    dealt += 1
                    if dealt == self.world:
                        yield mine
                        dealt = 0
                self.at += 1
        if dealt > self.rank:
            yield Odd(mine)

    def _divides(self, part: Any) -> bool:
        if self.world == 1 or division.divides_itself(part):
            return False
        if self.rank == 0:
            division.warn_once(part, self.world)
        return True

    def batches(self, examples: Iterable[Any]) -> Iterator[Tuple[Any]]:
        """Batches of examples, each in a tuple."""
        if self.batch_size is None:
            for example in examples:
                yield (self.collate(example.example if type(example) is Odd else example),)
            return
        batch: List[Any] = []
        for example in examples:
            if type(example) is Odd:
                batch += [] if self.drop_last else [example.example]
                break
            if len(batch) == self.batch_size:
                yield (self.collate(batch),)
                batch = []
            batch.append(example)
            # Among ranks a full batch waits for the next example: an odd one joins it.
            if len(batch) == self.batch_size and self.world == 1:
                yield (self.collate(batch),)
                batch = []
        if len(batch) >= (self.batch_size if self.drop_last else 1):
            yield (self.collate(batch),)


def _parts(dataset: Any) -> Iterator[Any]:
    if type(dataset) is ChainDataset:
        for part in dataset.datasets:
            yield from _parts(part)
    else:
        yield dataset


class ToArrays:
    """A ``collate_fn`` for workers: what it makes, with arrays in the place of tensors."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, examples: Any) -> Any:
        return _arrays(self._collate(examples))


def _arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _arrays(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_arrays(each) for each in value)
    if hasattr(value, "stop_gradient") and hasattr(value, "numpy"):
        return value.numpy()
    return value
