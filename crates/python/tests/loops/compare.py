"""Runs a function plainly and decorated, and compares everything that can be seen of it."""

from __future__ import annotations

import collections
import contextlib
import copy
import inspect
import io
import logging
import os
import struct
import traceback
import types
import warnings
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Tuple

import evener

from .stand_in import round_trip, sharing

OWN = os.path.dirname(evener.__file__)


def shape(value: Any, seen: Optional[Dict[int, int]] = None, kept: Optional[List[Any]] = None) -> Any:
    """A value as nested tuples: types, bits, order, and which parts are the same object."""
    seen = {} if seen is None else seen
    kept = [] if kept is None else kept
    kind = type(value)
    if kind is float:
        return "float", struct.pack("d", value)
    if kind in (int, bool, str, bytes, type(None), complex, range):
        return kind.__name__, repr(value)
    if isinstance(value, (types.FunctionType, type, types.ModuleType, types.BuiltinFunctionType)):
        return "code", getattr(value, "__qualname__", repr(value))
    # Which equal immutable objects are one is not promised.
    if kind is not tuple and kind is not frozenset:
        if id(value) in seen:
            return "again", seen[id(value)]
        seen[id(value)] = len(seen)
    kept.append(value)
    name = f"{kind.__module__}.{kind.__qualname__}"

    def inside(part: Any) -> Any:
        return shape(part, seen, kept)

    if kind.__module__ == "numpy":
        if kind.__name__ == "ndarray":
            body = inside(value.tolist()) if value.dtype.hasobject else value.tobytes()
            return name, str(value.dtype), value.shape, value.flags.writeable, body
        return name, value.tobytes() if hasattr(value, "tobytes") else repr(value)
    if kind.__module__.startswith("pandas"):
        return name, value.to_json() if hasattr(value, "to_json") else repr(value), inside(getattr(value, "to_numpy", lambda: 0)())
    if isinstance(value, BaseException):
        return name, inside(value.args), inside(dict(vars(value)))
    if isinstance(value, dict):
        extra = inside(vars(value)) if hasattr(value, "__dict__") else None
        return name, [(inside(k), inside(v)) for k, v in value.items()], extra
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        return name, [inside(v) for v in value], inside(vars(value)) if hasattr(value, "__dict__") else None
    if isinstance(value, types.GeneratorType):
        return name, "generator"
    if hasattr(value, "__dict__"):
        return name, inside(vars(value))
    if hasattr(value, "__slots__"):
        return name, [inside(getattr(value, s, None)) for s in value.__slots__]
    return name, repr(value)


def lines_of(error: Optional[BaseException]) -> Any:
    """The frames of the user's code, and those of the chained exceptions."""
    if error is None:
        return None
    frames = [
        (f.filename, f.name, f.lineno) for f in traceback.extract_tb(error.__traceback__)
        if not f.filename.startswith(OWN) and not f.filename.endswith("compare.py")
    ]
    notes = getattr(error, "__notes__", None)
    return (
        type(error).__qualname__, frames, notes, error.__suppress_context__,
        lines_of(error.__cause__), lines_of(error.__context__),
    )


@dataclass
class Outcome:
    """All that is seen of one call."""

    seen: Any
    error: Any
    output: str
    said: List[Any]
    value: Any = None


class _Handler(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: List[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("evener"):
            self.said.append((record.name, record.levelname, record.getMessage()))


def outcome(function: Callable[..., Any], make: Callable[[], Tuple[Any, ...]]) -> Outcome:
    arguments = make()
    output, handler = io.StringIO(), _Handler()
    value, error = None, None
    logging.root.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(output):
            warnings.simplefilter("always")
            try:
                value = function(*arguments)
                if inspect.isgenerator(value):
                    value = list(value)
            except BaseException as raised:  # noqa: BLE001: compared
                error = raised
    finally:
        logging.root.removeHandler(handler)
    said = handler.said + [(str(w.message), w.category.__name__, w.lineno) for w in warned]
    fault = None if error is None else (shape(error), lines_of(error))
    return Outcome(shape((value, arguments)), fault, output.getvalue(), said, value)


def compare(function: Callable[..., Any], *arguments: Any, parallel: Optional[bool] = None,
            make: Optional[Callable[[], Tuple[Any, ...]]] = None, ordered: Any = round_trip, **settings: Any) -> Outcome:
    """Compares the plain function with the decorated one; `parallel` says what must have happened."""
    make = make or (lambda: copy.deepcopy(arguments))
    plain = outcome(function, make)
    decorated = evener.parallel(function, **settings)
    with sharing(ordered) as count:
        shared = outcome(decorated, make)
    assert shared.error == plain.error, (plain.error, shared.error)
    assert shared.seen == plain.seen, (plain.seen, shared.seen)
    assert shared.output == plain.output
    assert shared.said == plain.said
    if parallel is not None:
        assert bool(count.iterations) == parallel, f"{count.iterations} iterations were shared\n{evener.explain(function)}"
    return shared
