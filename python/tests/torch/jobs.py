"""What the processes of the tests run: ``python jobs.py KIND FOLDER [OPTIONS]``. Every worker or
rank writes what it found into the folder."""
import json
import os
import sys

import numpy as np
import torch

import regatta as rg
import regatta.torch as rt
from regatta.nn.initializer import Uniform

ROWS, DIM, FIELDS, BATCH = 50, 4, 3, 8
kind, folder = sys.argv[1:3]
options = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}


def optimizer():
    name = options.get("optimizer", "sgd")
    return {
        "sgd": lambda: rg.optimizer.SGD(0.5),
        "adagrad": lambda: rg.optimizer.Adagrad(0.1, epsilon=1e-6),
        "momentum": lambda: rg.optimizer.Momentum(0.1, 0.9),
        "adam": lambda: rg.optimizer.Adam(0.01),
    }[name]()


class Model(torch.nn.Module):
    """Two tables and a dense part."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second
        torch.manual_seed(0)
        self.top = torch.nn.Sequential(
            torch.nn.Linear(2 * DIM, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1)
        )

    def forward(self, ids):
        both = torch.cat([self.first(ids).mean(1), self.second(ids[:, 0])], 1)
        return self.top(both)


def model():
    rg.seed(11)
    init = Uniform(-0.5, 0.5)
    return Model(
        rt.Embedding(ROWS, DIM, 0, optimizer=optimizer(), initializer=init, name="first"),
        rt.Embedding(ROWS, DIM, optimizer=rg.optimizer.SGD(0.2), initializer=init, name="second"),
    )


def batch(step, part=0, parts=1, sizes=None):
    """A part of the examples of a step."""
    rng = np.random.RandomState(step)
    ids = torch.from_numpy(rng.randint(0, ROWS, (BATCH, FIELDS)))
    labels = torch.from_numpy(rng.rand(BATCH, 1).astype("float32"))
    sizes = sizes or [BATCH // parts] * parts
    begin = sum(sizes[:part])
    return ids[begin:begin + sizes[part]], labels[begin:begin + sizes[part]]


def loss_of(net, ids, labels):
    return torch.nn.functional.mse_loss(net(ids), labels)


def report(number, **values):
    with open(os.path.join(folder, f"{number}.json"), "w") as out:
        json.dump(values, out)


def all_rows(net):
    net.eval()
    ids = torch.arange(ROWS)
    rows = {name: getattr(net, name)(ids).tolist() for name in ("first", "second")}
    net.train()
    return rows


def tables():
    """Tables on servers, or here; the dense part by ranks."""
    net = model()
    job = rt.start(net, mode=options.get("mode", "sync"))
    sync = rt.sync_gradients(net)
    dense = torch.optim.SGD(net.parameters(), 0.1)
    sparse = rt.TableOptimizer(net)
    sizes = options.get("sizes")
    parts = job.worker_num
    if options.get("load"):
        job.load(options["load"])
    if options.get("touch"):  # every row, so that servers have it
        net.first(torch.arange(ROWS)), net.second(torch.arange(ROWS))
        job.barrier()
    begin, losses = all_rows(net), []
    for step in range(options.get("steps", 6)):
        if options.get("fail_at") == step and job.worker_index == 1:
            raise OSError("a disk is full")
        ids, labels = batch(step, job.worker_index, parts, sizes)
        sync.examples = len(ids)
        dense.zero_grad(), sparse.zero_grad()
        halves = options.get("accumulate", 1)
        for half in range(halves):
            loss = loss_of(net, ids[half::halves], labels[half::halves]) / halves
            if half + 1 < halves:
                with sync.no_sync():
                    loss.backward()
            else:
                loss.backward()
        loss = loss_of(net, ids, labels) if halves > 1 else loss
        mean = job.reduce([loss.item() * len(ids), len(ids)])
        losses.append(mean[0] / mean[1])
        dense.step(), sparse.step(len(ids))
    job.barrier()
    if options.get("save"):
        job.save(options["save"])
    rows = all_rows(net)
    parameters = [p.tolist() for p in net.top.parameters()]
    report(job.worker_index, begin=begin, losses=losses, rows=rows, parameters=parameters,
           servers=job.server_num)
    if options.get("stop", True):
        job.stop()


def missing():
    """What servers give for ids they have not seen, in both modes."""
    table = rt.Embedding(
        1 << 40, 2, optimizer=rg.optimizer.SGD(1.0), initializer=Uniform(1, 2), name="large"
    )
    with rt.start(table) as job:
        table.eval()
        ids = torch.tensor([7, (1 << 40) - 1])
        unseen = table(ids)
        table.train()
        seen = table(ids)
        table.eval()
        report(job.worker_index, unseen=unseen.tolist(), seen=seen.tolist(),
               again=table(ids).tolist(), leaf=table(ids).requires_grad)


def uneven():
    """Workers with different numbers of batches."""
    net = rt.Embedding(8, 1, optimizer=rg.optimizer.SGD(1.0), initializer=Uniform(0, 0))
    job, sparse = rt.start(net), rt.TableOptimizer(net)
    for step in range(2 if job.worker_index == 0 else 5):
        sparse.zero_grad()
        net(torch.tensor([job.worker_index])).sum().backward()
        sparse.step()
    net.eval()
    report(job.worker_index, rows=net(torch.arange(2)).reshape(-1).tolist())


def asynchronous():
    """Every step of a worker counts by itself."""
    net = rt.Embedding(8, 1, optimizer=rg.optimizer.SGD(1.0), initializer=Uniform(0, 0))
    job, sparse = rt.start(net, mode="async"), rt.TableOptimizer(net)
    for step in range(3 + job.worker_index):
        sparse.zero_grad()
        net(torch.tensor([2])).sum().backward()
        sparse.step()
    job.barrier()
    net.eval()
    report(job.worker_index, row=net(torch.tensor([2])).item(), mode=job.mode)


class Dense(torch.nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.words = torch.nn.Embedding(ROWS, DIM)
        self.norm = torch.nn.BatchNorm1d(DIM)
        self.top = torch.nn.Linear(DIM, 1)
        self.unused = torch.nn.Linear(3, 3)
        self.odd = torch.nn.Parameter(torch.ones(()))

    def forward(self, ids, odd):
        out = self.top(self.words(ids).sum(1))
        return out * self.odd if odd else out


def ranks():
    """Dense models on ranks."""
    rank = int(os.environ.get("PADDLE_TRAINER_ID", 0))
    size = int(os.environ.get("PADDLE_TRAINERS_NUM", 1))
    net = Dense(seed=rank)
    net.norm.num_batches_tracked += 3 + rank
    wrapped = rt.DistributedDataParallel(net, bucket_cap_mb=options.get("bucket", 25))
    assert (wrapped.sync.rank, wrapped.sync.world_size) == (rank, size)
    optimizer = torch.optim.Adam(wrapped.parameters(), 0.01, weight_decay=0.1)
    sizes, losses = options.get("sizes"), []
    for step in range(6):
        ids, labels = batch(step, rank, size, sizes)
        if sizes:
            wrapped.sync.examples = len(ids)
        optimizer.zero_grad()
        parts = options.get("accumulate", 1)
        for part in range(parts):
            # Only the last rank uses 'odd'.
            out = wrapped(ids[part::parts], rank == size - 1)
            loss = torch.nn.functional.mse_loss(out, labels[part::parts]) / parts
            if part + 1 < parts:
                with wrapped.no_sync():
                    loss.backward()
            else:
                loss.backward()
        losses.append(loss.item())
        optimizer.step()
    report(rank, losses=losses, tracked=int(net.norm.num_batches_tracked),
           unused=net.unused.weight.grad is None,
           parameters={n: p.tolist() for n, p in net.named_parameters()})


def different():
    """A model that is not the same on all ranks."""
    rank = int(os.environ["PADDLE_TRAINER_ID"])
    try:
        rt.sync_gradients(torch.nn.Linear(2 + rank, 1))
    except RuntimeError as error:
        report(rank, error=str(error))


def gloo():
    """A script of PyTorch that knows nothing of Regatta."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    net = Dense(seed=5)
    wrapped = torch.nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)
    value = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(value)
    ids, labels = batch(0, dist.get_rank(), dist.get_world_size())
    torch.nn.functional.mse_loss(wrapped(ids, True), labels).backward()
    report(dist.get_rank(), sum=value.item(), size=dist.get_world_size(),
           local=int(os.environ["LOCAL_RANK"]), grad=net.top.weight.grad.tolist())
    dist.barrier()  # gloo aborts if a rank ends while others still talk to it
    dist.destroy_process_group()


{f.__name__: f for f in (
    tables, missing, uneven, asynchronous, ranks, different, gloo,
)}[kind]()
