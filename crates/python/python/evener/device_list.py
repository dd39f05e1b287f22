"""The devices of this machine, and the one that a worker has."""

from __future__ import annotations

import json
from typing import Any, Dict, List

from . import _evener, _worker


def device() -> str:
    """The device of this worker, as PyTorch and others name it: `cuda:0` in a worker that has a GPU, and otherwise `cpu`."""
    return _worker.device


def devices() -> List[Dict[str, Any]]:
    """The devices of this machine: id, name, kind, API, memory and more of each."""
    return json.loads(_evener.devices())["devices"]  # type: ignore[no-any-return]
