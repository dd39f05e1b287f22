"""One iteration at a time, in any process: runs the body and records what it does."""

from __future__ import annotations

import io
import os
import pickle
import sys
import threading
import types
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from .. import randomness
from . import observe
from .capture import (
    ATOMS,
    SESSION,
    Capture,
    Loader,
    Packed,
    Path,
    State,
    by_value,
    item_paths,
    paths_of,
    visited,
    walk,
)
from .failure import Failure
from .reach import Reach, stable_set, user_module
from .reasons import GaveUp

SIMPLE, FULL, REFUSED = 0, 1, 2
Reply = Tuple[int, Any]


class _Inside(threading.local):
    """Whether this thread runs an iteration for another process: loops inside stay plain."""

    active = False


INSIDE = _Inside()

_TOKEN = os.urandom(8).hex()


def this_process() -> str:
    """A name that no other process of any machine has."""
    return f"{os.getpid()}-{_TOKEN}"


class Recorder:
    """Collects the effects of one iteration; the rewritten body calls it."""

    def __init__(self, live: Sequence[Tuple[int, str]], checked: Set[int]) -> None:
        self.effects: List[Tuple[int, Tuple[Any, ...]]] = []
        self.live = live
        self.checked = checked
        self.copies: List[Tuple[Any, bytes]] = []

    def __call__(self, site: int, values: Tuple[Any, ...]) -> None:
        if site in self.checked:
            for value in values:
                if type(value) not in ATOMS:
                    self.copies.append((value, _fingerprint(value)))
        self.effects.append((site, values))

    def extend(self, site: int, values: Any) -> None:
        """Takes the elements one by one: those before an exception are kept, as by `extend`."""
        taken: List[Any] = []
        self.effects.append((site, (taken,)))
        for value in values:
            taken.append(value)

    def keep(self, names: Dict[str, Any]) -> None:
        """Takes the values of names that are read after the loop."""
        for site, name in self.live:
            if name in names:
                self.effects.append((site, (names[name],)))

    def verify(self) -> None:
        for value, before in self.copies:
            if _fingerprint(value) != before:
                raise GaveUp("it changes a value after giving it away")


def _fingerprint(value: Any) -> bytes:
    buffers: List[Any] = []
    file = io.BytesIO()
    Capture(file, buffers, None, {}, named_sets=_Every()).dump(value)
    return file.getvalue() + b"".join(bytes(b.raw()) for b in buffers)


class _Every:
    """A set that contains everything."""

    def __contains__(self, _: object) -> bool:
        return True


class _Records(pickle.Pickler):
    """Pickles what goes home; objects that came from home go back as paths."""

    def __init__(self, file: Any, buffers: List[Any], known: Dict[int, Path], deep: Set[int], classes: Dict[type, int]) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers.append)
        self.known = known
        self.deep = deep
        self.classes = classes

    def persistent_id(self, obj: Any) -> Any:
        kind = type(obj)
        if kind in ATOMS:
            return None
        path = self.known.get(id(obj))
        if path is not None:
            return path
        if kind is set or kind is frozenset:
            if not stable_set(obj):
                raise GaveUp("it gives back a set whose order cannot be kept")
        elif isinstance(obj, type):
            if obj in self.classes:
                return ("class", self.classes[obj])
            if by_value(obj):
                raise GaveUp(f"it gives back something of the class {obj.__name__}, which is made in the loop")
        elif kind is types.FunctionType and (user_module(obj.__module__) or obj.__closure__):
            raise GaveUp("it gives back a function")
        elif id(obj) in self.deep and kind is not tuple:
            raise GaveUp("it gives back a part of an object that existed before the loop")
        elif hasattr(kind, "__next__"):
            raise GaveUp(f"it gives back an iterator ({kind.__name__})")
        elif kind.__name__ == "ndarray" and kind.__module__ == "numpy" and obj.base is not None:
            self._view(obj)
        return None

    def _view(self, array: Any) -> None:
        base = array.base
        while base is not None and id(base) not in self.deep and hasattr(base, "base"):
            base = base.base
        if base is not None and (id(base) in self.deep or id(base) in self.known):
            raise GaveUp("it gives back a view of an array that existed before the loop")

    def reducer_override(self, obj: Any) -> Any:
        if type(obj).__name__ == "ndarray" and type(obj).__module__ == "numpy":
            from .capture import _array_layout

            return _array_layout(obj)
        return NotImplemented


class Loaded:
    """A body unpickled in this process, with what is needed to check it."""

    def __init__(self, body: "Body") -> None:
        self.classes: Dict[int, type] = {}
        file = io.BytesIO(body.payload.data)
        previous, SESSION.classes = SESSION.classes, self.classes
        try:
            loader = Loader(file, body.payload.views(False), lambda path: None)
            self.function, self.captured, self.surroundings = loader.load()
        finally:
            SESSION.classes = previous
        self.away = body.process != this_process()
        if self.away:
            self.surroundings.apply()
        if body.guard:
            observe.install_guard()
        self.numbers = {cls: key for key, cls in self.classes.items()}
        self.paths = paths_of(self.captured)
        self.streams = randomness.resolve(body.streams, self.captured)
        pickler = Capture(io.BytesIO(), [], Reach(self.function, list(self.captured.values())), {}, named_sets=_Every())
        pickler.dump((self.function, self.captured))
        self.kept = pickler.visited
        self.deep = {id(v) for v in pickler.visited if type(v) not in _CODE}
        drawn = [s.generator for s in self.streams if hasattr(s, "generator")]
        self.state = State([("value", v, None) for v in self.captured.values()] + pickler.roots, drawn)
        self.before = self.state.snapshot()

    def find(self, path: Path) -> Any:
        return walk(self.captured[path[1]], path[2:])


