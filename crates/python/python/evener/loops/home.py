"""A loop at home: runs some iterations plainly, shares the rest, and replays what they did."""

from __future__ import annotations

import collections
import gc
import io
import itertools
import logging
import operator
import os
import sys
import time
import types
from dataclasses import dataclass, field
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Set, Tuple

from .. import randomness
from . import observe
from .body import FULL, INSIDE, REFUSED, SIMPLE, Body, this_process
from .analysis import CALM
from .capture import ATOMS, SESSION, Capture, Loader, Packed, Path, State, paths_of, visited, walk
from .failure import without_own_frames
from .reach import Reach, complaint, set_order, stable_set
from .reasons import GaveUp, NotParallel
from .rewrite import Loop

log = logging.getLogger("evener")
Ordered = Callable[..., Iterator[Any]]
_END = object()


@dataclass
class Policy:
    """When a loop is shared."""

    ordered: Optional[Ordered] = None
    where: Any = None
    options: Any = None
    share: bool = True
    forced: bool = False
    """Share after the first iterations, whatever they cost: for tests."""
    randomness: str = "streams"
    external: str = "refuse"
    strict: bool = False
    least_iteration: float = 200e-6
    least_total: float = 20e-3
    prepare: Optional[Callable[[Any], bool]] = None


@dataclass
class Loops:
    """All loops of one function, under one policy; its rewritten code asks this object."""

    policy: Policy
    function: Any = None
    loops: List[Loop] = field(default_factory=list)
    on: List[bool] = field(default_factory=list)
    said: Set[Any] = field(default_factory=set)
    quick: Dict[int, int] = field(default_factory=dict)

    def begin(self, number: int, iterable: Any) -> "Run":
        loop = self.loops[number]
        held = sys.getrefcount(iterable) > _HELD.get(loop.plan.kind, _HELD["comprehension"])
        return Run(self, loop, iterable, held)

    def calm(self, loop: Loop) -> bool:
        """Whether a body surely draws no random numbers."""
        scope = self.function.__globals__
        return loop.plan.calm and not any(n in scope for n in CALM.intersection(loop.code.co_names))

    def say(self, loop: Loop, sentence: str) -> None:
        """Logs, once, why a loop is not shared; raises with `strict`."""
        code = self.function.__code__
        place = f"{code.co_filename}:{loop.plan.line}"
        if self.policy.strict:
            raise NotParallel(f"{place}: {self.function.__qualname__}: {sentence}")
        key = (loop.plan.number, sentence)
        if key not in self.said:
            self.said.add(key)
            log.info("%s: the loop in %s runs plainly: %s", place, self.function.__qualname__, sentence)


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


_HELD = _counts()


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


def _kind(value: Any) -> Tuple[str, str]:
    return type(value).__module__, type(value).__name__


def _receiver_fits(kind: str, value: Any) -> bool:
    named = _kind(value)
    if kind == "augment" and named[0] == "numpy" and hasattr(value, "dtype"):
        return not value.dtype.hasobject
    if named == ("numpy", "ndarray") and value.dtype.hasobject:
        return kind == "item"  # the elements of an augmented one could be anything
    return named in _RECEIVERS[kind]


