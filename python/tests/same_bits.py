"""Three models on numbers that any language can compute; crates/regatta/examples/same_bits.rs does
the same in Rust. ``same_bits.py MODEL KIND FOLDER``, alone or behind ``regatta launch``."""
import sys

import numpy as np

import regatta as rg
from regatta.distributed import fleet

STEPS, BATCH = 20, 16


def numbers(stream, n):
    """Multiples of 1/65536 from 0 to 1, without rounding."""
    mixed = (stream * 40503 + np.arange(n, dtype=np.uint64)) * np.uint64(2654435761)
    mixed %= np.uint64(1 << 32)
    return (mixed >> np.uint64(16)).astype(np.float32) / np.float32(65536)


def floats(batch, field, width):
    return numbers(batch * 64 + field, BATCH * width).reshape(BATCH, width)


def integers(batch, field, limit):
    values = numbers(batch * 64 + field, BATCH) * np.float32(limit)
    return values.astype(np.int64).reshape(BATCH, 1)


def fit_a_line():
    x = rg.static.data("x", [None, 13], "float32")
    predict = rg.static.nn.fc(x, 1)
    y = rg.static.data("y", [None, 1], "float32")
    cost = rg.mean(rg.nn.functional.square_error_cost(predict, y))
    return cost, lambda b: {"x": floats(b, 0, 13), "y": floats(b, 1, 1)}


def mlp():
    x = rg.static.data("x", [None, 32], "float32")
    y = rg.static.data("y", [None, 1], "int64")
    h = rg.static.nn.fc(x, 128, activation="tanh")
    h = rg.static.nn.fc(h, 128, activation="tanh")
    p = rg.static.nn.fc(h, 2, activation="softmax")
    cost = rg.mean(rg.static.nn.cross_entropy(p, y))
    return cost, lambda b: {"x": floats(b, 0, 32), "y": integers(b, 1, 2)}


def dnn():
    label = rg.static.data("label", [None, 1], "int64")
    slots = [rg.static.data(str(i), [None, 1], "int64") for i in range(1, 5)]
    dense = rg.static.data("dense_input", [None, 13], "float32")
    attr = rg.ParamAttr(name="SparseFeatFactors", initializer=rg.nn.initializer.Uniform(-1.0, 1.0))
    # As PaddleRec writes it: a lookup and a reshape for every slot, and one concat.
    rows = [rg.static.nn.embedding(s, [101, 9], is_sparse=True, param_attr=attr) for s in slots]
    rows = [rg.reshape(r, [-1, 9]) for r in rows]
    h = rg.concat(rows + [dense], axis=1)
    for size in (32, 16):
        h = rg.static.nn.fc(h, size, activation="relu")
    logits = rg.static.nn.fc(h, 2)
    cost = rg.mean(rg.nn.functional.softmax_with_cross_entropy(logits, label))

    def feeds(b):
        ids = {str(i): integers(b, i, 101) for i in range(1, 5)}
        return {"label": integers(b, 0, 2), **ids, "dense_input": floats(b, 5, 13)}

    return cost, feeds


def main(model, kind, out):
    rg.static.default_startup_program().random_seed = 42
    cost, feeds = {"fit_a_line": fit_a_line, "mlp": mlp, "dnn": dnn}[model]()
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = False
    fleet.init(is_collective=kind == "collective")
    optimizer = fleet.distributed_optimizer(rg.optimizer.Adam(0.01, lazy_mode=True), strategy)
    optimizer.minimize(cost)
    if fleet.is_server():
        fleet.run_server()
        return
    exe = rg.static.Executor()
    exe.run(rg.static.default_startup_program())
    for step in range(STEPS):
        batch = step * fleet.worker_num() + fleet.worker_index()
        loss, = exe.run(feed=feeds(batch), fetch_list=[cost])
        print(step, "%08x" % loss.view(np.uint32).item())
    fleet.barrier_worker()
    fleet.save_persistables(exe, out)
    fleet.stop_worker()


if __name__ == "__main__":
    main(*sys.argv[1:])
