"""Frames: the messages between a process and its workers, over a socket, with at most one file each."""

from __future__ import annotations

import _socket
import errno
import os
import struct
import time

from .shared_files import map_parts, write_parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional, Sequence, Tuple

# From the driver to a worker.
START, FUNCTION, CHUNK, FORGET, VALUE, FORGET_VALUE, EXIT = range(7)
# From a worker to its driver.
READY, RESULTS, LAST_RESULTS, FAILED, LOG = range(16, 21)

#: Job, kind, number of buffers in the file, whether the body is in the file too, length of the body.
HEADER = struct.Struct("<IHHIQ")
#: A body of more bytes than this goes into a file, which the other process maps: that is one copy instead of three.
LARGEST_INLINE = 1 << 18
#: The socket delivers a frame's file with its first byte.
_RIGHTS = _socket.CMSG_SPACE(4 * 8)
_CLOEXEC = getattr(_socket, "MSG_CMSG_CLOEXEC", 0)
_READ = 1 << 18
#: The system allows a user only so many files on their way through sockets. They arrive soon.
TOO_MANY_FILES = getattr(errno, "ETOOMANYREFS", -1)


class Frame:
    """A message: its kind, the job that it belongs to, its body, and buffers that travel in shared memory."""

    __slots__ = ("kind", "job", "body", "buffers")

    def __init__(self, kind: int, job: int, body: Any, buffers: Sequence[memoryview] = ()) -> None:
        self.kind = kind
        self.job = job
        self.body = body
        self.buffers = buffers


def encode(
    kind: int, job: int, body: bytes = b"", buffers: Sequence[Any] = (), file: Optional[int] = None
) -> Tuple[bytes, Optional[int]]:
    """Encodes a frame: the bytes for the socket, and the file that goes with them, which the caller closes.

    Buffers go into a new file, or are in `file` already, in which case only their sizes count.
    """
    in_file = len(body) > LARGEST_INLINE and file is None
    given = file is not None
    sizes = [buffer.nbytes if given else memoryview(buffer).nbytes for buffer in buffers]
    if file is None and (buffers or in_file):
        file = write_parts(([body] if in_file else []) + list(buffers))
    head = HEADER.pack(job, kind, len(sizes), in_file, len(body))
    table = struct.pack("<%dQ" % len(sizes), *sizes) if sizes else b""
    return head + table + (b"" if in_file else body), file


class Reader:
    """Reads frames from a socket."""

    def __init__(self, socket: Any, writable: bool) -> None:
        self._socket = socket
        #: Whether buffers of frames are mapped for writing.
        self._writable = writable
        self._bytes = bytearray()
        self._files: List[int] = []

    def read(self) -> bool:
        """Reads what there is, once. Returns false if the other process has closed its end."""
        data, ancillary, _, _ = self._socket.recvmsg(_READ, _RIGHTS, _CLOEXEC)
        for level, kind, content in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                count = len(content) // 4
                self._files.extend(struct.unpack("%di" % count, content[: count * 4]))
        self._bytes += data
        return bool(data)

    def next(self) -> Optional[Frame]:
        """The next whole frame, or `None` if none is there yet."""
        have = len(self._bytes)
        if have < HEADER.size:
            return None
        job, kind, count, in_file, length = HEADER.unpack_from(self._bytes)
        begin = HEADER.size + 8 * count
        end = begin + (0 if in_file else length)
        if have < end:
            return None
        sizes = list(struct.unpack_from("<%dQ" % count, self._bytes, HEADER.size))
        body: Any = bytes(self._bytes[begin:end])
        del self._bytes[:end]
        buffers: List[memoryview] = []
        if count or in_file:
            buffers = map_parts(self._files.pop(0), ([length] if in_file else []) + sizes, self._writable)
            if in_file:
                body = buffers.pop(0)
        return Frame(kind, job, body, buffers)

    def close(self) -> None:
        """Closes files of frames that were never complete."""
        for file in self._files:
            os.close(file)
        self._files.clear()


def send(socket: Any, data: bytes, file: Optional[int]) -> int:
    """Sends the beginning of a frame, and its file. Returns how many bytes were sent."""
    if file is None:
        return int(socket.send(data))
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("i", file))]
    return int(socket.sendmsg([data], rights))


def send_all(socket: Any, data: bytes, file: Optional[int]) -> None:
    """Sends a frame over a blocking socket, and closes its file."""
    try:
        while True:
            try:
                sent = send(socket, data, file)
                break
            except OSError as error:
                if error.errno != TOO_MANY_FILES:
                    raise
                time.sleep(0.001)
    finally:
        if file is not None:
            os.close(file)
    view = memoryview(data)[sent:]
    if view.nbytes:
        socket.sendall(view)
