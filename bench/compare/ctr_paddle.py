#!/usr/bin/env python3
"""PaddlePaddle's side of `run`: the click model in one process, as a parameter-server role, or as a rank.

Roles and endpoints come from Paddle's environment variables, which `run` sets. What it measures is printed
as one line "RESULT {json}". Training reads MultiSlot files by QueueDataset and `train_from_dataset`, the
fastest way that Paddle has; its gloo data parallelism has no such reader, so ranks get batches from memory
and their parsing is not timed."""
import argparse
import glob
import json
import math
import os
import sys
import time

START = float(os.environ.get("BENCH_START", time.time()))
import numpy as np
import paddle
import paddle.distributed.fleet as fleet

SLOTS, DENSE, DIM, LAYERS = 26, 13, 9, (400, 400, 400)
SERVERS = ("async", "sync", "geo")


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--mode", choices=("local", "collective") + SERVERS, default="local")
    p.add_argument("--net", choices=("dnn", "rows"), default="dnn",
                   help="rows: embeddings and a sum only, to measure pulls and pushes")
    p.add_argument("--first", help="folder with the files of the first steps, by worker")
    p.add_argument("--train", required=True, help="folder with training files")
    p.add_argument("--test", help="file to measure AUC on")
    p.add_argument("--rows", type=int, required=True, help="rows of the embedding table")
    p.add_argument("--batch", type=int, default=512)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--geo-steps", type=int, default=100)
    p.add_argument("--feed-steps", type=int, default=0,
                   help="instead of a dataset: as many exe.run steps over batches in memory")
    p.add_argument("--dense-gradients", action="store_true",
                   help="collective: gradients of the whole table instead of row-sparse ones")
    p.add_argument("--save", help="save the table to this folder, and tell how long it takes")
    p.add_argument("--load", help="servers load this folder, and tell how long it takes")
    return p.parse_args()


def report(**values):
    print("RESULT " + json.dumps(values), flush=True)


def since_start():
    return time.time() - START


def read(path):
    """Labels, ids and floats of a MultiSlot file."""
    width = 2 + 2 * SLOTS + 1 + DENSE
    with open(path) as f:
        a = np.fromstring(f.read(), sep=" ", dtype=np.float64).reshape(-1, width)
    ids = 2 + 2 * np.arange(SLOTS) + 1
    return (a[:, 1:2].astype(np.int64), a[:, ids].astype(np.int64),
            a[:, -DENSE:].astype(np.float32))


def auc(labels, scores):
    """Probability that a positive has the higher score, ties counting half."""
    order = np.argsort(scores, kind="stable")
    _, group, size = np.unique(scores[order], return_inverse=True, return_counts=True)
    ranks = (np.cumsum(size) - (size - 1) / 2)[group]
    positive = labels[order] == 1
    n, m = positive.sum(), (~positive).sum()
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * m))


