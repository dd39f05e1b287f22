"""Evener's workers for joblib: `with joblib.parallel_config(backend="evener")`.

Importing `evener` is enough: the backend is registered when joblib is imported, before or after.
"""

from __future__ import annotations

import threading
from typing import Any, Dict, Optional, Tuple

NAME = "evener"


def register() -> None:
    """Registers the backend."""
    from joblib import register_parallel_backend

    def make(**options: Any) -> Any:
        return backend_class()(**options)

    register_parallel_backend(NAME, make)


_lock = threading.Lock()
#: Pools by number of workers and environment: kept for the next call, as all of this package's workers are.
_pools: Dict[Tuple[Any, ...], Any] = {}


def _pool(workers: int, environment: Dict[str, str]) -> Any:
    import os

    from .pool import Pool

    key = (os.getpid(), workers, tuple(sorted(environment.items())))
    with _lock:
        pool = _pools.get(key)
        if pool is None or pool.is_shut_down:
            pool = _pools[key] = Pool(workers, environment=environment)
        return pool


_class: Any = None


def backend_class() -> Any:
    """The backend's class. It is made when joblib is there."""
    global _class
    if _class is None:
        _class = _make_class()
    return _class


def _make_class() -> Any:
    from joblib._parallel_backends import AutoBatchingMixin, FallbackToBackend, SequentialBackend
    from joblib.parallel import ParallelBackendBase

    from . import _worker
    from ._schedule.cores import usable_cores

    class EvenerBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
        """Runs joblib's batches by Evener's workers."""

        supports_retrieve_callback = True
        supports_inner_max_num_threads = True
        default_n_jobs = -1

        _futures: "set[Any]"

        def effective_n_jobs(self, n_jobs: Optional[int]) -> int:
            """How many workers a number of jobs stands for."""
            if n_jobs == 0:
                raise ValueError("n_jobs == 0 in Parallel has no meaning")
            if n_jobs is None or _worker.is_worker:
                return 1
            return n_jobs if n_jobs > 0 else max(usable_cores() + 1 + n_jobs, 1)

        def configure(
            self, n_jobs: int = 1, parallel: Any = None, prefer: Any = None, require: Any = None, **options: Any
        ) -> int:
            """Prepares a call."""
            n_jobs = self.effective_n_jobs(n_jobs)
            if n_jobs == 1:
                raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
            self.parallel = parallel
            self._futures = set()
            self._pool = _pool(n_jobs, self._prepare_worker_env(n_jobs=n_jobs))
            return n_jobs

        def submit(self, func: Any, callback: Any = None) -> Any:
            """Runs a batch."""
            future = self._pool.submit(func)
            self._futures.add(future)
            future.add_done_callback(self._futures.discard)
            if callback is not None:
                future.add_done_callback(callback)
            return future

        def retrieve_result_callback(self, out: Any) -> Any:
            """The results of a batch."""
            return out.result()

        def abort_everything(self, ensure_ready: bool = True) -> None:
            """Cancels what has not begun, and ends the workers of what has."""
            self._pool.cancel(list(self._futures))

        def terminate(self) -> None:
            """Ends a call. The workers stay warm."""
            self._futures = set()
            self.reset_batch_stats()

        def get_nested_backend(self) -> Any:
            """What a call of joblib within a worker uses."""
            return SequentialBackend(nesting_level=(self.nesting_level or 0) + 1), None

        def __reduce__(self) -> Any:
            # Batches carry their backend. A worker runs nested calls one after another.
            return SequentialBackend, ((self.nesting_level or 0) + 1,)

    return EvenerBackend
