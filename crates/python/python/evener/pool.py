"""`evener.Pool`: worker processes as a `concurrent.futures.Executor`."""

from __future__ import annotations

import threading
import time
import weakref
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from . import _worker, configuration
from ._schedule import default
from ._schedule.driver import Driver, Lane
from ._schedule.job import Job, buffers_of, value_of
from ._schedule.options import Options
from ._schedule.ordered import ordered
from ._schedule.pickling import whole_pickle
from .mapping import name_of
from .places import places_of

__all__ = ["Pool"]


class Pool(Executor):
    """Worker processes, one a core or a GPU, for functions that are submitted or mapped; with `where`, on other machines too.

    It is used as `concurrent.futures.ProcessPoolExecutor` is. Workers are started when they are first needed, and end with the
    pool. An item whose worker dies is run again up to `retries` times.
    """

    def __init__(
        self,
        workers: Optional[int] = None,
        *,
        devices: Union[str, Sequence[str], None] = None,
        initializer: Optional[Callable[..., Any]] = None,
        initargs: Tuple[Any, ...] = (),
        retries: Optional[int] = None,
        timeout: Optional[float] = None,
        environment: Mapping[str, str] = {},
        where: Any = None,
    ) -> None:
        if workers is not None and workers < 1:
            raise ValueError("a pool needs at least one worker, not %d" % workers)
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a function")
        workers = configuration.get("workers") if workers is None and devices is None and where is None else workers
        retries = configuration.get("retries") if retries is None else retries
        timeout = configuration.get("timeout") if timeout is None else timeout
        first = None if initializer is None else whole_pickle((initializer, tuple(initargs)), "the initializer")
        places = places_of(where)
        if where is not None and (places is None or workers is not None or devices is not None or environment):
            raise TypeError("where= is a place, or a list of them; give workers, devices and environment to the places")
        if places is None:
            self._driver: Driver = default.new_driver(local_lanes(workers, devices, environment), first)
        else:
            from ._remote.opening import open_driver

            self._driver = open_driver(places, None, first)
        lanes = self._driver.lanes
        self._options = Options(workers=len(lanes), retries=retries, timeout=timeout, style="call", label="submit")
        self._job: Optional[CallsJob] = None
        # The driver's own lock: futures' callbacks run without it, and may submit.
        self._lock = self._driver.lock
        self._is_shut_down = False
        self._held: List[Optional[CallsJob]] = [None]
        # As for other executors, a pool that nobody has any more ends after its last future.
        weakref.finalize(self, _release, self._driver, self._held).atexit = False

    @property
    def workers(self) -> int:
        """The number of workers."""
        return len(self._driver.lanes)

    @property
    def is_shut_down(self) -> bool:
        """Whether it takes no more calls."""
        return self._is_shut_down or self._driver.is_stopping

    def cancel(self, futures: Sequence["Future[Any]"]) -> None:
        """Cancels futures: those that run too, whose workers are ended and started anew."""
        if self._job is not None:
            self._job.cancel(futures)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Runs a function by a worker. Returns its future."""
        future: "Future[Any]" = Future()
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._driver.broken is not None:
                raise self._driver.broken
            if _worker.is_worker:
                _run_here(future, fn, args, kwargs)
                return future
            if self._job is None or self._job.is_over:
                self._job = CallsJob(self._driver, self._options, len(self._driver.lanes))
                self._driver.add(self._job)
                self._held[0] = self._job
            self._job.add(future, fn, args, kwargs)
        return future

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: Optional[float] = None,
        chunksize: int = 1,
        retries: Optional[int] = None,
        progress: Optional[bool] = None,
    ) -> Iterator[Any]:
        """Applies a function to the items of iterables, in order, lazily. `chunksize` is ignored: chunks are chosen.

        As for other executors, `timeout` is the number of seconds from this call after which results raise TimeoutError.
        """
        if not iterables:
            raise TypeError("map needs at least one iterable")
        if self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        options = Options(
            workers=len(self._driver.lanes),
            retries=self._options.retries if retries is None else retries,
            timeout=self._options.timeout,
            progress=progress,
            home=0,
            label=name_of(fn),
            style="item" if len(iterables) == 1 else "items",
        )
        items = iterables[0] if len(iterables) == 1 else zip(*iterables)
        results = ordered(fn, items, where=self._driver, options=options)
        results.start()
        return iter(results) if timeout is None else results.until(time.monotonic() + timeout)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the pool: after all futures, or with `cancel_futures` after those that run."""
        with self._lock:
            self._is_shut_down = True
            job = self._job
        if job is None:
            self._driver.shut_down(10.0)
            return
        if cancel_futures:
            job.cancel_pending()
        job.close_when_done(lambda: self._driver.shut_down(0.0))
        if wait:
            job.wait()
            self._driver.shut_down(10.0)

    def __repr__(self) -> str:
        return "Pool(workers=%d)" % self.workers


