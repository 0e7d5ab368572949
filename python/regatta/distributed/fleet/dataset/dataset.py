"""Datasets for ``Executor.train_from_dataset``: files, through a pipe command if there is one,
whose lines are MultiSlot text, in batches.

Slots belong to the variables of ``use_var`` by position: the first slot of a line is the first
variable.
"""
from __future__ import annotations

import os
import re
import shlex
import sys
import warnings
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ...._missing import missing
from .... import _core, framework

__all__ = ["DatasetBase", "DatasetFactory", "InMemoryDataset", "QueueDataset"]

__getattr__ = missing(__name__)

# Settings of Paddle that are about something that is not here, and the values with which nothing is
# asked for.
_UNAVAILABLE: Dict[str, Tuple[Tuple[Any, ...], str]] = {
    "input_type": ((0, None), "0 is lines of slots"),
    "data_feed_type": (("MultiSlotDataFeed", "MultiSlotInMemoryDataFeed", None),
                       "lines are MultiSlot text"),
    "parse_ins_id": ((False, None), "lines begin with the first slot"),
    "parse_content": ((False, None), "lines begin with the first slot"),
    "parse_logkey": ((False, None), "lines begin with the first slot"),
    "merge_size": ((-1, 0, None), "examples are not merged by line id"),
    "fea_eval": ((False, None), "slots are not shuffled among examples"),
    "candidate_size": ((10000, None), "slots are not shuffled among examples"),
    "shuffle_by_uid": ((False, None), "examples are shuffled one by one"),
    "enable_pv_merge": ((False, None), "examples are not merged by page view"),
    "uid_slot": (("", None), "examples are shuffled one by one"),
    "download_cmd": (("cat", "", None), "files are read here; list local paths, or fetch them "
                                        "in the pipe command"),
}


