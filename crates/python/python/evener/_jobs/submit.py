"""Submitting a call as a job: its folder, and its process."""

from __future__ import annotations

import io
import os
import pickle
import socket
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Tuple

from .. import _worker, configuration, randomness
from ..errors import PicklingError
from . import store
from .handle import Job

__all__ = ["submit", "submit_call"]

#: What a job's process runs first. It leaves its parent at once, so that it does not end with it and nobody waits for it.
_PROGRAM = (
    "import os, sys\n"
    "if os.fork(): os._exit(0)\n"
    "os.setsid()\n"
    "sys.path.insert(0, sys.argv.pop(1))\n"
    "from evener._jobs.process import main\n"
    "main(sys.argv.pop(1), sys.argv.pop(1), int(sys.argv.pop(1)))"
)


def submit(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Job:
    """Runs a function in a process of its own, which outlives this one. Returns the job.

    The function and its arguments are pickled now. The job has this process's environment, working folder, `evener.configure`
    settings and the state of its random generators.
    """
    if not callable(function):
        raise TypeError("evener.submit needs a function, not %s" % type(function).__name__)
    return submit_call(function, args, kwargs)


def submit_call(function: Any, args: Tuple[Any, ...], kwargs: Mapping[str, Any]) -> Job:
    """Submits a call."""
    if _worker.is_worker:
        raise RuntimeError("a worker cannot submit jobs: submit them in the process that uses workers")
    if not sys.executable:
        raise OSError("it is unknown where the Python interpreter is (sys.executable is empty)")
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    data = _pickled(function, args, kwargs, name)
    store.prune_sometimes()
    folder = store.new_folder()
    try:
        folder.write_json("record.json", _record(name))
        folder.seal("call", data)
        lock = folder.take_lock()
        try:
            log = os.open(folder.file("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                folder.publish()
                _start(folder, lock, log)
            finally:
                os.close(log)
        finally:
            # The job's process has a copy, which holds the lock until it ends.
            os.close(lock)
    except BaseException:
        folder.discard()
        raise
    return Job(folder)


def _record(name: str) -> Dict[str, Any]:
    return {
        "label": name,
        "submitted": time.time(),
        "host": socket.gethostname(),
        "submitter": os.getpid(),
        "folder": _folder(),
        "python": sys.version.split()[0],
    }


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"


def _pickled(function: Any, args: Tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> bytes:
    """The call, and in front of it what must be there before it can be unpickled."""
    import cloudpickle

    folder = _folder()
    sources = randomness.global_sources()
    before = {
        "path": [entry if entry else folder for entry in sys.path],
        "argv": list(sys.argv),
        "configured": configuration.configured(),
    }
    states = [_state_for_job(source) for source in sources]
    file = io.BytesIO()
    pickle.dump(before, file, 4)
    program = sys.modules.get("__mp_main__")
    if program is not None and program.__name__ == "__mp_main__":
        cloudpickle.register_pickle_by_value(program)
    try:
        # Not the pickler of workers: a job cannot map the memory of `evener.put`.
        cloudpickle.Pickler(file, 5).dump((function, args, dict(kwargs), states))
    except Exception as error:
        raise PicklingError("the call of %s cannot be sent to a job: %s" % (name, error)) from error
    return file.getvalue()


#: How many jobs have been given a state of a random generator, by its digest.
_given: Dict[bytes, int] = {}


def _state_for_job(source: randomness.Source) -> Tuple[Any, bool, Any]:
    """A generator's name, and the state or the seed that it has in the job.

    The first job after a seed draws what a call in this process would. Nothing is drawn here, so the next one would draw the
    same: it gets a stream of its own, made from the state and its number.
    """
    state = source.state()
    digest = randomness.digest(state)
    number = _given[digest] = _given.get(digest, -1) + 1
    return (source.name, False, state) if number == 0 else (source.name, True, randomness.words(digest, number))


def _start(folder: store.Folder, lock: int, log: int) -> None:
    package = os.path.dirname(os.path.dirname(os.path.abspath(_worker.__file__)))
    import subprocess

    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    arguments: List[str] = [sys.executable, *flags, "-c", _PROGRAM, os.path.dirname(package)]
    held = os.dup(lock)
    try:
        process = subprocess.Popen(
            [*arguments, os.path.dirname(os.path.dirname(folder.path)), folder.id, str(held)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(held,),
            start_new_session=True,
        )
    finally:
        os.close(held)
    # It ends as soon as it has forked.
    threading.Thread(target=process.wait, name="evener-submitted", daemon=True).start()
