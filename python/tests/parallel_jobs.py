"""What the ranks of the tests run: ``python parallel_jobs.py KIND FOLDER [OPTIONS]``. Every rank
writes what it found into the folder."""
import json
import os
import sys

import numpy as np

import regatta as rg
import regatta.distributed as dist
import regatta.nn.functional as F
from regatta.distributed import fleet

ROWS, DIM, BATCH = 50, 4, 12


class Net(rg.nn.Layer):
    """A table, two layers with a norm between them, and a layer that may be left out."""

    def __init__(self, outputs=1):
        super().__init__()
        self.table = rg.nn.Embedding(ROWS, DIM, sparse=True)
        self.first = rg.nn.Linear(DIM, 8)
        self.norm = rg.nn.BatchNorm1D(8)
        self.second = rg.nn.Linear(8, outputs)
        self.extra = rg.nn.Linear(8, outputs)

    def forward(self, ids, extra=True):
        hidden = self.norm(self.first(F.tanh(self.table(ids).sum(axis=1))))
        out = self.second(hidden)
        return out + self.extra(hidden) if extra else out


def examples(step, part, parts):
    """A part of the examples of a step."""
    rng = np.random.RandomState(step)
    ids, labels = rng.randint(0, ROWS, (BATCH, 3)), rng.rand(BATCH, 1).astype("float32")
    n = BATCH // parts
    mine = slice(part * n, (part + 1) * n)
    return rg.to_tensor(ids[mine]), rg.to_tensor(labels[mine])


def loss_of(model, step, part, parts, **how):
    ids, labels = examples(step, part, parts)
    return F.mse_loss(model(ids, **how), labels)


def made(options):
    """The same model in a process alone; ranks begin with values of their own."""
    rg.seed(3 if dist.get_rank() == 0 else 40 + dist.get_rank())
    net = Net()
    if not options.get("norm"):
        net.norm.eval()
    return net


def optimizer_of(options, model):
    if options.get("optimizer") == "adam":
        return rg.optimizer.Adam(0.05, parameters=model.parameters(), lazy_mode=True)
    return rg.optimizer.SGD(0.5, parameters=model.parameters())


def train(options):
    """Steps; values of all parameters. Alone, it is what ranks together should find."""
    dist.init_parallel_env()
    rank, size = dist.get_rank(), dist.get_world_size()
    model = rg.DataParallel(made(options), **options.get("parallel", {}))
    optimizer = optimizer_of(options, model)
    parts = options.get("accumulate", 1)
    for step in range(options.get("steps", 6)):
        how = {}
        if options.get("parallel", {}).get("find_unused_parameters"):
            # Alone, half of the examples go without the extra layer, as on the second rank.
            how = {"extra": rank == 0}
        for part in range(parts):
            place = (step * parts + part, rank, size)
            if part + 1 < parts:
                with model.no_sync():
                    (loss_of(model, *place, **how) / parts).backward()
            else:
                (loss_of(model, *place, **how) / parts).backward()
        optimizer.step()
        optimizer.clear_grad()
    buckets = model._reducer.buckets() if model._reducer is not None else []
    values = {n: v.numpy() for n, v in model.state_dict().items()}
    return {"values": values, "buckets": buckets, "version": model.first.weight._version}


def unused_alone(options):
    """What two ranks of which one leaves out the extra layer find together."""
    model = made(options)
    optimizer = optimizer_of(options, model)
    for step in range(options.get("steps", 6)):
        losses = [loss_of(model, step, part, 2, extra=part == 0) for part in range(2)]
        ((losses[0] + losses[1]) / 2).backward()
        optimizer.step()
        optimizer.clear_grad()
    return {"values": {n: v.numpy() for n, v in model.state_dict().items()}}


def never_used(options):
    """A parameter that no rank uses has no gradient."""
    dist.init_parallel_env()
    model = rg.DataParallel(made(options), find_unused_parameters=True)
    loss_of(model, 0, dist.get_rank(), 2, extra=False).backward()
    grads = {n: p.grad is None for n, p in model.named_parameters()}
    return {"absent": sorted(n for n, absent in grads.items() if absent)}


def unused(options):
    dist.init_parallel_env()
    model = rg.DataParallel(made(options))
    return {"error": message(lambda: loss_of(model, 0, 0, 2, extra=False).backward())}


