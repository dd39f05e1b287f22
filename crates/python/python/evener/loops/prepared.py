"""What a loop captures: checked, pickled, and compared after an iteration that ran at home."""

from __future__ import annotations

import io
import os
import sys
import time
import types
from typing import TYPE_CHECKING, Any, Dict, List, Set, Tuple

from . import observe
from .body import SIMPLE, Body, this_process
from .capture import ATOMS, Capture, Loader, Packed, Path, State, paths_of, visited, walk
from .iterators import inspect_source, is_inner_held, kind_of
from .reach import Reach, complaint, set_order, stable_set
from .reasons import GaveUp

if TYPE_CHECKING:
    from .home import Run

_UNBOUND = object()

# What the receivers of effects may be; everything else might do more than the same method of these.
_SEQUENCES = {("builtins", "list"), ("collections", "deque")}
_MAPPINGS = {("builtins", "dict"), ("collections", "defaultdict"), ("collections", "OrderedDict"), ("collections", "Counter")}
_ARRAYS = {("numpy", "ndarray"), ("builtins", "bytearray"), ("array", "array")}
_NUMBERS = {
    ("builtins", n) for n in ("int", "float", "complex", "bool", "str", "bytes", "tuple", "frozenset", "NoneType")
} | {("decimal", "Decimal"), ("fractions", "Fraction"), ("datetime", "timedelta")}
_RECEIVERS = {
    "append": _SEQUENCES | _ARRAYS, "appendleft": _SEQUENCES, "extend": _SEQUENCES, "insert": _SEQUENCES,
    "add": {("builtins", "set")}, "discard": {("builtins", "set")},
    "update": _MAPPINGS | {("builtins", "set")},
    "item": _SEQUENCES | _MAPPINGS | _ARRAYS, "augmented item": _SEQUENCES | _MAPPINGS | _ARRAYS, "element": _SEQUENCES | _MAPPINGS,
    "augment": _NUMBERS | _SEQUENCES | _MAPPINGS | _ARRAYS | {("builtins", "set")},
}


def _receiver_fits(kind: str, value: Any) -> bool:
    named = kind_of(value)
    if kind == "augment" and named[0] == "numpy" and hasattr(value, "dtype"):
        return not value.dtype.hasobject
    if named == ("numpy", "ndarray") and value.dtype.hasobject:
        return kind == "item"  # the elements of an augmented one could be anything
    return named in _RECEIVERS[kind]


