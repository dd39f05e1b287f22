"""A run whose results are handed out in the order of its items."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Optional, Sequence

from .._worker.main import STYLES
from .._worker.values import ERROR
from ..progress import INTERVAL
from .job import _STYLES, Job, buffers_of, value_of
from .options import Options

if TYPE_CHECKING:
    from .driver import Driver

log = logging.getLogger("evener")
#: The end of a chunk is reported right after its last result: nothing is lost but its count if it takes longer than this.
END_SECONDS = 0.1

#: Results that wait for the caller have at most about this many bytes before no more items are handed out.
MOST_WAITING_BYTES = 1 << 29
#: Items that are read ahead of the results, for each worker, at least; and for how many seconds of work.
READ_AHEAD = 16
READ_AHEAD_SECONDS = 0.5
MOST_READ_AHEAD = 1 << 17
#: Items are given to the workers after this many seconds of reading.
READ_SECONDS = 0.001


#: An entry of an item that runs at home, because it cannot be pickled.
AT_HOME = 3


class Block:
    """Results of consecutive items."""

    __slots__ = ("entries", "buffers", "bytes", "is_plain")

    def __init__(self, entries: List[Any], buffers: Sequence[memoryview]) -> None:
        self.entries = entries
        self.buffers = buffers
        self.bytes = sum(part.nbytes for part in buffers)
        #: Whether the entries are the values.
        self.is_plain = tuple not in set(map(type, entries))


class OrderedJob(Job):
    """A run over a sequence, or over items that are read from an iterator as they are needed."""

    def __init__(
        self,
        driver: Driver,
        function: Any,
        options: Options,
        lanes: int,
        items: Optional[Sequence[Any]],
        source: Optional[Iterator[Any]],
        first: int,
        seconds: Optional[float],
    ) -> None:
        self.first = first
        self._items = items
        self._source = source
        self._call = STYLES[_STYLES.index(options.style)](function)
        self._source_error: Optional[BaseException] = None
        self._window: Dict[int, Any] = {}
        self._arrived = 0 if items is None else len(items) - first
        self._blocks: Dict[int, Block] = {}
        self._position = 0
        self._waiting_bytes = 0
        self._is_waiting = False
        self._failure: Optional[BaseException] = None
        #: The progress bar, if anybody sees it.
        self.bar: Any = None
        #: When the caller stops waiting, by the monotonic clock.
        self.deadline: Optional[float] = None
        #: The first item that has failed: none after it is needed.
        self._error_at: Optional[int] = None
        super().__init__(driver, function, options, lanes, None if items is None else len(items) - first, seconds)
        self._changed = threading.Condition(driver.lock)

    # The driver's side.

    def items_between(self, first: int, end: int) -> Sequence[Any]:
        from .pickling import SKIP

        if self._error_at is not None and end > self._error_at:
            # The item that failed is known without a worker, and its window is closed.
            skipped = self._settled
            kept = [
                SKIP if index > self._error_at or index in skipped else self._item(index) for index in range(first, end)
            ]
            self._settled.update(range(max(first, self._error_at + 1), end))
            return kept
        if self._items is not None:
            part = self._items[first + self.first : end + self.first]
            return part if type(part) in (list, tuple, range) else list(part)
        return [SKIP if index in self._settled else self._window[index] for index in range(first, end)]

    def _item(self, index: int) -> Any:
        return self._items[index + self.first] if self._items is not None else self._window[index]

    def deliver(self, first: int, entries: List[Any], buffers: Sequence[memoryview]) -> None:
        block = Block(entries, buffers)
        self._blocks[first] = block
        self._waiting_bytes += block.bytes
        if self._items is None:
            for index in range(first, first + len(entries)):
                self._window.pop(index, None)
        if not block.is_plain:
            for index, entry in enumerate(entries, first):
                if type(entry) is tuple and entry[0] == ERROR:
                    self._error_at = index if self._error_at is None else min(index, self._error_at)
                    break
        if self._is_waiting and self._position in self._blocks:
            self._changed.notify()

    def deliver_error(self, index: int, error: BaseException) -> None:
        self.deliver(index, [(ERROR, error)], ())

    def cannot_send(self, index: int, error: BaseException) -> None:
        self._settled.add(index)
        log.warning("%s, so it runs in this process", error)
        self.deliver(index, [(AT_HOME, self._item(index))], ())

    def fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        self._changed.notify_all()

    def finished(self) -> None:
        self._changed.notify_all()

    @property
    def is_paused(self) -> bool:
        return self._waiting_bytes > MOST_WAITING_BYTES and not self._is_waiting

    # The caller's side.

    def blocks(self) -> Iterator[Iterable[Any]]:
        """The results, in order, in blocks."""
        kill = False
        try:
            while True:
                block = self._next_block()
                if self.bar is not None:
                    self.bar.update(self.first + self.run.done)
                if block is None:
                    self._await_end()
                    return
                if block.is_plain:
                    yield block.entries
                else:
                    yield self._values(block, self.first + self._position - len(block.entries))
                if self.is_over and self._error_at is not None and self._position > self._error_at:
                    return
        except KeyboardInterrupt:
            kill = True
            raise
        finally:
            if self.bar is not None:
                self.bar.close(self.first + self.run.done)
            if not self.is_over:
                self.driver.stop(self, kill)

    def _await_end(self) -> None:
        """Waits until the worker of the last result has reported the end of its chunk, so that the report counts every item."""
        with self.driver.lock:
            ends = time.monotonic() + END_SECONDS
            while not self.is_over and time.monotonic() < ends:
                self._changed.wait(ends - time.monotonic())

    def _values(self, block: Block, first: int) -> Iterator[Any]:
        used = 0
        for index, entry in enumerate(block.entries):
            count = buffers_of(entry)
            try:
                if type(entry) is tuple and entry[0] == AT_HOME:
                    value = self._call(first + index, entry[1])
                else:
                    value = value_of(entry, block.buffers[used : used + count])
            except BaseException:
                self.driver.stop(self)
                raise
            used += count
            yield value

    def _next_block(self) -> Optional[Block]:
        while True:
            block = self._blocks.get(self._position)
            if block is not None:
                with self.driver.lock:
                    was_paused = self.is_paused
                    del self._blocks[self._position]
                    self._position += len(block.entries)
                    self._waiting_bytes -= block.bytes
                if was_paused:
                    self.driver.wake()
                if self._source is not None and self._room() * 2 > self._target():
                    self._read()
                return block
            if self._source is not None and self._room() > 0:
                self._read()
                continue
            with self.driver.lock:
                if self._position in self._blocks:
                    continue
                if self._failure is not None:
                    raise self._failure
                if self._position >= self._arrived and self._source is None:
                    if self._source_error is not None:
                        raise self._source_error
                    return None
                if self.is_over:
                    raise RuntimeError("the run ended before its last item")
                was_paused = self.is_paused
                self._is_waiting = True
                if was_paused:
                    self.driver.wake()
                try:
                    left = None if self.deadline is None else self.deadline - time.monotonic()
                    if left is not None and left <= 0:
                        raise TimeoutError("%s: a result was not there in time" % self.options.label)
                    if self.bar is not None:
                        self.bar.update(self.first + self.run.done)
                        left = INTERVAL if left is None else min(left, INTERVAL)
                    self._changed.wait(left)
                finally:
                    self._is_waiting = False

    def _target(self) -> int:
        """How many items to read ahead."""
        rate = self.run.rate or 0.0
        return min(max(READ_AHEAD * self.lanes, int(rate * READ_AHEAD_SECONDS)), MOST_READ_AHEAD)

    def _room(self) -> int:
        return self._target() - (self._arrived - self._position)

    def _read(self) -> None:
        """Reads items from the source, for a moment, and gives them to the workers."""
        room = self._room()
        items: List[Any] = []
        ends = time.perf_counter() + READ_SECONDS
        source = self._source
        try:
            for item in itertools.islice(source, room):  # type: ignore[arg-type]
                items.append(item)
                if time.perf_counter() > ends:
                    break
            else:
                if len(items) < room:
                    self._source = None
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # As in a plain loop, it is raised after the results of all items before.
            self._source, self._source_error = None, error
        with self.driver.lock:
            for index, item in enumerate(items, self._arrived):
                self._window[index] = item
            self._arrived += len(items)
            if items:
                self.run.grow(len(items))
            if self._source is None:
                self.run.close()
        self.driver.wake()