class DatasetBase:
    """Files that become batches."""

    _kind = "queue"

    def __init__(self) -> None:
        self._batch_size = 1
        self._thread_num = 1
        self._use_var: List[framework.Variable] = []
        self._pipe_command: Optional[str] = None
        self._files: List[str] = []
        self._drop_last = False
        self._pipe_timeout: Optional[float] = None
        self._seed = 0

    def init(
        self,
        batch_size: int = 1,
        thread_num: int = 1,
        use_var: Sequence[framework.Variable] = (),
        pipe_command: str = "cat",
        input_type: int = 0,
        fs_name: str = "",
        fs_ugi: str = "",
        download_cmd: str = "cat",
        **settings: Any,
    ) -> None:
        """Everything about a dataset but its files.

        ``thread_num`` threads read files. ``pipe_command`` gets a file on its standard input and
        writes MultiSlot text; a command that begins with ``python`` runs with this interpreter.
        """
        self.update_settings(input_type=input_type, download_cmd=download_cmd, **settings)
        self.set_hdfs_config(fs_name, fs_ugi)
        self.set_batch_size(batch_size)
        self.set_thread(thread_num)
        self.set_use_var(use_var)
        self.set_pipe_command(pipe_command)

    def update_settings(self, **settings: Any) -> None:
        """Changes some of the settings of :meth:`init`, by the same names."""
        setters = {
            "batch_size": self.set_batch_size, "thread_num": self.set_thread,
            "use_var": self.set_use_var, "pipe_command": self.set_pipe_command,
            "queue_num": self.set_queue_num, "drop_last": self.set_drop_last,
            "pipe_timeout": self.set_pipe_timeout, "seed": self.set_seed,
            "use_ps_gpu": self._set_use_ps_gpu,
        }
        if "fs_name" in settings or "fs_ugi" in settings:
            self.set_hdfs_config(settings.pop("fs_name", ""), settings.pop("fs_ugi", ""))
        for name, value in settings.items():
            if name in setters:
                setters[name](value)
            elif name in _UNAVAILABLE:
                self._refuse(name, value)
            elif name in ("fleet_send_batch_size", "fleet_send_sleep_seconds"):
                _positive(name, value, least=0)  # how Paddle paces its shuffle; ours needs no pace
            else:
                known = ", ".join([*setters, *_UNAVAILABLE])
                raise TypeError(f"a dataset has no setting '{name}' (settings: {known})")

    def _refuse(self, name: str, value: Any) -> None:
        neutral, why = _UNAVAILABLE[name]
        if value not in neutral:
            raise NotImplementedError(f"dataset: {name}={value!r} is not implemented: {why}")

    # Settings one by one
    def set_batch_size(self, batch_size: int) -> None:
        """Examples of a batch."""
        self._batch_size = _positive("batch_size", batch_size)
        self._changed()

    def set_thread(self, thread_num: int) -> None:
        """Threads that read files."""
        self._thread_num = _positive("thread_num", thread_num)
        self._changed()

    def set_use_var(self, var_list: Sequence[framework.Variable]) -> None:
        """The inputs that slots of a line belong to, in order."""
        self._use_var = list(var_list)
        _slots(self._use_var)
        self._changed()

    def set_pipe_command(self, pipe_command: str) -> None:
        """What makes MultiSlot text of a file."""
        if pipe_command is not None and not isinstance(pipe_command, str):
            raise TypeError(f"pipe_command should be a text, but is {pipe_command!r}")
        command = (pipe_command or "").strip()
        self._pipe_command = None if command in ("", "cat") else python_command(command)
        self._changed()

    def set_filelist(self, filelist: Sequence[str]) -> None:
        """The files: local paths, or addresses of stores that this build can read."""
        if isinstance(filelist, (str, bytes)):
            raise TypeError(f"set_filelist takes a list of files, not {filelist!r}")
        self._files = [os.fspath(name) for name in filelist]
        self._changed()

    def set_hdfs_config(self, fs_name: str, fs_ugi: str) -> None:
        """A file system of Hadoop. Only empty texts are taken: write whole addresses into the list
        of files (``hdfs://host:port/path``)."""
        if fs_name or fs_ugi:
            raise NotImplementedError(
                f"dataset: fs_name={fs_name!r} and fs_ugi are not implemented: list whole "
                "addresses (hdfs://host:port/path), or fetch the files before"
            )

    def set_download_cmd(self, download_cmd: str) -> None:
        """Only ``cat``: files are read here."""
        self._refuse("download_cmd", download_cmd)

    def set_queue_num(self, queue_num: int) -> None:
        """Threads that read files; the batches that wait are bounded anyway."""
        self.set_thread(queue_num)

    def set_drop_last(self, drop_last: bool) -> None:
        """Whether the examples that do not fill the last batch are left out."""
        self._drop_last = bool(drop_last)
        self._changed()

    def set_pipe_timeout(self, seconds: Optional[float]) -> None:
        """How long a pipe command may be silent before that is an error; None waits."""
        self._pipe_timeout = None if seconds is None else float(seconds)
        self._changed()

    def set_seed(self, seed: int) -> None:
        """Decides the order of a shuffle."""
        self._seed = int(seed)

    def _set_use_ps_gpu(self, use_ps_gpu: bool) -> None:
        if use_ps_gpu:
            warnings.warn("dataset: use_ps_gpu: Regatta computes on CPUs; the rows stay on the "
                          "parameter servers")

    _set_batch_size = set_batch_size
    _set_thread = set_thread
    _set_use_var = set_use_var
    _set_pipe_command = set_pipe_command
    _set_hdfs_config = set_hdfs_config
    _set_download_cmd = set_download_cmd

    def get_filelist(self) -> List[str]:
        """The files."""
        return list(self._files)

    # The native dataset
    def _changed(self) -> None:
        """After a setting."""

    def _make(self) -> _core.Dataset:
        if not self._use_var:
            raise ValueError("the dataset has no variables: pass use_var=[...] to init")
        if not self._files:
            raise ValueError("the dataset has no files: call set_filelist([...])")
        for name in self._files:
            if "://" not in name and not os.path.exists(name):
                raise FileNotFoundError(f"the dataset lists {name}, but there is no such file")
        return _core.Dataset(
            _slots(self._use_var), self._files, self._batch_size, self._kind, self._pipe_command,
            self._thread_num, self._drop_last, self._seed, self._pipe_timeout,
        )

    def _prepare_to_read(self) -> _core.Dataset:
        """What the executor reads: a new data pass over the files."""
        return self._make()

    def _desc(self) -> str:
        """The settings as text."""
        return repr(self)

    desc = _desc

    def __repr__(self) -> str:
        slots = [f"{v.name}" for v in self._use_var]
        return (
            f"{type(self).__name__}(batch_size={self._batch_size}, thread_num={self._thread_num}, "
            f"use_var={slots}, pipe_command={self._pipe_command!r}, files={len(self._files)})"
        )


