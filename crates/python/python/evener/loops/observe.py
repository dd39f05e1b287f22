"""What an iteration does beside its statements: output, warnings, logs, files, processes."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import sys
import threading
import warnings
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from .. import _worker
from .reasons import GaveUp

OUTPUT, WARNING, LOG = -1, -2, -3
Note = Callable[[int, Tuple[Any, ...]], None]


class _Stream:
    """Stands in for `sys.stdout` or `sys.stderr` while an iteration runs."""

    def __init__(self, name: str, note: Note, real: Any) -> None:
        self._name = name
        self._note = note
        self._real = real
        self._owner = threading.get_ident()

    def write(self, text: str) -> int:
        if threading.get_ident() != self._owner:
            return self._real.write(text)
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._note(OUTPUT, (self._name, text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if threading.get_ident() == self._owner:
            self._note(OUTPUT, (self._name, None))

    def isatty(self) -> bool:
        return bool(getattr(self._real, "isatty", lambda: False)())

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    @property
    def encoding(self) -> str:
        return getattr(self._real, "encoding", None) or "utf-8"

    @property
    def errors(self) -> str:
        return getattr(self._real, "errors", None) or "strict"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise GaveUp(f"it uses `sys.{self._name}.{name}`")


class _Input:
    """Stands in for `sys.stdin`."""

    def __getattr__(self, name: str) -> Any:
        raise GaveUp("it reads from the standard input")

    def __iter__(self) -> Any:
        raise GaveUp("it reads from the standard input")


_WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
_EVENTS = {
    "os.remove": "removes a file", "os.rename": "renames a file", "os.rmdir": "removes a folder",
    "os.mkdir": "makes a folder", "os.chmod": "changes a file", "os.chown": "changes a file",
    "os.link": "links a file", "os.symlink": "links a file", "os.truncate": "changes a file",
    "os.utime": "changes a file", "shutil.rmtree": "removes a folder", "shutil.move": "moves a file",
    "subprocess.Popen": "starts a process", "os.system": "starts a process", "os.fork": "starts a process",
    "os.forkpty": "starts a process", "os.posix_spawn": "starts a process", "os.exec": "starts a process",
    "os.kill": "sends a signal", "os.putenv": "changes the environment", "os.unsetenv": "changes the environment",
    "os.chdir": "changes the working directory", "socket.connect": "opens a connection",
    "socket.bind": "opens a connection", "socket.sendto": "sends a message", "sqlite3.connect": "opens a database",
    "signal.pthread_kill": "sends a signal", "os.setxattr": "changes a file", "socket.sendmsg": "sends a message",
}


class _Guard(threading.local):
    active = False
    complaint: Optional[str] = None


GUARD = _Guard()
_hooked = False


def _hook(event: str, arguments: Tuple[Any, ...]) -> None:
    if not GUARD.active:
        return
    if event == "open":
        path, _, flags = arguments
        if not isinstance(flags, int) or not flags & _WRITES:
            return
        if isinstance(path, int) or _harmless(str(path)):
            return
        _stop(f"it writes the file {path!r}")
    elif event in _EVENTS:
        if arguments and isinstance(arguments[0], (str, bytes)) and _harmless(os.fsdecode(arguments[0])):
            return
        _stop(f"it {_EVENTS[event]}")


def _harmless(path: str) -> bool:
    return "__pycache__" in path or path == os.devnull


def _stop(sentence: str) -> None:
    GUARD.complaint = sentence
    raise GaveUp(sentence)


def install_guard() -> None:
    """Installs the audit hook, once a process; it only acts while an iteration runs."""
    global _hooked
    if not _hooked:
        _hooked = True
        sys.addaudithook(_hook)


def _filters() -> List[Any]:
    return [
        ("always" if action not in ("error", "ignore") else action, message, category, module, line)
        for action, message, category, module, line in warnings.filters
    ]


def levels() -> Dict[str, Any]:
    """The levels of all loggers, to make those of another process alike."""
    named = {
        name: logger.level for name, logger in list(logging.root.manager.loggerDict.items())
        if isinstance(logger, logging.Logger) and logger.level
    }
    return {"root": logging.root.level, "disable": logging.root.manager.disable, "named": named}


def set_levels(given: Dict[str, Any]) -> None:
    logging.root.setLevel(given["root"])
    logging.disable(given["disable"])
    for name, level in given["named"].items():
        logging.getLogger(name).setLevel(level)


class Surroundings:
    """State of the calling process that library code reads."""

    def __init__(self) -> None:
        self.machine = platform.node()
        self.folder = os.getcwd()
        self.environment = dict(os.environ)
        self.search = list(sys.path)
        self.arguments = list(getattr(sys, "argv", []))
        self.filters = _filters()
        self.levels = levels()
        self.recursion = sys.getrecursionlimit()
        self.decimal = sys.modules["decimal"].getcontext().copy() if "decimal" in sys.modules else None
        numpy = sys.modules.get("numpy")
        self.numpy = numpy.geterr() if numpy is not None else None

    def apply(self) -> None:
        """Makes this process like the one that made the object."""
        sys.setrecursionlimit(self.recursion)
        set_levels(self.levels)
        if self.numpy is not None:
            import numpy

            numpy.seterr(**self.numpy)
        if platform.node() != self.machine or _worker.is_remote:
            return
        if os.getcwd() != self.folder and os.path.isdir(self.folder):
            os.chdir(self.folder)
        own = _worker.own_variables
        for name in [n for n in os.environ if n not in self.environment and n not in own]:
            del os.environ[name]
        for name, value in self.environment.items():
            if name not in own and os.environ.get(name) != value:
                os.environ[name] = value
        known = set(sys.path)
        sys.path += [p for p in self.search if p not in known]
        sys.argv = list(self.arguments)

    def enter_decimal(self) -> None:
        if self.decimal is not None:
            import decimal

            decimal.setcontext(self.decimal.copy())


def _library_state() -> Tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    decimal = sys.modules.get("decimal")
    return (
        tuple(sorted(numpy.geterr().items())) if numpy is not None else None,
        repr(decimal.getcontext()) if decimal is not None else None,
        os.getcwd(), threading.active_count(),
    )


@contextlib.contextmanager
def watched(note: Note, filters: List[Any], guard: bool) -> Iterator[None]:
    """Sends output, warnings and log records of this thread to `note`; stops what must not happen."""
    real = sys.stdout, sys.stderr, sys.stdin
    handle = logging.Logger.handle
    owner = threading.get_ident()

    def record_log(logger: logging.Logger, record: logging.LogRecord) -> None:
        if threading.get_ident() != owner:
            handle(logger, record)
            return
        if record.exc_info:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
            record.exc_info = None
        note(LOG, (logger.name, record))

    def record_warning(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
        note(WARNING, (message, category, filename, lineno))

    before = _library_state()
    GUARD.complaint = None
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.filters.extend(filters)
        warnings.simplefilter("always", append=True)
        warnings.showwarning = record_warning
        sys.stdout = _Stream("stdout", note, real[0])
        sys.stderr = _Stream("stderr", note, real[1])
        sys.stdin = _Input()
        logging.Logger.handle = record_log
        GUARD.active = guard
        try:
            yield
        finally:
            GUARD.active = False
            logging.Logger.handle = handle
            sys.stdout, sys.stderr, sys.stdin = real
    if GUARD.complaint:
        raise GaveUp(GUARD.complaint)
    after = _library_state()
    # A library that the iteration itself has imported had no settings before.
    if any(old is not None and new != old for old, new in zip(before[:3], after[:3])):
        raise GaveUp("it changes the settings of numpy, decimal or the process")


@contextlib.contextmanager
def overheard(note: Note) -> Iterator[None]:
    """Sends what this thread prints to `note`, and nothing else."""
    real = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Stream("stdout", note, real[0]), _Stream("stderr", note, real[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = real


def replay(site: int, values: Tuple[Any, ...], home: Dict[str, Any]) -> None:
    """Does at home what an iteration did in a worker."""
    if site == OUTPUT:
        stream = getattr(sys, values[0])
        if stream is None:
            return
        if values[1] is None:
            stream.flush()
        else:
            stream.write(values[1])
    elif site == WARNING:
        message, category, filename, lineno = values
        scope = home if _file_of(home) == filename else _scope_of(filename)
        warnings.warn_explicit(
            message, category, filename, lineno, module=scope.get("__name__", "<unknown>"),
            registry=scope.setdefault("__warningregistry__", {}),
        )
    elif site == LOG:
        name, record = values
        record.process = os.getpid()
        record.thread = threading.get_ident()
        record.threadName = threading.current_thread().name
        record.processName = "MainProcess"
        logging.getLogger(name).handle(record) if name != "root" else logging.root.handle(record)


def _file_of(scope: Dict[str, Any]) -> Optional[str]:
    return scope.get("__file__")


def _scope_of(filename: str) -> Dict[str, Any]:
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == filename:
            return vars(module)
    return {}