class Static:
    """The model as a static program, on one machine or against servers."""

    def __init__(self, a):
        self.a, self.ps = a, a.mode in SERVERS
        paddle.enable_static()
        paddle.seed(a.seed)
        if self.ps:
            fleet.init()
        self.inputs, cost, self.predict = self.network()
        optimizer = paddle.optimizer.Adam(0.001, lazy_mode=True)
        if self.ps:
            strategy = fleet.DistributedStrategy()
            strategy.a_sync = a.mode != "sync"
            if a.mode == "geo":
                strategy.a_sync_configs = {"k_steps": a.geo_steps}
            optimizer = fleet.distributed_optimizer(optimizer, strategy)
        optimizer.minimize(cost)

    def network(self):
        label = paddle.static.data("click", [None, 1], "int64")
        slots = [paddle.static.data(str(i + 1), [None, 1], "int64") for i in range(SLOTS)]
        dense = paddle.static.data("dense_feature", [None, DENSE], "float32")
        attr = paddle.ParamAttr(name="SparseFeatFactors",
                                initializer=paddle.nn.initializer.Uniform())
        shape = [self.a.rows, DIM]

        def rows_of(slot):
            # geo keeps a local copy of the table, which only the plain embedding has
            if self.ps and self.a.mode != "geo":
                e = paddle.static.nn.sparse_embedding(slot, shape, param_attr=attr)
            else:
                e = paddle.static.nn.embedding(slot, shape, is_sparse=True, param_attr=attr)
            return paddle.reshape(e, [-1, DIM])

        h = paddle.concat([rows_of(s) for s in slots] + [dense], axis=1)
        inputs = [label] + slots + [dense]
        if self.a.net == "rows":
            weight = paddle.cast(paddle.reshape(label, [-1]), "float32") + 1.0
            return inputs, paddle.mean(paddle.sum(h, axis=1) * weight), None
        widths = (SLOTS * DIM + DENSE,) + LAYERS + (2,)
        for i, (n, m) in enumerate(zip(widths, widths[1:])):
            normal = paddle.nn.initializer.Normal(std=1.0 / math.sqrt(n))
            h = paddle.static.nn.fc(h, m, activation="relu" if i < len(LAYERS) else None,
                                    weight_attr=paddle.ParamAttr(initializer=normal))
        predict = paddle.nn.functional.softmax(h)
        loss = paddle.nn.functional.cross_entropy(predict, label, use_softmax=False,
                                                  reduction="none")
        return inputs, paddle.mean(loss), predict

    def serve(self):
        begin = time.time()
        if self.a.load:
            fleet.init_server(self.a.load)
            report(load_s=time.time() - begin)
        else:
            fleet.init_server()
        fleet.run_server()

    def work(self):
        self.exe = paddle.static.Executor(paddle.CPUPlace())
        self.exe.run(paddle.static.default_startup_program())
        self.rank, self.workers = 0, 1
        if self.ps:
            fleet.init_worker()
            self.rank, self.workers = fleet.worker_index(), fleet.worker_num()
        self.program = paddle.static.default_main_program()
        out = {"init_s": since_start()}
        if self.a.feed_steps:
            out.update(self.feed_steps())
        else:
            out.update(self.passes())
        if self.ps:
            fleet.util.barrier()
            self.drain()
        if self.a.test and self.rank == 0:
            out["auc"] = self.evaluate()
        if self.a.save:
            begin = time.time()
            fleet.save_persistables(self.exe, self.a.save)
            out["save_s"] = time.time() - begin
        report(rank=self.rank, **out)
        if self.ps:
            fleet.util.barrier()
            fleet.stop_worker()

    def run_files(self, files):
        dataset = paddle.distributed.QueueDataset()
        dataset.init(batch_size=self.a.batch, thread_num=1, use_var=self.inputs, pipe_command="cat")
        dataset.set_filelist(files)
        begin = time.time()
        self.exe.train_from_dataset(self.program, dataset, thread=1, debug=False)
        return time.time() - begin

    def passes(self):
        """The first batch, for the time to the first step; the first file, to warm up; the others, timed."""
        out = {}
        if self.a.first:
            self.run_files([os.path.join(self.a.first, "first-%d" % self.rank)])
            out["first_step_s"] = since_start()
            self.run_files([os.path.join(self.a.first, "rest-%d" % self.rank)])
        files = sorted(glob.glob(os.path.join(self.a.train, "part-*")))
        if self.a.first:
            files = files[self.workers:]
        elif len(files) > self.workers:
            self.run_files(files[self.rank:self.rank + 1])
            files = files[self.workers:]
        files = files[self.rank::self.workers]
        if self.ps:
            fleet.util.barrier()
        seconds = self.run_files(files)
        return dict(out, seconds=seconds, examples=sum(sum(1 for _ in open(f)) for f in files))

    def feed_steps(self):
        files = sorted(glob.glob(os.path.join(self.a.train, "part-*")))
        labels, ids, dense = read(files[0])
        feeds = [self.feed(labels[s:s + self.a.batch], ids[s:s + self.a.batch],
                           dense[s:s + self.a.batch])
                 for s in range(0, len(labels) - self.a.batch + 1, self.a.batch)]
        for f in feeds[:20]:
            self.exe.run(self.program, feed=f)
        begin = time.time()
        for i in range(self.a.feed_steps):
            self.exe.run(self.program, feed=feeds[i % len(feeds)])
        return dict(seconds=time.time() - begin, examples=self.a.feed_steps * self.a.batch)

    def feed(self, labels, ids, dense):
        feed = {"click": labels, "dense_feature": dense}
        feed.update((str(i + 1), np.ascontiguousarray(ids[:, i:i + 1])) for i in range(SLOTS))
        return feed

    def drain(self):
        """Lets queued pushes arrive and fetches the dense parameters, which Paddle leaves to chance."""
        if self.a.mode == "geo":
            return
        from paddle.distributed.ps.utils.public import get_the_one_recv_context
        handle = fleet.fleet._runtime_handle
        handle._worker.client_flush()
        fleet.util.barrier()
        context = get_the_one_recv_context(handle.context,
                                           split_dense_table=handle.is_heter_ps_mode)
        handle._pull_all_dense(handle.scopes, handle._send_ctx, context)
        fleet.util.barrier()

    def evaluate(self):
        program = self.program.clone()
        names = [v.name for v in self.inputs if v.name != "click"]
        predict = program.global_block().var(self.predict.name)
        program = program._prune_with_input(names, [predict])
        labels, ids, dense = read(self.a.test)
        scores = []
        for s in range(0, len(labels), 2048):
            feed = self.feed(labels[s:s + 2048], ids[s:s + 2048], dense[s:s + 2048])
            del feed["click"]
            out = self.exe.run(program, feed=feed, fetch_list=[self.predict.name])
            scores.append(out[0][:, 1])
        return auc(labels[:, 0], np.concatenate(scores))


