"""Drives the scheduler's runs over worker processes.

One thread waits for the workers' sockets, reports to each job's `Run` what happened, and does what it answers. It starts all
workers: on Linux a worker gets SIGKILL when the thread that started it ends, so that none outlives this process, however that
ends.
"""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import selectors
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Protocol, Sequence, Tuple

from .._worker import frames
from .._worker.failures import unpack
from ..errors import NotLoadable
from . import reloads
from .job import Job
from .worker_process import LaneWorker, WorkerProcess, start_state

log = logging.getLogger("evener")

#: Workers that have had nothing to do for this many seconds end.
IDLE_SECONDS = 300.0
#: A worker that is still at an item that nobody wants is killed after this many seconds.
ABANDON_SECONDS = 0.5
#: Workers that die this often in a row before they are ready are not started again.
MOST_FAILED_STARTS = 3
#: A worker that could not be started is tried again after this many seconds.
RESTART_SECONDS = 0.05
#: The driver looks at its workers at least this often, where the system does not report the end of a process.
LONGEST_WAIT = 1.0 if not hasattr(os, "pidfd_open") else 60.0


class Slot(Protocol):
    """Where a worker runs that is no process of this machine."""

    def start(self, driver: "Driver", lane: int, initializer: Optional[bytes]) -> Optional[LaneWorker]:
        """Starts a worker. Returns `None` while the place is not there yet; raises OSError with the reason if it cannot be."""


class Link(Protocol):
    """A connection that the driver looks after, and that several workers share."""

    def look(self, driver: "Driver", now: float) -> float:
        """Does what is due. Returns when to look again, by the monotonic clock."""

    def handle(self, mask: int) -> None:
        """Its socket can be read or written."""

    def forget(self, job: int) -> None:
        """Drops the function of a job."""

    def close(self) -> None:
        """Ends it, and all workers behind it."""

    def forget_in_child(self) -> None:
        """Closes its descriptors in a forked process."""


class Lane:
    """A place for a worker: its device and its environment, and the worker, while there is one.

    Without a slot, the worker is a process of this machine.
    """

    def __init__(self, device: str, environment: Mapping[str, str], slot: Optional[Slot] = None) -> None:
        self.device = device
        self.environment = environment
        self.slot = slot
        self.worker: Optional[LaneWorker] = None
        #: How often in a row it died before it was ready. One that something else killed may well start the next time.
        self.failed_starts = 0.0


