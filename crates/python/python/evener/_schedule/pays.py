"""Whether workers would save time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Optional

from . import costs, default
from .options import Options

if TYPE_CHECKING:
    from .driver import Driver
    from .job import Job

#: A run that would take less than this many seconds more at home is not worth a thought.
SHORT = 1e-3
#: Seconds until workers that wait have their first items.
WAKING = 1e-3
#: Workers must save this many times what they cost, since the estimate is one.
MARGIN = 1.5
#: Seconds that even a number takes on its way to a worker and back, one of many in a chunk.
LEAST_SENDING = 0.5e-6
#: Items of fewer seconds are measured in each run, whatever earlier ones have shown.
LEAST_KNOWN = 50e-6
#: Another program may have a core for this many seconds.
LONGEST_PREEMPTION = 50e-3
#: Bytes per second between processes, for large values; and into memory that all workers share.
BANDWIDTH = 1e9
WRITE_BANDWIDTH = 2e9


#: Iterations of a decorated loop that take fewer seconds are not worth it: what they do is recorded, checked and replayed.
LEAST_ITERATION = 200e-6
#: A decorated loop that would take fewer seconds more at home is not observed.
LEAST_LOOP = 20e-3


def loop_may_pay(each: float, left: Optional[int], options: Optional[Options], where: Optional[Driver]) -> bool:
    """Whether it is worth the trouble to observe an iteration of a loop that has so many left: workers may pay then."""
    if each < LEAST_ITERATION:
        return False
    return left is None or (left * each >= LEAST_LOOP and Estimate(None, options or Options(), where, left).may_save(left, each))


def count_of_workers(options: Optional[Options], where: Optional[Driver]) -> int:
    """How many workers a run may use."""
    if where is not None:
        return len(where.lanes)
    return (options.workers if options is not None else None) or default.cores()


class Estimate:
    """What is known about the time of a run: at home, and with workers."""

    def __init__(
        self, function: Any, options: Options, where: Optional[Driver], length: Optional[int]
    ) -> None:
        self._function = function
        self._options = options
        self._where = where
        #: The number of items, if it is known.
        self.length = length
        #: Seconds per item at home, once known.
        self.seconds_per_item: Optional[float] = None
        #: Seconds that sending an item and its result takes this process and a worker together, once known.
        self._sending: Optional[float] = None
        #: Seconds that sending the function takes, with all that it refers to, once known.
        self._sending_function: Optional[float] = None
        self._is_starting = False
        self._is_suspect = False
        if options.before is not None:
            # What the iterations of a decorated loop have shown before it was shared.
            self._recent = options.before[2]
        self._recent = 0.0

    def _key(self) -> Optional[str]:
        key = self._options.cost_key
        return key() if callable(key) else key

    def driver(self) -> Driver:
        """The driver of the workers."""
        return self._where if self._where is not None else default.driver()

    def lanes(self, driver: Driver) -> int:
        """How many workers the run may use."""
        count = len(driver.lanes)
        if self._options.workers is not None and self._where is None:
            count = default.lanes(driver, self._options.workers)
        return max(1, min(count, self._options.workers or count))

    def pays_from_the_start(self) -> bool:
        """Whether workers pay before anything is measured, by what earlier runs have shown."""
        if self.length is None or not costs.is_loaded():
            return False
        key = self._key()
        known = costs.of(key) if key is not None else None
        if known is None:
            return False
        if known[0] < LEAST_KNOWN:
            # Measuring costs next to nothing, and what workers have shown about tiny items is mostly the sending.
            return False
        self.seconds_per_item, self._sending = known
        return self._saves(self.length)

    def pays(self, took: float, done: int, item: Any, result: Any) -> bool:
        """Whether workers pay for the items after the first `done`, of which the last one took `took` seconds here."""
        if self._is_outlier(took):
            return False
        # Of an iterator, as much as is done may be left.
        left = done if self.length is None else self.length - done
        # Later items count more: they may be of another kind than the first.
        recent = took if self._recent == 0.0 else 0.7 * self._recent + 0.3 * took
        self._recent = recent
        if left * recent < SHORT:
            return False
        self.seconds_per_item = recent
        if left < 1 or not self.may_save(left, recent):
            return False
        if self._sending is None:
            self._sending = _sending_seconds(item, result[0])
        return self._saves(left)

    def _is_outlier(self, took: float) -> bool:
        """Whether an item took so much longer than those before that another program may have had the core: the next one tells."""
        self._is_suspect = (
            not self._is_suspect and self._recent > 0.0 and took > 20 * self._recent and took < LONGEST_PREEMPTION
        )
        return self._is_suspect

    def block_took(self, each: float) -> None:
        """Learns from cheap items that ran in a block, with what the caller did between them."""
        if self._recent == 0.0 or each < self._recent:
            self._recent = each

    def _most(self) -> int:
        """How many workers can compute at once."""
        where = self._where
        return default.cores() if where is None or where.is_local else max(2, len(where.lanes))

    def may_save(self, left: int, mean: float) -> bool:
        """A quick look: whether workers would pay if sending took no time."""
        count = min(self._options.workers or self._most(), self._most())
        saved = left * mean * (1.0 - 1.0 / max(1, count))
        if saved <= WAKING * MARGIN:
            return False
        driver = self._where if self._where is not None else default.running_driver()
        if self._is_starting or (driver is not None and driver.has_ready_workers):
            return True
        return saved > costs.start_seconds() * MARGIN

    def _saves(self, left: int) -> bool:
        """Whether workers save time. If they have to be started, starts them while the caller goes on."""
        each, sending = self.seconds_per_item or 0.0, max(self._sending or 0.0, LEAST_SENDING)
        driver = self._where if self._where is not None else default.running_driver()
        count = self._options.workers or self._most()
        speedup = max(1, min(count, self._most(), left))
        # This process takes part in sending, for all workers.
        saved = left * (each - max((each + sending) / speedup, sending / 2))
        if saved <= WAKING * MARGIN:
            return False
        if self._sending_function is None:
            self._sending_function = _function_seconds(self._function)
        saved -= self._sending_function
        if driver is not None and driver.has_ready_workers:
            return saved > WAKING * MARGIN
        starting = costs.start_seconds()
        if saved <= starting * MARGIN and not self._is_starting:
            return False
        if each > starting / 4:
            # Long items: this process would still be at one when the workers are ready.
            return True
        if not self._is_starting:
            self._is_starting = True
            driver = self.driver()
            driver.start_workers(min(self.lanes(driver), left))
        return False

    def learn(self, job: Job, home_items: int, home_seconds: float) -> None:
        """Keeps what a run has shown for the next one."""
        driver = job.driver
        if driver.start_seconds is not None and driver.is_local:
            costs.learn_start(driver.start_seconds)
        key = self._key()
        each = home_seconds / home_items if home_items else job.run.seconds_per_item
        if key is not None and each is not None:
            costs.learn(key, each, self._sending or 0.0)


def _function_seconds(function: Any) -> float:
    """Seconds that sending a function takes: its large buffers are written once, and mapped by all workers."""
    from .pickling import pickle_function

    began = time.perf_counter()
    try:
        data, buffers = pickle_function(function, "the function")
    except Exception:
        # The run will say so, in its place.
        return 0.0
    size = len(data) + sum(memoryview(part).nbytes for part in buffers)
    return time.perf_counter() - began + size / WRITE_BANDWIDTH


def _sending_seconds(item: Any, result: Any) -> float:
    """Seconds that sending an item and its result takes, by trying once."""
    from .._worker.values import ATOMS, pickle_value, unpickle_value
    from .pickling import choose

    total = 0.0
    for value in (item, result):
        if type(value) in ATOMS and not isinstance(value, (str, bytes)):
            continue
        buffers: Any = []
        began = time.perf_counter()
        try:
            entry = pickle_value(value, buffers, choose(value))
            unpickle_value(entry, buffers)
        except Exception:
            # The run will say so, in its place.
            continue
        took = time.perf_counter() - began
        total += 2 * took + (len(entry[1]) + sum(part.nbytes for part in buffers)) / BANDWIDTH
    return total
