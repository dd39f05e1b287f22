"""Values on their way between processes.

A value of a plain immutable type travels as it is, in the pickle of its whole frame. All others are pickled one by one, as
soon as they are known: a later change of an object must not change what was sent, and how values are grouped into frames must
not show. Large buffers stay out of the pickle and travel in shared memory.
"""

from __future__ import annotations

import _pickle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Sequence, Tuple

#: Types whose values can be pickled together with others: they are immutable, and refer to nothing else.
ATOMS = frozenset({int, float, complex, str, bytes, bool, type(None)})
#: Buffers of fewer bytes stay in the pickle.
SMALLEST_SHARED = 1 << 16

#: What an entry of a frame is, if it is no atom: the first element of a tuple.
VALUE, ERROR, SKIPPED = range(3)
#: An item that is not to be run: its result is known, or nobody wants it.
SKIP = (SKIPPED,)


def pickle_value(value: Any, buffers: List[Any], dumps: Callable[..., bytes]) -> Tuple[int, bytes, int]:
    """Pickles a value to an entry. Its large buffers are appended to `buffers`."""
    own: List[Any] = []

    def keep_in_pickle(buffer: Any) -> bool:
        raw = buffer.raw()
        if raw.nbytes < SMALLEST_SHARED:
            return True
        own.append(raw.toreadonly() if raw.readonly else raw)
        return False

    data = dumps(value, keep_in_pickle)
    # The other process is told which buffers it must not write to.
    readonly = tuple(index for index, buffer in enumerate(own) if buffer.readonly)
    buffers.extend(own)
    return (VALUE, data, len(own), readonly) if readonly else (VALUE, data, len(own))  # type: ignore[return-value]


def plain_dumps(value: Any, keep_in_pickle: Callable[[Any], bool]) -> bytes:
    """Pickles a value with the standard pickler."""
    return _pickle.dumps(value, 5, buffer_callback=keep_in_pickle)


def unpickle_value(entry: Tuple[Any, ...], buffers: Sequence[memoryview]) -> Any:
    """Unpickles an entry. `buffers` are its own."""
    if not buffers:
        return _pickle.loads(entry[1])
    if len(entry) > 3:
        buffers = [part.toreadonly() if index in entry[3] else part for index, part in enumerate(buffers)]
    return _pickle.loads(entry[1], buffers=buffers)
