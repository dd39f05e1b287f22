"""Ordered results of a function over items: at home while that is faster, and by workers where they pay."""

from __future__ import annotations

import itertools
import logging
import sys
import time
from operator import length_hint
from typing import TYPE_CHECKING, Any, Callable, Generator, Iterable, Iterator, Optional, Sequence, Tuple

from .. import _worker, report
from .._worker.main import log_at_home
from ..errors import PicklingError
from ..progress import bar_for
from . import watch
from .options import Options
from .ordered_job import OrderedJob
from .pays import Estimate

if TYPE_CHECKING:
    from .driver import Driver

log = logging.getLogger("evener")

#: A function that raises StopIteration ends the built-in map without a word. Here it is an error, as in a generator.
STOPPED = "the function raised StopIteration"

#: Cheap items run at home in blocks of this many at most, between two looks at the clock.
LARGEST_BLOCK = 2048
#: After this many seconds, a thread watches for expensive items, and blocks may be larger.
WATCHED_FROM = 0.5e-3
LARGEST_WATCHED_BLOCK = 8192
#: Items that take less than this many seconds are cheap.
CHEAP = 20e-6
#: Number of cheap items that say little about the next ones.
FEW = 64


def ordered(
    function: Callable[[int, Any], Any],
    items: Iterable[Any],
    *,
    where: Optional[Driver] = None,
    options: Optional[Options] = None,
) -> Ordered:
    """Yields function(index, item) for each item, in order, computed by the workers of `where`.

    The first items run in this process, and are timed; workers are used where that saves time. Items are read ahead of the
    results, in the thread that iterates, a bounded number of them. An exception of an item is raised in its place. Closing the
    iterator cancels what is in flight.
    """
    return Ordered(function, items, where, options if options is not None else Options())


class Ordered:
    """An iterator over the results of a run. Dropping it ends the run."""

    def __init__(
        self, function: Callable[..., Any], items: Iterable[Any], where: Optional[Driver], options: Options
    ) -> None:
        # The generator refers to the course and not to this object, which would be a cycle that only the garbage collector
        # ends.
        self._course = Course(function, items, where, options)
        self._blocks = self._course.run()
        self._iterator: Iterator[Any] = itertools.chain.from_iterable(self._blocks)

    def __iter__(self) -> Iterator[Any]:
        # The chain's own loop is faster than `__next__` of this class.
        return self._iterator

    def __next__(self) -> Any:
        return next(self._iterator)

    @property
    def job(self) -> Any:
        """The run over workers, once there is one."""
        return self._course.job

    @property
    def last_run(self) -> Any:
        """The report of the run, as `evener.last_run` has it."""
        course = self._course
        return report.LastRun(course.options.label, course.home(), course.job)

    def close(self) -> None:
        """Cancels what is in flight."""
        self._blocks.close()

    def start(self) -> None:
        """Starts the run now, not when the first result is asked for, if no item is to run at home."""
        first = next(self._blocks, None)
        if first is not None:
            self._iterator = itertools.chain(first, self._iterator)

    def until(self, deadline: float) -> Iterator[Any]:
        """The results, and TimeoutError for the first that is not there at this time of the monotonic clock."""
        try:
            if self.job is not None:
                self.job.deadline = deadline
            yield from self._iterator
        finally:
            self.close()