class Ranks:
    """The model in dynamic mode, with gradients averaged over the ranks by gloo."""

    def __init__(self, a):
        self.a = a
        paddle.seed(a.seed)
        fleet.init(is_collective=True)
        self.rank, self.ranks = fleet.worker_index(), fleet.worker_num()
        uniform = paddle.ParamAttr(initializer=paddle.nn.initializer.Uniform())
        a_layers = []
        widths = (SLOTS * DIM + DENSE,) + LAYERS + (2,)
        for i, (n, m) in enumerate(zip(widths, widths[1:])):
            normal = paddle.nn.initializer.Normal(std=1.0 / math.sqrt(n))
            a_layers.append(paddle.nn.Linear(n, m, paddle.ParamAttr(initializer=normal)))
            if i < len(LAYERS):
                a_layers.append(paddle.nn.ReLU())

        class Net(paddle.nn.Layer):
            def __init__(self):
                super().__init__()
                self.table = paddle.nn.Embedding(a.rows, DIM, sparse=not a.dense_gradients,
                                                 weight_attr=uniform)
                self.layers = paddle.nn.Sequential(*a_layers)

            def forward(self, ids, dense):
                rows = paddle.reshape(self.table(ids), [-1, SLOTS * DIM])
                return self.layers(paddle.concat([rows, dense], axis=1))

        net = Net()
        optimizer = paddle.optimizer.Adam(0.001, parameters=net.parameters(), lazy_mode=True)
        self.net = fleet.distributed_model(net)
        self.optimizer = fleet.distributed_optimizer(optimizer)

    def step(self, batch):
        labels, ids, dense = batch
        loss = paddle.nn.functional.cross_entropy(self.net(ids, dense), labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.clear_grad()

    def work(self):
        files = sorted(glob.glob(os.path.join(self.a.train, "part-*")))[self.rank::self.ranks]
        size, batches = self.a.batch, []
        out = {}
        for path in files:
            data = [paddle.to_tensor(x) for x in read(path)]
            n = data[0].shape[0]
            batches += [[x[s:s + size] for x in data] for s in range(0, n - size + 1, size)]
            if "first_step_s" not in out:
                self.step(batches[0])
                out["first_step_s"] = since_start()
        paddle.distributed.barrier()
        begin = time.time()
        for batch in batches[1:]:
            self.step(batch)
        out.update(seconds=time.time() - begin, examples=size * (len(batches) - 1))
        if self.a.test and self.rank == 0:
            labels, ids, dense = read(self.a.test)
            self.net.eval()
            scores = []
            with paddle.no_grad():
                for s in range(0, len(labels), 2048):
                    logits = self.net(paddle.to_tensor(ids[s:s + 2048]),
                                      paddle.to_tensor(dense[s:s + 2048]))
                    scores.append(paddle.nn.functional.softmax(logits).numpy()[:, 1])
            out["auc"] = auc(labels[:, 0], np.concatenate(scores))
        report(rank=self.rank, **out)
        paddle.distributed.barrier()


def main():
    a = arguments()
    if a.mode == "collective":
        return Ranks(a).work()
    model = Static(a)
    if model.ps and fleet.is_server():
        return model.serve()
    return model.work()


if __name__ == "__main__":
    sys.exit(main())