def message(call):
    try:
        call()
    except (RuntimeError, ValueError, NotImplementedError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def collectives(options):
    """Every rank has ``[rank, 2]`` and the like."""
    dist.init_parallel_env()
    rank, size = dist.get_rank(), dist.get_world_size()
    ranks = list(range(size))
    ops = dist.ReduceOp
    for dtype in ("float32", "int64", "float16", "int32"):
        expected = {
            ops.SUM: [sum(ranks) + size, 3 * size], ops.MAX: [size, 3], ops.MIN: [1, 3],
            ops.PROD: [float(np.prod([r + 1 for r in ranks])), 3 ** size],
        }
        for op, values in expected.items():
            x = rg.to_tensor([rank + 1, 3], dtype=dtype)
            same = x
            dist.all_reduce(x, op)
            assert same is x and x.numpy().tolist() == values, (dtype, op, x)
            assert str(x.dtype).endswith(dtype)
    x = rg.to_tensor([float(rank), 1.0])
    dist.all_reduce(x, op=ops.AVG).wait()
    assert x.numpy().tolist() == [sum(ranks) / size, 1.0]
    x = rg.to_tensor([[rank]])
    dist.broadcast(x, src=size - 1)
    assert x.numpy().tolist() == [[size - 1]]
    found = []
    dist.all_gather(found, rg.to_tensor([rank, rank], dtype="int32"))
    assert [t.numpy().tolist() for t in found] == [[r, r] for r in ranks]
    objects = []
    dist.all_gather_object(objects, {"rank": rank, "long": "x" * 100 * rank})
    assert [o["rank"] for o in objects] == ranks and len(objects[-1]["long"]) == 100 * (size - 1)
    x = rg.to_tensor([1.0])
    dist.reduce(x, dst=0)
    assert float(x) == (size if rank == 0 else 1)
    x = rg.zeros([2])
    dist.scatter(x, [rg.full([2], 7.0 + r) for r in ranks] if rank == 1 else None, src=1)
    assert x.numpy().tolist() == [7.0 + rank] * 2
    dist.reduce_scatter(x, [rg.full([2], float(r + rank)) for r in ranks])
    assert x.numpy().tolist() == [sum(r + rank for r in ranks)] * 2
    outs = []
    dist.alltoall([rg.to_tensor([10 * rank + r]) for r in ranks], outs)
    assert [int(t) for t in outs] == [10 * r + rank for r in ranks]
    x = rg.zeros([size], dtype="int64")
    dist.alltoall_single(rg.to_tensor([10 * rank + r for r in ranks]), x)
    assert x.numpy().tolist() == [10 * r + rank for r in ranks]
    x = rg.to_tensor([5 * rank])
    if rank == 0:
        dist.recv(x, src=1)
    elif rank == 1:
        dist.send(x, dst=0)
    assert int(x) == (5 if rank == 0 else 5 * rank)
    outs = [None]
    dist.scatter_object_list(outs, [f"for {r}" for r in ranks] if rank == 0 else None, src=0)
    assert outs == [f"for {rank}"]
    weight = rg.to_tensor([1.0, 2.0], stop_gradient=False)
    (weight * float(rank + 1)).sum().backward()
    dist.all_reduce(weight.grad)
    assert weight.grad.numpy().tolist() == [sum(r + 1 for r in ranks)] * 2
    dist.barrier()
    return {
        "group": repr(dist.get_group()), "env": [dist.ParallelEnv().rank, dist.is_initialized()],
        "some": message(lambda: dist.new_group([0])),
        "bad": message(lambda: dist.broadcast(x, src=9)),
        "self": message(lambda: dist.send(x, dst=rank)),
    }


def apart(options):
    """A model that is not wrapped."""
    dist.init_parallel_env()
    rank, size = dist.get_rank(), dist.get_world_size()
    rg.seed(3)
    model = Net()
    optimizer = optimizer_of(options, model)
    dist.barrier()
    for step in range(2):
        loss_of(model, step, rank, size).backward()
        optimizer.step()
        optimizer.clear_grad()
    found = {"error": message(dist.barrier)} if options.get("barrier") else {}
    if options.get("barrier"):
        dist.destroy_process_group()  # without the look at the end of the script
    return found


def loaded(options):
    """One rank loads other values into a wrapped model."""
    dist.init_parallel_env()
    model = rg.DataParallel(made(options))
    if dist.get_rank() == 1:
        model.set_state_dict({"second.weight": np.ones([8, 1], "float32")})
    return {"error": message(lambda: loss_of(model, 0, 0, 2).backward())}


def other_models(options):
    dist.init_parallel_env()
    return {"error": message(lambda: rg.DataParallel(Net(1 + dist.get_rank())))}


def uneven(options):
    """The second rank has a step less, or dies."""
    dist.init_parallel_env()
    rank, size = dist.get_rank(), dist.get_world_size()
    model = rg.DataParallel(made(options))
    for step in range(3):
        if rank == 1 and step == 2:
            if options["how"] == "killed":
                os.kill(os.getpid(), 9)
            if options["how"] == "raises":
                raise OSError("a disk is full")
            break
        loss_of(model, step, rank, size).backward()
    return {}


def by_fleet(options):
    """The same as :func:`train`, by the calls of a fleet."""
    strategy = fleet.DistributedStrategy()
    for name, value in options.get("strategy", {}).items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)
    if options.get("refused"):
        net = Net()
        sgd = rg.optimizer.SGD(0.5, parameters=net.parameters())
        return {"errors": [message(lambda: fleet.distributed_optimizer(sgd)),
                           message(lambda: fleet.distributed_model(net))]}
    net = made(options)
    optimizer = fleet.distributed_optimizer(optimizer_of(options, net))
    model = fleet.distributed_model(net)
    rank, size = fleet.worker_index(), fleet.worker_num()
    for step in range(6):
        loss = model.scale_loss(loss_of(model, step, rank, size))
        loss.backward()
        model.apply_collective_grads()
        optimizer.step()
        optimizer.clear_grad()
    fleet.barrier_worker()
    total = fleet.util.all_reduce(np.array([rank + 1]), "sum").tolist()
    return {"values": {n: v.numpy() for n, v in model.state_dict().items()}, "total": total,
            "all": fleet.util.all_gather(rank), "buckets": model._reducer.buckets()}


