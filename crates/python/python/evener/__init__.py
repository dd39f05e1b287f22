"""Evener: spreads loops over the cores, GPUs and machines there are, and returns what the plain loop would have returned."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List

#: Where each public name is. They are imported when they are first used, so that worker processes start fast.
_HOMES = {
    "parallel": "decorator",
    "explain": "loops.explain",
    "explain_file": "loops.explain",
    "NotParallel": "loops.reasons",
    "map": "mapping",
    "put": "_schedule.kept_values",
    "Pool": "pool",
    "HostError": "errors",
    "Place": "places",
    "cluster": "places",
    "dask": "places",
    "local": "places",
    "ray": "places",
    "slurm": "places",
    "ssh": "places",
    "shut_down": "_schedule.default",
    "submit": "_jobs.submit",
    "job": "_jobs.handle",
    "jobs": "_jobs.handle",
    "Job": "_jobs.handle",
    "JobCancelled": "_jobs.handle",
    "JobDied": "_jobs.handle",
    "NoSuchJob": "_jobs.store",
    "BadSignature": "_jobs.sealed",
    "configure": "configuration",
    "config": "configuration",
    "Config": "configuration",
    "ConfigError": "configuration",
    "device": "device_list",
    "devices": "device_list",
    "Device": "device_list",
    "Kernel": "kernels",
    "merkle_root": "merkle",
    "MerkleTree": "merkle",
    "InclusionProof": "merkle",
    "Prover": "groth16",
    "Groth16Proof": "groth16",
    "verify": "groth16",
    "DeviceError": "_evener",
    "NoDevice": "_evener",
    "KernelError": "_evener",
    "InvalidProof": "_evener",
    "last_run": "report",
    "LastRun": "report",
    "NotLoadable": "errors",
    "PicklingError": "errors",
    "RemoteError": "errors",
    "WorkerDied": "worker_died",
}

__all__ = [
    "BadSignature",
    "Config",
    "ConfigError",
    "Device",
    "DeviceError",
    "Groth16Proof",
    "HostError",
    "InclusionProof",
    "InvalidProof",
    "Job",
    "JobCancelled",
    "JobDied",
    "Kernel",
    "KernelError",
    "LastRun",
    "MerkleTree",
    "NoDevice",
    "NoSuchJob",
    "NotLoadable",
    "NotParallel",
    "PicklingError",
    "Place",
    "Pool",
    "Prover",
    "RemoteError",
    "WorkerDied",
    "cluster",
    "config",
    "configure",
    "dask",
    "device",
    "devices",
    "explain",
    "explain_file",
    "job",
    "jobs",
    "last_run",
    "local",
    "map",
    "merkle_root",
    "parallel",
    "put",
    "ray",
    "shut_down",
    "slurm",
    "ssh",
    "submit",
    "verify",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError("module 'evener' has no attribute %r" % name)
    import importlib

    module = importlib.import_module("." + home, __name__)
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted(set(globals()) | set(_HOMES))


if TYPE_CHECKING:
    from ._jobs.handle import Job, JobCancelled, JobDied, job, jobs
    from ._jobs.sealed import BadSignature
    from ._jobs.store import NoSuchJob
    from ._jobs.submit import submit
    from ._evener import DeviceError, InvalidProof, KernelError, NoDevice
    from ._schedule.default import shut_down
    from ._schedule.kept_values import put
    from .configuration import Config, ConfigError, config, configure
    from .decorator import parallel
    from .device_list import Device, device, devices
    from .errors import HostError, NotLoadable, PicklingError, RemoteError
    from .groth16 import Groth16Proof, Prover, verify
    from .kernels import Kernel
    from .loops.explain import explain, explain_file
    from .loops.reasons import NotParallel
    from .mapping import map
    from .merkle import InclusionProof, MerkleTree, merkle_root
    from .places import Place, cluster, dask, local, ray, slurm, ssh
    from .pool import Pool
    from .report import LastRun, last_run
    from .worker_died import WorkerDied


if not hasattr(sys, "_evener_worker"):
    from . import _joblib_import

    _joblib_import.register_now_or_later()