class Driver:
    """The workers of a pool, and the thread that drives them."""

    def __init__(self, lanes: List[Lane], initializer: Optional[bytes] = None, links: Sequence[Link] = ()) -> None:
        self.lanes = lanes
        self.links = list(links)
        self.lock = threading.RLock()
        self.process = os.getpid()
        #: Seconds from starting a worker until it was ready, of the last one.
        self.start_seconds: Optional[float] = None
        #: Why no job can run any more.
        self.broken: Optional[BaseException] = None
        self._initializer = initializer
        self._jobs: List[Job] = []
        self._by_number: Dict[int, Job] = {}
        self._numbers = itertools.count(1)
        self._turn = 0
        self._thread: Optional[threading.Thread] = None
        self._stopping = False
        self._is_closed = False
        self._started: Dict[int, float] = {}
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._is_awake = False
        self._deferred: Deque[Callable[[], None]] = deque()
        self._modules: Dict[str, Tuple[int, int]] = {}

    # What other threads call.

    def new_number(self) -> int:
        """A number for a job."""
        return next(self._numbers)

    @property
    def has_ready_workers(self) -> bool:
        """Whether any worker is ready."""
        return any(lane.worker is not None and lane.worker.ready for lane in self.lanes)

    @property
    def is_local(self) -> bool:
        """Whether all workers are processes of this machine."""
        return all(lane.slot is None for lane in self.lanes)

    @property
    def is_stopping(self) -> bool:
        """Whether it has been told to end."""
        return self._stopping

    def start_workers(self, count: int) -> None:
        """Starts workers ahead of a job, in the background."""
        with self.lock:
            self._warm_up = max(self._warm_up, count)
        self._begin()
        self.wake()

    _warm_up = 0

    def add(self, job: Job) -> None:
        """Adds a job."""
        modules = reloads.state()
        with self.lock:
            if self.broken is not None:
                raise self.broken
            if self._stopping:
                raise RuntimeError("the pool has been shut down")
            self._replace_stale(modules)
            self._jobs.append(job)
            self._by_number[job.number] = job
            for index, lane in enumerate(self.lanes[: job.lanes]):
                if lane.worker is not None and lane.worker.ready:
                    job.run.attach(index, lane.worker.claims)
        self._begin()
        self.wake()

    def _replace_stale(self, modules: Dict[str, Tuple[int, int]]) -> None:
        """Ends idle workers that have imported modules which were reloaded since."""
        stale, self._modules = self._modules, modules
        if not reloads.is_stale(stale, modules):
            return
        log.info("modules were reloaded, so workers are started anew")
        for lane in self.lanes:
            if lane.worker is not None and lane.worker.job is None:
                lane.worker.ready = False
                lane.worker.kill("idle")

    def later(self, call: Callable[[], None]) -> None:
        """Calls a function in the driver's thread, without the driver's lock: it may run the user's code."""
        self._deferred.append(call)
        self.wake()

    def stop(self, job: Job, kill: bool = False) -> None:
        """Ends a job: its workers stop after their present item, or at once."""
        with self.lock:
            job.run.stop()
            self._end(job)
            for lane in self.lanes:
                worker = lane.worker
                if worker is not None and worker.job is job:
                    worker.kill_at = time.monotonic() + (0.0 if kill else ABANDON_SECONDS)
                    worker.stop()
                    if kill:
                        worker.kill("cancelled")
        self.wake()

    def kill_worker_of(self, job: Job, index: int) -> None:
        """Kills the worker that runs an item."""
        for lane in self.lanes:
            worker = lane.worker
            if worker is not None and worker.job is job and worker.begun()[1] == index:
                worker.kill("cancelled")

    def wake(self) -> None:
        """Wakes the driver's thread."""
        if self._is_awake:
            return
        # Under the lock, so that the descriptor is not another file's by now.
        with self.lock:
            if not self._is_awake and not self._is_closed:
                self._is_awake = True
                try:
                    os.write(self._wake_write, b"!")
                except BlockingIOError:
                    pass

    def shut_down(self, wait: float) -> None:
        """Ends all workers and the thread: idle workers by themselves, others at once."""
        with self.lock:
            if self._stopping or os.getpid() != self.process:
                return
            self._stopping = True
            for job in list(self._jobs):
                job.run.stop()
                job.fail(RuntimeError("the pool has been shut down"))
                self._end(job)
        thread = self._thread
        if thread is None:
            self._close()
            return
        self.wake()
        if thread is not threading.current_thread():
            thread.join(wait)

    def forget_in_child(self) -> None:
        """Closes the descriptors of this driver in a forked process: its workers belong to the other process."""
        if self._is_closed:
            # Its descriptors are others' by now.
            return
        for lane in self.lanes:
            if isinstance(lane.worker, WorkerProcess):
                lane.worker.close()
                # The process is no child of this one.
                lane.worker.process.returncode = 0
        for link in self.links:
            link.forget_in_child()
        for file in (self._wake_read, self._wake_write):
            os.close(file)
        self._selector.close()
        self._stopping = True

    # The driver's thread.

    def _begin(self) -> None:
        with self.lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="evener driver", daemon=True)
                self._thread.start()

    def _serve(self) -> None:
        try:
            while not self._stopping:
                with self.lock:
                    wait = self._step()
                self._run_deferred()
                events = self._selector.select(0.0 if self._deferred else wait)
                if self._is_awake or any(key.data is None for key, _ in events):
                    self._hear_wake()
                with self.lock:
                    for key, mask in events:
                        self._handle(key, mask)
                self._run_deferred()
        except BaseException as error:
            # A mistake here must never leave a caller waiting.
            log.exception("the driver of the workers failed")
            with self.lock:
                self.broken = RuntimeError("the driver of the workers failed: %r" % error)
                for job in list(self._jobs):
                    job.fail(self.broken)
        finally:
            self._close()

    def _hear_wake(self) -> None:
        """Takes note of `wake`. Whoever calls it from here on wakes the thread again."""
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            # The other thread has not written yet: it will, and this thread wakes once more for nothing.
            pass
        # After reading: a thread that finds the flag set writes nothing, and what it did before is seen from here on.
        self._is_awake = False

    def _run_deferred(self) -> None:
        while self._deferred:
            try:
                self._deferred.popleft()()
            except Exception:
                log.exception("a callback failed")

    def _close(self) -> None:
        self._run_deferred()
        with self.lock:
            for link in self.links:
                try:
                    link.close()
                except Exception:
                    log.exception("a connection could not be closed")
            workers = [lane.worker for lane in self.lanes if isinstance(lane.worker, WorkerProcess)]
            for worker in workers:
                worker.kill()
            for worker in workers:
                worker.ended(5.0)
                worker.close()
            for lane in self.lanes:
                lane.worker = None
            self._is_closed = True
            self._is_awake = True
            self._stopping = True
            self._selector.close()
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _step(self) -> float:
        """Gives idle workers work, and starts workers. Returns how many seconds to wait for events."""
        now = time.monotonic()
        soonest = now + LONGEST_WAIT
        for job in list(self._jobs):
            due = job.run.next_check()
            if due is not None:
                if due <= 0:
                    job.run.check()
                else:
                    soonest = min(soonest, now + due)
            if job.run.outcome is not None:
                self._end(job)
        for link in self.links:
            soonest = min(soonest, link.look(self, now))
        for index, lane in enumerate(self.lanes):
            worker = lane.worker
            if worker is None:
                if self._is_wanted(index) and not self._start(index):
                    soonest = min(soonest, now + RESTART_SECONDS)
            elif worker.job is not None:
                soonest = min(soonest, self._watch(worker, now))
            elif worker.ready:
                soonest = min(soonest, now + self._give_work(worker))
                if worker.job is None:
                    ends = worker.idle_since + IDLE_SECONDS
                    if ends <= now:
                        worker.exit()
                        worker.ready = False
                        worker.killed_for = "idle"
                    else:
                        soonest = min(soonest, max(ends, now + 1.0))
        self._warm_up = 0
        return max(0.0, soonest - time.monotonic())

    def _is_wanted(self, index: int) -> bool:
        if self.broken is not None or self._stopping:
            return False
        if index < self._warm_up:
            return True
        for job in self._jobs:
            if index >= job.lanes or job.is_paused or job.run.is_drained or job.run.state(index) == "retired":
                continue
            # No more workers than there are items for.
            present = sum(lane.worker is not None for lane in self.lanes[: job.lanes])
            if present < job.run.items - job.run.done:
                return True
        return False

    def _start(self, index: int) -> bool:
        """Starts a lane's worker. Returns false if that failed, and is to be tried again."""
        lane = self.lanes[index]
        try:
            if lane.slot is not None:
                placed = lane.slot.start(self, index, self._initializer)
                if placed is not None:
                    lane.worker = placed
                    self._started[index] = time.monotonic()
                return True
            start = start_state(lane.device, self._initializer)
            start["own"] = sorted(lane.environment)
            worker = WorkerProcess(index, start, lane.environment)
        except OSError as error:
            log.warning("a worker could not be started: %s", error)
            self.start_failed(index, "could not be started: %s" % error)
            return False
        lane.worker = worker
        self._started[index] = time.monotonic()
        self._selector.register(worker.socket, selectors.EVENT_READ, worker)
        if worker.exit_file is not None:
            self._selector.register(worker.exit_file, selectors.EVENT_READ, worker)
        return True

    def start_failed(self, index: int, how: str, for_good: bool = False) -> None:
        """A lane's worker could not be started, or died before it was ready."""
        lane = self.lanes[index]
        lane.failed_starts += MOST_FAILED_STARTS if for_good else 0.1 if "killed" in how else 1.0
        if lane.failed_starts < MOST_FAILED_STARTS:
            return
        for job in list(self._jobs):
            if index < job.lanes and job.run.outcome is None:
                job.failures.append((lane.device, how))
                job.run.retire(index)

    def _watch(self, worker: LaneWorker, now: float) -> float:
        """Looks after a busy worker. Returns when to look again."""
        if worker.kill_at is not None:
            if worker.kill_at <= now:
                worker.kill("cancelled")
                return now + LONGEST_WAIT
            return worker.kill_at
        return worker.look(now)

    def _give_work(self, worker: LaneWorker) -> float:
        """Gives an idle worker a chunk, if there is one. Returns how many seconds to wait before it asks again."""
        wait = LONGEST_WAIT
        count = len(self._jobs)
        self._turn += 1
        for number in range(count):
            job = self._jobs[(self._turn + number) % count]
            if worker.lane >= job.lanes or job.is_paused or (job.run.is_drained and not job.busy):
                continue
            answer = job.run.ask(worker.lane)
            if answer is None:
                continue
            if isinstance(answer, float):
                wait = min(wait, max(answer, 0.0005))
                continue
            self._send_chunk(worker, job, *answer)
            # Nothing else may wake the driver before the item's time is up.
            return LONGEST_WAIT if job.options.timeout is None else job.options.timeout
        return wait

    def _send_chunk(self, worker: LaneWorker, job: Job, first: int, end: int) -> None:
        worker.job, worker.chunk, worker.delivered = job, (first, end), first
        worker.kill_at = None
        job.busy += 1
        try:
            worker.begin(job, first, end)
        except Exception as error:
            # There is no memory for the items, for example.
            self.chunk_failed(worker, job, error)
            return
        self._watch_writing(worker)

    def chunk_failed(self, worker: LaneWorker, job: Job, error: BaseException) -> None:
        """The items of a chunk cannot be handed to its worker."""
        job.fail(error)
        job.run.stop()
        self._end(job)
        if worker.job is job:
            worker.stop()
            if isinstance(worker, WorkerProcess):
                self._idle(worker)
            else:
                worker.kill_at = time.monotonic() + ABANDON_SECONDS

    # What connections call, in this thread and under the lock.

    def now(self) -> float:
        """The time of the monotonic clock."""
        return time.monotonic()

    def register(self, file: Any, events: int, link: Link) -> None:
        """Waits for a connection's socket."""
        self._selector.register(file, events, link)

    def modify(self, file: Any, events: int, link: Link) -> None:
        """Changes what is waited for."""
        if self._selector.get_key(file).events != events:
            self._selector.modify(file, events, link)

    def unregister(self, file: Any) -> None:
        """Stops waiting for a connection's socket."""
        try:
            self._selector.unregister(file)
        except (KeyError, ValueError, RuntimeError):
            # The driver has ended, or never waited for it.
            pass

    def _watch_writing(self, worker: LaneWorker) -> None:
        if not isinstance(worker, WorkerProcess):
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.has_outgoing else 0)
        if self._selector.get_key(worker.socket).events != events:
            self._selector.modify(worker.socket, events, worker)

    def _handle(self, key: selectors.SelectorKey, mask: int) -> None:
        worker = key.data
        if worker is None:
            return
        if not isinstance(worker, WorkerProcess):
            worker.handle(mask)
            return
        if self.lanes[worker.lane].worker is not worker:
            # It was removed by an earlier event.
            return
        if key.fd == worker.exit_file:
            self._read(worker)
            self._died(worker)
            return
        if mask & selectors.EVENT_WRITE:
            worker.flush()
            self._watch_writing(worker)
        if mask & selectors.EVENT_READ and not self._read_once(worker):
            self._died(worker)

    def _read(self, worker: WorkerProcess) -> None:
        """Reads all that a worker has sent."""
        while self._read_once(worker):
            pass

    def _read_once(self, worker: WorkerProcess) -> bool:
        """Reads what a worker has sent. Returns false if there is nothing more to come, or nothing now."""
        try:
            is_open = worker.reader.read()
        except (BlockingIOError, InterruptedError):
            return worker.exit_file is None or worker.process.poll() is None
        except OSError:
            is_open = False
        while True:
            frame = worker.reader.next()
            if frame is None:
                return is_open
            self.take(worker, frame.kind, frame.job, frame.body, frame.buffers)

    def take(self, worker: LaneWorker, kind: int, number: int, body: Any, buffers: Sequence[memoryview]) -> None:
        """Takes what a worker has sent."""
        if kind in (frames.RESULTS, frames.LAST_RESULTS):
            job = worker.job
            if job is None or job.number != number:
                if isinstance(worker, WorkerProcess):
                    raise RuntimeError("a worker sent results of a job that it has no chunk of")
                # They were on their way when the job ended.
                return
            first, entries = pickle.loads(body)
            worker.delivered = first + len(entries)
            if not job.is_over:
                job.results(first, entries, buffers)
            if kind == frames.LAST_RESULTS:
                self.chunk_ended(worker, job)
            else:
                worker.delivered_some()
        elif kind == frames.READY:
            self._is_ready(worker)
        elif kind == frames.FAILED:
            self._failed(worker, number, body)
        elif kind == frames.LOG:
            name, level, message = pickle.loads(body)
            logging.getLogger(name).log(level, "%s", message)

    def chunk_ended(self, worker: LaneWorker, job: Job) -> None:
        """A worker has ended its chunk."""
        kept = job.run.ended(worker.lane)
        self._idle(worker)
        if job.is_over:
            return
        if kept[1] != worker.delivered:
            raise RuntimeError("a worker delivered items up to %d of a chunk that ends at %d" % (worker.delivered, kept[1]))
        if job.run.outcome is not None:
            self._end(job)

    def _idle(self, worker: LaneWorker) -> None:
        if worker.job is not None:
            worker.job.busy -= 1
        worker.job, worker.kill_at = None, None
        worker.idle_since = time.monotonic()

    def _is_ready(self, worker: LaneWorker) -> None:
        worker.ready = True
        worker.idle_since = now = time.monotonic()
        self.start_seconds = now - self._started[worker.lane]
        self.lanes[worker.lane].failed_starts = 0.0
        for job in self._jobs:
            if worker.lane < job.lanes and job.run.outcome is None:
                job.run.attach(worker.lane, worker.claims)

    def _failed(self, worker: LaneWorker, number: int, body: Any) -> None:
        """A worker cannot load a job's function, or its initializer failed."""
        cause = unpack(pickle.loads(body), pickle.loads)
        job = worker.job
        if number and (job is None or job.number != number):
            # A further part of a chunk that has failed already.
            return
        if job is None:
            error = NotLoadable("the initializer of a worker failed: %s: %s" % (type(cause).__name__, cause))
            error.__cause__ = cause
            self.broken = error
            for other in list(self._jobs):
                other.fail(error)
                other.run.stop()
                self._end(other)
            return
        self._idle(worker)
        if job.is_over:
            return
        text = "the function of %s cannot be loaded by a worker: %s: %s"
        error = NotLoadable(text % (job.options.label, type(cause).__name__, cause))
        error.__cause__ = cause
        job.fail(error)
        job.run.stop()
        self._end(job)

    def _died(self, worker: WorkerProcess) -> None:
        how = worker.ended(0.0)
        if how is None:
            # Its socket is closed, so it is about to end, or will never do anything again.
            worker.kill()
            how = worker.ended(5.0) or "closed its socket"
        self._selector.unregister(worker.socket)
        if worker.exit_file is not None:
            self._selector.unregister(worker.exit_file)
        self.gone(worker, how)
        worker.close()

    def gone(self, worker: LaneWorker, how: str) -> None:
        """A worker has ended, or cannot be reached any more: its items go to others."""
        lane = self.lanes[worker.lane]
        lane.worker = None
        job, was_ready = worker.job, worker.ready
        if worker.killed_for not in ("idle", "cancelled"):
            log.warning("worker %d on %s %s", worker.lane, lane.device, how)
        if not was_ready and worker.killed_for is None:
            self.start_failed(worker.lane, how)
        for other in list(self._jobs):
            if worker.lane >= other.lanes or other.run.outcome is not None:
                continue
            if worker.killed_for not in ("idle", "cancelled"):
                other.failures.append((lane.device, "a worker %s" % how))
            if other is job:
                other.worker_died(worker, how)
            elif worker.killed_for in ("idle", "cancelled"):
                pass
            elif other.run.state(worker.lane) != "retired":
                other.run.died(worker.lane, 0)
        if job is not None:
            job.busy -= 1
        for other in list(self._jobs):
            if other.run.outcome is not None:
                self._end(other)

    def _end(self, job: Job) -> None:
        """Removes a job whose run has ended."""
        if job not in self._jobs:
            return
        self._jobs.remove(job)
        del self._by_number[job.number]
        if job.run.outcome == "no worker left":
            from ..worker_died import WorkerDied

            last = job.failures[-1][1] if job.failures else "no worker could be started"
            job.fail(WorkerDied("no worker is left for %s: %s" % (job.options.label, last)))
        for lane in self.lanes:
            if lane.worker is not None and job.number in lane.worker.functions:
                lane.worker.forget(job.number)
                self._watch_writing(lane.worker)
        for link in self.links:
            link.forget(job.number)
        job.close()
        job.finished()
