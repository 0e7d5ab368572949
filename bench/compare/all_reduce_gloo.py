#!/usr/bin/env python3
"""Time of torch.distributed.all_reduce over gloo, by size, for bench/compare/all_reduce.

Prints one JSON line per size, like the all_reduce program of Regatta.
"""
import argparse
import json
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def repeats(size):
    return min(max((160 << 20) // max(size, 1), 4), 1000)


def rank_main(rank, ranks, port, sizes):
    torch.set_num_threads(1)
    # Not bound to a core, unlike the ranks of Regatta and mpirun: gloo works on threads of its own, and is
    # several times slower when they share one core with the caller.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%d" % port, rank=rank,
                            world_size=ranks)
    for size in sizes:
        data = torch.zeros(size // 4)
        n = repeats(size)
        times = []
        for i in range(n // 10 + 2 + n):
            start = time.perf_counter()
            dist.all_reduce(data)
            if i >= n // 10 + 2:
                times.append(time.perf_counter() - start)
        times.sort()
        if rank == 0:
            print(json.dumps({"bytes": size, "us": times[len(times) // 2] * 1e6}), flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--bytes", required=True, help="sizes, separated by commas")
    args = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    sizes = [int(text) for text in args.bytes.split(",")]
    # Forked, so that torch is imported once: most of a short run would be imports otherwise.
    mp.start_processes(rank_main, (args.ranks, port, sizes), nprocs=args.ranks, start_method="fork")


if __name__ == "__main__":
    main()
