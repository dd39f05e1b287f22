"""Workers that another system has, such as Dask or Ray: parts of a run are its tasks.

A lane is one worker of that system, with a few tasks in flight. The system's own threads report results, which the driver's
thread takes. A result counts only if it carries a signature that was made with the key of this pool.
"""

from __future__ import annotations

import logging
import os
import pickle
import secrets
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, List, Optional, Set, Tuple

from .._schedule import kept_values
from .._schedule.worker_process import LaneWorker, new_claims
from .._worker import frames, stream
from .._worker.shared_files import map_parts
from ..loops.body import this_process
from .signing import Forged, checked
from .window import Window

if TYPE_CHECKING:
    from .._schedule.driver import Driver
    from .._schedule.job import Job

log = logging.getLogger("evener")

#: Seconds that a task takes beside its items, before it was measured.
USUAL_ROUND_TRIP = 0.01
#: Seconds between two looks at which workers the other system has.
LOOK_SECONDS = 0.5


class System:
    """Another system, as far as it is used here."""

    name = "another system"

    def workers(self) -> List[str]:
        """The names of the workers that are there now. May take a moment."""
        raise NotImplementedError

    def share(self, worker: str, payload: bytes) -> Any:
        """Makes a value known to a worker, which gets it once."""
        raise NotImplementedError

    def submit(self, worker: str, function: Any, part: bytes, done: Callable[[Any], None]) -> Any:
        """Runs a part by a worker. `done` is called with the result, or with an exception, by any thread."""
        raise NotImplementedError

    def cancel(self, task: Any) -> None:
        """Drops a task that nobody wants, if it has not begun."""

    def end_worker(self, worker: str) -> None:
        """Ends a worker that is at an item for too long. The system starts another one."""

    def close(self) -> None:
        """Frees what was made in the system."""


class TaskWorker(LaneWorker):
    """A worker of another system."""

    def __init__(self, lane: int, link: TaskLink, driver: Driver, name: str) -> None:
        super().__init__(lane)
        self.name = name
        self._link = link
        self._driver = driver
        self.claims, file = new_claims()
        os.close(file)
        self._window = Window()
        self._windows: Dict[int, Window] = {}
        #: The parts in flight: first item, end, task, when it was handed out.
        self._parts: Deque[Tuple[int, int, Task, float]] = deque()
        self._handed = 0
        self._since = 0.0

    def begin(self, job: Job, first: int, end: int) -> None:
        self._window = self._windows.setdefault(job.number, Window())
        self._handed = first
        self._parts.clear()
        self.functions.add(job.number)
        self._since = self._driver.now()
        self._hand_out()

    def begun(self) -> Tuple[int, int]:
        return self._handed, self.delivered

    def forget(self, job: int) -> None:
        self.functions.discard(job)
        self._windows.pop(job, None)

    def exit(self) -> None:
        # Its processes are the other system's.
        self.idle_since = self._driver.now()
        self.ready, self.killed_for = True, None

    def kill(self, reason: Optional[str] = None) -> None:
        if self.killed_for is None:
            self.killed_for = reason
            self._link.lose(self, "was ended", ends=reason == "timeout")

    def stop(self) -> None:
        """Nobody wants what is in flight: the worker is free for the next run."""
        job = self.job
        for _, _, task, _ in self._parts:
            self._link.abandon(task)
        self._parts.clear()
        if job is not None:
            self._driver.chunk_ended(self, job)

    def look(self, now: float) -> float:
        job = self.job
        limit = job.options.timeout if job is not None else None
        if limit is None or not self._parts:
            return super().look(now)
        first, end, _, _ = self._parts[0]
        due = self._since + limit * (end - first) + 1.0
        if due <= now:
            self.kill("timeout")
        return max(due, now + 0.01)

    def part_done(self, task: Task, outcome: Any) -> None:
        """A part has ended, in the driver's thread. Parts may be reported in another order than they were handed out."""
        task.outcome = outcome
        while self.job is not None and self._parts and self._parts[0][2].outcome is not None:
            self._take_first(self.job)

    def _take_first(self, job: Job) -> None:
        """Takes the results of the first part in flight."""
        first, end, task, handed = self._parts[0]
        outcome = task.outcome
        try:
            if isinstance(outcome, BaseException):
                raise outcome
            data = checked(self._link.key, task.part, outcome)
            listed = stream.unpack_frames(data)
        except Forged as error:
            log.error("%s: %s", self.name, error)
            self._link.distrust(self.name)
            self._link.lose(self, "delivered a result that cannot be trusted (%s)" % error)
            return
        except Exception as error:
            self._link.lose(self, "failed: %s: %s" % (type(error).__name__, _short(error)))
            return
        now = self._driver.now()
        self._window.took(end - first, now - max(handed, self._since))
        self._since = now
        self._parts.popleft()
        for frame in listed:
            kind = frames.RESULTS if frame.kind == frames.LAST_RESULTS else frame.kind
            self._driver.take(self, kind, frame.job, frame.body, frame.buffers)
            if kind == frames.FAILED:
                return
        if self.job is job:
            self._go_on(job)

    def _go_on(self, job: Job) -> None:
        try:
            self._hand_out()
        except Exception as error:
            self._driver.chunk_failed(self, job, error)
            return
        if not self._parts and self.delivered >= self._handed:
            self._driver.chunk_ended(self, job)

    def _hand_out(self) -> None:
        job = self.job
        assert job is not None
        # Where the fate of a part is unknown, its first item is blamed: so the right one has to be alone.
        alone = job.has_deaths or not job.options.retries
        while len(self._parts) < (1 if alone else 2):
            count = self._window.next(self._handed - self.delivered, self._link.round_trip)
            block = self.claims.claim(1 if alone else count) if count else None
            if block is None:
                return
            start, end = self.chunk[0] + block[0], self.chunk[0] + block[1]
            body, buffers = job.encode(start, end)
            task = self._link.submit(self, job, start, end - start, body, buffers)
            self._parts.append((start, end, task, self._driver.now()))
            self._handed = end


