"""Pickling what goes to workers: by value what they cannot import, and large buffers into shared memory."""

from __future__ import annotations

import io
import pickle
import sys
from types import BuiltinFunctionType, FunctionType
from typing import Any, Callable, List, Optional, Tuple

from .._worker.values import ATOMS, pickle_value, plain_dumps
from ..errors import PicklingError
from . import kept_values


def dumps(value: Any, keep_in_pickle: Optional[Callable[[Any], bool]]) -> bytes:
    """Pickles a value: functions and classes of `__main__` and the like by value."""
    import cloudpickle

    # The program's own module in a process that `multiprocessing` has spawned, which no worker can import.
    program = sys.modules.get("__mp_main__")
    if program is not None and program.__name__ == "__mp_main__":
        cloudpickle.register_pickle_by_value(program)
    with io.BytesIO() as file:
        pickler_class = kept_values.pickler_class(cloudpickle.Pickler)
        pickler_class(file, 5, buffer_callback=keep_in_pickle).dump(value)
        return file.getvalue()


def pickle_function(function: Any, what: str) -> Tuple[bytes, List[Any]]:
    """Pickles a function with everything that it refers to. Returns the pickle and its large buffers."""
    buffers: List[Any] = []
    try:
        entry = pickle_value(function, buffers, choose(function))
    except Exception as error:
        raise PicklingError("%s cannot be sent to another process: %s" % (what, error)) from error
    return entry[1], buffers


def pickle_items(items: Any, first: int, offset: int) -> Tuple[Any, List[Any], List[Tuple[int, BaseException]]]:
    """Pickles the items of a chunk, of which `first` is the number of the first, and `offset` more for the caller.

    Returns the entries, the items' large buffers, and what went wrong with which item.
    """
    if type(items) is range or ATOMS.issuperset(map(type, items)):
        return items, [], []
    entries: List[Any] = []
    buffers: List[Any] = []
    problems: List[Tuple[int, BaseException]] = []
    for index, item in enumerate(items):
        if type(item) in ATOMS or type(item) is Marker:
            entries.append(item if type(item) is not Marker else item.entry)
            continue
        before = len(buffers)
        try:
            entries.append(pickle_value(item, buffers, choose(item)))
        except Exception as error:
            del buffers[before:]
            kind = type(item)
            text = "item %d cannot be sent to another process: %s.%s: %s"
            problem = PicklingError(text % (offset + first + index, kind.__module__, kind.__qualname__, error))
            problem.__cause__ = error
            problems.append((first + index, problem))
            entries.append(SKIP.entry)
    return entries, buffers, problems


class Marker:
    """Stands for an item in a chunk that is encoded."""

    __slots__ = ("entry",)

    def __init__(self, entry: Tuple[int, ...]) -> None:
        self.entry = entry


def _skip() -> Marker:
    from .._worker.values import SKIP as entry

    return Marker(entry)


#: An item that is not to be run.
SKIP = _skip()


def choose(value: Any) -> Callable[..., bytes]:
    """The standard pickler for what is known to be importable by workers, which is faster, and `dumps` for all else."""
    if kept_values.any_kept():
        return dumps
    kind = type(value)
    if kind is FunctionType or kind is BuiltinFunctionType:
        return plain_dumps if _can_be_imported(value) else dumps
    if kind is tuple and ATOMS.issuperset(map(type, value)):
        return plain_dumps
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if kind is numpy.ndarray and not value.dtype.hasobject:
            return plain_dumps
        if isinstance(value, numpy.generic) and kind.__module__ == "numpy":
            return plain_dumps
    return dumps


def _can_be_imported(function: Any) -> bool:
    """Whether workers find a function by its name: in a module that is not the program, and not to be sent by value."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    cloudpickle = sys.modules.get("cloudpickle")
    if module is None or module.__name__ in ("__main__", "__mp_main__") or getattr(module, "__spec__", None) is None:
        return False
    if cloudpickle is not None and cloudpickle.list_registry_pickle_by_value():
        return False
    return getattr(module, function.__qualname__, None) is function


def whole_pickle(value: Any, what: str) -> bytes:
    """Pickles a value with all its buffers."""
    try:
        return dumps(value, None)
    except Exception as error:
        raise PicklingError("%s cannot be sent to another process: %s" % (what, error)) from error


loads = pickle.loads
