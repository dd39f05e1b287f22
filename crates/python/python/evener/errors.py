"""The exceptions of this package."""

from __future__ import annotations

import pickle

from ._worker.failures import RemoteError

__all__ = ["HostError", "NotLoadable", "PicklingError", "RemoteError"]


class PicklingError(pickle.PicklingError):
    """A function, an item or a result cannot be sent to another process. The message says which, and why."""


class HostError(ConnectionError):
    """A host, or a cluster, cannot be used. The message says which, why, and what to do."""


class NotLoadable(RuntimeError):
    """A worker could not load the function, or its initializer failed there. The cause is the worker's exception."""
