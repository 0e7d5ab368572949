"""Batches between processes: pickles over a socket, large arrays through memory that both map.

The memory is an anonymous file whose descriptor goes over the socket. It has no name, so nothing
is left behind when a process is killed. Measured with batches of 19 MB (32 x 3 x 224 x 224 floats),
1 worker, 2 busy cores: 40 ms each over the socket, 11 ms through the memory.
"""
from __future__ import annotations

import mmap
import os
import pickle
from multiprocessing import reduction
from typing import Any, List

#: From this size on, arrays of a batch go through memory that is mapped.
LARGE = 1 << 20
_ALIGN = 64
_HAS_MEMORY = hasattr(os, "memfd_create")


def send(connection: Any, value: Any, share: bool = True) -> None:
    """Sends a value. With ``share``, arrays of 1 MiB and more together go through memory."""
    buffers: List[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    sizes = [view.nbytes for view in views]
    if not share or not _HAS_MEMORY or sum(sizes) < LARGE:
        connection.send((data, [bytes(view) for view in views], None))
        return
    memory = os.memfd_create("regatta-batch")
    try:
        for view in views:
            _write(memory, view)
            _write(memory, memoryview(bytes(-view.nbytes % _ALIGN)))
        connection.send((data, None, sizes))
        # The descriptor follows the message that announces it; nobody else writes here.
        with _socket(connection) as socket:
            reduction.sendfds(socket, [memory])
    finally:
        os.close(memory)


def receive(connection: Any) -> Any:
    """What :func:`send` sent. Raises EOFError or OSError if the sender is gone."""
    data, parts, sizes = connection.recv()
    if sizes is None:
        return pickle.loads(data, buffers=[bytearray(part) for part in parts])
    with _socket(connection) as socket:
        (memory,) = reduction.recvfds(socket, 1)
    try:
        # A private mapping: arrays may be written, and live as long as somebody refers to them.
        mapped = memoryview(mmap.mmap(memory, _aligned(sizes), flags=mmap.MAP_PRIVATE,
                                      prot=mmap.PROT_READ | mmap.PROT_WRITE))
    finally:
        os.close(memory)
    views, at = [], 0
    for size in sizes:
        views.append(mapped[at:at + size])
        at += size + -size % _ALIGN
    return pickle.loads(data, buffers=views)


def _aligned(sizes: List[int]) -> int:
    return sum(size + -size % _ALIGN for size in sizes)


def _write(memory: int, view: memoryview) -> None:
    while view.nbytes:
        view = view[os.write(memory, view):]


def _socket(connection: Any) -> Any:
    import socket

    return socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM)
