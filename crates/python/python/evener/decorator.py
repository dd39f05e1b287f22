"""`@evener.parallel`: a function whose loops are shared between workers."""

from __future__ import annotations

import functools
import logging
import sys
import types
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Tuple

from . import configuration
from ._schedule.options import Options
from ._schedule.ordered import ordered
from .loops.analysis import Finding
from .loops.explain import Explanation, explain_function
from .loops.home import Loops, Policy
from .loops.reasons import NotParallel, Refused
from .loops.rewrite import Rewritten, rewrite
from .loops.source import Text, text_of
from .loops.syntax import LOOPS
from .mapping import driver_of
from .places import places_of
from .pool import Pool
from .report import LastRun

if TYPE_CHECKING:
    from ._jobs.handle import Job

log = logging.getLogger("evener")


@dataclass(frozen=True)
class Settings:
    """What the decorator was given. `None` stands for what is configured."""

    strict: Optional[bool] = None
    randomness: Optional[str] = None
    external: Optional[str] = None
    where: Any = None
    workers: Optional[int] = None
    retries: Optional[int] = None
    timeout: Optional[float] = None
    progress: Any = None

    def __post_init__(self) -> None:
        if self.randomness not in (None, "streams", "refuse"):
            raise ValueError(f"randomness must be 'streams' or 'refuse', not {self.randomness!r}")
        if self.external not in (None, "refuse", "allow"):
            raise ValueError(f"external must be 'refuse' or 'allow', not {self.external!r}")

    def resolved(self) -> "Settings":
        """These settings, with what is configured where they say nothing."""
        missing = [field.name for field in fields(self) if getattr(self, field.name) is None]
        return replace(self, **{name: configuration.get(name) for name in missing})


class Testing:
    """Overrides of how loops are shared, set by tests only."""

    ordered: Any = None
    forced = False


def _options(settings: Settings, label: str, key: str) -> Options:
    return Options(
        workers=settings.workers, retries=settings.retries if settings.retries is not None else configuration.get("retries"),
        timeout=settings.timeout, progress=settings.progress, label=label, cost_key=key,
    )


@functools.lru_cache(maxsize=None)
def _pool_of(devices: Tuple[str, ...]) -> Pool:
    return Pool(devices=devices)


def _driver(where: Any, function: Any) -> Any:
    """The workers of places or of a pool, or one for each device with these names. They stay for later calls."""
    if places_of(where) is not None:
        return driver_of(where, function)
    if isinstance(where, str):
        where = tuple(name.strip() for name in where.split(","))
    if isinstance(where, (list, tuple)):
        where = _pool_of(tuple(where))
    return driver_of(where)


class Parallel:
    """The decorated function. Called, it gives what the plain function would give.

    `.plain` is the same function, with the same random streams, without workers.
    `.on(where)` is the same function on other workers.
    """

    __evener_stub__ = True

    def __init__(self, function: types.FunctionType, settings: Settings, source: Optional[Text] = None) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._settings = settings
        self._source = source
        self._made: Optional[Rewritten] = None
        self._run: Optional[Callable[..., Any]] = None
        self._plain: Optional[Callable[..., Any]] = None
        self._under: Any = None
        self._chosen = settings
        self._loops: Optional[Loops] = None

    def __reduce__(self) -> Any:
        return _restored, (self._function, self._settings, self._text())

    def _text(self) -> Optional[Text]:
        if self._source is None:
            try:
                self._source = text_of(self._function)
            except Refused:
                return None
        return self._source

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        under = Testing.ordered, Testing.forced, configuration.generation
        if self._run is None or self._under != under:
            self._under = under
            self._run = self._build(True)
        try:
            return self._run(*args, **kwargs)
        except BaseException as error:
            _merge_all(error)
            # Named, because up to Python 3.10 a bare `raise` brings the old traceback back; without
            # its first entry, this frame, which raising adds again.
            raise error.with_traceback(error.__traceback__.tb_next if error.__traceback__ else None)

    @property
    def plain(self) -> Callable[..., Any]:
        """The same function, with the same random streams, without workers."""
        if self._plain is None:
            self._plain = self._build(False)
        return self._plain

    @property
    def last_run(self) -> Optional[LastRun]:
        """The report of the last loop of its last call, or `None` if there was none."""
        last = self._loops.last if self._loops is not None else None
        return LastRun(self._function.__qualname__, last) if isinstance(last, tuple) else last

    def on(self, where: Any) -> "Parallel":
        """The same function elsewhere: at a place or a list of them, by a pool, or on devices by name (`"gpu"`, `"all"`)."""
        return Parallel(self._function, replace(self._settings, where=where), self._source)

    def submit(self, *args: Any, **kwargs: Any) -> "Job":
        """Runs the function in a process of its own, with workers of its own, which outlives this one. Returns the job."""
        from ._jobs.submit import submit_call

        return submit_call(self, args, kwargs)

    def explain(self) -> Explanation:
        """Says of each loop whether it can be shared, and why not."""
        return explain_function(self._function, self._text())

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else _Bound(self, instance)

    def __repr__(self) -> str:
        return f"<evener.parallel {self._function!r}>"

    def _build(self, share: bool) -> Callable[..., Any]:
        settings, function = self._settings.resolved(), self._function
        self._chosen = settings
        code = function.__code__
        policy = Policy(
            ordered=Testing.ordered or ordered, where=_driver(settings.where, function) if share else None,
            share=share, forced=Testing.forced,
            randomness=str(settings.randomness), external=str(settings.external), strict=bool(settings.strict) and share,
            options=_options(settings, function.__qualname__, f"{code.co_filename}:{function.__qualname__}"),
        )
        loops = Loops(policy, function)
        if share:
            self._loops = loops
        try:
            text = self._text()
            if text is None:
                text = text_of(function)
            made = rewrite(function, text, loops)
        except Refused as refused:
            self._refused(str(refused.reason), share)
            return function
        loops.loops = made.loops
        loops.on += [True] * len(made.loops)
        if share:
            self._say(made.findings)
        return made.function or function

    def _say(self, findings: List[Finding]) -> None:
        code = self._function.__code__
        for finding in findings:
            if finding.reason is not None:
                log.info("%s:%d: the loop in %s runs plainly: %s", code.co_filename, finding.line,
                         self._function.__qualname__, finding.reason.sentence)
        outer = [f for f in findings if f.reason is not None and not _within(f, findings)]
        counted = [f for f in outer if f.kind != "while"] or (outer if not any(f.parallel for f in findings) else [])
        if self._chosen.strict and counted:
            raise NotParallel(
                f"{code.co_filename}:{counted[0].line}: {self._function.__qualname__}: {counted[0].reason.sentence}"
            )
        if self._chosen.strict and not findings:
            raise NotParallel(f"{code.co_filename}:{code.co_firstlineno}: {self._function.__qualname__}: it has no loop")

    def _refused(self, sentence: str, share: bool) -> None:
        place = f"{self._function.__code__.co_filename}:{self._function.__code__.co_firstlineno}"
        if self._chosen.strict and share:
            raise NotParallel(f"{place}: {self._function.__qualname__}: {sentence}") from None
        if share:
            log.info("%s: %s runs plainly: %s", place, self._function.__qualname__, sentence)


