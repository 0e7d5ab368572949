"""Regatta for programs of PyTorch: tables on parameter servers, and ranks that average gradients.

PyTorch builds and runs the model. Regatta keeps what is too large for a process, the rows of
embeddings, and lets the processes of a job exchange gradients::

    import regatta as rg
    import regatta.torch as rt

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words = rt.Embedding(10_000_000, 16, optimizer=rg.optimizer.Adagrad(0.05))
            self.top = torch.nn.Linear(16, 1)

        def forward(self, ids):
            return self.top(self.words(ids).mean(1))

    model = Model()
    job = rt.start(model)                       # servers serve here, and end here
    ranks = rt.sync_gradients(model)            # dense parameters: the mean of all workers
    dense = torch.optim.SGD(model.parameters(), 0.1)
    tables = rt.TableOptimizer(model)
    for ids, labels in batches(job.worker_index, job.worker_num):
        loss = torch.nn.functional.mse_loss(model(ids), labels)
        dense.zero_grad(), tables.zero_grad()
        loss.backward()
        dense.step(), tables.step()

``regatta launch --server_num 2 --worker_num 4 train.py`` starts it as a job; ``python train.py``
trains with the same code in one process.
"""
from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError as _error:
    if _error.name not in (None, "torch"):
        raise
    raise ImportError(
        "regatta.torch needs PyTorch, and it is not installed: pip install torch", name="torch"
    ) from None

from ._ranks import DistributedDataParallel, GradientSync, sync_gradients
from ._tables import Embedding, Job, TableOptimizer, start

__all__ = [
    "DistributedDataParallel", "Embedding", "GradientSync", "Job", "TableOptimizer", "start",
    "sync_gradients",
]
