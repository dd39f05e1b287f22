"""Makes the workers of places: lanes of one driver, wherever they are."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .._evener import slurm_hosts, ssh_host
from .._schedule import default
from .._schedule.driver import Driver, Lane
from .._schedule.worker_process import LaneWorker
from ..errors import HostError
from ..places import Dask, Local, Place, Ray, Slurm, Ssh
from .environment import Setup
from .handshake import Refused
from .link import Link

log = logging.getLogger("evener")

_lock = threading.Lock()
#: Drivers that are kept for the next call, by their places and the module whose imports their environment has.
_kept: Dict[Any, Driver] = {}


class HostSlot:
    """The place of one worker on a host: one of its GPUs, or a core."""

    def __init__(self, link: Link, gpu: Optional[int]) -> None:
        self._link = link
        self._gpu = gpu

    def start(self, driver: Driver, lane: int, initializer: Optional[bytes]) -> Optional[LaneWorker]:
        """Starts a worker on the host, if it is there."""
        return self._link.start(lane, driver, self._gpu, initializer)


def driver_for(places: Sequence[Place], function: Any) -> Driver:
    """The workers of places, for a function: those of an earlier call, if they are still there."""
    # An environment that is made depends on what the function's module imports.
    is_made = any(isinstance(place, (Ssh, Slurm)) and place.environment is None for place in places)
    module = getattr(function, "__module__", None) if is_made else None
    key = (os.getpid(), tuple(places), module)
    with _lock:
        try:
            kept = _kept.get(key)
        except TypeError:
            raise TypeError("a place has an option that is no plain value: %r" % (list(places),)) from None
        if kept is not None and not kept.is_stopping and kept.broken is None:
            return kept
        driver = _kept[key] = open_driver(places, function)
        return driver


def open_driver(places: Sequence[Place], function: Any = None, initializer: Optional[bytes] = None) -> Driver:
    """Makes new workers of places. Connects to hosts at once, to know how many workers they can have."""
    opened = _Opened(function)
    try:
        for place in places:
            if initializer is not None and isinstance(place, (Dask, Ray)):
                raise ValueError("an initializer cannot be run by workers of Dask or Ray: their processes are not Evener's own")
            opened.add(place)
        opened.connect()
        if not opened.lanes:
            raise HostError("; ".join(opened.failures) or "these places have no worker: %r" % (list(places),))
    except BaseException:
        opened.close()
        raise
    for failure in opened.failures:
        log.warning("%s; the others go on without it", failure)
    return default.new_driver(opened.lanes, initializer, opened.links)


class _Opened:
    def __init__(self, function: Any) -> None:
        self._function = function
        self.lanes: List[Lane] = []
        self.links: List[Any] = []
        self.failures: List[str] = []
        #: Hosts that say how many workers they can have, with their place.
        self._asked: List[Tuple[Link, Ssh]] = []
        self._setups: Dict[Any, Setup] = {}

    def add(self, place: Place) -> None:
        if isinstance(place, Local):
            from ..pool import local_lanes

            self.lanes.extend(local_lanes(place.workers, place.devices, {}))
        elif isinstance(place, Ssh):
            setup = self._setup(place.environment, place.devices != ("cpu",))
            for name in place.hosts:
                lines = [*place.setup, *setup.lines]
                host = ssh_host(name, setup.command, list(place.options), lines, place.timeout)
                link = Link(host, setup)
                self.links.append(link)
                self._asked.append((link, place))
        elif isinstance(place, Slurm):
            self._add_slurm(place)
        elif isinstance(place, Dask):
            from .dask_place import dask_lanes

            self._add_tasks(dask_lanes(place))
        elif isinstance(place, Ray):
            from .ray_place import ray_lanes

            self._add_tasks(ray_lanes(place))
        else:
            raise TypeError("%r is no place" % (place,))

    def _add_tasks(self, made: Any) -> None:
        link, lanes = made
        self.links.append(link)
        self.lanes.extend(lanes)

    def _add_slurm(self, place: Slurm) -> None:
        request = dict(place.request)
        gpus = int(request.get("gpus", 0))
        setup = self._setup(place.environment, gpus > 0)
        text = ", ".join("%s=%s" % item for item in place.request)
        hosts = slurm_hosts(place.name, text, setup.command, list(place.options), [*place.setup, *setup.lines])
        cores = place.workers or int(request.get("cores", 1))
        for host in hosts:
            link = Link(host, setup)
            self.links.append(link)
            if gpus:
                self._add_lanes(link, gpus, place.per_gpu, place.workers or 0)
            else:
                self._add_lanes(link, 0, 1, cores)

    def _add_lanes(self, link: Link, gpus: int, per_gpu: int, cores: int) -> None:
        for number in range(gpus * per_gpu):
            self.lanes.append(Lane("%s/cuda:%d" % (link.name, number // per_gpu), {}, HostSlot(link, number // per_gpu)))
        self.lanes.extend(Lane("%s/cpu" % link.name, {}, HostSlot(link, None)) for _ in range(cores))

    def _setup(self, environment: Any, gpus: bool) -> Setup:
        key = (environment, gpus)
        if key not in self._setups:
            given = environment
            if isinstance(given, tuple) and given and isinstance(given[0], tuple):
                given = dict(given)
            self._setups[key] = Setup(given, self._function, gpus)
        return self._setups[key]

    def connect(self) -> None:
        """Connects to all hosts at once, and makes lanes of those that answer."""
        outcomes: Dict[Link, Optional[BaseException]] = {}

        def connect(link: Link) -> None:
            try:
                link.connect()
                outcomes[link] = None
            except BaseException as error:
                outcomes[link] = error

        threads = [threading.Thread(target=connect, args=(link,), daemon=True) for link, _ in self._asked]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for link, place in self._asked:
            error = outcomes[link]
            if error is not None:
                text = "%s cannot be used: %s" % (link.name, error)
                if isinstance(error, Refused) or not isinstance(error, OSError):
                    raise HostError(text) from error
                self.failures.append(text)
                self.links.remove(link)
                continue
            gpus = len(link.hello["gpus"]) if place.devices != ("cpu",) else 0
            if "gpu" in place.devices and not gpus:
                raise HostError("%s has no GPU that its workers could use" % link.name)
            wants_cores = "cpu" in place.devices or "all" in place.devices
            cores = (place.workers or link.hello["cores"]) if wants_cores else 0
            self._add_lanes(link, gpus, place.per_gpu, cores)
        for index, lane in enumerate(self.lanes):
            if isinstance(lane.slot, HostSlot):
                lane.slot._link.lanes.append(index)

    def close(self) -> None:
        for link in self.links:
            link.close()
