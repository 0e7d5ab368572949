#!/usr/bin/env python3
"""PyTorch's side of `run`: the click model in one process, or as one of several ranks over gloo.

Batches come from memory: PyTorch has no reader for MultiSlot files, so its parsing is not timed. The table has
row-sparse gradients and SparseAdam, the layers have the fused Adam. With ranks, DistributedDataParallel averages
the gradients. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT come from `run`. Prints one line "RESULT {json}"."""
import argparse
import glob
import json
import math
import os
import time

START = float(os.environ.get("BENCH_START", time.time()))
import numpy as np
import torch

SLOTS, DENSE, DIM, LAYERS = 26, 13, 9, (400, 400, 400)


def read(path):
    """Labels, ids and floats of a MultiSlot file."""
    width = 2 + 2 * SLOTS + 1 + DENSE
    with open(path) as f:
        a = np.fromstring(f.read(), sep=" ", dtype=np.float64).reshape(-1, width)
    ids = 2 + 2 * np.arange(SLOTS) + 1
    parts = (a[:, 1].astype(np.int64), a[:, ids].astype(np.int64), a[:, -DENSE:].astype(np.float32))
    return [torch.from_numpy(np.ascontiguousarray(x)) for x in parts]


class Net(torch.nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.table = torch.nn.Embedding(rows, DIM, sparse=True)
        torch.nn.init.uniform_(self.table.weight, -1.0, 1.0)
        widths = (SLOTS * DIM + DENSE,) + LAYERS + (2,)
        layers = []
        for n, m in zip(widths, widths[1:]):
            layer = torch.nn.Linear(n, m)
            torch.nn.init.normal_(layer.weight, std=1.0 / math.sqrt(n))
            torch.nn.init.zeros_(layer.bias)
            layers += [layer, torch.nn.ReLU()]
        self.layers = torch.nn.Sequential(*layers[:-1])

    def forward(self, ids, dense):
        rows = self.table(ids).reshape(-1, SLOTS * DIM)
        return self.layers(torch.cat([rows, dense], dim=1))


def auc(labels, scores):
    """Probability that a positive has the higher score, ties counting half."""
    order = np.argsort(scores, kind="stable")
    _, group, size = np.unique(scores[order], return_inverse=True, return_counts=True)
    ranks = (np.cumsum(size) - (size - 1) / 2)[group]
    positive = labels[order] == 1
    n, m = positive.sum(), (~positive).sum()
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * m))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--train", required=True)
    p.add_argument("--test")
    p.add_argument("--rows", type=int, required=True)
    p.add_argument("--batch", type=int, default=512)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    torch.set_flush_denormal(True)
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    net = Net(a.rows)
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        net = torch.nn.parallel.DistributedDataParallel(net)
    inner = net.module if ranks > 1 else net
    optimizers = [torch.optim.SparseAdam([inner.table.weight], lr=0.001),
                  torch.optim.Adam(inner.layers.parameters(), lr=0.001, fused=True)]

    def step(labels, ids, dense):
        for o in optimizers:
            o.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(net(ids, dense), labels).backward()
        for o in optimizers:
            o.step()

    out, batches = {}, []
    for path in sorted(glob.glob(os.path.join(a.train, "part-*")))[rank::ranks]:
        data = read(path)
        batches += [[x[s:s + a.batch] for x in data]
                    for s in range(0, len(data[0]) - a.batch + 1, a.batch)]
        if "first_step_s" not in out:
            step(*batches[0])
            out["first_step_s"] = time.time() - START
    if ranks > 1:
        torch.distributed.barrier()
    begin = time.time()
    for batch in batches[1:]:
        step(*batch)
    out.update(seconds=time.time() - begin, examples=a.batch * (len(batches) - 1))
    if a.test and rank == 0:
        labels, ids, dense = read(a.test)
        with torch.no_grad():
            scores = [torch.softmax(inner(ids[s:s + 2048], dense[s:s + 2048]), 1)[:, 1]
                      for s in range(0, len(labels), 2048)]
        out["auc"] = auc(labels.numpy(), torch.cat(scores).numpy())
    print("RESULT " + json.dumps(dict(out, rank=rank)), flush=True)
    if ranks > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