class QueueDataset(DatasetBase):
    """Reads files while they are trained on.

        dataset = QueueDataset()
        dataset.init(batch_size=32, thread_num=2, use_var=[label, ids], pipe_command="cat")
        dataset.set_filelist(["part-0", "part-1"])
        exe.train_from_dataset(main_program, dataset)
    """

    def local_shuffle(self) -> None:
        """Not for this class."""
        raise NotImplementedError("a QueueDataset reads as it trains; shuffle an InMemoryDataset")

    def global_shuffle(self, fleet: Any = None, thread_num: int = 12) -> None:
        """Not for this class."""
        self.local_shuffle()


class InMemoryDataset(DatasetBase):
    """Loads all examples before they are trained on, so that they can be shuffled."""

    _kind = "memory"

    def __init__(self) -> None:
        super().__init__()
        self._loaded: Optional[_core.Dataset] = None
        self._shuffles = 0

    def _changed(self) -> None:
        # Examples that are in memory belong to the settings before.
        self._loaded = None

    def set_batch_size(self, batch_size: int) -> None:
        """Examples of a batch."""
        if self._loaded is not None:
            raise RuntimeError("set_batch_size: examples are loaded; call release_memory() before")
        super().set_batch_size(batch_size)

    _set_batch_size = set_batch_size

    def load_into_memory(self, is_shuffle: bool = False) -> None:
        """Reads all files."""
        # Nothing is in memory if this fails or is interrupted.
        self._loaded = None
        loaded = self._make()
        loaded.load()
        self._loaded = loaded
        if is_shuffle:
            self.local_shuffle()

    def preload_into_memory(self, thread_num: Optional[int] = None) -> None:
        """Begins to read all files; :meth:`wait_preload_done` waits for the end."""
        if thread_num is not None:
            self.set_thread(thread_num)
        self._loaded = self._make()
        self._loaded.preload()

    def wait_preload_done(self) -> None:
        """Waits for :meth:`preload_into_memory`."""
        try:
            self._memory("wait_preload_done").wait_preload()
        except BaseException:
            self._loaded = None
            raise

    def _memory(self, call: str) -> _core.Dataset:
        if self._loaded is None:
            raise RuntimeError(f"{call}: call load_into_memory() first")
        return self._loaded

    def _next_seed(self) -> int:
        seed = self._seed or framework.current_seed()
        self._shuffles += 1
        return seed * 1_000_003 + self._shuffles

    def local_shuffle(self) -> None:
        """Shuffles the examples of this process."""
        self._memory("local_shuffle").local_shuffle(self._next_seed())

    def global_shuffle(self, fleet: Any = None, thread_num: int = 12) -> None:
        """Shuffles the examples of this process, which trains alone or gives no ``fleet``. Examples
        do not move among several workers."""
        memory, seed = self._memory("global_shuffle"), self._next_seed()
        job = _job_of(fleet)
        if job is None or job.core.worker_num() == 1:
            memory.local_shuffle(seed)
        else:
            raise NotImplementedError(
                f"global_shuffle: examples do not move among {job.core.worker_num()} workers; call "
                "local_shuffle() and give every worker other files now and then"
            )

    def release_memory(self) -> None:
        """Drops the examples."""
        if self._loaded is not None:
            self._loaded.release()
            self._loaded = None

    def get_memory_data_size(self, fleet: Any = None) -> int:
        """Examples in memory: of all workers if there is a fleet, otherwise of this one."""
        size = self._memory("get_memory_data_size").size()
        job = _job_of(fleet)
        return size if job is None else int(job.core.all_reduce([float(size)], "sum")[0])

    get_shuffle_data_size = get_memory_data_size

    def slots_shuffle(self, slots: Sequence[str]) -> None:
        """Not implemented."""
        raise NotImplementedError(
            "slots_shuffle: values of one slot are not shuffled among examples; make such files "
            "with the pipe command"
        )

    def tdm_sample(self, *args: Any, **kwargs: Any) -> None:
        """Not implemented."""
        raise NotImplementedError("tdm_sample: there is no index of trees")

    def set_date(self, date: str) -> None:
        """Not implemented."""
        raise NotImplementedError("set_date: parameter servers on GPUs are not implemented")

    def _prepare_to_read(self) -> _core.Dataset:
        """What the executor reads: the examples in memory."""
        if self._loaded is None:
            self.load_into_memory()
        return self._memory("train_from_dataset")


