"""Workloads, their data and the request loop shared by the scripts of this folder.

Parameters and batches come from a generator that any language can rebuild bit for bit; it is
described in ../reference/README.md.
"""
import argparse
import json
import statistics
import sys
import time

import numpy as np

PARAMETER_SEED = 1
BATCH_SEED = 2
BATCHES = 8  # the step benchmarks go round this many different batches
WARM_UP_STEPS = 10
WARM_UP_SECONDS = 0.1

WORKLOADS = {
    # GEMM flops per example: forward, weight gradients, and input gradients of every layer
    # (w2: of every layer but the first).
    "w1": dict(dims=(247, 400, 400, 400, 2), act="relu", optimizer="adam", lr=0.001,
               input_grad=True, mflop=2.5176),
    "w2": dict(dims=(32, 128, 128, 2), act="tanh", optimizer="sgd", lr=0.1,
               input_grad=False, mflop=0.1162),
}


class Uniform:
    """splitmix64, of which the top 24 bits of every output are used."""

    def __init__(self, seed):
        self.state = np.uint64(seed)

    def draw(self, n):
        gamma = np.uint64(0x9E3779B97F4A7C15)
        with np.errstate(over="ignore"):
            z = self.state + gamma * np.arange(1, n + 1, dtype=np.uint64)
            self.state = z[-1]
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z = z ^ (z >> np.uint64(31))
        return (z >> np.uint64(40)).astype(np.int64)


def parameters(dims):
    """[(weight of shape [in, out], bias of shape [out]), ...], all in [-0.125, 0.125)."""
    g = Uniform(PARAMETER_SEED)

    def tensor(*shape):
        k = g.draw(int(np.prod(shape))) - (1 << 23)
        return (k.astype(np.float32) * np.float32(2.0**-26)).reshape(shape)

    return [(tensor(i, o), tensor(o)) for i, o in zip(dims, dims[1:])]


def batches(features, batch, count):
    """[(inputs [batch, features] in [-1, 1), labels [batch] of 0 or 1), ...]."""
    g = Uniform(BATCH_SEED)
    sign = np.where(np.arange(features) % 2 == 0, 1, -1)
    out = []
    for _ in range(count):
        k = g.draw(batch * features).reshape(batch, features) - (1 << 23)
        x = k.astype(np.float32) * np.float32(2.0**-23)
        y = ((k * sign).sum(axis=1) > 0).astype(np.int64)
        out.append((x, y))
    return out


def measure(system, runner, workload, batch, seconds, threads):
    """Runs one request. `runner.reset()` returns to the initial parameters, `runner.step(i)` does
    one training step on batch i, `runner.step(i, want_loss=True)` also returns its loss."""
    runner.reset()
    first = runner.step(0, want_loss=True)
    start = time.perf_counter()
    i = 1
    while i < WARM_UP_STEPS - 1 or time.perf_counter() - start < WARM_UP_SECONDS:
        if i == WARM_UP_STEPS - 1:
            check = runner.step(i % BATCHES, want_loss=True)
        else:
            runner.step(i % BATCHES)
        i += 1
    if i < WARM_UP_STEPS:
        check = runner.step(i % BATCHES, want_loss=True)
        i += 1
    times = []
    clock = time.perf_counter_ns
    end = clock() + int(seconds * 1e9)
    before = clock()
    while before < end or len(times) < 3:
        runner.step(i % BATCHES)
        after = clock()
        times.append(after - before)
        before = after
        i += 1
    last = runner.step(i % BATCHES, want_loss=True)
    median = statistics.median(times) / 1e9
    rate = batch / median
    return {
        "system": system, "workload": workload, "batch": batch, "threads": threads,
        "steps": len(times), "step_ms_median": round(median * 1e3, 5),
        "step_ms_min": round(min(times) / 1e6, 5), "examples_per_sec": round(rate, 1),
        "gflops": round(rate * WORKLOADS[workload]["mflop"] / 1e3, 3),
        "loss_first": first, "loss_step_%d" % WARM_UP_STEPS: check, "loss_last": last,
    }


def main(description, start):
    """Command line of the step scripts. `start(threads)` returns the system's name and a function
    (workload name, batch) -> runner."""
    p = argparse.ArgumentParser(description=description)
    p.add_argument("--workload", choices=sorted(WORKLOADS), default="w1")
    p.add_argument("--batch", type=int, help="default: 512 for w1, 128 for w2")
    p.add_argument("--seconds", type=float, default=2.0)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--interactive", action="store_true",
                   help="read JSON requests {workload, batch, seconds} from standard input, "
                        "answer each with one JSON line")
    a = p.parse_args()
    system, make = start(a.threads)
    runners = {}

    def answer(workload, batch, seconds):
        if workload not in WORKLOADS:
            raise ValueError("unknown workload %r" % workload)
        if (workload, batch) not in runners:
            runners[workload, batch] = make(workload, batch)
        result = measure(system, runners[workload, batch], workload, batch, seconds, a.threads)
        print(json.dumps(result), flush=True)

    if not a.interactive:
        answer(a.workload, a.batch or (512 if a.workload == "w1" else 128), a.seconds)
        return
    for line in sys.stdin:
        if not line.strip():
            continue
        try:
            r = json.loads(line)
            answer(r["workload"], int(r["batch"]), float(r["seconds"]))
        except (KeyError, ValueError, TypeError) as e:
            print(json.dumps({"error": repr(e)}), flush=True)
