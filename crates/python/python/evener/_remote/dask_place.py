"""The workers of a Dask cluster, used through the user's own client."""

from __future__ import annotations

from typing import Any, Callable, List, Tuple

from .._schedule.driver import Lane
from .._worker.tasks import run_part
from ..errors import HostError
from ..places import Dask
from .tasks import System, TaskLink, TaskSlot

#: A function of fewer bytes goes with each of its parts.
SMALL = 1 << 16


class DaskSystem(System):
    """A Dask cluster."""

    name = "Dask"

    def __init__(self, client: Any) -> None:
        self._client = client

    def workers(self) -> List[str]:
        # Not the client's own copy, which is seconds old.
        async def identity() -> Any:
            try:
                return await self._client.scheduler.identity(n_workers=-1)
            except TypeError:
                return await self._client.scheduler.identity()

        return list(self._client.sync(identity)["workers"])

    def share(self, worker: str, payload: bytes) -> Any:
        if len(payload) < SMALL:
            return payload
        # A copy for each worker: one that has died must not be the only one that had it.
        return self._client.scatter(payload, workers=[worker], hash=False, timeout=60)

    def submit(self, worker: str, function: Any, part: bytes, done: Callable[[Any], None]) -> Any:
        # A task that Dask would run again by itself could run twice.
        future = self._client.submit(
            run_part, function, part, workers=[worker], allow_other_workers=False, pure=False, retries=0
        )

        def ended(future: Any) -> None:
            try:
                if future.status == "finished":
                    done(future.result())
                elif future.status == "error":
                    done(_readable(future.exception()))
                else:
                    done(RuntimeError("Dask has %s it" % ("cancelled" if future.status == "cancelled" else "lost")))
            except BaseException as error:
                done(error if isinstance(error, Exception) else RuntimeError(str(error)))

        future.add_done_callback(ended)
        return future

    def cancel(self, task: Any) -> None:
        try:
            task.cancel(force=True)
        except Exception:
            # The client may be closed.
            pass

    def end_worker(self, worker: str) -> None:
        try:
            self._client.restart_workers([worker], raise_for_error=False)
        except Exception:
            # It may have ended, or have no nanny that starts it again.
            pass


def _readable(error: BaseException) -> BaseException:
    if isinstance(error, ModuleNotFoundError) and "evener" in str(error):
        return HostError("the workers of this Dask cluster have no evener: install it in their environment")
    return error


def dask_lanes(place: Dask) -> Tuple[TaskLink, List[Lane]]:
    """A lane for each worker of a Dask cluster."""
    try:
        import distributed
    except ImportError:
        raise HostError("evener.dask needs Dask: pip install distributed") from None
    client = place.client
    if client is None:
        try:
            client = distributed.get_client()
        except ValueError:
            text = "evener.dask() needs a client: evener.dask(distributed.Client(...))"
            raise HostError(text) from None
    if not isinstance(client, distributed.Client):
        raise TypeError("evener.dask needs a distributed.Client, not %s" % type(client).__name__)
    if client.asynchronous:
        raise TypeError("evener.dask needs a client that is not asynchronous")
    link = TaskLink(DaskSystem(client))
    if not link.count:
        raise HostError("the Dask cluster at %s has no worker" % client.scheduler.address)
    return link, [Lane("dask", {}, TaskSlot(link)) for _ in range(link.count)]
