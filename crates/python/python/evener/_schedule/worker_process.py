"""One worker process, as its driver sees it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Deque, Dict, List, Mapping, Optional, Set, Tuple

from .. import _worker
from .._evener import Claims
from .._worker import frames
from .._worker.shared_files import new_file
from . import kept_values

if TYPE_CHECKING:
    from .job import Job

_CLAIMS_BYTES = 4096
_PROGRAM = (
    "import sys; sys._evener_worker = True; sys.path.insert(0, sys.argv.pop(1)); from evener._worker.main import main; "
    "main(*map(int, (sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1))))"
)


class LaneWorker:
    """A worker of a lane, wherever it is: its claims, and what it does now."""

    #: Which items of its chunk it has begun, or, on another machine, which ones it was handed.
    claims: Claims

    def __init__(self, lane: int) -> None:
        self.lane = lane
        #: Whether it has said that it takes chunks.
        self.ready = False
        #: The job of its chunk, the chunk, and the first item whose result it has not delivered.
        self.job: Optional[Job] = None
        self.chunk: Tuple[int, int] = (0, 0)
        self.delivered = 0
        #: Since when it has nothing to do.
        self.idle_since = time.monotonic()
        #: When it is killed because it is still at an item that nobody wants.
        self.kill_at: Optional[float] = None
        #: Why this process kills it, if it does.
        self.killed_for: Optional[str] = None
        self.functions: Set[int] = set()

    def begin(self, job: Job, first: int, end: int) -> None:
        """Begins the chunk that it was given."""
        raise NotImplementedError

    def begun(self) -> Tuple[int, int]:
        """The end of the items that it may have begun, and the item that it ran last."""
        first, _ = self.chunk
        return first + self.claims.claimed(), first + self.claims.current()

    def forget(self, job: int) -> None:
        """Drops the function of a job."""
        raise NotImplementedError

    def exit(self) -> None:
        """Asks it to end, while it is idle."""
        raise NotImplementedError

    def kill(self, reason: Optional[str] = None) -> None:
        """Ends it at once."""
        raise NotImplementedError

    def stop(self) -> None:
        """The run of its chunk has ended: the worker learns it from its claims, unless those are not shared with it."""

    def delivered_some(self) -> None:
        """Results of its chunk came, and more are to come."""

    def look(self, now: float) -> float:
        """Looks after its chunk. Returns when to look again, by the monotonic clock."""
        return now + 3600.0


def new_claims() -> Tuple[Claims, int]:
    """Creates claims, and the file that they are in, which the caller closes."""
    file = new_file()
    try:
        os.truncate(file, _CLAIMS_BYTES)
        return Claims(file), file
    except BaseException:
        os.close(file)
        raise


class WorkerProcess(LaneWorker):
    """A worker process of this machine."""

    def __init__(
        self,
        lane: int,
        start: Dict[str, Any],
        environment: Mapping[str, str],
        outputs: Optional[Tuple[int, int]] = None,
    ) -> None:
        super().__init__(lane)
        self._values: Set[int] = set()
        self._outgoing: Deque[List[Any]] = deque()
        self._exit: Optional[int] = None
        own, theirs = socket.socketpair()
        self.claims, claims_file = new_claims()
        try:
            self.process = _spawn(theirs.fileno(), claims_file, environment, outputs)
        except BaseException:
            own.close()
            raise
        finally:
            theirs.close()
            os.close(claims_file)
        own.setblocking(False)
        self.socket = own
        self.reader = frames.Reader(own, writable=True)
        #: A descriptor that is readable when the process has ended, where the system has such.
        self.exit_file = _exit_file(self.process.pid)
        import pickle

        self.send(frames.START, 0, pickle.dumps(start, 5))

    def begin(self, job: Job, first: int, end: int) -> None:
        from . import job as jobs

        body, buffers = job.encode(first, end)
        self.send_values()
        jobs.send_function(self, job)
        self.send(frames.CHUNK, job.number, body, buffers)

    def forget(self, job: int) -> None:
        self.functions.discard(job)
        self.send(frames.FORGET, job)

    def exit(self) -> None:
        self.send(frames.EXIT, 0)

    def look(self, now: float) -> float:
        limit = self.job.options.timeout if self.job is not None else None
        if limit is None:
            return super().look(now)
        taken = self.claims.current_seconds()
        if taken is None:
            return now + limit
        if taken >= limit and self.killed_for is None:
            self.kill("timeout")
        return now + max(limit - taken, 0.001)

    @property
    def has_outgoing(self) -> bool:
        """Whether frames wait for the socket."""
        return bool(self._outgoing)

    def send(
        self, kind: int, job: int, body: bytes = b"", buffers: Any = (), file: Optional[int] = None
    ) -> None:
        """Sends a frame, now or when the socket takes it. A file is duplicated: it stays the caller's."""
        own = None if file is None else os.dup(file)
        data, sent_file = frames.encode(kind, job, body, buffers, own)
        self._outgoing.append([memoryview(data), sent_file])
        self.flush()

    def send_values(self) -> None:
        """Sends the values of `evener.put` that it does not have, and drops those that are not used any more."""
        kept = kept_values.kept()
        for number in self._values.difference(value.number for value in kept):
            self._values.discard(number)
            self.send(frames.FORGET_VALUE, number)
        for value in kept:
            if value.number not in self._values:
                self._values.add(value.number)
                sizes = [Sized(size) for size in value.sizes]
                self.send(frames.VALUE, value.number, b"", sizes, value.file)

    def flush(self) -> None:
        """Sends as much as the socket takes."""
        while self._outgoing:
            data, file = self._outgoing[0]
            try:
                sent = frames.send(self.socket, data, file)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno == frames.TOO_MANY_FILES:
                    return
                # It has ended, which its socket or its exit file will show.
                self._drop_outgoing()
                return
            if file is not None:
                os.close(file)
            if sent == len(data):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = [data[sent:], None]

    def kill(self, reason: Optional[str] = None) -> None:
        """Ends the process at once."""
        if self.killed_for is None:
            self.killed_for = reason
        if self._exit is None and self.process.poll() is None:
            try:
                self.process.kill()
            except OSError:
                pass

    def ended(self, wait: float) -> Optional[str]:
        """How the process has ended, if it has, in words. Waits for this many seconds at most."""
        try:
            code = self.process.wait(wait)
        except subprocess.TimeoutExpired:
            return None
        self._exit = code
        if code >= 0:
            return "ended with exit code %d" % code
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = "signal"
        return "was killed by %s (signal %d)" % (name, -code)

    def close(self) -> None:
        """Frees what belongs to it in this process."""
        self._drop_outgoing()
        self.reader.close()
        self.socket.close()
        if self.exit_file is not None:
            os.close(self.exit_file)
            self.exit_file = None

    def _drop_outgoing(self) -> None:
        for _, file in self._outgoing:
            if file is not None:
                os.close(file)
        self._outgoing.clear()


