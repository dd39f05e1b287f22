"""Parts of a run as tasks of another system, such as Dask or Ray, in that system's own processes."""

from __future__ import annotations

import os
import pickle
import threading

import evener._worker as worker_state

from . import frames, stream
from . import main as worker_main

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

_lock = threading.Lock()
_runners: Dict[str, "Runner"] = {}
#: Jobs whose functions are kept.
MOST_KEPT = 4


class Runner(worker_main.Worker):
    """A worker that keeps what it would send."""

    def __init__(self) -> None:
        from evener._evener import Claims

        from .shared_files import new_file

        file = new_file()
        try:
            os.truncate(file, 4096)
            super().__init__(None, Claims(file))
        finally:
            os.close(file)
        self.sent: List[Tuple[Any, ...]] = []

    def send(self, kind: int, job: int, body: bytes = b"", buffers: Any = ()) -> None:
        """Keeps a frame for the result of the task."""
        self.sent.append((kind, 0, job, body, list(buffers)))

    def load(self, payload: Dict[str, Any]) -> None:
        """Loads a job's function, and the values of `evener.put` that it may use."""
        for number, parts in payload["values"].items():
            self._load_value(frames.Frame(frames.VALUE, number, b"", [memoryview(part) for part in parts]))
        buffers = [memoryview(part) for part in payload["buffers"]]
        self._load_function(frames.Frame(frames.FUNCTION, payload["job"], payload["body"], buffers))

    def run(self, job: int, count: int, body: Any, buffers: Any) -> bytes:
        """Runs a part of so many items. Returns the frames that a worker would have sent."""
        self.sent = []
        self._claims.begin(count)
        self._run_chunk(frames.Frame(frames.CHUNK, job, body, buffers))
        return stream.pack_frames(self.sent)


def run_part(function: bytes, part: bytes) -> bytes:
    """Runs a part of a job. Both arguments are pickles of the process that drives the job; the result is signed."""
    from evener._remote.signing import sign

    header, body, *buffers = pickle.loads(part)
    with _lock:
        payload = None
        runner = _runners.get(header["token"])
        if runner is None:
            payload = pickle.loads(function)
            if payload["process"] == _this_process():
                raise RuntimeError("the workers of this cluster are threads of the calling process: use processes")
            runner = Runner()
            worker_state.is_worker, worker_state.is_remote = True, True
            for entry in payload["path"]:
                import sys

                if entry not in sys.path:
                    sys.path.append(entry)
            worker_main.this = runner
            runner.load(payload)
            _runners[header["token"]] = runner
            while len(_runners) > MOST_KEPT:
                del _runners[next(iter(_runners))]
        worker_main.this = runner
        data = runner.run(header["job"], header["count"], body, [memoryview(part) for part in buffers])
    return sign(header["key"], header["part"], data)


def _this_process() -> str:
    from evener.loops.body import this_process

    return this_process()