class DatasetFactory:
    """Datasets by the name of their class, as before version 2.

    >>> type(DatasetFactory().create_dataset("InMemoryDataset")).__name__
    'InMemoryDataset'
    """

    def create_dataset(self, datafeed_class: str = "QueueDataset") -> DatasetBase:
        """A dataset of a class."""
        kinds = {"QueueDataset": QueueDataset, "InMemoryDataset": InMemoryDataset}
        if datafeed_class not in kinds:
            raise ValueError(
                f"there is no dataset '{datafeed_class}' (datasets: {', '.join(kinds)})"
            )
        return kinds[datafeed_class]()


def _slots(variables: Sequence[framework.Variable]) -> List[Tuple[str, str, int]]:
    """Name, kind and values per line of every input."""
    out = []
    for variable in variables:
        if not isinstance(variable, framework.Variable):
            raise TypeError(f"use_var holds inputs of a program, not {variable!r}")
        if variable.lod_level > 0:
            out.append((variable.name, "ids", 1))
            continue
        values = 1
        for dim in variable.shape[1:]:
            if dim < 0:
                raise ValueError(
                    f"use_var: '{variable.name}' has the shape {list(variable.shape)}, but lines "
                    "hold a fixed number of values; for ids of any number use lod_level=1"
                )
            values *= dim
        if variable.dtype in ("float32", "float64"):
            out.append((variable.name, "floats", values))
        elif str(variable.dtype).startswith(("int", "uint")):
            out.append((variable.name, "ints", values))
        else:
            raise TypeError(f"use_var: '{variable.name}' is of type {variable.dtype}; slots hold "
                            "integers or floats")
    return out


# A word at the beginning of a command: of the text, after an operator of the shell, or after
# assignments to variables.
_PYTHON = re.compile(r"(^|[|;&(]|&&|\|\|)(\s*(?:[A-Za-z_]\w*=\S*\s+)*)python[\d.]*(?=\s|$)")


def python_command(command: str) -> str:
    """A command in which ``python``, ``python3.7``, ... are the interpreter that runs now.

    >>> python_command("python3.7 reader.py") == shlex.quote(sys.executable) + " reader.py"
    True
    """
    executable = shlex.quote(sys.executable or "python3")
    return _PYTHON.sub(lambda m: f"{m.group(1)}{m.group(2)}{executable}", command)


def _positive(name: str, value: Any, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        if hasattr(value, "item"):
            return _positive(name, value.item(), least)
        raise ValueError(f"dataset: {name} should be an integer of at least {least}, not {value!r}")
    return value


def _job_of(fleet: Any) -> Any:
    """The job of a fleet: of the module, of a Fleet, or of one before version 2."""
    if fleet is None:
        return None
    fleet = getattr(fleet, "fleet", fleet)
    if getattr(fleet, "_job_or_raise", None) is None:
        raise TypeError(f"fleet should be regatta.distributed.fleet, but is {fleet!r}")
    return fleet._job_or_raise("global_shuffle")