class CallsJob(Job):
    """The submitted calls of a pool: a run to which items are added for as long as the pool is open."""

    def __init__(self, driver: Driver, options: Options, lanes: int) -> None:
        super().__init__(driver, None, options, lanes, None, None)
        self._calls: Dict[int, Tuple["Future[Any]", Any]] = {}
        self._count = 0
        self._is_closing = False
        self._ended = threading.Event()
        self._at_end: List[Callable[[], None]] = []

    # The pool's side.

    def add(self, future: "Future[Any]", fn: Any, args: Any, kwargs: Any) -> None:
        """Adds a call."""
        with self.driver.lock:
            self._calls[self._count] = (future, (fn, args, kwargs))
            self._count += 1
            self.run.grow(1)
        self.driver.wake()

    def cancel_pending(self) -> None:
        """Cancels all futures that no worker has."""
        with self.driver.lock:
            futures = [future for future, _ in self._calls.values()]
        for future in futures:
            future.cancel()

    def cancel(self, futures: Sequence["Future[Any]"]) -> None:
        """Cancels futures: the workers of those that run are killed."""
        from concurrent.futures import CancelledError

        wanted = {future for future in futures if not future.cancel()}
        with self.driver.lock:
            for index, (future, _) in list(self._calls.items()):
                if future in wanted:
                    self.driver.kill_worker_of(self, index)
                    self.settle(index, CancelledError())

    def close_when_done(self, at_end: Callable[[], None]) -> None:
        """Accepts no more calls, and calls `at_end` after the last one, in the driver's thread."""
        with self.driver.lock:
            self._at_end.append(at_end)
            if not self._is_closing:
                self._is_closing = True
                self.run.close()
        self.driver.wake()

    def wait(self) -> None:
        """Waits until the last call has ended."""
        self._ended.wait()

    # The driver's side.

    def items_between(self, first: int, end: int) -> Sequence[Any]:
        from ._schedule.pickling import SKIP

        items: List[Any] = []
        for index in range(first, end):
            held = self._calls.get(index)
            if held is None:
                items.append(SKIP)
            elif held[0].running() or held[0].set_running_or_notify_cancel():
                # A future that runs already is one whose worker died.
                items.append(held[1])
            else:
                self._calls.pop(index, None)
                items.append(SKIP)
        return items

    def deliver(self, first: int, entries: List[Any], buffers: Sequence[memoryview]) -> None:
        used = 0
        for index, entry in enumerate(entries, first):
            held = self._calls.pop(index, None)
            count = buffers_of(entry)
            if held is not None:
                self.driver.later(partial(_set_result, held[0], entry, buffers[used : used + count]))
            used += count

    def deliver_error(self, index: int, error: BaseException) -> None:
        held = self._calls.pop(index, None)
        if held is not None:
            self.driver.later(partial(_set_error, held[0], error))

    def fail(self, error: BaseException) -> None:
        calls, self._calls = self._calls, {}
        for future, _ in calls.values():
            self.driver.later(partial(_set_error, future, error))

    def finished(self) -> None:
        self.driver.later(self._ended.set)
        for at_end in self._at_end:
            self.driver.later(at_end)


def _set_result(future: "Future[Any]", entry: Any, buffers: Sequence[memoryview]) -> None:
    try:
        value = value_of(entry, buffers)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(value)


def _set_error(future: "Future[Any]", error: BaseException) -> None:
    if future.running() or future.set_running_or_notify_cancel():
        future.set_exception(error)


def _release(driver: Driver, held: List[Optional[CallsJob]]) -> None:
    """Ends a driver after the last call."""
    job = held[0]
    if job is None or job.is_over:
        driver.shut_down(0.0)
    else:
        job.close_when_done(lambda: driver.shut_down(0.0))


def _run_here(future: "Future[Any]", fn: Any, args: Any, kwargs: Any) -> None:
    """Runs a call in this process, which is a worker itself."""
    import logging

    from ._worker.main import log_at_home

    log_at_home(logging.INFO, "%s: submitted in a worker, so it runs there" % name_of(fn))
    future.set_running_or_notify_cancel()
    try:
        result = fn(*args, **kwargs)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def local_lanes(
    workers: Optional[int], devices: Union[str, Sequence[str], None], environment: Mapping[str, str]
) -> List[Lane]:
    """The places for workers: one a core, and one for each GPU that is asked for, which sees only that one."""
    names = [devices] if isinstance(devices, str) else list(devices or ["cpu"])
    lanes: List[Lane] = []
    if names != ["cpu"]:
        from .device_list import devices as all_devices

        gpus = [found["id"] for found in all_devices() if found["kind"] != "cpu" and found["api"] == "cuda"]
        for name in names:
            if name in ("all", "gpu"):
                chosen = gpus
            elif name == "cpu":
                continue
            elif name in gpus:
                chosen = [name]
            else:
                raise ValueError("no device %r here: there are %s" % (name, ", ".join(["cpu", *gpus])))
            for gpu in chosen:
                number = gpu.split(":")[1]
                visible = {"CUDA_VISIBLE_DEVICES": number, "ROCR_VISIBLE_DEVICES": number}
                lanes.append(Lane(gpu, {**environment, **visible}))
        if not lanes and "all" not in names and "cpu" not in names:
            raise ValueError("no GPU here that %s could be" % ", ".join(names))
    if workers is not None or "cpu" in names or "all" in names:
        lanes.extend(Lane("cpu", environment) for _ in range(workers or default.cores()))
    return lanes