class _Bound:
    """A decorated method of an object."""

    def __init__(self, parallel: Parallel, instance: Any) -> None:
        self._parallel = parallel
        self.__self__ = instance
        self.__func__ = parallel
        functools.update_wrapper(self, parallel._function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._parallel(self.__self__, *args, **kwargs)

    @property
    def plain(self) -> Callable[..., Any]:
        return functools.partial(self._parallel.plain, self.__self__)

    @property
    def last_run(self) -> Optional[LastRun]:
        return self._parallel.last_run

    def on(self, where: Any) -> "_Bound":
        return _Bound(self._parallel.on(where), self.__self__)

    def submit(self, *args: Any, **kwargs: Any) -> "Job":
        from ._jobs.submit import submit_call

        return submit_call(self, args, kwargs)

    def explain(self) -> Explanation:
        return self._parallel.explain()

    def __reduce__(self) -> Any:
        return _Bound, (self._parallel, self.__self__)


def _within(finding: Finding, findings: List[Finding]) -> bool:
    """Whether a loop lies inside another one that is shared."""
    for other in findings:
        if other.plan is not None and other.kind == "for" and other is not finding:
            node = other.plan.node
            if (node.lineno, node.col_offset) < (finding.line, finding.column) <= (node.end_lineno or 0, node.end_col_offset or 0):
                return True
    return False


COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")


def _instruction_at(entry: Any, line: int) -> int:
    """An instruction of this line in a traceback's frame, or the one that it has."""
    frame, instruction, _ = entry
    return next((start for start, _, found in frame.f_code.co_lines() if found == line), instruction)


def _merged(traceback: Optional[types.TracebackType]) -> Optional[types.TracebackType]:
    """Drops the frame of a rewritten comprehension where the plain function has none.

    From Python 3.12 comprehensions run in the frame of their function. Before, the plain
    iterations of a rewritten one run in a comprehension inside it.
    """
    entries: List[Any] = []
    while traceback is not None:
        entries.append((traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno))
        traceback = traceback.tb_next
    kept: List[Any] = []
    for position, entry in enumerate(entries):
        code = entry[0].f_code
        if code.co_name in COMPREHENSIONS and LOOPS in code.co_freevars:
            below = entries[position + 1][0].f_code if position + 1 < len(entries) else None
            if sys.version_info >= (3, 12):
                if kept and kept[-1][0].f_code.co_filename == code.co_filename:
                    kept[-1] = (kept[-1][0], _instruction_at(kept[-1], entry[2]), entry[2])
                    continue
            elif below is not None and below in code.co_consts and below.co_name == code.co_name:
                continue
        kept.append(entry)
    made: Optional[types.TracebackType] = None
    for frame, instruction, line in reversed(kept):
        made = types.TracebackType(made, frame, instruction, line)
    return made


def _merge_all(error: BaseException) -> None:
    """Does so for an exception and those that it is chained to."""
    todo: List[Optional[BaseException]] = [error]
    seen: List[BaseException] = []
    while todo:
        one = todo.pop()
        if one is None or any(one is other for other in seen):
            continue
        seen.append(one)
        one.__traceback__ = _merged(one.__traceback__)
        todo += [one.__cause__, one.__context__]


def _restored(function: types.FunctionType, settings: Settings, source: Optional[Text]) -> Parallel:
    return Parallel(function, settings, source)


def parallel(function: Optional[Callable[..., Any]] = None, **settings: Any) -> Any:
    """Shares the loops of a function between workers: `@parallel` or `@parallel(strict=True)`.

    The decorated function returns the value, and raises the exception, of the plain one. A loop
    that cannot be shared without changing them runs plainly, and the log says why at level INFO.
    """
    known = [field.name for field in fields(Settings)]
    for name in settings:
        if name not in known:
            raise TypeError(f"evener.parallel has no option {name!r}{configuration.nearest(name, known)}")
    chosen = Settings(**settings)
    if function is None:
        return lambda f: parallel(f, **settings)
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(parallel(function.__func__, **settings))
    if not isinstance(function, types.FunctionType):
        raise TypeError(f"evener.parallel decorates functions, not {type(function).__name__}")
    return Parallel(function, chosen)
