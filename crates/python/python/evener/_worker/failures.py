"""Exceptions on their way home: with type, arguments, notes, cause, context, and the frames of their traceback."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    #: File, line and name of each frame, from the outermost to the one that raised.
    Frames = List[Tuple[str, int, str]]


class RemoteError(RuntimeError):
    """An exception of a worker that cannot be sent as it is: its class cannot be pickled, or not made again."""


def frames_of(traceback: Any, skip: int = 0) -> Frames:
    """The frames of a traceback, without the first few."""
    frames = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append((code.co_filename, traceback.tb_lineno or 1, code.co_name))
        traceback = traceback.tb_next
    return frames[skip:]


def pack(error: BaseException, skip: int, dumps: Callable[[Any], bytes], loads: Callable[[bytes], Any]) -> Any:
    """Packs an exception, and those that it was raised from, to plain values.

    `skip` frames of its traceback are the worker's own.
    """
    numbers: Dict[int, int] = {}
    packed: List[Any] = []

    def add(error: Optional[BaseException], skip: int) -> Optional[int]:
        if error is None:
            return None
        if id(error) in numbers:
            return numbers[id(error)]
        number = numbers[id(error)] = len(packed)
        packed.append(None)
        cause, context = add(error.__cause__, 0), add(error.__context__, 0)
        frames = frames_of(error.__traceback__, skip)
        data, notes = _data_of(error, dumps, loads), _notes_of(error)
        packed[number] = (data, frames, cause, context, error.__suppress_context__, notes)
        return number

    add(error, skip)
    return packed


def _notes_of(error: BaseException) -> List[str]:
    notes = getattr(error, "__notes__", None)
    return [note for note in notes if isinstance(note, str)] if isinstance(notes, list) else []


def _data_of(error: BaseException, dumps: Callable[[Any], bytes], loads: Callable[[bytes], Any]) -> bytes:
    """Pickles an exception without its traceback; if it would not come back as itself, another that describes it."""
    try:
        data = dumps(error)
        if type(loads(data)) is type(error):
            return data
        why = "it comes back as another type"
    except Exception as problem:
        why = str(problem) or type(problem).__name__
    kind = type(error)
    try:
        text = str(error)
    except Exception:
        text = "<its text raised an exception>"
    message = "%s.%s: %s (this exception cannot be sent between processes: %s)"
    return dumps(RemoteError(message % (kind.__module__, kind.__qualname__, text, why)))


def unpack(packed: Any, loads: Callable[[bytes], Any]) -> BaseException:
    """Makes the exception again, with its remote frames as its traceback."""
    errors: List[BaseException] = []
    for data, *_ in packed:
        try:
            error = loads(data)
        except Exception as problem:
            error = RemoteError("an exception of a worker cannot be made again here: %s" % problem)
        errors.append(error)
    for error, (_, frames, cause, context, suppress, notes) in zip(errors, packed):
        if notes:
            # Not every exception takes them along when it is pickled.
            error.__notes__ = notes
        error.__cause__ = None if cause is None else errors[cause]
        error.__context__ = None if context is None else errors[context]
        error.__suppress_context__ = suppress
        error.__traceback__ = _traceback_of(frames)
    return errors[0]


def _traceback_of(frames: Frames) -> Any:
    """A traceback with these frames. Each is a stub of the same file, line and name, so that it is shown as usual."""
    import ast
    import sys
    import types

    traceback = None
    for filename, line, name in reversed(frames):
        tree = ast.parse("raise RuntimeError")
        for node in ast.walk(tree):
            if hasattr(node, "lineno"):
                # No columns are shown: they would be the stub's.
                node.lineno = node.end_lineno = line  # type: ignore[attr-defined]
                node.col_offset = node.end_col_offset = -1  # type: ignore[attr-defined]
        code = compile(tree, filename, "exec").replace(co_name=name)
        try:
            exec(code, {"__name__": name})
        except RuntimeError:
            stub = sys.exc_info()[2]
            frame = stub.tb_next if stub is not None else None
            if frame is not None:
                traceback = types.TracebackType(traceback, frame.tb_frame, frame.tb_lasti, line)
    return traceback
