"""Worker processes of loaders: order, errors, interrupts; how data is divided."""
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import regatta as rg
from regatta import io
from regatta.io import division, pool, transport


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch):
    monkeypatch.setitem(division._noted, "files", False)
    yield
    assert not [line for line in pool._held if not line.closed]
    assert not alive(children())


def children():
    found = []
    for task in os.listdir(f"/proc/{os.getpid()}/task"):
        with open(f"/proc/{os.getpid()}/task/{task}/children") as file:
            found += [int(pid) for pid in file.read().split()]
    return [pid for pid in found if "resource_tracker" not in command(pid)]


def command(pid):
    with open(f"/proc/{pid}/cmdline") as file:
        return file.read()


def alive(pids):
    found = []
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rsplit(")", 1)[1].split()[0] != "Z":
                    found.append(pid)
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


class Numbers(io.Dataset):
    def __init__(self, n):
        self.n = n

    def __getitem__(self, i):
        return np.array([i], "int64"), np.float32(i / 2)

    def __len__(self):
        return self.n


class Stream(io.IterableDataset):
    def __init__(self, n):
        super().__init__()
        self.n = n

    def __iter__(self):
        yield from range(self.n)


class Shards(Stream):
    def __iter__(self):
        info = io.get_worker_info()
        start, step = (info.id, info.num_workers) if info else (0, 1)
        yield from range(start, self.n, step)


def flat(batches):
    return [int(v) for batch in batches
            for v in np.asarray(batch[0] if isinstance(batch, list) else batch).ravel()]


# --- order ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_batches_are_those_without_workers(workers):
    sampler = io.BatchSampler(sampler=io.RandomSampler(range(50), generator=3), batch_size=4)
    expected = flat(io.DataLoader(Numbers(50), batch_sampler=sampler))
    loader = io.DataLoader(Numbers(50), batch_sampler=sampler, num_workers=workers)
    assert flat(loader) == flat(loader) == expected
    assert sorted(expected) == list(range(50))


def test_examples_without_batches():
    assert flat(io.DataLoader(Numbers(5), batch_size=None, num_workers=2)) == [0, 1, 2, 3, 4]
    assert flat(io.DataLoader(Stream(5), batch_size=None, num_workers=2)) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="batch_size=None"):
        io.DataLoader(Numbers(5), batch_size=None, shuffle=True)


class Noise(io.Dataset):
    def __getitem__(self, i):
        return np.random.rand()

    def __len__(self):
        return 6


def test_random_numbers_of_workers_follow_from_the_seed():
    def run():
        np.random.seed(5)
        return [float(np.asarray(b)[0]) for b in io.DataLoader(Noise(), num_workers=2)]

    first = run()
    assert run() == first and len(set(first)) == 6


class Who(io.Dataset):
    def __init__(self):
        self.mark = -1

    def __getitem__(self, i):
        info = io.get_worker_info()
        return np.array([os.getpid(), info.id, info.num_workers, info.dataset.mark])

    def __len__(self):
        return 8


def test_workers_are_processes_and_know_who_they_are():
    def begin(number):
        io.get_worker_info().dataset.mark = 10 + number

    loader = io.DataLoader(Who(), batch_size=1, num_workers=2, worker_init_fn=begin)
    rows = np.concatenate([np.asarray(batch) for batch in loader])
    assert os.getpid() not in rows[:, 0] and len(set(rows[:, 0])) == 2
    np.testing.assert_array_equal(rows[:, 1:], [[i % 2, 2, 10 + i % 2] for i in range(8)])
    assert io.get_worker_info() is None


def test_persistent_workers_stay():
    loader = io.DataLoader(Who(), num_workers=2, persistent_workers=True)
    pids = [{int(np.asarray(batch)[0, 0]) for batch in loader} for _ in range(2)]
    assert pids[0] == pids[1]
    next(iter(loader))  # a reader that leaves early takes its workers with it
    assert {int(np.asarray(batch)[0, 0]) for batch in loader}.isdisjoint(pids[0])
    stream = io.DataLoader(Stream(5), batch_size=2, num_workers=2, persistent_workers=True)
    assert flat(stream) == flat(stream) == [0, 1, 2, 3, 4]
    del loader, stream


