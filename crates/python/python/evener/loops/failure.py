"""Exceptions that travel between processes with their tracebacks."""

from __future__ import annotations

import types
from typing import Any, Dict, List, Optional, Tuple

from .reasons import GaveUp

Place = Tuple[str, str, int, str]  # file, function, line, module


def _places(traceback: Optional[types.TracebackType], skip: types.CodeType) -> Tuple[int, List[Place]]:
    """The line in the loop body, and the frames below it."""
    line = 0
    places: List[Place] = []
    started = False
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if started:
            module = traceback.tb_frame.f_globals.get("__name__", "")
            places.append((code.co_filename, code.co_name, traceback.tb_lineno, module))
        elif code is skip:
            started = True
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line, places


def rebuild(cls: type, arguments: Tuple[Any, ...], state: Optional[Dict[str, Any]]) -> BaseException:
    """An exception made without running the user's `__init__` again."""
    error = cls.__new__(cls, *arguments)
    error.args = arguments
    if state:
        error.__dict__.update(state)
    return error


def _parts(error: BaseException) -> Tuple[Any, ...]:
    cls = type(error)
    own_init = next((c for c in cls.__mro__ if "__init__" in vars(c)), cls)
    if own_init.__module__ == "builtins":
        made = error.__reduce_ex__(2)
        if len(made) == 2:
            return made[0], made[1], None
        return made[0], made[1], made[2]
    return rebuild, (cls, error.args, dict(error.__dict__)), None


class Failure:
    """An exception of an iteration, in a form that pickles."""

    def __init__(self, error: BaseException, body: types.CodeType, handled: Optional[BaseException] = None) -> None:
        """`handled`: what was being handled when the iteration began; it is no part of the failure."""
        self._handled = handled
        self.nodes: List[Dict[str, Any]] = []
        self._index: Dict[int, int] = {}
        self._body = body
        self._add(error)
        self.line = self.nodes[0]["line"]
        del self._body, self._index, self._handled

    def _add(self, error: BaseException) -> int:
        if id(error) in self._index:
            return self._index[id(error)]
        number = self._index[id(error)] = len(self.nodes)
        line, places = _places(error.__traceback__, self._body)
        node: Dict[str, Any] = {
            "line": line, "places": places, "parts": _parts(error),
            "suppress": error.__suppress_context__, "cause": None, "context": None,
        }
        self.nodes.append(node)
        if error.__cause__ is not None:
            node["cause"] = self._add(error.__cause__)
        if error.__context__ is not None and error.__context__ is not self._handled:
            node["context"] = self._add(error.__context__)
        made = _make(node["parts"])
        if type(made) is not type(error) or made.args != error.args or str(made) != str(error):
            raise GaveUp(f"the exception {type(error).__name__} does not survive pickling")
        return number

    def restore(self, name: str, filename: str) -> BaseException:
        """The exception, with a traceback that shows the frames it had in the worker."""
        made = [_make(node["parts"]) for node in self.nodes]
        for number, (error, node) in enumerate(zip(made, self.nodes)):
            places = node["places"]
            if number and node["line"]:
                places = [(filename, name, node["line"], "")] + places
            error.__traceback__ = traceback_of(places)
            if node["cause"] is not None:
                error.__cause__ = made[node["cause"]]
            if node["context"] is not None:
                error.__context__ = made[node["context"]]
            error.__suppress_context__ = node["suppress"]
        return made[0]


def _make(parts: Tuple[Any, ...]) -> BaseException:
    error = parts[0](*parts[1])
    if parts[2]:
        error.__dict__.update(parts[2]) if isinstance(parts[2], dict) else error.__setstate__(parts[2])
    return error


def traceback_of(places: List[Place]) -> Optional[types.TracebackType]:
    """A traceback through frames of other processes."""
    made: Optional[types.TracebackType] = None
    for filename, name, line, module in reversed(places):
        made = types.TracebackType(made, _frame(filename, name, line, module), -1, line)
    return made


def _frame(filename: str, name: str, line: int, module: str) -> types.FrameType:
    code = compile("raise RuntimeError", filename, "exec").replace(co_name=name, co_firstlineno=line)
    if hasattr(code, "co_qualname"):
        code = code.replace(co_qualname=name)
    try:
        exec(code, {"__name__": module, "__file__": filename})
    except RuntimeError as error:
        return error.__traceback__.tb_next.tb_frame
    raise AssertionError("unreachable")


def without_own_frames(error: BaseException) -> BaseException:
    """Drops this package's frames from the start of a traceback."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_globals.get("__name__", "").startswith("evener."):
        traceback = traceback.tb_next
    error.__traceback__ = traceback
    return error
