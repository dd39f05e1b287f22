"""The devices of this machine, and the one that a worker has."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from . import _evener, _worker

__all__ = ["Device", "device", "devices"]


@dataclass(frozen=True)
class Device:
    """A compute device. `None` stands for what nothing on this machine reports."""

    #: Its id on this machine: `cuda:0`, `vulkan:0`, `cpu`.
    id: str
    #: The name that its vendor gave it.
    name: str
    #: `discrete`, `integrated`, `virtual`, `software` or `cpu`.
    kind: str
    #: The API that drives it: `cuda`, `vulkan`, `metal`, `dx12`, `gl` or `cpu`.
    api: str
    #: Its memory in bytes.
    memory: Optional[int]
    #: The free part of it in bytes, when it was asked for.
    memory_free: Optional[int]
    #: Its use by all programs, from 0 to 1, when it was asked for.
    utilization: Optional[float]
    #: Multiprocessors of an NVIDIA GPU, compute units of an AMD one, logical cores of a processor.
    compute_units: Optional[int]
    #: The driver's name and version.
    driver: str
    #: All that is known about it, by the names of `evener devices --json`.
    details: Dict[str, Any] = field(repr=False, compare=False)

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.kind in ("discrete", "integrated", "virtual")

    def __getitem__(self, name: str) -> Any:
        """A detail by its name."""
        return self.details[name]


def device() -> str:
    """The device of this worker, as PyTorch and others name it: `cuda:0` in a worker that has a GPU, and otherwise `cpu`."""
    return _worker.device


def devices(utilization: bool = False) -> List[Device]:
    """The devices of this machine. With `utilization`, takes a fifth of a second more, in which their use is measured."""
    return [_device(found) for found in json.loads(_evener.devices(utilization))["devices"]]


def _device(found: Dict[str, Any]) -> Device:
    now = found["telemetry"]
    return Device(
        found["id"], found["name"], found["kind"], found["api"], found["memory_bytes"], now["memory_free_bytes"],
        now["utilization"], found["compute_units"], found["driver"], found,
    )
