"""The process of a job: runs one call, and leaves its result."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import threading
import time
from typing import Any, Dict

from .store import Folder


class _Cancelled(KeyboardInterrupt):
    """The job was asked to end: as by Ctrl-C, its workers are killed."""


def main(base: str, id: str, lock: int) -> None:
    """Runs a job."""
    # Forked processes of the job's own code must not hold the lock after its end.
    os.set_inheritable(lock, False)
    os.register_at_fork(after_in_child=lambda: _close(lock))
    folder = Folder(base, id)
    state: Dict[str, Any] = {"status": "running", "process": os.getpid(), "started": time.time()}
    signal.signal(signal.SIGTERM, _on_cancel)
    try:
        folder.write_json("state.json", state)
        threading.Thread(target=_watch_for_cancel, args=(folder,), name="evener-cancel", daemon=True).start()
        if os.path.exists(folder.file("cancel")):
            raise _Cancelled
        status = _run(folder)
    except _Cancelled:
        status = "cancelled"
    except BaseException:
        # Of the machinery, not of the job's function.
        import traceback

        traceback.print_exc()
        status = "died"
    # From here on it is too late.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Nothing of it runs any more when others see that it has ended.
    workers = sys.modules.get("evener._schedule.default")
    if workers is not None:
        workers.shut_down()
    _flush()
    folder.write_json("state.json", {**state, "status": status, "ended": time.time()})


def _on_cancel(number: int, frame: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Cancelled


def _watch_for_cancel(folder: Folder) -> None:
    """Ends the job when it is cancelled on another machine that shares the folder."""
    while not os.path.exists(folder.file("cancel")):
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)


def _close(lock: int) -> None:
    try:
        os.close(lock)
    except OSError:
        pass


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            # The job's code may have closed it.
            pass


def _run(folder: Folder) -> str:
    """Runs the call and seals what came of it. Returns the state of the job."""
    import io

    data = io.BytesIO(folder.open_sealed("call"))
    before = pickle.load(data)
    sys.path[:] = before["path"]
    sys.argv[:] = before["argv"]
    from .. import configuration

    configuration.restore(before["configured"])
    _log_to_standard_error()
    threading.current_thread().name = "evener-job"
    import cloudpickle

    from .._worker.failures import pack

    try:
        function, args, kwargs, states = pickle.load(data)
        _set_random_states(states)
        value = function(*args, **kwargs)
        sealed, status = _packed(value), "done"
    except _Cancelled:
        raise
    except BaseException as error:
        import traceback

        # This function's own frame is nobody's business.
        error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ is not None else None
        traceback.print_exception(type(error), error, error.__traceback__)
        sealed, status = pickle.dumps(("error", pack(error, 0, cloudpickle.dumps, pickle.loads)), 4), "failed"
    folder.seal("result", sealed, durable=True)
    return status


def _packed(value: Any) -> bytes:
    import cloudpickle

    try:
        return cloudpickle.dumps(("value", value), 5)  # type: ignore[no-any-return]
    except Exception as error:
        from ..errors import PicklingError

        kind = type(value)
        text = "the job's result cannot be kept: a value of type %s.%s cannot be pickled: %s"
        raise PicklingError(text % (kind.__module__, kind.__qualname__, error)) from error


def _set_random_states(states: Any) -> None:
    from .. import randomness

    for name, is_seed, value in states:
        if name == ("torch",):
            import torch  # noqa: F401
        source = randomness.resolve([name], {})[0]
        if is_seed:
            source.seed(value)
        else:
            source.restore(value)


def _log_to_standard_error() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    logger = logging.getLogger("evener")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