def fitted(options):
    """The high-level API, which wraps and divides by itself."""
    rg.seed(3 + dist.get_rank())
    rng = np.random.RandomState(0)
    data = [(rng.rand(4).astype("float32"), rng.rand(1).astype("float32")) for _ in range(12)]

    class Data(rg.io.Dataset):
        def __getitem__(self, i):
            return data[i]

        def __len__(self):
            return len(data)

    net = rg.nn.Sequential(rg.nn.Linear(4, 8), rg.nn.BatchNorm1D(8), rg.nn.Linear(8, 1))
    model = rg.Model(net)
    model.prepare(rg.optimizer.SGD(0.1, parameters=net.parameters()), rg.nn.MSELoss())
    model.fit(Data(), batch_size=2, epochs=2, verbose=0, accumulate_grad_batches=2, shuffle=False)
    logs = model.evaluate(Data(), batch_size=4, verbose=0)
    outputs = model.predict(Data(), batch_size=4, stack_outputs=True, verbose=0)
    values = {n: v.numpy() for n, v in net.state_dict().items()}
    return {"loss": logs["loss"], "count": len(outputs[0]), "values": values}


def sampled(options):
    """Ranks read all examples once."""
    dist.init_parallel_env()

    class Numbers(rg.io.Dataset):
        def __getitem__(self, i):
            return np.array([i], "int64")

        def __len__(self):
            return 11

    sampler = rg.io.DistributedBatchSampler(Numbers(), 2)
    loader = rg.io.DataLoader(Numbers(), batch_sampler=sampler)
    return {"numbers": [int(i) for batch in loader for i in batch.numpy().ravel()]}


# Called by spawn.
def spawned(folder, scale):
    dist.init_parallel_env()
    x = rg.to_tensor([float(scale)])
    dist.all_reduce(x)
    write(folder, {"sum": float(x), "rank": dist.get_rank()})


def spawned_fails(folder):
    dist.init_parallel_env()
    if dist.get_rank() == 1:
        raise KeyError("no such column")
    dist.barrier()


def spawned_waits(folder):
    import signal

    dist.init_parallel_env()
    os.write(1, b"begun\n")  # in one piece
    signal.pause()


def spawned_exits(folder):
    dist.init_parallel_env()
    if dist.get_rank() == 1:
        os._exit(7)
    dist.barrier()


def write(folder, found):
    values = found.pop("values", None)
    name = os.path.join(folder, f"rank{dist.get_rank()}")
    if values is not None:
        np.savez(name + ".npz", **values)
    with open(name + ".json", "w") as file:
        json.dump(found, file)


def spawning(options):
    dist.spawn(spawned_waits, ("",), nprocs=2)


if __name__ == "__main__":
    kind, where = sys.argv[1:3]
    write(where, globals()[kind](json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}))
