"""Stand-ins of `ordered`, of the same signature, and what they have run."""

from __future__ import annotations

import collections
import contextlib
import importlib
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Iterator

import cloudpickle

importlib.import_module("evener.decorator")


class Count:
    """How many iterations were run away from home, and how many calls there were."""

    iterations = 0
    calls = 0


def round_trip(function: Any, items: Any, *, where: Any = None, options: Any = None, ahead: int = 3) -> Iterator[Any]:
    """Runs iterations in this process, on copies, reading a few items ahead."""
    Count.calls += 1
    function = cloudpickle.loads(cloudpickle.dumps(function))
    waiting: collections.deque = collections.deque()
    for index, item in enumerate(items):
        waiting.append((index, cloudpickle.dumps(item)))
        if len(waiting) > ahead:
            yield _one(function, waiting.popleft())
    while waiting:
        yield _one(function, waiting.popleft())


def _one(function: Any, task: Any) -> Any:
    Count.iterations += 1
    return cloudpickle.loads(cloudpickle.dumps(function(task[0], cloudpickle.loads(task[1]))))


_functions: dict = {}


def _in_worker(key: Any, function: bytes, index: int, item: bytes) -> bytes:
    if key not in _functions:
        _functions.clear()
        _functions[key] = cloudpickle.loads(function)
    return cloudpickle.dumps(_functions[key](index, cloudpickle.loads(item)))


_pools: dict = {}


def pool(workers: int) -> ProcessPoolExecutor:
    import multiprocessing

    if workers not in _pools:
        _pools[workers] = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    return _pools[workers]


def in_processes(workers: int) -> Any:
    """An `ordered` over a pool of processes."""

    def ordered(function: Any, items: Any, *, where: Any = None, options: Any = None) -> Iterator[Any]:
        Count.calls += 1
        data = cloudpickle.dumps(function)
        executor = pool(workers)
        waiting: collections.deque = collections.deque()
        for index, item in enumerate(items):
            waiting.append(executor.submit(_in_worker, (Count.calls, id(data)), data, index, cloudpickle.dumps(item)))
            if len(waiting) > 2 * workers:
                Count.iterations += 1
                yield cloudpickle.loads(waiting.popleft().result())
        while waiting:
            Count.iterations += 1
            yield cloudpickle.loads(waiting.popleft().result())

    return ordered


@contextlib.contextmanager
def sharing(ordered: Any) -> Iterator[type]:
    """Shares every loop that may be shared, whatever it costs."""
    testing = sys.modules["evener.decorator"].Testing
    before = testing.ordered, testing.forced
    testing.ordered, testing.forced = ordered, True
    Count.iterations = Count.calls = 0
    try:
        yield Count
    finally:
        testing.ordered, testing.forced = before
