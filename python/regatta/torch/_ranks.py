"""Ranks that average the gradients of a PyTorch model: the data-parallel training of its dense
parameters."""
from __future__ import annotations

import contextlib
from typing import Any, Iterator, List, Optional, Tuple

import numpy as np
import torch

from ..distributed import collective

__all__ = ["DistributedDataParallel", "GradientSync", "sync_gradients"]

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class GradientSync:
    """What :func:`sync_gradients` has begun: after every backward pass the gradients of all ranks
    become their mean, with the same bits on all of them.

    ``examples`` is how many times the gradients of this rank count, 1 on all ranks at first: the
    plain mean. For batches of different sizes set it to the size before each backward pass; then
    the mean is that of all examples.
    """

    def __init__(self, module: torch.nn.Module, bucket_mb: float) -> None:
        if not bucket_mb > 0:
            raise ValueError(f"sync_gradients: bucket_mb should be above 0, but is {bucket_mb}")
        self._group: Any = collective.join()
        self.rank, self.world_size = self._group.rank(), self._group.size()
        self.examples = 1
        self._enabled, self._queued = True, False
        named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        for name, parameter in named:
            if parameter.dtype not in _FLOATS:
                raise TypeError(
                    f"sync_gradients: '{name}' is of type {parameter.dtype}, and ranks add up "
                    "float32; convert the model with model.float()"
                )
        self._parameters = [p for _, p in named]
        self._buckets = _buckets(self._parameters, int(bucket_mb * (1 << 20)))
        self._check_same(module, named)
        self.broadcast(module)
        # The hooks refer to what they belong to, so that this object may be forgotten.
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._on_gradient) for p in self._parameters
        ]

    def broadcast(self, module: torch.nn.Module, root: int = 0) -> None:
        """Gives all ranks the parameters and buffers of one of them."""
        if self.world_size == 1:
            return
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                array = _bits(tensor)
                collective.broadcast(array, root)
                tensor.copy_(_of_bits(array, tensor))

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside ``with`` only add to the gradients of this rank; the first one
        afterwards averages the sums. For batches that are computed in several parts."""
        before, self._enabled = self._enabled, False
        try:
            yield
        finally:
            self._enabled = before

    def reduce(self) -> None:
        """Averages the gradients as they are now. Backward passes do it by themselves; a rank
        whose loss depends on no parameter calls it instead, as the others wait for it."""
        for bucket in self._buckets:
            self._reduce_bucket(bucket)

    def remove(self) -> None:
        """Takes the hooks away: backward passes do not exchange gradients any more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _on_gradient(self, _: torch.Tensor) -> None:
        if self._enabled and not self._queued and self.world_size > 1:
            self._queued = True
            # Runs when the whole backward pass is done, before `backward` returns.
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _finish(self) -> None:
        self._queued = False
        self.reduce()

    def _reduce_bucket(self, bucket: List[torch.nn.Parameter]) -> None:
        """Travels as: gradients times examples, which of them there are, examples. A gradient that
        no rank has stays absent."""
        if self.world_size == 1:
            return
        total = sum(p.numel() for p in bucket)
        sums = np.zeros(total + len(bucket) + 1, np.float32)
        weight = float(self.examples)
        at = 0
        for number, parameter in enumerate(bucket):
            n = parameter.numel()
            if parameter.grad is not None:
                own = torch.from_numpy(sums[at:at + n])
                own.copy_(_dense(parameter.grad).reshape(-1))
                if weight != 1.0:
                    own.mul_(weight)
                sums[total + number] = 1.0
            at += n
        sums[-1] = weight
        self._group.all_reduce(sums)
        if not sums[-1] > 0:
            raise ValueError("sync_gradients: no rank has examples; set examples above 0 on one")
        sums[:total] /= sums[-1]
        at = 0
        for number, parameter in enumerate(bucket):
            n = parameter.numel()
            if sums[total + number] > 0:
                mean = torch.from_numpy(sums[at:at + n]).reshape(parameter.shape)
                _put_gradient(parameter, mean)
            at += n

    def _check_same(
        self, module: torch.nn.Module, named: List[Tuple[str, torch.nn.Parameter]]
    ) -> None:
        """All ranks must have made the same model: otherwise they would wait for each other."""
        if self.world_size == 1:
            return
        import zlib

        own = [(name, tuple(p.shape), str(p.dtype)) for name, p in named]
        own += [(name, tuple(b.shape), str(b.dtype)) for name, b in module.named_buffers()]
        number = np.array([zlib.crc32(repr(own).encode())], np.int64)
        found: List[np.ndarray] = []
        collective.all_gather(found, number)
        others = [rank for rank, value in enumerate(found) if value[0] != found[0][0]]
        if others:
            raise RuntimeError(
                f"sync_gradients: the parameters of rank {others[0]} are not those of rank 0; all "
                f"ranks must make the same model (here {len(named)} parameters)"
            )

    def __repr__(self) -> str:
        return f"GradientSync(rank {self.rank} of {self.world_size})"


def _buckets(
    parameters: List[torch.nn.Parameter], limit: int
) -> List[List[torch.nn.Parameter]]:
    """Parameters whose gradients travel together, the last ones first: so they are ready."""
    buckets: List[List[torch.nn.Parameter]] = []
    size = 0
    for parameter in reversed(parameters):
        n = 4 * parameter.numel()
        if not buckets or size + n > limit:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += n
    return buckets


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    gradient = gradient.detach()
    if gradient.is_sparse:
        gradient = gradient.to_dense()
    return gradient.to("cpu", torch.float32)


def _put_gradient(parameter: torch.nn.Parameter, mean: torch.Tensor) -> None:
    with torch.no_grad():
        if parameter.grad is not None and not parameter.grad.is_sparse:
            parameter.grad.copy_(mean)
        else:
            parameter.grad = mean.to(parameter.device, parameter.dtype, copy=True)


def _bits(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of a tensor of any type."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1).clone()
    return flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)


def _of_bits(array: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    if not array.size:
        return like
    return torch.from_numpy(array).view(like.dtype).reshape(like.shape)


def sync_gradients(module: torch.nn.Module, bucket_mb: float = 25.0) -> GradientSync:
    """Trains a model on all ranks of a job as one: all ranks get the parameters and buffers of
    rank 0 now, and the mean of their gradients after each backward pass.

    The ranks are those of ``regatta launch --nproc_per_node N script.py``, or the workers of a job
    with servers. A process without a job is alone, and nothing changes. Gradients travel in parts
    of about ``bucket_mb`` megabytes. All ranks make the same number of backward passes.

    >>> import regatta.torch as rt, torch
    >>> rt.sync_gradients(torch.nn.Linear(2, 1))
    GradientSync(rank 0 of 1)
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"sync_gradients takes a module, not a {type(module).__name__}")
    return GradientSync(module, bucket_mb)


class DistributedDataParallel(torch.nn.Module):
    """A module with :func:`sync_gradients`, in the shape of PyTorch's class of this name.

    Buffers (running statistics) come from rank 0 at the beginning and belong to each rank then.
    """

    def __init__(self, module: torch.nn.Module, bucket_cap_mb: Optional[float] = None) -> None:
        super().__init__()
        self.module = module
        self.sync = sync_gradients(module, 25.0 if bucket_cap_mb is None else bucket_cap_mb)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """That of the module."""
        return self.module(*args, **kwargs)

    def no_sync(self) -> Any:
        """As :meth:`GradientSync.no_sync`."""
        return self.sync.no_sync()