class Large(io.Dataset):
    def __getitem__(self, i):
        return np.full((300, 1000), i, "float32"), np.arange(3, dtype="uint8"), "text"

    def __len__(self):
        return 4


@pytest.mark.parametrize("share", [True, False])
def test_large_batches(share):
    loader = io.DataLoader(Large(), batch_size=2, num_workers=2, use_shared_memory=share)
    for at, (large, small, text) in enumerate(loader):
        large = np.asarray(large)
        assert large.nbytes > transport.LARGE and large.shape == (2, 300, 1000)
        assert (large == np.array([2 * at, 2 * at + 1]).reshape(2, 1, 1)).all()
        np.testing.assert_array_equal(np.asarray(small), [[0, 1, 2]] * 2)
        assert text == ["text"] * 2


class Counting(io.IterableDataset):
    """Counts in memory that processes share how far it was read."""

    def __init__(self):
        import multiprocessing

        self.count = multiprocessing.get_context("fork").Value("i", 0)

    def __iter__(self):
        for i in range(1000):
            self.count.value = i
            yield np.zeros(200_000)


def test_workers_do_not_run_away():
    dataset = Counting()
    loader = io.DataLoader(dataset, batch_size=1, num_workers=1, prefetch_factor=3)
    for at, _ in enumerate(loader):
        assert dataset.count.value <= at + 4
        if at == 10:
            break


class Tensors(io.Dataset):
    """Computes with the engine in a worker, which has none of its threads."""

    def __init__(self):
        self.table = rg.to_tensor(np.random.RandomState(0).rand(600, 64).astype("float32"))

    def __getitem__(self, i):
        return rg.matmul(self.table, self.table, transpose_y=True)[i], rg.to_tensor([i])

    def __len__(self):
        return 6


def test_datasets_of_tensors():
    dataset = Tensors()
    rg.matmul(dataset.table, dataset.table, transpose_y=True)
    table = dataset.table.numpy()
    for rows, numbers in io.DataLoader(dataset, batch_size=2, num_workers=2):
        assert isinstance(rows, rg.Tensor) and numbers.shape == [2, 1]
        expected = table[numbers.numpy()[:, 0]] @ table.T
        np.testing.assert_allclose(rows.numpy(), expected, rtol=1e-5)


def test_batches_are_tensors_in_dynamic_mode():
    def fields(batch):
        return {"x": np.stack([x for x, _ in batch]), "text": "a", "more": (np.ones(2), None)}

    (batch, *_) = io.DataLoader(Numbers(4), batch_size=2, collate_fn=fields)
    assert isinstance(batch["x"], rg.Tensor) and str(batch["x"].dtype) == "int64"
    assert batch["text"] == "a" and batch["more"][1] is None
    assert isinstance(batch["more"], list) and batch["more"][0].shape == [2]
    with rg.static.program_guard(rg.static.Program()):
        (batch, *_) = io.DataLoader(Numbers(4), batch_size=2)
    assert type(batch[0]) is np.ndarray


def test_workers_by_spawn():
    loader = io.DataLoader(Numbers(5), batch_size=2, num_workers=1,
                           multiprocessing_context="spawn")
    assert flat(loader) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="multiprocessing_context"):
        io.DataLoader(Numbers(5), multiprocessing_context="threads")


# --- faults --------------------------------------------------------------------------------------


class Broken(io.Dataset):
    def __getitem__(self, i):
        if i == 5:
            raise LookupError("column 'age' of row 5")
        return i

    def __len__(self):
        return 8


class BrokenStream(io.IterableDataset):
    def __iter__(self):
        yield from range(3)
        raise LookupError("column 'age' of row 5")


@pytest.mark.parametrize("dataset, where", [
    (Broken(), "worker 0 of the loader failed at example 5 of batch 2:"),
    (BrokenStream(), "worker 0 of the loader failed at example 3:"),
])
def test_an_exception_comes_with_its_traceback(dataset, where):
    with pytest.raises(LookupError, match="column 'age'") as caught:
        list(io.DataLoader(dataset, batch_size=2, num_workers=2))
    cause = str(caught.value.__cause__)
    assert where in cause and "Traceback" in cause and "test_loader.py" in cause


