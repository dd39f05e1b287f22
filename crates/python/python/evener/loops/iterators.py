"""What a loop runs over: whether reading it runs code of the user, and whether others hold it."""

from __future__ import annotations

import gc
import operator
import sys
import types
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from .failure import without_own_frames


def kind_of(value: Any) -> Tuple[str, str]:
    """The module and the name of a value's class."""
    return type(value).__module__, type(value).__name__


class _Probe:
    """Counts the references to a value that only the call of `begin` holds."""

    def begin(self, number: int, iterable: Any) -> int:
        return sys.getrefcount(iterable)


def _counts() -> Dict[str, int]:
    """References to an iterator that only its loop holds, by the kind of the loop's code."""
    probe = _Probe()

    def comprehension(source: Any) -> int:
        return probe.begin(0, source)

    def generator(source: Any) -> Iterator[int]:
        yield probe.begin(0, source)

    return {
        "for": probe.begin(0, iter([[]])), "comprehension": comprehension(iter([[]])),
        "genexpr": list(generator(iter([[]])))[0],
    }


#: References to an iterator that only its loop holds, by the kind of the loop's code.
HELD = _counts()


def raising(error: BaseException) -> Iterator[Any]:
    """An iterator that raises an exception when it is read."""
    raise without_own_frames(error)
    yield  # a generator, so that the error is raised in its turn


def length_of(iterable: Any) -> Optional[int]:
    """How many items there are, as far as the iterable says."""
    kind = type(iterable)
    try:
        return operator.length_hint(iterable, -1) if hasattr(kind, "__len__") or hasattr(kind, "__length_hint__") else None
    except Exception:  # noqa: BLE001: a length that cannot be told is not needed
        return None


# Iterators that run no code of the user.
_QUIET = {
    ("builtins", n) for n in (
        "list_iterator", "tuple_iterator", "range_iterator", "longrange_iterator", "str_iterator",
        "str_ascii_iterator", "bytes_iterator", "bytearray_iterator", "dict_keyiterator", "dict_valueiterator",
        "dict_itemiterator", "set_iterator", "enumerate", "zip", "reversed", "list_reverseiterator",
        "dict_reversekeyiterator", "dict_reversevalueiterator", "dict_reverseitemiterator",
    )
} | {("itertools", n) for n in (
    "count", "cycle", "repeat", "chain", "islice", "product", "permutations", "combinations",
    "combinations_with_replacement", "zip_longest", "pairwise",
)} | {("collections", "_deque_iterator"), ("collections", "deque_iterator"), ("numpy", "flatiter"), ("numpy", "nditer")}


def _references(outer: Any) -> List[int]:
    """How many references there are to each iterator inside another."""
    counts = []
    for inner in gc.get_referents(outer):
        if hasattr(type(inner), "__next__"):
            counts.append(sys.getrefcount(inner))
    return counts


_INNER = max(_references(enumerate(iter([[]]))))


def is_inner_held(source: Any) -> bool:
    """Whether a name holds an iterator that `enumerate`, `zip` or another one draws from."""
    todo = [source]
    while todo:
        outer = todo.pop()
        if isinstance(outer, types.GeneratorType) or not hasattr(type(outer), "__next__"):
            continue
        holders = [outer] + [r for r in gc.get_referents(outer) if type(r) is tuple]
        for holder in holders:
            if any(count > _INNER for count in _references(holder)):
                return True
            todo += [r for r in gc.get_referents(holder) if hasattr(type(r), "__next__") and r is not outer]
    return False


def _seen_by_generator(generator: types.GeneratorType) -> List[Any]:
    """What a generator's own code can see by name: its variables, those of functions among them, and globals."""
    frame = generator.gi_frame
    if frame is None:
        return []
    found = list(frame.f_locals.values())
    codes = [frame.f_code]
    for value in list(found):
        if isinstance(value, types.FunctionType):
            codes.append(value.__code__)
            for cell in value.__closure__ or ():
                try:
                    found.append(cell.cell_contents)
                except ValueError:
                    # It is not bound yet.
                    pass
    found += [frame.f_globals[name] for code in codes for name in code.co_names if name in frame.f_globals]
    return found


def inspect_source(source: Any) -> Tuple[bool, List[Any]]:
    """Whether an iterator runs no code of the user, and what it runs over."""
    quiet, parts = True, []
    todo = [(source, True)]
    seen: Set[int] = set()
    while todo:
        iterator, top = todo.pop()
        if id(iterator) in seen:
            continue
        seen.add(id(iterator))
        kind = kind_of(iterator)
        if kind == ("builtins", "iterator"):
            inner = [r for r in gc.get_referents(iterator)]
            if not all(kind_of(r) in (("numpy", "ndarray"), ("builtins", "str")) for r in inner):
                quiet = False
            parts += inner
            continue
        if kind not in _QUIET:
            quiet = False
        if isinstance(iterator, types.GeneratorType):
            parts += _seen_by_generator(iterator)
            todo += [(v, False) for v in parts if isinstance(v, types.GeneratorType)]
        if hasattr(type(iterator), "__next__"):
            for referent in gc.get_referents(iterator):
                if isinstance(referent, tuple):
                    # `zip` and `product` keep their iterators in a tuple.
                    todo += [(r, False) for r in referent if hasattr(type(r), "__next__")]
                    parts += [r for r in referent if not hasattr(type(r), "__next__")]
                elif hasattr(type(referent), "__next__"):
                    todo.append((referent, False))
                else:
                    parts.append(referent)
    return quiet, parts