class Run:
    """One execution of one loop."""

    def __init__(self, loops: Loops, loop: Loop, iterable: Any, held: bool) -> None:
        self.loops = loops
        self.loop = loop
        self.policy = loops.policy
        self.source = iter(iterable)
        # An iterator that a name holds can be used again after the loop.
        self.held = self.source is iterable and (held or sys.version_info >= (3, 14))
        self.hint = _length(iterable)
        self.wants = False
        self.sharing = False
        self.item: Any = None
        self.error: Optional[BaseException] = None
        self.line = 0
        self.index = 0
        self.stage = "first"
        self.streams: Optional[randomness.Streams] = None
        self.watch: Optional[randomness.Watch] = None
        self.prepared: Optional[Prepared] = None
        self.refused = False
        self.pace = 0.0

    def __iter__(self) -> Iterator[Any]:
        policy, plan = self.policy, self.loop.plan
        share = policy.share and policy.ordered is not None and not INSIDE.active and not plan.draws_only
        random = policy.randomness == "streams" and not self.loops.calm(self.loop) and not plan.draws_only and not plan.inner
        if not share and not random:
            yield self.source
            return
        started = time.perf_counter()
        peeked = next(self.source, _END)
        if peeked is _END:
            return
        if random:
            self.wants = True
        self.clock = started
        yield iter((peeked,))
        self.pace = time.perf_counter() - self.clock
        self.index = 1
        self.wants = False
        if self.watch is not None:
            self.streams = self.watch.streams()
            self.watch = None
            if self.streams is not None:
                self._say_streams()
        if not share and self.streams is None:
            yield self.source
            return
        size = 1
        while True:
            peeked = next(self.source, _END)
            if peeked is _END:
                break
            if share and not self.refused and self._pays():
                yield from self._observe(peeked)
                continue
            if size >= 8 and self.streams is None and not policy.forced and self._little_left():
                yield iter((peeked,))
                yield self.source
                continue
            before = time.perf_counter()
            start = self.index
            yield self._chunk(peeked, size if share and not self.refused else None)
            spent = time.perf_counter() - before
            done = (self.index - start) if self.streams is not None else size
            if self.streams is None:
                self.index += size
            self.pace = spent / max(done, 1)
            size = min(size * 2, max(1, int(0.1 / max(self.pace, 1e-9))))
        self._finish(time.perf_counter() - started)

    def _chunk(self, first: Any, size: Optional[int]) -> Iterator[Any]:
        """The next items; None: all that are left."""
        rest = self.source if size is None else itertools.islice(self.source, size - 1)
        items = itertools.chain((first,), rest) if size != 1 else iter((first,))
        return items if self.streams is None else self._seeded(items)

    def _seeded(self, items: Iterator[Any]) -> Iterator[Any]:
        streams = self.streams
        for item in items:
            own = [s.state() for s in streams.sources]
            streams.begin(self.index)
            self.index += 1
            try:
                yield item
            finally:
                for source, state in zip(streams.sources, own):
                    source.restore(state)

    def _little_left(self) -> bool:
        """Whether the rest would be done before workers could help: it runs without looking at the clock."""
        return self.hint is not None and self.hint >= 0 and (self.hint - self.index) * self.pace < self.policy.least_total

    def _pays(self) -> bool:
        policy = self.policy
        if policy.forced:
            return True
        if self.index < 2 and self.pace < 10e-3:
            # The first iteration also pays for caches and imports: wait for a second one.
            return False
        if self.pace < policy.least_iteration:
            return False
        left = None if self.hint is None else self.hint - self.index
        if left is not None and left * self.pace < policy.least_total:
            return False
        return policy.prepare is None or policy.prepare(policy.where)

    def _observe(self, peeked: Any) -> Iterator[Any]:
        """Runs one iteration at home between two looks at what it could change, then shares."""
        self.stage = "before"
        self.wants = True
        item = State([("value", peeked, None)])
        try:
            before = None if type(peeked) in ATOMS else item.snapshot()
        except Exception as error:  # noqa: BLE001: what cannot be pickled stays at home
            before = None
            self._refuse(f"an item cannot be sent ({type(error).__name__}: {error})")
        yield self._chunk(peeked, 1)
        if self.streams is None:
            self.index += 1
        if before is not None and not self.refused and item.snapshot() != before:
            self._refuse("an iteration changes its item")
        if self.refused:
            self.wants = False
            return
        peeked = next(self.source, _END)
        if peeked is _END:
            self.wants = False
            return
        self.source = itertools.chain((peeked,), self.source) if peeked is not _END else self.source
        self.first_item = peeked
        self.stage = "after"
        self.sharing = True
        yield None
        self.sharing = self.wants = False
        if not self.refused:
            self.refused = True

    def _finish(self, spent: float) -> None:
        plan = self.loop.plan
        if plan.nested and not self.policy.forced and self.streams is None and spent < 200e-6:
            count = self.loops.quick[plan.number] = self.loops.quick.get(plan.number, 0) + 1
            if count >= 8:
                self.loops.on[plan.number] = False

    def _say_streams(self) -> None:
        if "streams" not in self.loops.said:
            self.loops.said.add("streams")
            log.info(
                "%s:%d: the loop in %s draws random numbers: each iteration has a stream of its own",
                self.loops.function.__code__.co_filename, self.loop.plan.line, self.loops.function.__qualname__,
            )

    def look(self, environment: Dict[str, Any]) -> None:
        """Takes the values of the names that the loop captures."""
        if self.stage == "first":
            names = {k: v for k, v in environment.items() if k in self.loop.plan.captured}
            scope = self.loops.function.__globals__
            for name in self.loop.code.co_names:
                if name in scope:
                    names.setdefault("global " + name, scope[name])
            sources = randomness.global_sources() + [
                s for s in randomness.captured_sources(names) if not s.name[1].startswith("global ")
            ]
            self.watch = randomness.Watch(sources)
            self.clock = time.perf_counter()
            return
        try:
            if self.stage == "before":
                self.prepared = Prepared(self, environment)
            elif self.prepared is not None:
                self.prepared.compare(environment)
        except GaveUp as reason:
            self._refuse(reason.sentence)
        except Exception as error:  # noqa: BLE001: what cannot be pickled stays at home
            self._refuse(f"what it captures cannot be sent ({type(error).__name__}: {error})")

    def _refuse(self, sentence: str) -> None:
        self.refused = True
        self.loops.say(self.loop, sentence)

    def share(self) -> Iterator[Iterator[Tuple[int, Tuple[Any, ...]]]]:
        """Yields, in order, the effects of each iteration; the caller's code replays them."""
        if self.refused or self.prepared is None:
            return
        prepared = self.prepared
        feed = Feed(self, prepared)
        results = self.policy.ordered(
            prepared.body(self.index), feed, where=self.policy.where, options=self.policy.options
        )
        reason: Optional[str] = None
        try:
            for reply in results:
                item = feed.pending[0]
                if reply[0] == REFUSED:
                    reason = reply[1]
                    break
                try:
                    effects, failure = prepared.open(reply, item)
                except Exception as error:  # noqa: BLE001: the iteration runs again, at home
                    reason = f"a result could not be read ({type(error).__name__}: {error})"
                    break
                feed.pending.popleft()
                effects = feed.notes.popleft() + effects
                self.index += 1
                self.item = item
                if failure is not None:
                    code = self.loops.function.__code__
                    self.error = failure.restore(self.loop.code.co_name, code.co_filename)
                    self.line = failure.line
                    self.context = self.error.__context__
                yield self._effects(effects)
                if self.loop.plan.yields and prepared.changed():
                    reason = "something that its iterations read is changed while it yields"
                    break
        finally:
            close = getattr(results, "close", None)
            if close is not None:
                close()
            if reason is None:
                reason = feed.reason
            rest = self.source if feed.error is None else _raising(feed.error)
            self.source = itertools.chain(feed.left(), rest)
        if reason is not None:
            self._refuse(reason)

    def _effects(self, effects: List[Tuple[int, Tuple[Any, ...]]]) -> Iterator[Tuple[int, Tuple[Any, ...]]]:
        for site, values in effects:
            if site < 0:
                observe.replay(site, values, self.loops.function.__globals__)
            else:
                yield site, values

    def restore(self) -> None:
        """Undoes what raising at home has done to the exception's context."""
        handled = self.error.__context__
        if self.context is not None and handled is not self.context:
            last, seen = self.context, set()
            while last.__context__ is not None and id(last) not in seen:
                seen.add(id(last))
                last = last.__context__
            if handled is not None and handled is not last and last.__context__ is None:
                last.__context__ = handled
            self.error.__context__ = self.context
        # The frame must not keep the exception alive, nor the other way round.
        self.error = None