def test_exceptions_that_cannot_be_pickled():
    class Odd(Exception):
        def __init__(self, a, b):
            super().__init__(f"{a} and {b}")

    def fail(batch):
        raise Odd(1, 2)

    with pytest.raises(RuntimeError, match="(?s)batch 0.*1 and 2"):
        list(io.DataLoader(Numbers(2), collate_fn=fail, num_workers=1))
    with pytest.raises(ZeroDivisionError) as caught:
        list(io.DataLoader(Numbers(2), num_workers=1, worker_init_fn=lambda number: 1 // number))
    assert "worker_init_fn" in str(caught.value.__cause__)


class Suicide(io.Dataset):
    def __init__(self, how):
        self.how = how

    def __getitem__(self, i):
        if i == 3:
            if self.how < 0:
                os._exit(-self.how)
            os.kill(os.getpid(), self.how)
            time.sleep(60)
        return i

    def __len__(self):
        return 8


@pytest.mark.parametrize("how, message", [
    (signal.SIGKILL, "SIGKILL.*lack of memory"), (signal.SIGTERM, "SIGTERM"), (-7, "exit code 7"),
])
def test_the_death_of_a_worker_is_reported(how, message):
    loader = io.DataLoader(Suicide(how), batch_size=2, num_workers=2)
    seen = []
    with pytest.raises(RuntimeError, match=rf"worker 1 .*{message}.*batch 1 \(examples \[2, 3\]\)"):
        for batch in loader:
            seen.append(np.asarray(batch).tolist())
    assert seen == [[0, 1]]


def test_a_worker_that_is_killed_from_outside():
    batches = iter(io.DataLoader(Who(), num_workers=1, prefetch_factor=1))
    pid = int(np.asarray(next(batches))[0, 0])
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=f"process {pid}"):
        list(batches)


SCRIPT = """
import os, sys, time
import numpy as np
from regatta import io

class Slow(io.Dataset):
    def __getitem__(self, i):
        if i >= 4:
            time.sleep(60)
        return np.array([os.getpid()])
    def __len__(self):
        return 100

class SlowStream(io.IterableDataset):
    def __iter__(self):
        io.get_worker_info()
        for i in range(100):
            yield Slow()[i]

dataset = Slow() if sys.argv[1] == "map" else SlowStream()
loader = io.DataLoader(dataset, batch_size=1, num_workers=2)
for at, batch in enumerate(loader):
    print(int(np.asarray(batch).ravel()[0]), flush=True)
    if at == 3 and sys.argv[2] == "outside":
        time.sleep(60)
"""


def started(tmp_path, *arguments):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    pids = {int(process.stdout.readline()) for _ in range(4)}
    assert len(pids) == 2
    return process, pids


def gone(pids):
    deadline = time.monotonic() + 30
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pids)


