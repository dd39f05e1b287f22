"""One run on a driver: its items, its function, and its results."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Set, Tuple

from .._evener import Run
from .._worker.failures import unpack
from .._worker.shared_files import write_parts
from .._worker.values import ERROR, SKIPPED, VALUE, unpickle_value
from .options import Options
from .pickling import SKIP, pickle_function, pickle_items

if TYPE_CHECKING:
    from .driver import Driver
    from .worker_process import LaneWorker, WorkerProcess

#: The styles of calls, in the order of `_worker.main.STYLES`.
_STYLES = ("index", "item", "items", "call")


class FunctionBlob:
    """A function as it is sent to workers: the pickle, and a file with its large buffers."""

    def __init__(self, function: Any, what: str, style: str, eager: bool) -> None:
        data, buffers = pickle_function(function, what)
        self.body = bytes((_STYLES.index(style), eager)) + data
        self.sizes = [memoryview(buffer) for buffer in buffers]
        self._file = write_parts(buffers) if buffers else None

    @property
    def file(self) -> Optional[int]:
        """The file with its buffers, if it has any."""
        return self._file

    def close(self) -> None:
        """Frees the file. Workers keep their mappings."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def send_function(worker: WorkerProcess, job: Job) -> None:
    """Sends a job's function to a worker process, unless it has it."""
    from .._worker import frames

    if job.number not in worker.functions:
        blob = job.blob
        worker.functions.add(job.number)
        worker.send(frames.FUNCTION, job.number, blob.body, blob.sizes if blob.file is not None else (), blob.file)


class Job:
    """One run over the workers of a driver. The driver calls it under the driver's lock."""

    #: The number of the run's first item for the caller. The run itself counts from zero.
    first = 0

    def __init__(
        self, driver: Driver, function: Any, options: Options, lanes: int, items: Optional[int], seconds: Optional[float]
    ) -> None:
        self.driver = driver
        self.options = options
        self.lanes = lanes
        self.number = driver.new_number()
        what = "the function of %s" % options.label
        self.blob = FunctionBlob(function, what, options.style, options.retries == 0)
        self.run = Run(lanes, items, seconds, options.style != "call")
        #: Number of workers that run a chunk of it.
        self.busy = 0
        #: How often an item's worker has died, and the items whose results are known without a worker.
        self._deaths: Dict[int, int] = {}
        self._settled: Set[int] = set()
        #: What went wrong with the workers, with the name of their device.
        self.failures: List[Tuple[str, str]] = []
        self.is_over = False

    # What a kind of job defines.

    def item_number(self, index: int) -> int:
        """The number of an item for people: in a decorated loop, the iterations before the run count too."""
        return self.first + index + (self.options.before[0] if self.options.before is not None else 0)

    def items_between(self, first: int, end: int) -> Sequence[Any]:
        """The items of a chunk."""
        raise NotImplementedError

    def deliver(self, first: int, entries: List[Any], buffers: Sequence[memoryview]) -> None:
        """Takes results of consecutive items."""
        raise NotImplementedError

    def deliver_error(self, index: int, error: BaseException) -> None:
        """Takes the error of an item that no worker has a result for."""
        raise NotImplementedError

    def cannot_send(self, index: int, error: BaseException) -> None:
        """An item cannot be pickled."""
        self.settle(index, error)

    def fail(self, error: BaseException) -> None:
        """The job cannot go on."""
        raise NotImplementedError

    def finished(self) -> None:
        """The run has ended."""

    @property
    def is_paused(self) -> bool:
        """Whether no chunks are to be handed out for now."""
        return False

    # What is the same for all.

    @property
    def has_deaths(self) -> bool:
        """Whether any worker has died at one of its items."""
        return bool(self._deaths)

    def encode(self, first: int, end: int) -> Tuple[bytes, List[Any]]:
        """Encodes the items of a chunk: the body of its frame, and its large buffers."""
        items = self.items_between(first, end)
        if self._settled and not self._settled.isdisjoint(range(first, end)):
            items = [SKIP if first + i in self._settled else item for i, item in enumerate(items)]
        entries, buffers, problems = pickle_items(items, first, self.item_number(0))
        for index, error in problems:
            self.cannot_send(index, error)
        return pickle.dumps((first, self.first, entries), 5), buffers

    def settle(self, index: int, error: BaseException) -> None:
        """Ends an item with an error, although no worker has run it to its end."""
        if index not in self._settled:
            self._settled.add(index)
            self.deliver_error(index, error)

    def results(self, first: int, entries: List[Any], buffers: Sequence[memoryview]) -> None:
        """Delivers the results of a worker, without those of items that were skipped."""
        if tuple not in set(map(type, entries)) or not any(
            type(entry) is tuple and entry[0] == SKIPPED for entry in entries
        ):
            if entries:
                self.deliver(first, entries, buffers)
            return
        begin, used = 0, 0
        for position, entry in enumerate(entries + [(SKIPPED,)]):
            if type(entry) is tuple and entry[0] == SKIPPED:
                part = entries[begin:position]
                count = sum(map(buffers_of, part))
                if part:
                    self.deliver(first + begin, part, buffers[used : used + count])
                used += count
                begin = position + 1

    def worker_died(self, worker: LaneWorker, how: str) -> None:
        """A worker that ran a chunk has died: its items are run again, or have failed."""
        claimed, current = worker.begun()
        timed_out = worker.killed_for == "timeout"
        rest = self.run.died(worker.lane, worker.delivered)
        if self.run.outcome is not None or rest is None:
            return
        begun = range(worker.delivered, max(claimed, worker.delivered))
        if not begun:
            # It died before its first item: most likely while it loaded the function.
            begun, current = range(worker.delivered, worker.delivered + 1), worker.delivered
        culprit = max(current, worker.delivered)
        if worker.killed_for == "cancelled":
            return
        self._deaths[culprit] = deaths = self._deaths.get(culprit, 0) + 1
        if deaths <= self.options.retries:
            return
        for index in begun if self.options.retries == 0 else (culprit,):
            self.settle(index, self._death_error(index, how, timed_out, deaths))

    def _death_error(self, index: int, how: str, timed_out: bool, deaths: int) -> BaseException:
        times = "" if deaths == 1 else " (%d times)" % deaths
        if timed_out:
            parts = (self.item_number(index), self.options.label, self.options.timeout or 0.0, times)
            return TimeoutError("item %d of %s took longer than %g s%s" % parts)
        from ..worker_died import WorkerDied

        return WorkerDied("the worker of item %d of %s %s%s" % (self.item_number(index), self.options.label, how, times))

    def close(self) -> None:
        """Frees what belongs to it. Called once its run has ended."""
        self.is_over = True
        self.blob.close()


def buffers_of(entry: Any) -> int:
    """The number of an entry's buffers."""
    return entry[2] if type(entry) is tuple and entry[0] == VALUE else 0


def value_of(entry: Any, buffers: Sequence[memoryview]) -> Any:
    """The value of an entry. Raises the error that it carries."""
    if type(entry) is not tuple:
        return entry
    if entry[0] == ERROR:
        error = entry[1] if isinstance(entry[1], BaseException) else unpack(pickle.loads(entry[1]), pickle.loads)
        raise error
    return unpickle_value(entry, buffers)
