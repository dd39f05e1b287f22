"""Places where workers run: this machine, hosts that `ssh` reaches, nodes of a SLURM cluster, and workers of Dask and Ray.

A place is a value. It is given as `where=`, alone or in a list: `where=[evener.local(), evener.ssh("gpu-box")]` is one pool of
unlike workers. Nothing is started before it is used.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

__all__ = ["Place", "cluster", "dask", "local", "ray", "slurm", "ssh"]


class Place:
    """Where workers run. Made by `evener.local`, `ssh`, `slurm`, `dask` and `ray`."""


@dataclass(frozen=True)
class Local(Place):
    """Worker processes of this machine."""

    workers: Optional[int] = None
    devices: Tuple[str, ...] = ("cpu",)


@dataclass(frozen=True)
class Ssh(Place):
    """Machines that `ssh` reaches."""

    hosts: Tuple[str, ...]
    workers: Optional[int] = None
    devices: Tuple[str, ...] = ("cpu",)
    per_gpu: int = 1
    environment: Any = None
    options: Tuple[str, ...] = ()
    setup: Tuple[str, ...] = ()
    timeout: Optional[float] = None


@dataclass(frozen=True)
class Slurm(Place):
    """Nodes of a SLURM cluster."""

    request: Tuple[Tuple[str, str], ...]
    name: str = "slurm"
    workers: Optional[int] = None
    per_gpu: int = 1
    environment: Any = None
    options: Tuple[str, ...] = ()
    setup: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Dask(Place):
    """The workers of a Dask cluster."""

    client: Any = None


@dataclass(frozen=True)
class Ray(Place):
    """The nodes of a Ray cluster."""

    address: Optional[str] = None
    workers: Optional[int] = None


def local(workers: Optional[int] = None, *, devices: Union[str, Sequence[str]] = "cpu") -> Local:
    """This machine: `workers` processes, by default one a core; with `devices`, one for each GPU that it names."""
    _check_count("workers", workers)
    return Local(workers, _names(devices))


def ssh(
    *hosts: str,
    workers: Optional[int] = None,
    devices: Union[str, Sequence[str]] = "cpu",
    per_gpu: int = 1,
    environment: Any = None,
    options: Sequence[str] = (),
    setup: Sequence[str] = (),
    timeout: Optional[float] = None,
) -> Ssh:
    """Machines that `ssh` reaches, such as `"gpu-box"`, `"alice@lab3:2222"` or a name of `hosts.toml`.

    On each, `workers` processes run, by default one a core. `devices="gpu"` runs one a GPU instead, which sees only its own,
    and `"all"` both; `per_gpu` is the number of processes for each GPU. `options` are further arguments of `ssh`, `setup` are
    lines that the shell there runs first, and `timeout` is how many seconds a machine has to answer.

    `environment` says what they run in: by default a virtual environment that is made there, once, with the exact versions of
    what the code imports here. `"same"` is for machines that share this file system. Otherwise it is the folder of a virtual
    environment there, `"conda:NAME"`, `"container:IMAGE"`, or a list of lines such as `["module load python/3.11"]`.
    """
    if not hosts:
        raise TypeError("evener.ssh needs the name of at least one host")
    for host in hosts:
        if not isinstance(host, str):
            raise TypeError("evener.ssh needs names of hosts, not %s" % type(host).__name__)
    _check_count("workers", workers)
    _check_count("per_gpu", per_gpu)
    return Ssh(tuple(hosts), workers, _names(devices), per_gpu, _frozen(environment), tuple(options), tuple(setup), timeout)


#: What a SLURM request can have, with the words of other programs that mean the same.
_SLURM_WORDS = {
    "nodes": ("num_nodes", "n_nodes"),
    "gpus": ("gpus_per_node", "n_gpus", "num_gpus", "gpu"),
    "cores": ("cpus", "cpus_per_task", "cpus_per_node", "n_cores", "num_cores", "ncpus"),
    "memory": ("mem", "mem_per_node", "slurm_mem"),
    "time": ("walltime", "time_limit", "slurm_time"),
    "partition": ("queue", "slurm_partition"),
    "account": ("project", "slurm_account"),
    "qos": ("slurm_qos",),
    "exclusive": (),
    "wait": (),
}
_SLURM_OTHERS = ("name", "workers", "per_gpu", "environment", "options", "setup")
_ALIASES = {alias: word for word, aliases in _SLURM_WORDS.items() for alias in aliases}


def slurm(**request: Any) -> Slurm:
    """Nodes of a SLURM cluster: `evener.slurm(nodes=4, gpus=2, cores=16, memory="64GB", time="1:00:00", partition="gpu")`.

    Numbers are those of each node. Nodes are asked for when they are first needed, each with a job of its own; they are used as
    they come, and given back at the end, also if this process is killed. Inside an allocation, its nodes are used. One worker
    runs for each GPU, which sees only its own, or else one for each core; `workers` is another number for each node.

    Also: `account`, `qos`, `exclusive=True`, `wait` (seconds to wait for the first node before other workers begin), `options`
    (further arguments of `srun`), `setup`, `per_gpu` and `environment`, as `evener.ssh` has them.
    """
    return _slurm(request, "evener.slurm", ())


def _slurm(given: Dict[str, Any], who: str, also: Iterable[str]) -> Slurm:
    words: Dict[str, str] = {}
    rest: Dict[str, Any] = {}
    for name, value in given.items():
        word = _ALIASES.get(name, name)
        if word in _SLURM_WORDS:
            if word in words:
                raise TypeError("%s: %s is given twice" % (who, word))
            if value is not None:
                words[word] = _setting(who, word, value)
        elif word in _SLURM_OTHERS:
            rest[word] = value
        else:
            raise _unknown(who, name, [*_SLURM_WORDS, *_SLURM_OTHERS, *_ALIASES, *also])
    _check_count("workers", rest.get("workers"))
    _check_count("per_gpu", rest.get("per_gpu", 1))
    return Slurm(
        tuple(sorted(words.items())), rest.get("name", "slurm"), rest.get("workers"), rest.get("per_gpu", 1),
        _frozen(rest.get("environment")), tuple(rest.get("options", ())), tuple(rest.get("setup", ())),
    )


def _setting(who: str, word: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if word == "memory" and isinstance(value, (int, float)):
        raise TypeError("%s: memory=%r has no unit: write it as \"64GB\"" % (who, value))
    text = str(value)
    if "," in text or "\n" in text:
        raise ValueError("%s: %s=%r: it has no comma" % (who, word, value))
    return text


def dask(client: Any = None) -> Dask:
    """The workers of a Dask cluster, one chunk at a time each: those of a `distributed.Client`, or of the present one."""
    return Dask(client)


def ray(address: Optional[str] = None, *, workers: Optional[int] = None) -> Ray:
    """A Ray cluster: the one that is connected, or the one at `address`. `workers` actors run there, by default one a CPU."""
    _check_count("workers", workers)
    return Ray(address, workers)


def cluster(function: Optional[Callable[..., Any]] = None, **options: Any) -> Any:
    """Shares the loops of a function between nodes of SLURM: `@evener.cluster(cores=16, memory="64GB", time="1:00:00")`.

    It takes what `evener.slurm` takes, what `evener.parallel` takes, and the names that other such decorators have for the same
    (`cpus_per_task`, `mem`, `walltime`, `queue` …). An unknown option is an error that names the nearest.
    """
    from dataclasses import fields

    from .decorator import Settings, parallel

    own = {field.name for field in fields(Settings)} - {"where", "workers"}
    settings = {name: value for name, value in options.items() if name in own}
    request = {name: value for name, value in options.items() if name not in own}
    place = _slurm(request, "evener.cluster", own)
    return parallel(function, where=place, **settings) if function is not None else parallel(where=place, **settings)


def _unknown(who: str, name: str, known: Sequence[str]) -> TypeError:
    near = difflib.get_close_matches(name, known, 1, 0.5)
    hint = ": did you mean %r?" % near[0] if near else ": it has %s" % ", ".join(known[: len(_SLURM_WORDS) + len(_SLURM_OTHERS)])
    return TypeError("%s has no option %r%s" % (who, name, hint))


def _check_count(name: str, count: Any) -> None:
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
        raise ValueError("%s=%r: it is a number above 0" % (name, count))


def _names(devices: Union[str, Sequence[str]]) -> Tuple[str, ...]:
    return tuple(name.strip() for name in devices.split(",")) if isinstance(devices, str) else tuple(devices)


def _frozen(environment: Any) -> Any:
    """An environment as a value that can be compared and kept."""
    if isinstance(environment, Mapping):
        return tuple(sorted((key, _frozen(value)) for key, value in environment.items()))
    return tuple(environment) if isinstance(environment, list) else environment


def places_of(where: Any) -> Optional[List[Place]]:
    """The places of `where=`, or `None` if it is something else: names of devices, or a pool."""
    if isinstance(where, Place):
        return [where]
    if isinstance(where, (list, tuple)) and any(isinstance(one, Place) for one in where):
        for one in where:
            if not isinstance(one, Place):
                text = "where= has places and %r: write devices of this machine as evener.local(devices=%r)"
                raise TypeError(text % (one, one))
        return list(where)
    return None
