"""The connection to a host: how it is made, kept and lost. All workers of a host share it."""

from __future__ import annotations

import json
import logging
import os
import selectors
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Set

from .._schedule import kept_values
from .._worker import frames, stream
from .._worker.shared_files import map_parts
from .handshake import Refused, Shaken, shake_hands
from .remote_worker import RemoteWorker

if TYPE_CHECKING:
    from .._evener import Connection, Host
    from .._schedule.driver import Driver
    from .._schedule.job import Job
    from .environment import Setup

log = logging.getLogger("evener")

#: Seconds between two questions whether the host is still there.
PING_SECONDS = 1.0
#: Seconds without any sign of life after which a host counts as lost. Its agent runs no code of the user, so it answers.
SILENCE_SECONDS = 30.0
#: Seconds before a connection that was lost or refused is tried again, doubled with each failure.
FIRST_PAUSE = 0.2


class Link:
    """A host, and the connection to its agent while there is one."""

    def __init__(self, host: Host, setup: Setup) -> None:
        self.host = host
        self.name = host.name
        self._setup = setup
        #: What the agent said of its machine, once it was there.
        self.hello: Dict[str, Any] = {}
        #: Seconds from a question to its answer, the shortest of the last ones.
        self.round_trip = 0.001
        #: The lanes whose workers are there, by their number.
        self.lanes: List[int] = []
        self._workers: Dict[int, RemoteWorker] = {}
        self._driver: Optional[Driver] = None
        self._socket: Optional[socket.socket] = None
        self._connection: Optional[Connection] = None
        self._reader: Any = None
        self._writer: Any = None
        self._functions: Set[int] = set()
        self._values: Set[int] = set()
        #: `down`, `connecting`, `up` or `ending`, and what the thread that connects or ends it has found.
        self._state = "down"
        self._found: Any = None
        self._retry_at = 0.0
        self._failures = 0
        self._said: Optional[str] = None
        self._is_closed = False
        self._pinged = 0.0
        self._is_ping_out = False
        self._alive_at = 0.0
        self._alive = (0, 0)
        silence = os.environ.get("EVENER_HOST_SILENCE", "")
        self._silence = float(silence) if silence.replace(".", "", 1).isdigit() else SILENCE_SECONDS

    # Before there is a driver.

    def connect(self) -> None:
        """Connects, in the calling thread. Raises ConnectionError with the reason, and `Refused` if no try can ever help."""
        connection, shaken = self._connect()
        self._found = (connection, shaken)
        self.hello = shaken.hello
        self._state = "connecting"

    def _connect(self) -> Any:
        connection = self.host.launch()
        try:
            return connection, shake_hands(connection, self.host, self._setup)
        except BaseException:
            connection.end()
            raise

    # The driver's side, in its thread and under its lock.

    def start(self, lane: int, driver: Driver, gpu: Optional[int], initializer: Optional[bytes]) -> Optional[RemoteWorker]:
        """Starts a worker, if the host is there. If not, connects to it in the background."""
        self._driver = driver
        if self._state != "up":
            if self._state == "down" and driver.now() >= self._retry_at and not self._is_closed:
                self._state = "connecting"
                threading.Thread(target=self._connect_later, name="evener connects", daemon=True).start()
            return None
        environment: Dict[str, str] = {}
        device = "cpu"
        if gpu is not None:
            gpus = self.hello["gpus"]
            if gpu >= len(gpus):
                raise OSError("%s has %d GPUs" % (self.name, len(gpus)))
            environment = {"CUDA_VISIBLE_DEVICES": gpus[gpu], "ROCR_VISIBLE_DEVICES": gpus[gpu]}
            device = "cuda:0"
        worker = self._workers[lane] = RemoteWorker(lane, self, driver, device, environment, initializer)
        return worker

    def _connect_later(self) -> None:
        try:
            self._found = self._connect()
        except BaseException as error:
            self._found = error
        if self._is_closed and not isinstance(self._found, BaseException):
            self._found[1].socket.close()
            self._found[0].end()
        elif self._driver is not None:
            self._driver.wake()

    def look(self, driver: Driver, now: float) -> float:
        """Takes note of what threads have found, and asks whether the host is there. Returns when to look again."""
        self._driver = driver
        if self._state == "connecting" and self._found is not None:
            found, self._found = self._found, None
            if isinstance(found, BaseException):
                self._connect_failed(found, now)
            else:
                self._adopt(*found)
        elif self._state == "ending" and self._found is not None:
            words, self._found = self._found, None
            self._ended(words, now)
        if self._state == "down":
            return max(self._retry_at, now + 0.05) if self.lanes else now + 3600.0
        if self._state != "up":
            return now + 3600.0
        alive = (self._reader.received, self._writer.sent)
        if alive != self._alive:
            self._alive, self._alive_at = alive, now
        elif now - self._alive_at > self._silence:
            self._lose("no answer for %g s" % self._silence)
            return now
        if not self._is_ping_out and now - self._pinged >= PING_SECONDS:
            self._pinged, self._is_ping_out = now, True
            self.send(stream.PING, 0, 0, b"%.6f" % time.monotonic())
        return now + PING_SECONDS

    def _connect_failed(self, error: BaseException, now: float) -> None:
        self._state = "down"
        reason = str(error) or type(error).__name__
        if self.host.is_to_come():
            self._retry_at = now + 0.05
            if self._said != reason:
                self._said = reason
                log.info("%s is still to come: %s", self.name, reason)
            return
        self._failures += 1
        self._retry_at = now + FIRST_PAUSE * 2.0 ** min(self._failures, 6)
        log.warning("%s cannot be used: %s", self.name, reason)
        assert self._driver is not None
        for lane in self.lanes:
            self._driver.start_failed(lane, "%s: %s" % (self.name, reason), for_good=isinstance(error, Refused))

    def _adopt(self, connection: Connection, shaken: Shaken) -> None:
        assert self._driver is not None
        self._connection, self._socket, self._reader = connection, shaken.socket, shaken.reader
        self.hello, self.round_trip = shaken.hello, shaken.round_trip
        self._socket.setblocking(False)
        self._writer = stream.StreamWriter(self._socket.sendmsg)
        self._state, self._failures, self._said = "up", 0, None
        self._alive, self._alive_at, self._is_ping_out = (0, 0), self._driver.now(), False
        self._functions.clear()
        self._values.clear()
        log.info("%s is there: %s", self.name, self.hello.get("node") or self.hello.get("name"))
        self._driver.register(self._socket, selectors.EVENT_READ, self)

    def handle(self, mask: int) -> None:
        """The connection can be read or written."""
        if self._state != "up":
            return
        try:
            if mask & selectors.EVENT_WRITE:
                self._writer.flush()
            if mask & selectors.EVENT_READ:
                is_open = self._reader.read()
                while self._state == "up":
                    frame = self._reader.next()
                    if frame is None:
                        break
                    self._take(frame)
                if not is_open:
                    self._lose(None)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._lose(str(error))
        self._watch()

    def _watch(self) -> None:
        if self._state == "up" and self._socket is not None and self._driver is not None:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._writer.waiting else 0)
            self._driver.modify(self._socket, events, self)

    def _take(self, frame: stream.Frame) -> None:
        assert self._driver is not None
        kind = frame.kind
        if kind == stream.PONG:
            self._is_ping_out = False
            took = time.monotonic() - float(bytes(frame.body))
            # An answer that waited behind other messages says little, so a longer one counts little.
            self.round_trip = took if took < self.round_trip else 0.9 * self.round_trip + 0.1 * min(took, 1.0)
        elif kind == stream.OUTPUT:
            _print(1 if frame.worker == 1 else 2, bytes(frame.body))
        else:
            worker = self._workers.get(frame.worker)
            if worker is None:
                return
            if kind == stream.PART_ENDED:
                worker.part_ended(frame.body)
            elif kind == stream.RECALLED:
                worker.recalled(frame.body)
            elif kind == stream.DIED:
                how, _ = worker.died(frame.body)
                del self._workers[frame.worker]
                self._driver.gone(worker, how)
            else:
                self._driver.take(worker, frame.kind, frame.job, frame.body, frame.buffers)

    # Sending.

    @property
    def waiting(self) -> int:
        """How many bytes wait for the connection."""
        return int(self._writer.waiting) if self._writer is not None else 0

    def send(self, kind: int, worker: int, job: int, body: Any = b"", buffers: Any = ()) -> None:
        """Sends a frame, now or when the connection takes it."""
        if self._state != "up":
            return
        self._writer.add(kind, worker, job, body, buffers)
        try:
            self._writer.flush()
        except OSError:
            # The end of the connection will be read.
            self._writer.drop()
        self._watch()

    def send_function(self, job: Job) -> None:
        """Sends a job's function, with all that it refers to, once."""
        if job.number in self._functions:
            return
        self._functions.add(job.number)
        blob = job.blob
        buffers = []
        if blob.file is not None:
            buffers = map_parts(os.dup(blob.file), [part.nbytes for part in blob.sizes], writable=False)
        limit = json.dumps(job.options.timeout).encode()
        self.send(frames.FUNCTION, 0, job.number, blob.body, [limit, *buffers])

    def send_values(self) -> None:
        """Sends the values of `evener.put` that the host does not have, and drops those that are not used any more."""
        kept = kept_values.kept()
        for number in self._values.difference(value.number for value in kept):
            self._values.discard(number)
            self.send(frames.FORGET_VALUE, 0, number)
        for value in kept:
            if value.number not in self._values:
                self._values.add(value.number)
                self.send(frames.VALUE, 0, value.number, b"", map_parts(os.dup(value.file), value.sizes, writable=False))

    def forget(self, job: int) -> None:
        """Drops a job's function."""
        if job in self._functions:
            self._functions.discard(job)
            self.send(frames.FORGET, 0, job)

    # The end.

    def _lose(self, reason: Optional[str]) -> None:
        """The connection is lost. Why, is found out by a thread, since it may take seconds."""
        if self._state != "up":
            return
        self._state = "ending"
        self._release()
        connection = self._connection

        def end() -> None:
            words = reason
            try:
                if connection is not None:
                    words = reason or connection.last_words()
                    connection.end()
            except Exception as error:
                words = words or str(error)
            self._found = words or "the connection was closed"
            if self._driver is not None:
                self._driver.wake()

        threading.Thread(target=end, name="evener ends", daemon=True).start()

    def _ended(self, words: str, now: float) -> None:
        assert self._driver is not None
        self._state, self._connection = "down", None
        self._failures += 1
        self._retry_at = now + FIRST_PAUSE * 2.0 ** min(self._failures, 6)
        workers, self._workers = list(self._workers.values()), {}
        log.warning("the connection to %s was lost: %s", self.name, words)
        for worker in workers:
            self._driver.gone(worker, "was lost with the connection to %s: %s" % (self.name, words))

    def _release(self) -> None:
        if self._socket is not None:
            if self._driver is not None:
                self._driver.unregister(self._socket)
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        """Ends the agent, and with it all workers of the host."""
        self._is_closed = True
        self._release()
        connection, self._connection = self._connection, None
        found, self._found = self._found, None
        self._state = "down"
        if isinstance(found, tuple):
            found[1].socket.close()
            connection = found[0]
        if connection is not None:
            connection.end()

    def forget_in_child(self) -> None:
        """Closes the socket in a forked process: the host belongs to the other process."""
        self._is_closed = True
        if self._socket is not None:
            self._socket.close()


def _print(number: int, data: bytes) -> None:
    """Prints what a worker has printed on its machine."""
    target = sys.stdout if number == 1 else sys.stderr
    try:
        target.write(data.decode(errors="replace"))
        target.flush()
    except (AttributeError, ValueError, OSError):
        # It is closed, or there is none.
        pass