def _raising(error: BaseException) -> Iterator[Any]:
    raise without_own_frames(error)
    yield  # a generator, so that the error is raised in its turn


def _length(iterable: Any) -> Optional[int]:
    try:
        return operator.length_hint(iterable, -1) if hasattr(type(iterable), "__len__") or hasattr(type(iterable), "__length_hint__") else None
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


def _inner_held(source: Any) -> bool:
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
        kind = _kind(iterator)
        if kind == ("builtins", "iterator"):
            inner = [r for r in gc.get_referents(iterator)]
            if not all(_kind(r) in (("numpy", "ndarray"), ("builtins", "str")) for r in inner):
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


class Prepared:
    """What a loop captures, pickled and checked."""

    def __init__(self, run: Run, environment: Dict[str, Any]) -> None:
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
        if run.held or _inner_held(run.source):
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
            if name in deep and type(value) is not bytearray and _kind(value) != ("numpy", "ndarray"):
                for part in visited([value]):
                    if type(part) not in ATOMS and type(part) not in (tuple, frozenset):
                        found[id(part)] = name
            base = getattr(value, "base", None) if _kind(value) == ("numpy", "ndarray") else None
            while base is not None:
                found[id(base)] = name
                base = getattr(base, "base", None)
        arrays = [v for v in self.receivers.values() if _kind(v) == ("numpy", "ndarray")]
        if arrays:
            self._overlaps(arrays)
        return found

    def _overlaps(self, arrays: List[Any]) -> None:
        """Refuses arrays that share memory with captured ones."""
        import numpy

        for part in visited(list(self.captured.values())):
            if _kind(part) == ("numpy", "ndarray"):
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
            if environment.get(name, _END) is not value:
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


