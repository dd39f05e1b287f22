"""The error of an item whose worker died. In a file of its own, since its base takes long to import and is rarely needed."""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool

__all__ = ["WorkerDied"]


class WorkerDied(BrokenProcessPool):
    """The worker of an item was killed, or crashed, more often than `retries` allows; or no worker could be started."""