class Prepared:
    """What a loop captures, pickled and checked."""

    def __init__(self, run: "Run", environment: Dict[str, Any]) -> None:
        self.run = run
        loop, plan, function = run.loop, run.loop.plan, run.loops.function
        missing = [n for n in plan.captured + plan.receivers if n not in environment and n not in function.__globals__]
        local_missing = [n for n in plan.captured if n not in environment]
        if missing or local_missing:
            raise GaveUp(f"`{(missing + local_missing)[0]}` is not bound before the loop")
        self.captured = {n: environment[n] for n in plan.captured}
        self.receivers = {n: environment[n] if n in environment else function.__globals__[n] for n in plan.receivers}
        self._check_receivers()
        self.function = types.FunctionType(loop.code, function.__globals__, loop.code.co_name)
        self.function.__module__ = function.__module__
        self.function.__qualname__ = function.__qualname__
        self.reach = Reach(self.function, list(self.captured.values()))
        said = complaint(self.reach)
        if said:
            raise GaveUp(said)
        self.named_sets = self._check_sets()
        self.forbidden = self._forbidden()
        self.quiet, parts = inspect_source(run.source)
        for part in parts:
            if id(part) in self.forbidden:
                raise GaveUp(f"`{self.forbidden[id(part)]}`, which iterations change, is what the loop runs over")
        if run.held or is_inner_held(run.source):
            raise GaveUp("the iterator that it runs over could be used again after the loop")
        self.classes: Dict[type, int] = {}
        self.buffers: List[Any] = []
        file = io.BytesIO()
        pickler = Capture(file, self.buffers, self.reach, self.forbidden, self.named_sets, classes=self.classes)
        pickler.dump((self.function, self.captured, observe.Surroundings()))
        self.data = file.getvalue()
        self.kept = pickler.visited
        self.deep = {id(v) for v in pickler.visited}
        self.paths = paths_of(self.captured)
        roots = [("value", v, None) for v in self.captured.values()] + pickler.roots
        drawn = [s.generator for s in (run.streams.sources if run.streams else []) if hasattr(s, "generator")]
        self.state = State(roots, drawn)
        began = time.perf_counter()
        self.before = self.state.snapshot()
        cost = time.perf_counter() - began
        if not run.policy.forced and cost * 4 > run.pace:
            raise GaveUp("checking what it captures takes as long as its iterations")

    def _check_receivers(self) -> None:
        for effect in self.run.loop.plan.effects:
            if effect.receiver is None:
                continue
            value = self.receivers[effect.receiver]
            if not _receiver_fits(effect.kind, value):
                raise GaveUp(f"`{effect.receiver}` is a {type(value).__name__}, whose changes cannot be replayed")

    def _forbidden(self) -> Dict[int, str]:
        found: Dict[int, str] = {}
        deep = {e.receiver for e in self.run.loop.plan.effects if e.kind in ("element", "augmented item") and e.receiver}
        for name, value in self.receivers.items():
            if type(value) in ATOMS:
                continue
            found[id(value)] = name
            if name in deep and type(value) is not bytearray and kind_of(value) != ("numpy", "ndarray"):
                for part in visited([value]):
                    if type(part) not in ATOMS and type(part) not in (tuple, frozenset):
                        found[id(part)] = name
            base = getattr(value, "base", None) if kind_of(value) == ("numpy", "ndarray") else None
            while base is not None:
                found[id(base)] = name
                base = getattr(base, "base", None)
        arrays = [v for v in self.receivers.values() if kind_of(v) == ("numpy", "ndarray")]
        if arrays:
            self._overlaps(arrays)
        return found

    def _overlaps(self, arrays: List[Any]) -> None:
        """Refuses arrays that share memory with captured ones."""
        import numpy

        for part in visited(list(self.captured.values())):
            if kind_of(part) == ("numpy", "ndarray"):
                for array in arrays:
                    if numpy.may_share_memory(part, array):
                        raise GaveUp("an array that iterations change shares memory with one that they read")

    def _check_sets(self) -> Set[int]:
        """Sets whose order no code of the body can see."""
        import ast

        named = {n: v for n, v in self.captured.items() if isinstance(v, (set, frozenset))}
        scope = self.run.loops.function.__globals__
        named.update({n: scope[n] for n in self.run.loop.code.co_names if isinstance(scope.get(n), (set, frozenset))})
        unstable = {n for n, v in named.items() if not stable_set(v)}
        tree = ast.Module(body=self.run.loop.plan.node.body, type_ignores=[])
        hashed = sys.flags.hash_randomization and os.environ.get("PYTHONHASHSEED", "random") == "random"
        found = set_order(tree, unstable) if hashed or unstable else None
        if found is not None:
            raise GaveUp(found[1])
        helpers = {
            id(f.__globals__[n]) for f in self.reach.functions for n in f.__code__.co_names
            if isinstance(f.__globals__.get(n), (set, frozenset))
        }
        return {id(named[n]) for n in unstable} | helpers

    def changed(self) -> bool:
        return self.state.snapshot() != self.before

    def compare(self, environment: Dict[str, Any]) -> None:
        """Finds what one iteration at home has changed."""
        for name, value in self.captured.items():
            if environment.get(name, _UNBOUND) is not value:
                raise GaveUp(f"`{name}` is bound to something else by an iteration")
        if self.changed():
            raise GaveUp("an iteration changes something that it shares with others")

    def body(self, first: int) -> Body:
        streams = self.run.streams
        return Body(
            Packed(self.data, self.buffers), self.run.loop.live, self.run.loop.checked, this_process(), first,
            streams.names() if streams else [], streams.seeds if streams else [],
            self.run.policy.external == "refuse",
        )

    def open(self, reply: Tuple[int, Any], item: Any) -> Tuple[List[Any], Any]:
        """The effects of an iteration and its exception, with objects of this process in them."""
        if reply[0] == SIMPLE:
            return reply[1], None
        numbered = {number: cls for cls, number in self.classes.items()}

        def find(path: Path) -> Any:
            if path[0] == "class":
                return numbered[path[1]]
            if path[0] == "item":
                return walk(item, path[1:])
            return walk(self.captured[path[1]], path[2:])

        packed: Packed = reply[1]
        return Loader(io.BytesIO(packed.data), packed.views(True), find).load()