class Course:
    """The course of a run: first at home, then on workers."""

    def __init__(
        self, function: Callable[..., Any], items: Iterable[Any], where: Optional[Driver], options: Options
    ) -> None:
        self._function = function
        self._source = items
        self._where = where
        self.options = options
        #: The run over workers, once there is one.
        self.job: Any = None
        #: Items that ran at home, and their seconds.
        self.home_items = 0
        self.home_seconds = 0.0

    def home(self) -> Tuple[int, float]:
        """How many items ran at home, and their seconds, with those of a loop that ran before."""
        before = self.options.before
        return self.home_items + (before[0] if before else 0), self.home_seconds + (before[1] if before else 0.0)

    # At home.

    def run(self) -> Generator[Iterable[Any], None, None]:
        """The results, in blocks."""
        source, options = self._source, self.options
        if _worker.is_worker:
            log_at_home(logging.INFO, "%s: called in a worker, so its items run there, one by one" % options.label)
            yield self._mapped(iter(source))
            return
        sequence = _as_sequence(source)
        length = len(sequence) if sequence is not None else _length(source, options)
        iterator = iter(source)
        estimate = Estimate(self._function, options, self._where, length)
        try:
            is_over = yield from self._at_home(sequence, iterator, estimate)
            if not is_over:
                yield from self._on_workers(sequence, iterator, estimate)
        finally:
            report.keep(options.label, self.home(), self.job)

    def _mapped(self, items: Iterable[Any]) -> Iterator[Any]:
        """The results of items that run here, when they are asked for."""
        style = self.options.style
        if style == "item":
            return map(self._function, items)
        if style == "items":
            return itertools.starmap(self._function, items)
        return map(self._function, itertools.count(self.home_items), items)

    def _one(self, item: Any) -> Any:
        """The result of the next item."""
        style = self.options.style
        if style == "item":
            return self._function(item)
        return self._function(*item) if style == "items" else self._function(self.home_items, item)

    def _at_home(
        self, sequence: Optional[Sequence[Any]], iterator: Iterator[Any], estimate: Estimate
    ) -> Generator[Iterable[Any], None, bool]:
        """Runs items here until workers would pay. Returns whether there are no more."""
        most = self.options.home
        clock = time.perf_counter
        block = 1
        nothing = object()
        if most is None and estimate.pays_from_the_start():
            return False
        while most is None or self.home_items < most:
            if sequence is None:
                item = next(iterator, nothing)
                if item is nothing:
                    return True
            elif self.home_items < len(sequence):
                item = sequence[self.home_items]
            else:
                return True
            began = clock()
            # One item, timed.
            result = (self._one(item),)
            took = clock() - began
            self.home_items += 1
            self.home_seconds += took
            yield result
            # The time of one cheap item says little: those of a block say more.
            is_known = took > CHEAP or self.home_items > FEW
            if is_known and estimate.pays(took, self.home_items, item, result):
                return False
            if took > CHEAP or most is not None:
                block = 1
                continue
            # Some more that are not timed one by one: they are likely as cheap.
            began = clock()
            if sequence is None:
                block = min(block * 2, LARGEST_BLOCK)
                inner: Iterator[Any] = itertools.islice(iterator, block)
                yield self._mapped(inner)
                if next(inner, nothing) is not nothing:
                    raise RuntimeError(STOPPED)
            else:
                watched = self.home_seconds > WATCHED_FROM
                block = min(block * 4, LARGEST_WATCHED_BLOCK if watched else LARGEST_BLOCK)
                # A slice of a range is read faster than a list, which only a block that is watched must be.
                part = sequence[self.home_items : self.home_items + block]
                if watched:
                    part = part if type(part) is list else list(part)
                inner = iter(part)
                if watched:
                    watch.begin(id(self), part, inner)
                try:
                    yield self._mapped(inner)
                finally:
                    if watched:
                        watch.end(id(self))
                if length_hint(inner):
                    raise RuntimeError(STOPPED)
                block = len(part)
            elapsed = clock() - began
            self.home_items += block
            # What the caller did with the results is in the elapsed time too.
            self.home_seconds += min(elapsed, took * block)
            if block:
                estimate.block_took(elapsed / block)
            if elapsed > 50 * CHEAP and elapsed > 4 * took * block:
                block = 1
        return False

    # On workers.

    def _on_workers(
        self, sequence: Optional[Sequence[Any]], iterator: Iterator[Any], estimate: Estimate
    ) -> Iterator[Iterable[Any]]:
        driver = estimate.driver()
        start, seconds = self.home_items, estimate.seconds_per_item
        if sequence is not None and start >= len(sequence):
            return
        lanes = estimate.lanes(driver)
        source = None if sequence is not None else iterator
        try:
            job = OrderedJob(driver, self._function, self.options, lanes, sequence, source, start, seconds)
        except PicklingError as error:
            log.warning("%s, so all items run in this process", error)
            rest = iterator if sequence is None else itertools.islice(sequence, start, None)
            yield self._mapped(rest)
            return
        self.job = job
        log.debug("%s: %d workers from item %d on", self.options.label, lanes, start)
        driver.add(job)
        job.bar = bar_for(self.options.progress, self.options.label, estimate.length)
        try:
            if self.options.home == 0:
                # The run has begun: this is what `start` waits for.
                yield ()
            yield from job.blocks()
        finally:
            if not job.is_over:
                driver.stop(job)
            estimate.learn(job, self.home_items, self.home_seconds)


def _as_sequence(source: Any) -> Optional[Sequence[Any]]:
    """The source, if any part of it can be read at any time and gives what iterating gives."""
    if type(source) in (list, tuple, range):
        return source  # type: ignore[no-any-return]
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(source) is numpy.ndarray and source.ndim > 0:
        return source  # type: ignore[no-any-return]
    return None


def _length(source: Any, options: Options) -> Optional[int]:
    if options.length is not None:
        return options.length
    try:
        return len(source)
    except TypeError:
        return None
