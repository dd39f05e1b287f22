"""A loop at home: runs some iterations plainly, shares the rest, and replays what they did."""

from __future__ import annotations

import copy
import itertools
import logging
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from .. import randomness
from .._schedule import pays
from . import observe
from .analysis import CALM
from .body import INSIDE, REFUSED
from .capture import ATOMS, State
from .feed import Feed
from .iterators import HELD, length_of, raising
from .prepared import Prepared
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


@dataclass
class Loops:
    """All loops of one function, under one policy; its rewritten code asks this object."""

    policy: Policy
    function: Any = None
    loops: List[Loop] = field(default_factory=list)
    on: List[bool] = field(default_factory=list)
    said: Set[Any] = field(default_factory=set)
    quick: Dict[int, int] = field(default_factory=dict)
    #: The report of the last loop that has ended; or how many iterations ran here, and their seconds.
    last: Any = None
    #: Seconds that loops inside of another have taken in its last iterations, and the most items of one of them.
    inside: Tuple[float, int] = (0.0, 0)

    def begin(self, number: int, iterable: Any) -> "Run":
        loop = self.loops[number]
        held = sys.getrefcount(iterable) > HELD.get(loop.plan.kind, HELD["comprehension"])
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


class Run:
    """One execution of one loop."""

    def __init__(self, loops: Loops, loop: Loop, iterable: Any, held: bool) -> None:
        self.loops = loops
        self.loop = loop
        self.policy = loops.policy
        self.source = iter(iterable)
        # An iterator that a name holds can be used again after the loop.
        self.held = self.source is iterable and (held or sys.version_info >= (3, 14))
        self.hint = length_of(iterable)
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
        self.began = 0.0
        self.shared = False
        self.inner: Tuple[float, int] = (0.0, 0)
        self.chunk_seconds = 0.0

    def __iter__(self) -> Iterator[Any]:
        policy, plan = self.policy, self.loop.plan
        share = policy.share and policy.ordered is not None and not INSIDE.active and not plan.draws_only
        random = policy.randomness == "streams" and not self.loops.calm(self.loop) and not plan.draws_only and not plan.inner
        if not share and not random:
            yield self.source
            return
        started = self.began = time.perf_counter()
        peeked = next(self.source, _END)
        if peeked is _END:
            return
        if random:
            self.wants = True
        self.clock = started
        if not plan.inner:
            self.loops.inside = (0.0, 0)
        yield iter((peeked,))
        self.pace = time.perf_counter() - self.clock
        self.index = 1
        self.inner = self.loops.inside
        self.chunk_seconds = self.pace
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
            if not plan.inner:
                self.loops.inside = (0.0, 0)
            before = time.perf_counter()
            start = self.index
            yield self._chunk(peeked, size if share and not self.refused else None)
            spent = self.chunk_seconds = time.perf_counter() - before
            done = (self.index - start) if self.streams is not None else size
            if self.streams is None:
                self.index += size
            self.pace = spent / max(done, 1)
            self.inner = self.loops.inside
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
        return self.hint is not None and self.hint >= 0 and (self.hint - self.index) * self.pace < pays.LEAST_LOOP

    def _pays(self) -> bool:
        """Whether workers may pay, so that an iteration should be observed. The run over workers decides then."""
        if self.policy.forced:
            return True
        if self.index < 2 and self.pace < 10e-3:
            # The first iteration also pays for caches and imports: wait for a second one.
            return False
        left = None if self.hint is None or self.hint < 0 else self.hint - self.index
        if left is not None and self._is_inner_larger(left):
            return False
        return pays.loop_may_pay(self.pace, left, self.policy.options, self.policy.where)

    def _is_inner_larger(self, left: int) -> bool:
        """Whether a loop inside has most of the time and more to share than this one: it is the one to be shared then."""
        seconds, items = self.inner
        return items > 2 * left and seconds > 0.7 * self.chunk_seconds and left < 2 * pays.count_of_workers(
            self.policy.options, self.policy.where
        )

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
        count = self.index if self.hint is None or self.hint < 0 else self.hint
        if plan.inner:
            seconds, most = self.loops.inside
            self.loops.inside = (seconds + spent, max(most, count))
        elif not self.shared:
            self.loops.last = (count, spent)
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
        self.shared = True
        prepared = self.prepared
        feed = Feed(self, prepared)
        options = copy.copy(self.policy.options)
        if options is not None:
            options.before = (self.index, time.perf_counter() - self.began, self.pace)
        results = self.policy.ordered(prepared.body(self.index), feed, where=self.policy.where, options=options)
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
            self.loops.last = getattr(results, "last_run", None)
            if reason is None:
                reason = feed.reason
            rest = self.source if feed.error is None else raising(feed.error)
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
