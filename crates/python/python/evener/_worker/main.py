"""The loop of a worker process: it gets functions and chunks of items, and sends results."""

from __future__ import annotations

import _pickle
import _socket
import os
import sys
from time import perf_counter

import evener._worker as worker_state
from evener._evener import Claims, end_with_parent

from . import frames
from .values import ATOMS, ERROR, SKIPPED, VALUE, pickle_value, plain_dumps, unpickle_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional

#: Results are sent after this many seconds at the latest, and when they have this many bytes.
SEND_AFTER = 0.005
SEND_BYTES = 1 << 20
#: A block of tiny items that are claimed at once should take about this many seconds, and has at most this many items.
BLOCK_SECONDS = 1e-4
MOST_AT_ONCE = 64


class Function:
    """A job's function, as it is called for each item."""

    __slots__ = ("call", "eager", "most", "failure", "own_frames")

    def __init__(
        self, call: Optional[Callable[[int, Any], Any]], own_frames: int, eager: bool, failure: Optional[bytes]
    ) -> None:
        self.call = call
        #: How many frames of a traceback are the worker's own.
        self.own_frames = own_frames
        #: Whether each result is sent at once, because its item must not run twice.
        self.eager = eager
        #: How many items are claimed at once.
        self.most = 1
        #: Why the function cannot be used here.
        self.failure = failure


def of_item(function: Callable[[Any], Any]) -> Callable[[int, Any], Any]:
    """Calls a function of one item."""
    return lambda index, item: function(item)


def of_items(function: Callable[..., Any]) -> Callable[[int, Any], Any]:
    """Calls a function of several arguments."""
    return lambda index, items: function(*items)


def of_call(_: Any) -> Callable[[int, Any], Any]:
    """Calls the function that comes with each item, with its arguments."""
    return lambda index, call: call[0](*call[1], **call[2])


def of_index(function: Callable[[int, Any], Any]) -> Callable[[int, Any], Any]:
    """Calls a function of the item's number and the item."""
    return function


#: How a function is called, by the number in its frame.
STYLES = (of_index, of_item, of_items, of_call)


class Worker:
    """This process as a worker of another one."""

    def __init__(self, socket: Any, claims: Claims) -> None:
        self._socket = socket
        self._claims = claims
        self._reader = frames.Reader(socket, writable=False)
        self._functions: Dict[int, Function] = {}
        #: Values that many calls use, by their number.
        self.values: Dict[int, Any] = {}

    def serve(self) -> None:
        """Does what the driver asks for, until it asks for the end."""
        while True:
            frame = self._reader.next()
            if frame is None:
                if not self._reader.read():
                    return
            elif frame.kind == frames.CHUNK:
                self._run_chunk(frame)
            elif frame.kind == frames.FUNCTION:
                self._load_function(frame)
            elif frame.kind == frames.FORGET:
                self._functions.pop(frame.job, None)
            elif frame.kind == frames.VALUE:
                self._load_value(frame)
            elif frame.kind == frames.FORGET_VALUE:
                self.values.pop(frame.job, None)
            elif frame.kind == frames.START:
                self._start(frame)
            elif frame.kind == frames.EXIT:
                return

    def send(self, kind: int, job: int, body: bytes = b"", buffers: Any = ()) -> None:
        """Sends a frame to the driver."""
        frames.send_all(self._socket, *frames.encode(kind, job, body, buffers))

    def _start(self, frame: frames.Frame) -> None:
        state = _pickle.loads(frame.body)
        if state["path"] is not None:
            sys.path[:] = state["path"]
        else:
            from .code_sent import use_code

            use_code(state["paths"])
        sys.argv[:] = state["argv"]
        worker_state.device = state["device"]
        worker_state.is_remote = state.get("is_remote", False)
        worker_state.own_variables = frozenset(state["own"])
        try:
            if state["path"] is not None:
                os.chdir(state["folder"])
        except OSError:
            # It may be gone, or not for this process: then relative paths fail, as they would at home.
            pass
        if state["initializer"] is not None:
            try:
                function, arguments = _pickle.loads(state["initializer"])
                function(*arguments)
            except BaseException as error:
                self.send(frames.FAILED, 0, self._pack(error, 1))
                return
        self.send(frames.READY, 0)

    def _load_function(self, frame: frames.Frame) -> None:
        style, eager = frame.body[0], bool(frame.body[1])
        call, failure = None, None
        try:
            function = _pickle.loads(memoryview(frame.body)[2:], buffers=frame.buffers)
            call = STYLES[style](function)
        except BaseException as error:
            failure = self._pack(error, 1)
        self._functions[frame.job] = Function(call, 1 if style == 0 else 2, eager, failure)

    def _load_value(self, frame: frames.Frame) -> None:
        # Loaded when it is first used, since a failure belongs to the item that uses it.
        self.values[frame.job] = [frame.buffers[0], frame.buffers[1:], False, None]

    def _run_chunk(self, frame: frames.Frame) -> None:
        function = self._functions[frame.job]
        if function.failure is not None or function.call is None:
            self.send(frames.FAILED, frame.job, function.failure or b"")
            return
        first, offset, entries = _pickle.loads(frame.body)
        chunk = Chunk(self, frame, function, first, offset, entries)
        chunk.run(self._claims)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                # The user's code may have closed or replaced it.
                pass
        chunk.send(frames.LAST_RESULTS)

    def _pack(self, error: BaseException, skip: int) -> bytes:
        return pack_error(error, skip)


