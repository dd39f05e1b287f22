"""Frames over a pair of pipes or a stream socket, to and from another machine.

A frame is a header, the sizes of its buffers, its body and its buffers. Large buffers are received into memory of their own,
so that they are copied once.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Deque, List, Optional, Sequence

# From home to the agent of a host, beside the kinds of `frames` that it passes on to a worker.
BEGIN_WORKER, KILL, RECALL, PING = range(32, 36)
# From the agent to home, beside the kinds that workers send.
HELLO, DIED, RECALLED, PONG, OUTPUT, PART_ENDED = range(48, 54)

#: Job, worker, kind, number of buffers, length of the body.
HEADER = struct.Struct("<IIHIQ")
#: What a single frame may have at most. More is a broken connection, for which no memory must be reserved.
MOST_BYTES = 1 << 40
_PIECE = 1 << 18


class StreamError(OSError):
    """What came over the connection is no frame."""


class Frame:
    """A message: its kind, the worker and the job that it belongs to, its body and its buffers."""

    __slots__ = ("kind", "worker", "job", "body", "buffers")

    def __init__(self, kind: int, worker: int, job: int, body: Any, buffers: List[memoryview]) -> None:
        self.kind = kind
        self.worker = worker
        self.job = job
        self.body = body
        self.buffers = buffers


class StreamReader:
    """Makes frames of what a connection delivers.

    `read_into(view)` reads once into a buffer, and returns the number of bytes, zero at the end.
    """

    def __init__(self, read_into: Callable[[memoryview], int]) -> None:
        self.read_into = read_into
        self._piece = memoryview(bytearray(_PIECE))
        self._small = bytearray()
        #: The header of the frame that is being received, and its parts with what they lack.
        self._head: Any = None
        self._parts: List[memoryview] = []
        self._part = 0
        self._filled = 0
        #: How many bytes have come.
        self.received = 0

    def feed(self, data: bytearray) -> None:
        """Takes bytes that were read already."""
        self._small += data

    def read(self) -> bool:
        """Reads once. Returns false at the end of the stream."""
        target = self._direct()
        count = self.read_into(self._piece if target is None else target)
        if not count:
            return False
        self.received += count
        if target is None:
            self._small += self._piece[:count]
        else:
            self._filled += count
            self._advance()
        return True

    def _direct(self) -> Optional[memoryview]:
        """The rest of a large part, which is received in place once nothing is left to parse."""
        if self._head is None or self._small or self._part >= len(self._parts):
            return None
        rest = self._parts[self._part][self._filled :]
        return rest if rest.nbytes >= _PIECE else None

    def _advance(self) -> None:
        while self._part < len(self._parts) and self._filled == self._parts[self._part].nbytes:
            self._part += 1
            self._filled = 0

    def next(self) -> Optional[Frame]:
        """The next whole frame, or `None` if none is there yet."""
        if self._head is None and not self._begin():
            return None
        while self._part < len(self._parts):
            if not self._small:
                return None
            part = self._parts[self._part]
            count = min(len(self._small), part.nbytes - self._filled)
            part[self._filled : self._filled + count] = self._small[:count]
            del self._small[:count]
            self._filled += count
            self._advance()
        job, worker, kind = self._head
        parts, self._head, self._parts = self._parts, None, []
        return Frame(kind, worker, job, parts[0], parts[1:])

    @property
    def is_between(self) -> bool:
        """Whether all that came was whole frames."""
        return self._head is None and not self._small

    def _begin(self) -> bool:
        if len(self._small) < HEADER.size:
            return False
        job, worker, kind, count, length = HEADER.unpack_from(self._small)
        end = HEADER.size + 8 * count
        if count > 1 << 20 or length > MOST_BYTES or kind > 255:
            raise StreamError("what came is no message of a worker")
        if len(self._small) < end:
            return False
        sizes = struct.unpack_from("<%dQ" % count, self._small, HEADER.size)
        if sum(sizes) > MOST_BYTES:
            raise StreamError("what came is no message of a worker")
        del self._small[:end]
        self._head = (job, worker, kind)
        self._parts = [memoryview(bytearray(size)) for size in (length, *sizes)]
        self._part = self._filled = 0
        self._advance()
        return True


class StreamWriter:
    """Sends frames as far as a connection takes them.

    `write(views)` writes once, and returns the number of bytes; it raises BlockingIOError if nothing can be written now.
    """

    def __init__(self, write: Callable[[Sequence[Any]], int]) -> None:
        from collections import deque

        self._write = write
        self._outgoing: Deque[memoryview] = deque()
        #: How many bytes wait, and how many were sent.
        self.waiting = 0
        self.sent = 0

    def add(self, kind: int, worker: int, job: int, body: Any = b"", buffers: Sequence[Any] = ()) -> None:
        """Adds a frame. Its buffers must not change until they are sent."""
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        head = HEADER.pack(job, worker, kind, len(views), len(body))
        table = struct.pack("<%dQ" % len(views), *(view.nbytes for view in views)) if views else b""
        for part in (memoryview(head + table), memoryview(body).cast("B"), *views):
            if part.nbytes:
                self._outgoing.append(part)
                self.waiting += part.nbytes

    def flush(self) -> None:
        """Writes until nothing is left, or the connection takes no more now."""
        while self._outgoing:
            some = [self._outgoing[index] for index in range(min(len(self._outgoing), 16))]
            try:
                count = self._write(some)
            except (BlockingIOError, InterruptedError):
                return
            self.waiting -= count
            self.sent += count
            while count:
                first = self._outgoing[0]
                if count < first.nbytes:
                    self._outgoing[0] = first[count:]
                    break
                count -= first.nbytes
                self._outgoing.popleft()

    def rest(self) -> List[memoryview]:
        """What was not sent."""
        return list(self._outgoing)

    def drop(self) -> None:
        """Forgets what was not sent."""
        self._outgoing.clear()
        self.waiting = 0


def pack_frames(listed: Sequence[Any]) -> bytes:
    """Packs frames, each given as the arguments of `StreamWriter.add`, into one block of bytes."""
    writer = StreamWriter(lambda views: 0)
    for frame in listed:
        writer.add(*frame)
    return b"".join(writer.rest())


def unpack_frames(data: Any) -> List[Frame]:
    """The frames of a block of bytes. Raises StreamError if it is none."""
    reader = StreamReader(lambda view: 0)
    reader.feed(bytearray(data))
    found = []
    while True:
        frame = reader.next()
        if frame is None:
            break
        found.append(frame)
    if not reader.is_between:
        raise StreamError("a block of messages is not whole")
    return found
