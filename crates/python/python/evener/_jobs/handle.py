"""A submitted job, as this or any later process sees it."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import time
from concurrent.futures import CancelledError
from typing import Any, Dict, Generator, List, Optional

from .._worker.failures import unpack
from . import store

__all__ = ["Job", "JobCancelled", "JobDied", "job", "jobs"]

#: Seconds that a job has to end by itself after `cancel`, before it is killed.
GRACE = 3.0
#: Seconds after which `cancel` gives up: the process cannot be reached, or is in a call that cannot be interrupted.
MOST = 30.0
#: Seconds between two looks at a job that is waited for: the first, and the most.
_FIRST_LOOK, _LONGEST_LOOK = 0.005, 0.1


class JobCancelled(CancelledError):
    """The job was cancelled, so it has no result."""


class JobDied(RuntimeError):
    """The job's process was killed, or ended without a result. The message has the end of its log."""


class Job:
    """A call that runs in a process of its own, and outlives the one that submitted it. `await job` gives its result."""

    def __init__(self, folder: store.Folder) -> None:
        self._folder = folder

    @property
    def id(self) -> str:
        """The job's id, for `evener.job(id)` and `python -m evener`."""
        return self._folder.id

    def info(self) -> Dict[str, Any]:
        """What is known about it: label, times, process, host, and `status`."""
        if not os.path.isdir(self._folder.path):
            raise store.NoSuchJob("job %s was removed" % self.id)
        record = self._folder.read_json("record.json")
        return {"id": self.id, **record, **self._state()}

    def status(self) -> str:
        """`starting`, `running`, `done`, `failed` (by an exception), `cancelled`, or `died` (its process was killed)."""
        return str(self.info()["status"])

    def _state(self) -> Dict[str, Any]:
        state = self._folder.read_json("state.json")
        if state.get("status") in store.ENDED:
            return state
        if self._folder.is_alive():
            return state or {"status": "starting"}
        # It may have ended between the two looks.
        state = self._folder.read_json("state.json")
        if state.get("status") in store.ENDED:
            return state
        was_cancelled = os.path.exists(self._folder.file("cancel"))
        return {**state, "status": "cancelled" if was_cancelled else "died"}

    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.status() in store.ENDED

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits for its end, for this many seconds at most. Returns whether it has ended."""
        for pause in self._looks(timeout):
            time.sleep(pause)
        return self.done()

    def _looks(self, timeout: Optional[float]) -> Generator[float, None, None]:
        """Seconds to sleep before the next look, until it has ended or the time is up."""
        ends = None if timeout is None else time.monotonic() + timeout
        pause = _FIRST_LOOK
        while not self.done():
            left = pause if ends is None else ends - time.monotonic()
            if left <= 0:
                return
            yield min(pause, left)
            pause = min(1.5 * pause, _LONGEST_LOOK)

    def result(self, timeout: Optional[float] = None) -> Any:
        """Its result, or its exception, as if it had been called here. Waits for it.

        Raises `TimeoutError` after `timeout` seconds, `JobCancelled`, `JobDied` if its process was killed, and `BadSignature`
        if the file of the result was changed by anybody else.
        """
        if not self.wait(timeout):
            raise TimeoutError("job %s has not ended within %g s: it is %s" % (self.id, timeout or 0.0, self.status()))
        return self._ended_result()

    def _ended_result(self) -> Any:
        status = self.status()
        if status == "cancelled":
            raise JobCancelled("job %s was cancelled" % self.id)
        if status == "died":
            last = self.logs().rstrip().splitlines()[-5:]
            log = ": the end of its log is\n  %s" % "\n  ".join(last) if last else ", and it has printed nothing"
            raise JobDied("the process of job %s was killed, or ended without a result%s" % (self.id, log))
        kind, value = pickle.loads(self._folder.open_sealed("result"))
        if kind == "value":
            return value
        raise unpack(value, pickle.loads)

    def exception(self, timeout: Optional[float] = None) -> Optional[BaseException]:
        """The exception that `result` raises, or `None` if it has a result."""
        try:
            self.result(timeout)
        except TimeoutError as error:
            if not self.done():
                raise
            return error
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and self.status() != "failed":
                raise
            return error
        return None

    def __await__(self) -> Generator[Any, None, Any]:
        import asyncio

        for pause in self._looks(None):
            yield from asyncio.sleep(pause).__await__()
        return self._ended_result()

    def logs(self) -> str:
        """What it has printed so far, to standard output and standard error, with its log of level INFO."""
        try:
            with open(self._folder.file("log"), errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def cancel(self) -> bool:
        """Ends it, with its workers. Returns whether it ends without a result: `False` if it had ended before.

        The job's process gets three seconds to end (`finally` clauses run), and is then killed with all processes of its
        session.
        """
        if self.done():
            return self.status() == "cancelled"
        self._folder.write("cancel", b"")
        began = time.monotonic()
        self._signal(signal.SIGTERM)
        while not self.wait(0.2):
            waited = time.monotonic() - began
            if waited > MOST:
                raise TimeoutError("job %s was asked to end, and has not within %g s" % (self.id, MOST))
            if waited > GRACE:
                self._signal(signal.SIGKILL)
        return self.status() == "cancelled"

    def _signal(self, number: int) -> None:
        """Sends the job's process a signal, if it is one of this machine. On another machine it looks for `cancel` itself."""
        info = self.info()
        process = info.get("process")
        if not isinstance(process, int) or info.get("host") != socket.gethostname():
            return
        try:
            descriptor = os.pidfd_open(process) if hasattr(os, "pidfd_open") else None  # type: ignore[attr-defined, unused-ignore]
        except OSError:
            return
        try:
            # The lock says that the process lives, so the descriptor, which is older, cannot be of another with its number.
            if not self._folder.is_alive():
                return
            if number == signal.SIGKILL:
                os.killpg(process, number)
            elif descriptor is not None and hasattr(signal, "pidfd_send_signal"):
                signal.pidfd_send_signal(descriptor, number)
            else:
                os.kill(process, number)
        except ProcessLookupError:
            pass
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def remove(self) -> None:
        """Removes all that is kept of it. Fails with `RuntimeError` if it has not ended."""
        if not self.done():
            raise RuntimeError("job %s is %s: cancel it first" % (self.id, self.status()))
        self._folder.remove()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        try:
            return "<evener job %s: %s, %s>" % (self.id, self.info().get("label", "?"), self.status())
        except store.NoSuchJob:
            return "<evener job %s, removed>" % self.id

    def __reduce__(self) -> Any:
        return job, (self.id,)


def job(id: str) -> Job:
    """A job by its id, or by the beginning or end of it that no other job has. Fails with `NoSuchJob`."""
    return Job(store.find(id))


def jobs() -> List[Job]:
    """All jobs of this user on this machine, the oldest first."""
    base = store.root()
    return [Job(store.Folder(base, id)) for id in store.all_ids()]
