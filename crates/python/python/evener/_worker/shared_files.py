"""Files without a name, in memory, that processes share by passing their descriptors.

Such a file is freed with the last process that holds it or a mapping of it, so nothing is left behind when any process is
killed.
"""

from __future__ import annotations

import mmap
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Sequence

#: Buffers begin at multiples of this many bytes, as vector instructions like them.
ALIGNMENT = 64


def new_file() -> int:
    """Creates an empty file in memory. Returns its descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("evener", os.MFD_CLOEXEC)
    import tempfile

    folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
    descriptor, path = tempfile.mkstemp(prefix="evener-", dir=folder)
    os.unlink(path)
    return descriptor


def write_all(descriptor: int, data: Any) -> None:
    """Appends data to a file."""
    view = memoryview(data)
    while view.nbytes:
        view = view[os.write(descriptor, view) :]


def aligned(size: int) -> int:
    """Rounds a size up to where the next buffer may begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def write_parts(parts: Sequence[Any]) -> int:
    """Writes buffers one after another into a new file, each at an aligned offset. Returns its descriptor."""
    descriptor = new_file()
    try:
        for part in parts:
            view = memoryview(part).cast("B")
            write_all(descriptor, view)
            padding = aligned(view.nbytes) - view.nbytes
            if padding:
                os.write(descriptor, bytes(padding))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _read(descriptor: int, length: int) -> bytearray:
    """Reads the beginning of a file."""
    data = bytearray(length)
    view = memoryview(data)
    position = 0
    while position < length:
        count = os.preadv(descriptor, [view[position:]], position)
        if not count:
            raise OSError("a shared file is shorter than it should be")
        position += count
    return data


def map_parts(descriptor: int, sizes: Sequence[int], writable: bool) -> List[memoryview]:
    """Maps the parts that `write_parts` wrote, and closes the descriptor. The parts keep the mapping."""
    try:
        length = sum(map(aligned, sizes))
        if not length:
            return [memoryview(b"") for _ in sizes]
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        try:
            whole = memoryview(mmap.mmap(descriptor, length, access=access))
        except OSError:
            # A process may have so many mappings, by default 65,530. The next ones are copies.
            whole = memoryview(_read(descriptor, length))
            if not writable:
                whole = whole.toreadonly()
    finally:
        os.close(descriptor)
    parts = []
    begin = 0
    for size in sizes:
        parts.append(whole[begin : begin + size])
        begin += aligned(size)
    return parts