class Feed:
    """The items for the workers; remembers those whose effects have not been replayed."""

    def __init__(self, run: Run, prepared: Prepared) -> None:
        self.run = run
        self.prepared = prepared
        self.pending: Deque[Any] = collections.deque()
        self.extra: Deque[Any] = collections.deque()
        self.notes: Deque[List[Any]] = collections.deque()
        self.last: List[Any] = []
        self.reason: Optional[str] = None
        self.error: Optional[BaseException] = None
        self._hint = run.hint
        self._given = run.index

    def __iter__(self) -> "Feed":
        return self

    def __length_hint__(self) -> int:
        return max(0, self._hint - self._given) if self._hint is not None and self._hint >= 0 else 0

    def __next__(self) -> Any:
        if self.reason is not None or self.error is not None or self.extra:
            raise StopIteration
        notes: List[Tuple[int, Tuple[Any, ...]]] = []
        try:
            if self.prepared.quiet:
                item = next(self.run.source)
            else:
                # What the iterator prints comes before its item's effects, not when it is read ahead.
                with observe.overheard(lambda site, values: notes.append((site, values))):
                    item = next(self.run.source)
        except StopIteration:
            self.last = notes
            raise
        except BaseException as error:  # noqa: BLE001: raised in its turn
            self.error = error
            self.last = notes
            raise StopIteration from None
        try:
            if not self.prepared.quiet and self.prepared.changed():
                raise GaveUp("the iterator that it runs over changes what its iterations read")
            sent = self._packed(item)
        except GaveUp as given:
            return self._stop(item, notes, given.sentence)
        except Exception as error:  # noqa: BLE001: what cannot be pickled stays at home
            return self._stop(item, notes, f"an item cannot be sent ({type(error).__name__}: {error})")
        self.notes.append(notes)
        self.pending.append(item)
        self._given += 1
        return sent

    def _stop(self, item: Any, notes: List[Any], sentence: str) -> Any:
        self.reason = sentence
        self.notes.append(notes)
        self.extra.append(item)
        raise StopIteration

    def left(self) -> Iterator[Any]:
        """The items that were read but not replayed, each after what reading it has printed."""
        scope = self.run.loops.function.__globals__
        for item in [*self.pending, *self.extra]:
            for site, values in self.notes.popleft():
                observe.replay(site, values, scope)
            yield item
        for site, values in self.last:
            observe.replay(site, values, scope)

    def _packed(self, item: Any) -> Any:
        if type(item) in ATOMS:
            return item
        prepared = self.prepared
        buffers: List[Any] = []
        file = io.BytesIO()
        Capture(
            file, buffers, prepared.reach, prepared.forbidden, known=prepared.paths, deep=prepared.deep,
            classes=prepared.classes,
        ).dump(item)
        return Packed(file.getvalue(), buffers)
