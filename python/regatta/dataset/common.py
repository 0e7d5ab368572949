"""Where data sets are looked for."""
from __future__ import annotations

import os
from typing import Any, Callable, Iterator, List, Sequence

__all__ = ["DATA_HOME", "cluster_files_reader", "download", "find", "md5file", "split"]

#: The folder of data sets, as Paddle has it.
DATA_HOME = os.path.join(os.path.expanduser("~"), ".cache", "paddle", "dataset")


def find(module: str, name: str) -> str:
    """The path of a file of a data set: in the folder of the variable REGATTA_DATA or in
    :data:`DATA_HOME`, with the name of the data set before it or not. Empty if there is none."""
    homes = [os.environ.get("REGATTA_DATA", ""), DATA_HOME]
    for home in filter(None, homes):
        for path in (os.path.join(home, module, name), os.path.join(home, name)):
            if os.path.isfile(path):
                return path
    return ""


def md5file(fname: str) -> str:
    """The MD5 sum of a file."""
    import hashlib

    total = hashlib.md5()
    with open(fname, "rb") as file:
        for part in iter(lambda: file.read(1 << 16), b""):
            total.update(part)
    return total.hexdigest()


def download(url: str, module_name: str, md5sum: str, save_name: Any = None) -> str:
    """The local file of that name, if it is there and has that sum. Nothing is downloaded."""
    name = save_name or url.rsplit("/", 1)[-1]
    path = find(module_name, name)
    if not path:
        raise FileNotFoundError(
            f"{os.path.join(DATA_HOME, module_name, name)} does not exist, and nothing is "
            f"downloaded: get it from {url} and put it there, or in the folder of the variable "
            "REGATTA_DATA"
        )
    if md5sum and md5file(path) != md5sum:
        raise ValueError(f"{path} is another file: its MD5 sum is {md5file(path)}, not {md5sum}")
    return path


def split(
    reader: Callable[[], Iterator[Any]], line_count: int, suffix: str = "%05d.pickle",
    dumper: Any = None,
) -> List[str]:
    """Writes examples to files of ``line_count`` examples each; returns their names."""
    import itertools
    import pickle

    dump = dumper or pickle.dump
    examples, names = iter(reader()), []
    for index in itertools.count():
        part = list(itertools.islice(examples, line_count))
        if not part:
            return names
        names.append(suffix % index)
        with open(names[-1], "wb") as file:
            dump(part, file)
    return names


def cluster_files_reader(
    files_pattern: str, trainer_count: int, trainer_id: int, loader: Any = None
) -> Callable[[], Iterator[Any]]:
    """Reads the files of :func:`split` that belong to one of several trainers. Load only files
    that you wrote: they are pickles."""
    import glob
    import pickle

    if not 0 <= trainer_id < trainer_count:
        raise ValueError(f"trainer_id is {trainer_id}, but there are {trainer_count} trainers")
    load = loader or pickle.load
    names: Sequence[str] = sorted(glob.glob(files_pattern))

    def reader() -> Iterator[Any]:
        for name in names[trainer_id::trainer_count]:
            with open(name, "rb") as file:
                yield from load(file)

    return reader