_CODE = frozenset({types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType, types.CodeType, types.CellType})


class Body:
    """Runs iterations of one loop: `body(index, item)` returns a reply for `Replies`."""

    def __init__(self, payload: Packed, live: Sequence[Tuple[int, str]], checked: Set[int], process: str,
                 first: int, streams: Sequence[randomness.Name], seeds: Sequence[bytes], guard: bool) -> None:
        self.payload = payload
        self.live = list(live)
        self.checked = set(checked)
        self.process = process
        self.first = first
        self.streams = list(streams)
        self.seeds = list(seeds)
        self.guard = guard
        self._loaded: Optional[Loaded] = None

    def __reduce__(self) -> Any:
        return Body, (self.payload, self.live, self.checked, self.process, self.first, self.streams, self.seeds, self.guard)

    def __call__(self, index: int, item: Any) -> Reply:
        try:
            if self._loaded is None:
                self._loaded = Loaded(self)
            return self._run(self._loaded, index + self.first, item)
        except GaveUp as reason:
            return REFUSED, reason.sentence
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001: a loop that cannot be recorded runs at home
            return REFUSED, f"an iteration could not be recorded ({type(error).__name__}: {error})"

    def _run(self, loaded: Loaded, index: int, given: Any) -> Reply:
        item = given
        if type(given) is Packed:
            item = self._item(loaded, given)
        paths = item_paths(item)
        item_state = State([("value", item, None)])
        item_before = item_state.snapshot() if paths else None
        recorder = Recorder(self.live, self.checked)
        handled = sys.exc_info()[1]
        error = _attempt(self, loaded, recorder, index, item)
        failure = None
        if error is not None:
            _check_error(error)
            failure = Failure(error, loaded.function.__code__, handled)
        recorder.verify()
        if loaded.state.snapshot() != loaded.before:
            self._loaded = None
            raise GaveUp("an iteration changes something that it shares with others")
        if item_before is not None and item_state.snapshot() != item_before:
            raise GaveUp("an iteration changes its item")
        if failure is None and all(type(v) in ATOMS for _, values in recorder.effects for v in values):
            return SIMPLE, recorder.effects
        return FULL, self._pack(loaded, (recorder.effects, failure), paths, item)

    def _item(self, loaded: Loaded, given: Packed) -> Any:
        previous, SESSION.classes = SESSION.classes, loaded.classes
        try:
            item = Loader(io.BytesIO(given.data), given.views(False), loaded.find).load()
        finally:
            SESSION.classes = previous
        loaded.numbers = {cls: key for key, cls in loaded.classes.items()}
        return item

    def _pack(self, loaded: Loaded, what: Any, paths: Dict[int, Path], item: Any) -> Packed:
        buffers: List[Any] = []
        file = io.BytesIO()
        known = dict(paths)
        known.update(loaded.paths)
        parts = visited([item]) if paths else []
        deep = loaded.deep | {id(p) for p in parts if type(p) not in _CODE}
        _Records(file, buffers, known, deep, loaded.numbers).dump(what)
        return Packed(file.getvalue(), buffers)


def _attempt(body: Body, loaded: Loaded, recorder: Recorder, index: int, item: Any) -> Optional[BaseException]:
    # At home the streams of the caller are there too, and must not be touched.
    saved = None if loaded.away else [(s, s.state()) for s in loaded.streams]
    for source, seed in zip(loaded.streams, body.seeds):
        source.seed(randomness.words(seed, index))
    drawn = set(body.streams)
    others = [s for s in randomness.global_sources() if s.name not in drawn]
    watch = randomness.Watch(others)
    caught: Optional[BaseException] = None
    try:
        with observe.watched(recorder, loaded.surroundings.filters, body.guard):
            try:
                if loaded.away:
                    loaded.surroundings.enter_decimal()
                INSIDE.active = True
                loaded.function(recorder, item, **loaded.captured)
            except GaveUp:
                raise
            except BaseException as error:  # noqa: BLE001: it is raised again at home
                caught = error
    finally:
        INSIDE.active = False
        for source, state in saved or ():
            source.restore(state)
    changed = watch.changed()
    if changed:
        for position in changed:
            others[position].restore(watch.states[position])
        raise GaveUp("an iteration draws random numbers, which the first one did not")
    return caught


def _check_error(error: BaseException) -> None:
    if isinstance(error, (RecursionError, MemoryError, KeyboardInterrupt)):
        raise GaveUp(f"an iteration raises {type(error).__name__} in a worker")
    if isinstance(error, UnboundLocalError):
        raise GaveUp("an iteration reads a name that it has not assigned")
    if isinstance(error, ValueError) and "read-only" in str(error):
        raise GaveUp("an iteration writes into an array that it shares with others")