class Sized:
    """The size of a buffer that is in a file already."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


def start_state(device: str, initializer: Optional[bytes]) -> Dict[str, Any]:
    """What a new worker takes over from this process."""
    try:
        folder = os.getcwd()
    except OSError:
        folder = "/"
    path = [entry if entry else folder for entry in sys.path]
    # A worker that has a GPU sees no other, so the libraries there call it the first.
    device = "cuda:0" if device.startswith("cuda:") else device
    return {"path": path, "argv": list(sys.argv), "folder": folder, "device": device, "initializer": initializer, "own": ()}


def _spawn(
    theirs: int, claims: int, environment: Mapping[str, str], outputs: Optional[Tuple[int, int]]
) -> "subprocess.Popen[bytes]":
    if not sys.executable:
        raise OSError("it is unknown where the Python interpreter is (sys.executable is empty)")
    package = os.path.dirname(os.path.dirname(os.path.abspath(_worker.__file__)))
    numbers = [str(number) for number in (theirs, claims, os.getpid())]
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return subprocess.Popen(
        [sys.executable, *flags, "-c", _PROGRAM, os.path.dirname(package), *numbers],
        stdin=subprocess.DEVNULL,
        stdout=None if outputs is None else outputs[0],
        stderr=None if outputs is None else outputs[1],
        pass_fds=(theirs, claims),
        # The terminal's signals are for the process that drives the workers.
        start_new_session=True,
        env={**os.environ, **environment},
    )


def _exit_file(process: int) -> Optional[int]:
    try:
        return os.pidfd_open(process)  # type: ignore[attr-defined, unused-ignore]
    except (AttributeError, OSError):
        return None
