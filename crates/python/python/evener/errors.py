"""The exceptions of this package."""

from __future__ import annotations

import pickle
from concurrent.futures.process import BrokenProcessPool

from ._worker.failures import RemoteError

__all__ = ["NotLoadable", "PicklingError", "RemoteError", "WorkerDied"]


class WorkerDied(BrokenProcessPool):
    """The worker of an item was killed, or crashed, more often than `retries` allows; or no worker could be started."""


class PicklingError(pickle.PicklingError):
    """A function, an item or a result cannot be sent to another process. The message says which, and why."""


class NotLoadable(RuntimeError):
    """A worker could not load the function, or its initializer failed there. The cause is the worker's exception."""
