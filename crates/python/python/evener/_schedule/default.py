"""The workers of this process: started when they first pay, and kept warm."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import List, Optional, Sequence

from . import costs
from .cores import usable_cores
from .driver import Driver, Lane, Link

_lock = threading.Lock()
_driver: Optional[Driver] = None
_cores: Optional[int] = None
#: All drivers of this process.
_all: "weakref.WeakSet[Driver]" = weakref.WeakSet()


def cores() -> int:
    """The number of cores that this process may use."""
    global _cores
    if _cores is None:
        _cores = usable_cores()
    return _cores


def new_driver(lanes: List[Lane], initializer: Optional[bytes] = None, links: Sequence[Link] = ()) -> Driver:
    """Creates a driver that ends with this process."""
    driver = Driver(lanes, initializer, links)
    _all.add(driver)
    return driver


def running_driver() -> Optional[Driver]:
    """The driver of this process's own workers, if there is one."""
    driver = _driver
    return driver if driver is not None and not driver.is_stopping else None


def driver() -> Driver:
    """The driver of this process's own workers, one a core."""
    global _driver
    with _lock:
        if _driver is None or _driver.is_stopping:
            _driver = new_driver([Lane("cpu", {}) for _ in range(cores())])
        return _driver


def lanes(driver: Driver, count: int) -> int:
    """Gives the process's own workers room for this many. Returns how many there may be."""
    with driver.lock:
        while len(driver.lanes) < count:
            driver.lanes.append(Lane("cpu", {}))
    return len(driver.lanes)


def shut_down() -> None:
    """Ends all workers of this process. The next call starts new ones."""
    for driver in list(_all):
        driver.shut_down(10.0)


def _after_fork_in_child() -> None:
    """A forked process starts workers of its own."""
    global _driver, _lock, _all, _cores
    drivers, _all = list(_all), weakref.WeakSet()
    _lock, _driver, _cores = threading.Lock(), None, None
    costs.forget_lock()
    for driver in drivers:
        try:
            driver.forget_in_child()
        except OSError:
            pass


atexit.register(shut_down)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
