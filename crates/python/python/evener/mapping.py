"""`evener.map`: a function over items, in order, lazily."""

from __future__ import annotations

import zlib
from typing import Any, Callable, Iterable, Iterator, Optional, TypeVar, Union

from . import _worker, configuration
from ._schedule.options import Options
from ._schedule.ordered import ordered

T = TypeVar("T")

__all__ = ["map"]


def map(
    function: Callable[..., T],
    *iterables: Iterable[Any],
    workers: Optional[int] = None,
    retries: Optional[int] = None,
    timeout: Optional[float] = None,
    progress: Union[bool, None] = None,
    where: Any = None,
    home: Optional[int] = None,
) -> Iterator[T]:
    """Applies a function to the items of iterables, as the built-in `map` does: in order, lazily, by workers where they pay.

    Iterables may be endless: a bounded number of items is read ahead, in the thread that iterates. An exception of an item is
    raised in its place. Dropping the iterator cancels what is in flight.

    `workers` is the maximum number of workers, by default one a core. An item whose worker dies, or that takes longer than
    `timeout` seconds, is run again up to `retries` times (2 if nothing else is configured). `home=0` uses workers in any case.
    `where` is a place, or a list of them, such as `[evener.local(), evener.ssh("gpu-box")]`, or a pool.
    """
    if not iterables:
        raise TypeError("evener.map needs at least one iterable")
    if not callable(function):
        raise TypeError("evener.map needs a function, not %s" % type(function).__name__)
    options = Options(
        workers=chosen("workers", workers),
        retries=chosen("retries", retries),
        timeout=chosen("timeout", timeout),
        progress=chosen("progress", progress),
        home=home,
        label=name_of(function),
        cost_key=lambda: cost_key(function),
        style="item" if len(iterables) == 1 else "items",
    )
    items = iterables[0] if len(iterables) == 1 else zip(*iterables)
    return ordered(function, items, where=driver_of(where, function), options=options)


def chosen(name: str, given: Any) -> Any:
    """What a call was given, or else what is configured."""
    return configuration.get(name) if given is None else given


def driver_of(where: Any, function: Any = None) -> Any:
    """The driver of a pool, of places, or of what else can run items."""
    if where is None:
        return None
    from .places import places_of

    places = places_of(where)
    if places is None:
        return getattr(where, "_driver", where)
    if _worker.is_worker:
        # What is called in a worker runs there.
        return None
    from ._remote.opening import driver_for

    return driver_for(places, function)


def name_of(function: Any) -> str:
    """The name of a function, for people."""
    name = getattr(function, "__qualname__", None) or getattr(type(function), "__qualname__", "function")
    return str(name)


def cost_key(function: Any) -> Optional[str]:
    """What the costs of a function are kept under: its name and a checksum of its code, so that a change is another one."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None:
        return None
    checksum = zlib.crc32(code.co_code + repr(code.co_consts if len(code.co_consts) < 64 else ()).encode())
    return "%s.%s %08x" % (getattr(function, "__module__", ""), name_of(function), checksum)
