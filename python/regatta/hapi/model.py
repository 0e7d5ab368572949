"""A network with what trains and measures it."""
from __future__ import annotations

import inspect
import os
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from .._files import load, save
from .callbacks import Callback, CallbackList, with_defaults


def _list(value: Any) -> List[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


class Model:
    """A network with an optimizer, losses and metrics; ``Model.open(folder)`` is a saved model that
    answers.

    ``prepare`` says how to train, ``fit`` trains on a dataset or loader, ``evaluate`` measures,
    ``predict`` gives outputs. Of a batch, as many fields as ``inputs`` has, or else as ``forward``
    needs arguments, are inputs; the others are labels.

    Started as several ranks, they train one model: a dataset is divided among them, and gradients
    are averaged. Each rank evaluates all examples, with the statistics of rank 0.
    """

    def __init__(self, network: Any, inputs: Any = None, labels: Any = None) -> None:
        from .._mode import in_dynamic_mode

        if not in_dynamic_mode():
            raise RuntimeError("Model trains in dynamic mode: leave out enable_static")
        self.network = network
        self._inputs, self._labels = _list(inputs), _list(labels)
        self._n_inputs = len(self._inputs) or _arguments(network)
        self._optimizer: Any = None
        self._loss: Any = None
        self._metrics: List[Any] = []
        self._amp: Optional[Dict[str, Any]] = None
        self._scaler: Any = None
        self._parallel: Any = None
        self.stop_training = False

    @staticmethod
    def open(path: Any, threads: int = 1) -> Any:
        """A saved model: a folder, or the path prefix of ``jit.save`` or
        ``static.save_inference_model``. It answers ``predict({"x": rows})``."""
        from .._model import SavedModel

        return SavedModel.open(path, threads)

    # What trains and measures
    def prepare(
        self, optimizer: Any = None, loss: Any = None, metrics: Any = None, amp_configs: Any = None
    ) -> None:
        """Sets the optimizer, the loss (a function of outputs and labels) and metrics.
        ``amp_configs`` is a level, ``"O1"`` or ``"O2"``, or a dictionary for ``amp.auto_cast``."""
        from ..metric import Metric

        if loss is not None and not callable(loss):
            raise TypeError(f"prepare: loss should be a function or a layer, but is {loss!r}")
        for metric in _list(metrics):
            if not isinstance(metric, Metric):
                raise TypeError(f"prepare: {type(metric).__name__} is not a Metric")
        self._optimizer, self._loss, self._metrics = optimizer, loss, _list(metrics)
        self._amp = {"level": amp_configs} if isinstance(amp_configs, str) else amp_configs
        if self._amp is not None and self._amp.get("level") != "O0":
            from .. import amp

            self._scaler = amp.GradScaler()
        self._join()

    def _join(self) -> None:
        """Makes the network that of all ranks, if there are others."""
        from .. import distributed

        if self._optimizer is None or self._parallel is not None:
            return
        if distributed.get_world_size() > 1:
            distributed.init_parallel_env()
            self._parallel = distributed.DataParallel(self.network)

    def parameters(self, *args: Any, **kwargs: Any) -> List[Any]:
        """Those of the network."""
        return self.network.parameters(*args, **kwargs)

    # One batch
    def _forward(self, inputs: Any, network: Any = None) -> List[Any]:
        network = self.network if network is None else network
        tensors = [_tensor(each) for each in _list(inputs)]
        if self._amp is None:
            return _list(network(*tensors))
        from .. import amp

        with amp.auto_cast(**self._amp):
            return _list(network(*tensors))

    def _losses(self, outputs: Sequence[Any], labels: Sequence[Any]) -> List[Any]:
        if self._loss is None:
            raise RuntimeError("call prepare(loss=...) first")
        return _list(self._loss(*outputs, *labels))

    def _measure(self, outputs: Sequence[Any], labels: Sequence[Any]) -> List[Any]:
        found = []
        for metric in self._metrics:
            prepared = metric.compute(*outputs, *labels)
            found.append(metric.update(*_list(prepared)))
        return found

    def _results(self, losses: Sequence[Any], measured: List[Any]) -> Any:
        values = [each.numpy() for each in losses]
        return (values, measured) if self._metrics else values

    def train_batch(self, inputs: Any, labels: Any = None, update: bool = True) -> Any:
        """One step on a batch; without ``update`` gradients are only added up. Returns losses as
        arrays, with values of metrics if there are any."""
        if self._optimizer is None:
            raise RuntimeError("call prepare(optimizer, loss) first")
        self.network.train()
        labels = [_tensor(each) for each in _list(labels)]
        if self._parallel is not None:
            # Ranks exchange the sums of several batches at once.
            self._parallel.grad_need_sync = update
        outputs = self._forward(inputs, self._parallel)
        losses = self._losses(outputs, labels)
        total = losses[0]
        for each in losses[1:]:
            total = total + each
        if self._scaler is not None:
            self._scaler.scale(total).backward()
            if update:
                self._scaler.step(self._optimizer)
                self._scaler.update()
        else:
            total.backward()
            if update:
                self._optimizer.step()
        if update:
            self._optimizer.clear_grad()
        return self._results(losses, self._measure(outputs, labels))

    def eval_batch(self, inputs: Any, labels: Any = None) -> Any:
        """Losses and metrics of a batch."""
        from .._mode import no_grad

        self.network.eval()
        with no_grad():
            labels = [_tensor(each) for each in _list(labels)]
            outputs = self._forward(inputs)
            losses = self._losses(outputs, labels) if self._loss is not None else []
            return self._results(losses, self._measure(outputs, labels))

    def predict_batch(self, inputs: Any) -> List[Any]:
        """Outputs for a batch, as arrays."""
        from .._mode import no_grad

        self.network.eval()
        with no_grad():
            return [each.numpy() for each in self._forward(inputs)]

    # All batches
    def fit(
        self, train_data: Any = None, eval_data: Any = None, batch_size: int = 1, epochs: int = 1,
        eval_freq: int = 1, log_freq: int = 10, save_dir: Optional[str] = None, save_freq: int = 1,
        verbose: int = 2, drop_last: bool = False, shuffle: bool = True, num_workers: int = 0,
        callbacks: Any = None, accumulate_grad_batches: int = 1, num_iters: Optional[int] = None,
    ) -> None:
        """Trains for ``epochs``, and measures ``eval_data`` every ``eval_freq`` epochs."""
        if train_data is None:
            raise ValueError("fit: train_data is None; expected a dataset or a loader")
        loader = _loader(train_data, batch_size, shuffle, drop_last, num_workers)
        test = None if eval_data is None else _loader(
            eval_data, batch_size, False, False, num_workers, divided=False)
        steps = _length(loader)
        calls = with_defaults(callbacks, self, log_freq, verbose, save_dir, save_freq, {
            "epochs": epochs, "steps": steps, "verbose": verbose, "metrics": self._names()})
        self.stop_training = False
        left = num_iters
        calls.on_train_begin()
        for epoch in range(epochs):
            calls.on_epoch_begin(epoch)
            logs, ran = self._train_epoch(loader, calls, accumulate_grad_batches, left)
            left = None if left is None else left - ran
            calls.on_epoch_end(epoch, logs)
            if test is not None and epoch % eval_freq == 0:
                self._evaluate(test, calls)
            if self.stop_training or left is not None and left <= 0:
                break
        calls.on_train_end({})

    def _train_epoch(
        self, loader: Any, calls: CallbackList, accumulate: int, most: Optional[int]
    ) -> Tuple[Dict[str, Any], int]:
        for metric in self._metrics:
            metric.reset()
        logs: Dict[str, Any] = {}
        ran, n_batches = 0, _length(loader)
        for step, (inputs, labels) in enumerate(self._split(loader)):
            if most is not None and ran >= most:
                break
            calls.on_train_batch_begin(step, {})
            last = n_batches is not None and step + 1 == n_batches
            update = (step + 1) % accumulate == 0 or last
            found = self.train_batch(inputs, labels, update)
            ran += 1
            logs = {"step": step, "batch_size": _rows(inputs), **self._logs(found)}
            calls.on_train_batch_end(step, logs)
        return logs, ran

    def evaluate(
        self, eval_data: Any, batch_size: int = 1, log_freq: int = 10, verbose: int = 2,
        num_workers: int = 0, callbacks: Any = None, num_iters: Optional[int] = None,
    ) -> Dict[str, Any]:
        """Losses, averaged over all examples, and metrics of a dataset, by name."""
        loader = _loader(eval_data, batch_size, False, False, num_workers, divided=False)
        calls = with_defaults(callbacks, self, log_freq, verbose, None, 1, {
            "steps": _length(loader), "verbose": verbose, "metrics": self._names()})
        return self._evaluate(loader, calls, num_iters)

    def _evaluate(
        self, loader: Any, calls: CallbackList, most: Optional[int] = None
    ) -> Dict[str, Any]:
        for metric in self._metrics:
            metric.reset()
        if self._parallel is not None:
            self._parallel.share_buffers()
        calls.on_eval_begin({"steps": _length(loader), "metrics": self._names()})
        logs: Dict[str, Any] = {}
        total: List[float] = []
        examples = 0
        for step, (inputs, labels) in enumerate(self._split(loader)):
            if most is not None and step >= most:
                break
            calls.on_eval_batch_begin(step, {})
            logs = self._logs(self.eval_batch(inputs, labels))
            rows = _rows(inputs)
            examples += rows
            losses = logs.get("loss", [])
            total = [a + b * rows for a, b in zip(total or [0.0] * len(losses), losses)]
            if total:
                logs["loss"] = [each / examples for each in total]
            calls.on_eval_batch_end(step, {"step": step, "batch_size": rows, **logs})
        calls.on_eval_end(logs)
        return logs

    def predict(
        self, test_data: Any, batch_size: int = 1, num_workers: int = 0,
        stack_outputs: bool = False, verbose: int = 1, callbacks: Any = None,
    ) -> List[Any]:
        """Outputs for a dataset: for every output of the network a list of arrays, one for each
        batch, or one array with ``stack_outputs``."""
        import numpy as np

        loader = _loader(test_data, batch_size, False, False, num_workers, divided=False)
        calls = with_defaults(callbacks, self, 1, verbose, None, 1, {
            "steps": _length(loader), "verbose": verbose, "metrics": []})
        calls.on_predict_begin({"steps": _length(loader)})
        batches: List[List[Any]] = []
        for step, (inputs, _) in enumerate(self._split(loader)):
            calls.on_predict_batch_begin(step, {})
            batches.append(self.predict_batch(inputs))
            calls.on_predict_batch_end(step, {"step": step, "batch_size": _rows(inputs)})
        calls.on_predict_end({})
        outputs = [list(each) for each in zip(*batches)]
        return [np.concatenate(each) for each in outputs] if stack_outputs else outputs

    def _split(self, loader: Any) -> Iterator[Tuple[List[Any], List[Any]]]:
        for batch in loader:
            fields = _list(batch)
            yield fields[:self._n_inputs], fields[self._n_inputs:]

    def _names(self) -> List[str]:
        names = ["loss"] if self._loss is not None else []
        for metric in self._metrics:
            names += _list(metric.name())
        return names

    def _logs(self, found: Any) -> Dict[str, Any]:
        losses = found[0] if self._metrics else found
        logs: Dict[str, Any] = {"loss": [float(each.mean()) for each in losses]} if losses else {}
        for metric in self._metrics:
            logs.update(zip(_list(metric.name()), _list(metric.accumulate())))
        return logs

    # Files
    def save(self, path: str, training: bool = True) -> None:
        """Writes ``path.pdparams`` and ``path.pdopt``; without ``training`` the model that
        predicts, as :func:`regatta.jit.save` does."""
        if not training:
            from .. import jit

            if not self._inputs:
                raise ValueError("save(training=False) needs Model(network, inputs=[InputSpec...])")
            jit.save(self.network, path, input_spec=self._inputs)
            return
        save(self.network.state_dict(), path + ".pdparams")
        if self._optimizer is not None:
            save(self._optimizer.state_dict(), path + ".pdopt")

    def load(self, path: str, skip_mismatch: bool = False, reset_optimizer: bool = False) -> None:
        """Reads ``path.pdparams``, and ``path.pdopt`` if there is one and an optimizer. Every
        parameter must be there and fit, unless ``skip_mismatch``."""
        path = path[:-len(".pdparams")] if path.endswith(".pdparams") else path
        found, own = load(path + ".pdparams"), self.network.state_dict()
        wrong = [name for name, value in own.items()
                 if name not in found or list(found[name].shape) != list(value.shape)]
        if wrong and not skip_mismatch:
            raise ValueError(
                f"load: {path}.pdparams has no value, or one of another shape, for "
                f"{', '.join(wrong)}")
        self.network.set_state_dict({k: v for k, v in found.items() if k not in wrong})
        optimizer = path + ".pdopt"
        if self._optimizer is not None and not reset_optimizer and os.path.isfile(optimizer):
            self._optimizer.set_state_dict(load(optimizer))

    def summary(self, input_size: Any = None, dtype: Any = None) -> Dict[str, int]:
        """Prints layers, shapes and parameters; see :func:`regatta.summary`."""
        from .layer_table import summary

        size = input_size if input_size is not None else [
            tuple(each.shape) for each in self._inputs] or None
        if size is None:
            raise ValueError("summary needs input_size, or Model(network, inputs=[InputSpec...])")
        kinds = dtype if dtype is not None or not self._inputs else [
            each.dtype for each in self._inputs]
        return summary(self.network, size, kinds)


def _arguments(network: Any) -> int:
    """How many arguments forward needs."""
    forward = getattr(network, "forward", None) or network.__call__
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in inspect.signature(forward).parameters.values()
              if each.kind in kinds and each.default is inspect.Parameter.empty]
    return max(1, len(needed))


def _tensor(value: Any) -> Any:
    from .._files import is_tensor

    if is_tensor(value):
        return value
    from ..tensor import to_tensor

    return to_tensor(value)


def _rows(inputs: Sequence[Any]) -> int:
    shape = getattr(inputs[0], "shape", None)
    return int(shape[0]) if shape is not None and len(shape) else 1


def _loader(
    data: Any, batch_size: int, shuffle: bool, drop_last: bool, workers: int, divided: bool = True
) -> Any:
    """A loader of a dataset, which ranks divide or not; anything else that is iterated over
    stays."""
    from ..io import DataLoader, Dataset, DistributedBatchSampler, IterableDataset

    if not isinstance(data, Dataset):
        return data
    if isinstance(data, IterableDataset) or not divided:
        loader = DataLoader(data, batch_size=batch_size, drop_last=drop_last, num_workers=workers)
        loader._divided = divided
        return loader
    sampler = DistributedBatchSampler(
        data, batch_size=batch_size, shuffle=shuffle, drop_last=drop_last)
    return DataLoader(data, batch_sampler=sampler, num_workers=workers)


def _length(loader: Any) -> Optional[int]:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


__all__ = ["Callback", "Model"]