@pytest.mark.parametrize("kind", ["map", "stream"])
@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize("everybody", [True, False])
def test_an_interrupt_ends_loader_and_workers(tmp_path, kind, where, everybody):
    process, pids = started(tmp_path, kind, where)
    os.kill(-process.pid if everybody else process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode != 0
    assert errors.count("Traceback") == 1 and errors.strip().endswith("KeyboardInterrupt")
    assert gone(pids)


def test_workers_do_not_outlive_a_process_that_was_killed(tmp_path):
    process, pids = started(tmp_path, "map", "inside")
    process.kill()
    process.communicate(timeout=30)
    assert gone(pids)


def test_a_slow_worker_times_out():
    class Slow(Numbers):
        def __getitem__(self, i):
            if i:
                time.sleep(60)
            return i

    with pytest.raises(TimeoutError, match="worker 1 .*did not give batch 1"):
        list(io.DataLoader(Slow(4), num_workers=2, timeout=0.5))


# --- who reads what ------------------------------------------------------------------------------


class AsksRank(Shards):
    """Divides itself by rank and worker."""

    def __init__(self, n, rank, world):
        super().__init__(n)
        self.rank, self.world = rank, world
        division.note_rank_asked()  # what get_rank() does

    def __iter__(self):
        info = io.get_worker_info()
        mine, of = (info.id, info.num_workers) if info else (0, 1)
        yield from range(self.rank * of + mine, self.n, self.world * of)


class AsksRankLate(AsksRank):
    def __init__(self, n, rank, world):
        Shards.__init__(self, n)
        self.rank, self.world = rank, world

    def __iter__(self):
        division.note_rank_asked()
        yield from AsksRank.__iter__(self)


class Declares(AsksRankLate):
    divides_itself = True
    __iter__ = AsksRank.__iter__


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("make", [
    lambda rank, world: Stream(31), lambda rank, world: Shards(31),
    lambda rank, world: AsksRank(31, rank, world),
    lambda rank, world: AsksRankLate(31, rank, world),
    lambda rank, world: Declares(31, rank, world),
    lambda rank, world: io.ChainDataset([AsksRankLate(11, rank, world), Rest(11, 31)]),
], ids=["plain", "by_worker", "asks", "asks_late", "declares", "chain"])
def test_every_example_comes_once(monkeypatch, make, world, workers):
    monkeypatch.setitem(division._noted, "warned", True)
    seen = []
    for rank in range(world):
        monkeypatch.setattr(division, "ranks", lambda rank=rank: (rank, world))
        loader = io.DataLoader(make(rank, world), batch_size=3, num_workers=workers)
        part = flat(loader)
        assert abs(len(part) - 31 / world) < 4
        seen += part
    assert sorted(seen) == list(range(31))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world,size", [(2, 1), (2, 3), (3, 2), (4, 5)])
def test_ranks_have_the_same_number_of_batches(monkeypatch, world, size, drop_last):
    monkeypatch.setitem(division._noted, "warned", True)
    for n in range(world, 4 * world * size):
        counts, seen = [], []
        for rank in range(world):
            monkeypatch.setattr(division, "ranks", lambda rank=rank: (rank, world))
            loader = io.DataLoader(Stream(n), batch_size=size, drop_last=drop_last)
            batches = [[int(x) for x in np.ravel(batch)] for batch in loader]
            counts.append(len(batches))
            seen += sum(batches, [])
            assert all(len(b) == size for b in batches[:-1])
            assert not drop_last or all(len(b) == size for b in batches)
        assert len(set(counts)) == 1, (n, counts)
        if not drop_last:
            assert sorted(seen) == list(range(n))


class Rest(io.IterableDataset):
    def __init__(self, start, end):
        self.start, self.end = start, end

    def __iter__(self):
        # A chain that is read by several workers: the others leave this part to the first.
        info = io.get_worker_info()
        if info is None or info.id == 0:
            yield from range(self.start, self.end)


def test_dividing_is_said_once(monkeypatch):
    monkeypatch.setattr(division, "ranks", lambda: (0, 2))
    monkeypatch.setitem(division._noted, "warned", False)
    with pytest.warns(UserWarning, match="each of 2 ranks takes every 2th.*divides_itself") as seen:
        assert flat(io.DataLoader(Stream(4))) == flat(io.DataLoader(Stream(4))) == [0, 2]
    assert len(seen) == 1
    monkeypatch.setitem(division._noted, "files", True)
    assert flat(io.DataLoader(Stream(4))) == [0, 1, 2, 3]


def test_a_rank_that_is_asked_for_elsewhere_says_nothing():
    from regatta import distributed

    stream = Stream(3)
    distributed.get_rank()
    assert not stream.divides_itself

    class Reads(Stream):
        def __init__(self):
            super().__init__(3)
            self.mine = distributed.get_rank(), distributed.get_world_size()

    assert Reads().divides_itself and Reads().mine == (0, 1)


def test_parts_by_fractions():
    parts = io.random_split(Numbers(10), [0.3, 0.3, 0.4])
    assert [len(part) for part in parts] == [3, 3, 4]
    assert sorted(int(p[i][0][0]) for p in parts for i in range(len(p))) == list(range(10))
    with pytest.raises(ValueError, match="add up to 1"):
        io.random_split(Numbers(10), [0.5, 0.6])