class Task:
    """A part on its way: its name, which its signature is for, and what the other system knows it by."""

    __slots__ = ("part", "known", "worker", "outcome")

    def __init__(self, part: bytes, worker: TaskWorker) -> None:
        self.part = part
        self.known: Any = None
        self.worker = worker
        self.outcome: Any = None


class TaskSlot:
    """The place of one worker of another system."""

    def __init__(self, link: TaskLink) -> None:
        self._link = link

    def start(self, driver: Driver, lane: int, initializer: Optional[bytes]) -> Optional[LaneWorker]:
        """Takes a worker of the system that no other lane has."""
        return self._link.start(driver, lane)


class TaskLink:
    """Another system, and the tasks that it has."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.key = secrets.token_bytes(32)
        self.round_trip = USUAL_ROUND_TRIP
        self._token = secrets.token_hex(8)
        #: The functions of jobs: as they are sent, and what each worker knows them by.
        self._functions: Dict[int, Tuple[bytes, Dict[str, Any]]] = {}
        self._workers: Dict[str, TaskWorker] = {}
        self._present: Set[str] = set(system.workers())
        self._distrusted: Set[str] = set()
        self._done: Deque[Tuple[Task, Any]] = deque()
        self._driver: Optional[Driver] = None
        self._is_closed = False
        self._watcher: Optional[threading.Thread] = None

    @property
    def count(self) -> int:
        """The number of workers that the system has."""
        return len(self._present)

    def start(self, driver: Driver, lane: int) -> Optional[TaskWorker]:
        """Gives a lane a worker of the system, if one is free."""
        self._driver = driver
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="evener watches tasks", daemon=True)
            self._watcher.start()
        free = sorted(self._present.difference(self._workers))
        if not free:
            return None
        worker = self._workers[free[0]] = TaskWorker(lane, self, driver, free[0])
        # It is taken as it is. The driver notes it in its next turn.
        self._done.append((Task(b"", worker), frames.READY))
        driver.wake()
        return worker

    def _watch(self) -> None:
        """Looks which workers the system has."""
        while not self._is_closed:
            time.sleep(LOOK_SECONDS)
            try:
                present = set(self._system.workers())
            except Exception as error:
                log.debug("%s does not answer: %s", self._system.name, error)
                continue
            present -= self._distrusted
            if present != self._present:
                self._present = present
                if self._driver is not None:
                    self._driver.wake()

    def submit(self, worker: TaskWorker, job: Job, first: int, count: int, body: bytes, buffers: Any) -> Task:
        """Hands out a part."""
        task = Task(b"%s/%d/%d/%s" % (self._token.encode(), job.number, first, secrets.token_hex(8).encode()), worker)
        header = {"token": "%s/%d" % (self._token, job.number), "job": job.number, "count": count, "key": self.key,
                  "part": task.part}
        part = pickle.dumps([header, body, *(bytes(memoryview(buffer).cast("B")) for buffer in buffers)], 5)
        driver = self._driver

        def done(outcome: Any) -> None:
            self._done.append((task, outcome))
            if driver is not None:
                driver.wake()

        try:
            if job.number not in self._functions:
                self._functions[job.number] = (_payload(job), {})
            payload, shared = self._functions[job.number]
            if worker.name not in shared:
                shared[worker.name] = self._system.share(worker.name, payload)
            task.known = self._system.submit(worker.name, shared[worker.name], part, done)
        except Exception as error:
            # The worker is gone, or the whole system is.
            done(error)
        return task

    def abandon(self, task: Task) -> None:
        """Nobody wants a task any more."""
        if task.known is not None:
            self._system.cancel(task.known)

    def distrust(self, worker: str) -> None:
        """Never uses a worker again."""
        self._distrusted.add(worker)

    def lose(self, worker: TaskWorker, how: str, ends: bool = False) -> None:
        """A worker cannot be used any more."""
        if self._workers.get(worker.name) is not worker:
            return
        del self._workers[worker.name]
        for _, _, task, _ in worker._parts:
            self.abandon(task)
        worker._parts.clear()
        for _, shared in self._functions.values():
            shared.pop(worker.name, None)
        # It is used again if the system still has it at the next look.
        self._present = self._present - {worker.name}
        if ends:
            threading.Thread(target=self._system.end_worker, args=(worker.name,), daemon=True).start()
        if self._driver is not None:
            self._driver.gone(worker, how)

    # What the driver calls.

    def look(self, driver: Driver, now: float) -> float:
        """Takes the results that have come, and notes which workers have gone."""
        self._driver = driver
        while self._done:
            task, outcome = self._done.popleft()
            if self._workers.get(task.worker.name) is not task.worker:
                continue
            if outcome is frames.READY and not task.part:
                driver.take(task.worker, frames.READY, 0, b"", ())
            else:
                task.worker.part_done(task, outcome)
        for name, worker in list(self._workers.items()):
            if name not in self._present:
                self.lose(worker, "is gone: %s does not have it any more" % self._system.name)
        return now + 3600.0

    def handle(self, mask: int) -> None:
        """It has no socket."""

    def forget(self, job: int) -> None:
        """Drops a job's function."""
        self._functions.pop(job, None)

    def close(self) -> None:
        """Frees what was made in the system."""
        self._is_closed = True
        self._functions.clear()
        self._system.close()

    def forget_in_child(self) -> None:
        """Forgets the system in a forked process."""
        self._is_closed = True


def _short(error: BaseException) -> str:
    """The first sentence of an error's text."""
    lines = str(error).strip().splitlines() or [""]
    return lines[0].split(". ")[0][:200]


def _payload(job: Job) -> bytes:
    """A job's function, and the values of `evener.put`, as one value."""
    blob = job.blob
    buffers: List[bytes] = []
    if blob.file is not None:
        buffers = [bytes(part) for part in map_parts(os.dup(blob.file), [part.nbytes for part in blob.sizes], writable=False)]
    values = {
        value.number: [bytes(part) for part in map_parts(os.dup(value.file), value.sizes, writable=False)]
        for value in kept_values.kept()
    }
    payload = {"job": job.number, "body": blob.body, "buffers": buffers, "values": values, "process": this_process(),
               "path": [entry for entry in sys.path if entry]}
    return pickle.dumps(payload, 5)