class Chunk:
    """A chunk of items that this worker runs, and the results that are not sent yet."""

    def __init__(
        self, worker: Worker, frame: frames.Frame, function: Function, first: int, offset: int, entries: Any
    ) -> None:
        self._worker = worker
        self._job = frame.job
        self._function = function
        self._first = first
        #: What the caller's numbers of items are above the run's.
        self._offset = offset
        self._entries = entries
        self._buffers = frame.buffers
        #: Where each entry's buffers begin, if the chunk has any.
        self._offsets: List[int] = []
        if frame.buffers:
            offset = 0
            for entry in entries:
                self._offsets.append(offset)
                if type(entry) is tuple and entry[0] == VALUE:
                    offset += entry[2]
        self._sent = 0
        self._results: List[Any] = []
        self._result_buffers: List[Any] = []
        self._bytes = 0

    def run(self, claims: Claims) -> None:
        """Runs the items that the worker can claim."""
        function, entries, results = self._function, self._entries, self._results
        call, first, eager = function.call, self._first + self._offset, function.eager
        begin_item = claims.begin_item
        most = 1 if eager else function.most
        sent = last = perf_counter()
        while True:
            block = claims.claim(most)
            if block is None:
                break
            start, end = block
            for index in range(start, end):
                if index > start and begin_item(index):
                    # Other workers are idle: they get what this one has not begun.
                    claims.unclaim(index)
                    break
                item = entries[index]
                try:
                    if type(item) is tuple:
                        if item[0] == SKIPPED:
                            results.append(item)
                            continue
                        item = self._unpickle(index, item)
                    result = call(first + index, item)  # type: ignore[misc]
                except BaseException as error:
                    results.append((ERROR, pack_error(error, function.own_frames)))
                    continue
                if type(result) in ATOMS:
                    results.append(result)
                    if type(result) in _SIZED:
                        self._bytes += len(result)
                else:
                    self._add(result, first + index)
                    del result
            now = perf_counter()
            took, last = now - last, now
            if not eager:
                if took < BLOCK_SECONDS / 2:
                    most = min(most * 2, MOST_AT_ONCE)
                elif took > BLOCK_SECONDS * 2:
                    most = max(most // 2, 1)
            if eager or now - sent > SEND_AFTER or self._bytes > SEND_BYTES:
                self.send(frames.RESULTS)
                results = self._results
                sent = last = perf_counter()
        function.most = most

    def _unpickle(self, index: int, entry: Any) -> Any:
        count = entry[2]
        buffers: Any = ()
        if count:
            offset = self._offsets[index]
            buffers = self._buffers[offset : offset + count]
        return unpickle_value(entry, buffers)

    def _add(self, result: Any, index: int) -> None:
        """Adds a result that is no atom: it is pickled now."""
        before = len(self._result_buffers)
        try:
            entry = pickle_value(result, self._result_buffers, dumps)
        except Exception as error:
            del self._result_buffers[before:]
            self._results.append((ERROR, pack_error(not_picklable(result, index, error), 0)))
            return
        self._results.append(entry)
        self._bytes += len(entry[1]) + sum(part.nbytes for part in self._result_buffers[before:])

    def send(self, kind: int) -> None:
        """Sends the results so far."""
        results, buffers = self._results, self._result_buffers
        if not results and kind != frames.LAST_RESULTS:
            return
        body = _pickle.dumps((self._first + self._sent, results), 5)
        self._worker.send(kind, self._job, body, buffers)
        self._sent += len(results)
        self._results, self._result_buffers, self._bytes = [], [], 0


_SIZED = (str, bytes)


def dumps(value: Any, keep_in_pickle: Callable[[Any], bool]) -> bytes:
    """Pickles a value, by value where it cannot be imported at home."""
    try:
        return plain_dumps(value, keep_in_pickle)
    except Exception:
        import cloudpickle

        return cloudpickle.dumps(value, 5, buffer_callback=keep_in_pickle)  # type: ignore[no-any-return]


def dumps_whole(value: Any) -> bytes:
    """Pickles a value with all its buffers."""
    return dumps(value, lambda buffer: True)


def not_picklable(result: Any, index: int, error: BaseException) -> BaseException:
    """The error of a result that cannot be sent home."""
    from evener.errors import PicklingError

    kind = type(result)
    text = "the result of item %d cannot be sent between processes: %s.%s: %s"
    return PicklingError(text % (index, kind.__module__, kind.__qualname__, error))


def pack_error(error: BaseException, skip: int) -> bytes:
    """Packs an exception for the way home. `skip` frames of its traceback are the worker's own."""
    from .failures import pack

    return _pickle.dumps(pack(error, skip, dumps_whole, _pickle.loads), 5)


def log_at_home(level: int, message: str) -> None:
    """Logs a message of this package in the process that drives this worker."""
    if this is not None:
        this.send(frames.LOG, 0, _pickle.dumps(("evener", level, message), 5))


#: This process as a worker, if it is one.
this: Optional[Worker] = None


def value_of(number: int) -> Any:
    """A value that many calls use: unpickled when it is first used here."""
    if this is None:
        raise RuntimeError("a value of evener.put was sent to a process that is no worker")
    held = this.values[number]
    if not held[2]:
        held[:] = [None, None, True, _pickle.loads(held[0], buffers=held[1])]
    return held[3]


def main(socket: int, claims: int, parent: int) -> None:
    """Serves the process at the other end of a socket."""
    global this
    end_with_parent(socket, parent)
    # Standard input is not the worker's, and child processes need none of these.
    os.set_inheritable(socket, False)
    this = Worker(_socket.socket(fileno=socket), Claims(claims))
    os.close(claims)
    try:
        this.serve()
    except (BrokenPipeError, ConnectionResetError):
        pass
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    os._exit(0)
