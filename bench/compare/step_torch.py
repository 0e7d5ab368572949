#!/usr/bin/env python3
"""Training steps of PyTorch (eager, CPU): see --help, and ../README.md for the workloads."""
import os

import common


def start(threads):
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("MKL_NUM_THREADS", str(threads))
    import torch

    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    torch.set_flush_denormal(True)
    linear = torch.nn.functional.linear
    cross_entropy = torch.nn.functional.cross_entropy

    class Runner:
        def __init__(self, workload, batch):
            self.w = w = common.WORKLOADS[workload]
            self.act = getattr(torch, w["act"])
            self.batches = [
                (torch.from_numpy(x).requires_grad_(w["input_grad"]), torch.from_numpy(y))
                for x, y in common.batches(w["dims"][0], batch, common.BATCHES)
            ]

        def reset(self):
            self.layers = [
                (torch.from_numpy(weight.T.copy()).requires_grad_(),
                 torch.from_numpy(bias).requires_grad_())
                for weight, bias in common.parameters(self.w["dims"])
            ]
            flat = [p for layer in self.layers for p in layer]
            if self.w["optimizer"] == "adam":
                self.optimizer = torch.optim.Adam(flat, lr=self.w["lr"], fused=True)
            else:
                self.optimizer = torch.optim.SGD(flat, lr=self.w["lr"], fused=True)

        def step(self, i, want_loss=False):
            x, y = self.batches[i]
            x.grad = None
            self.optimizer.zero_grad(set_to_none=True)
            h = x
            for weight, bias in self.layers[:-1]:
                h = self.act(linear(h, weight, bias))
            loss = cross_entropy(linear(h, *self.layers[-1]), y)
            loss.backward()
            self.optimizer.step()
            return loss.item() if want_loss else None

    return "torch " + torch.__version__, Runner


if __name__ == "__main__":
    common.main(__doc__, start)
