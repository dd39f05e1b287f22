"""The items of a loop on their way to workers."""

from __future__ import annotations

import collections
import io
from typing import TYPE_CHECKING, Any, Deque, Iterator, List, Optional, Tuple

from . import observe
from .capture import ATOMS, Capture, Packed
from .prepared import Prepared
from .reasons import GaveUp

if TYPE_CHECKING:
    from .home import Run


class Feed:
    """The items for the workers; remembers those whose effects have not been replayed."""

    def __init__(self, run: "Run", prepared: Prepared) -> None:
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
