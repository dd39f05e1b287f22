"""Values that were put into shared memory once, for many calls."""

from __future__ import annotations

import itertools
import os
import pickle
import threading
import weakref
from typing import Any, Dict, List, Type

from .._worker.shared_files import map_parts, write_parts
from .._worker.values import SMALLEST_SHARED


class KeptValue:
    """A value in shared memory: its number, the file, and the sizes of its parts, of which the first is the pickle."""

    def __init__(self, number: int, file: int, sizes: List[int]) -> None:
        self.number = number
        self.file = file
        self.sizes = sizes


_lock = threading.Lock()
_numbers = itertools.count(1)
_kept: Dict[int, KeptValue] = {}
#: The number of each kept value by the identity of its object; and objects to which there are no weak references.
_by_identity: Dict[int, int] = {}
_held: Dict[int, Any] = {}


def any_kept() -> bool:
    """Whether any value is kept."""
    return bool(_by_identity)


def kept() -> List[KeptValue]:
    """All kept values."""
    with _lock:
        return list(_kept.values())


def put(value: Any) -> Any:
    """Puts a value into shared memory, for use by many calls. Returns an equal value to use in its place.

    Workers get it once, whatever refers to it, and share its memory: an array of a gigabyte is in memory once. Arrays in the
    returned value cannot be written to. Of a list, tuple or dict, each element is put; small values are returned as they are.
    The memory is freed when the returned value is not used any more.
    """
    from .pickling import pickle_function

    if type(value) in (list, tuple):
        return type(value)(map(put, value))
    if type(value) is dict:
        return {key: put(part) for key, part in value.items()}
    data, buffers = pickle_function(value, "a value for evener.put")
    if not buffers and len(data) < SMALLEST_SHARED:
        return value
    parts = [data, *buffers]
    sizes = [memoryview(part).nbytes for part in parts]
    file = write_parts(parts)
    mapped = map_parts(os.dup(file), sizes, writable=False)
    result = pickle.loads(mapped[0], buffers=mapped[1:])
    number = next(_numbers)
    with _lock:
        _kept[number] = KeptValue(number, file, sizes)
        _by_identity[id(result)] = number
    try:
        weakref.finalize(result, _forget, id(result), number, os.getpid()).atexit = False
    except TypeError:
        _held[number] = result
    return result


def _forget(identity: int, number: int, process: int) -> None:
    _by_identity.pop(identity, None)
    value = _kept.pop(number, None)
    if value is not None:
        os.close(value.file)


def pickler_class(base: Type[Any]) -> Type[Any]:
    """A pickler that refers to kept values instead of pickling them."""
    if not _by_identity:
        return base
    return _referring(base)


_classes: Dict[Type[Any], Type[Any]] = {}


def _referring(base: Type[Any]) -> Type[Any]:
    if base in _classes:
        return _classes[base]
    from .._worker.main import value_of

    class Referring(base):  # type: ignore[misc]
        """Pickles kept values by their number."""

        def reducer_override(self, value: Any) -> Any:
            number = _by_identity.get(id(value))
            if number is not None:
                return value_of, (number,)
            return super().reducer_override(value)

    _classes[base] = Referring
    return Referring
