"""A Ray cluster: actors of Evener's own, each with one CPU, whose calls are parts of a run."""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, List, Optional, Tuple

from .._schedule.driver import Lane
from ..errors import HostError
from ..places import Ray
from .tasks import System, TaskLink, TaskSlot


class Actor:
    """Runs parts, in a process of Ray's."""

    def run(self, function: bytes, part: bytes) -> bytes:
        """Runs a part."""
        from evener._worker.tasks import run_part

        return run_part(function, part)

    def process(self) -> int:
        """The number of the process."""
        import os

        return os.getpid()


class RaySystem(System):
    """A Ray cluster."""

    name = "Ray"

    def __init__(self, ray: Any, count: int) -> None:
        self._ray = ray
        self._class = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(Actor)
        self._count = count
        self._number = 0
        self._lock = threading.Lock()
        self._actors: Dict[str, Any] = {}
        self._is_closed = False
        #: Pools that use the actors.
        self._users = 0
        #: The last value that was shared, which all nodes can have.
        self._shared: Any = None

    def workers(self) -> List[str]:
        with self._lock:
            while len(self._actors) < self._count and not self._is_closed:
                self._number += 1
                self._actors["actor %d" % self._number] = self._class.remote()
            return list(self._actors)

    def share(self, worker: str, payload: bytes) -> Any:
        if self._shared is None or self._shared[0] is not payload:
            self._shared = (payload, self._ray.put(payload))
        return self._shared[1]

    def submit(self, worker: str, function: Any, part: bytes, done: Callable[[Any], None]) -> Any:
        with self._lock:
            actor = self._actors[worker]

        def ended(outcome: Any) -> None:
            if isinstance(outcome, self._ray.exceptions.RayActorError):
                with self._lock:
                    self._actors.pop(worker, None)
            done(_readable(outcome))

        task = actor.run.remote(function, part)

        def ready(future: Any) -> None:
            try:
                outcome = future.result()
            except BaseException as error:
                outcome = error if isinstance(error, Exception) else RuntimeError(str(error))
            ended(outcome)

        task.future().add_done_callback(ready)
        return task

    def end_worker(self, worker: str) -> None:
        with self._lock:
            actor = self._actors.pop(worker, None)
        if actor is not None:
            self._ray.kill(actor)

    @property
    def is_closed(self) -> bool:
        """Whether its actors are gone."""
        return self._is_closed or not self._ray.is_initialized()

    def use(self, count: int) -> None:
        """A pool begins to use so many actors."""
        with self._lock:
            self._users += 1
            self._count = max(self._count, count)

    def close(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users > 0:
                return
        self._is_closed = True
        with self._lock:
            actors, self._actors = list(self._actors.values()), {}
        for actor in actors:
            try:
                self._ray.kill(actor)
            except Exception:
                # Ray may have been shut down.
                pass


def _readable(outcome: Any) -> Any:
    if isinstance(outcome, Exception) and "No module named 'evener'" in str(outcome):
        return HostError("the nodes of this Ray cluster have no evener: install it there, or name it in runtime_env")
    return outcome


_lock = threading.Lock()
_system: Optional[RaySystem] = None


def _shared_system(ray: Any, count: int) -> RaySystem:
    """The actors of this process. All its pools use the same, since each has a CPU of the cluster."""
    global _system
    with _lock:
        if _system is None or _system.is_closed:
            _system = RaySystem(ray, count)
        _system.use(count)
        return _system


def ray_lanes(place: Ray) -> Tuple[TaskLink, List[Lane]]:
    """A lane for each CPU of a Ray cluster, or for as many as were asked for."""
    try:
        import ray
    except ImportError:
        raise HostError("evener.ray needs Ray: pip install ray") from None
    if not ray.is_initialized():
        ray.init(address=place.address, log_to_driver=False, configure_logging=False)
    cpus = int(ray.cluster_resources().get("CPU", 0))
    count = place.workers or cpus
    if count < 1:
        raise HostError("the Ray cluster has no CPU")
    if count > cpus:
        raise HostError("evener.ray(workers=%d): the Ray cluster has %d CPUs" % (count, cpus))
    link = TaskLink(_shared_system(ray, count))
    return link, [Lane("ray", {}, TaskSlot(link)) for _ in range(count)]
