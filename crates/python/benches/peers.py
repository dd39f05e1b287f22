"""Compares Evener with ProcessPoolExecutor, joblib (loky), Dask and Ray, in the same run.

    python benches/peers.py [--venv FOLDER] [--lines tiny,uneven,busy,read,results,first] [--scale 0.2] [--rounds 3]

Each line is one workload. Times are the best of some rounds, with workers that are warm, except for the first call in a fresh
process. A peer that is not installed is left out, and said to be; `--venv` makes an environment with all of them, beside the
Evener of this Python.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor

WORKERS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
GIB = 1 << 30
SPIN_PER_MS = 0


def square(x):
    return x * x


def spin(rounds):
    """A fixed amount of work for the processor."""
    total = 0
    for number in range(rounds):
        total += number * number
    return total


def calibrate():
    """How many rounds of `spin` take a millisecond."""
    best = min(_timed(lambda: spin(100_000)) for _ in range(5))
    return int(100_000 / (best * 1e3))


def _timed(call):
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


ARRAY = None


def read_part(part):
    """Reads a part of the array that the process has."""
    step = len(ARRAY) // 16
    return float(ARRAY[part * step : (part + 1) * step].sum())


def set_array(array):
    global ARRAY
    ARRAY = array


def make_result(number):
    import numpy

    return numpy.full(16 << 17, number, dtype="f8")


class Evener:
    """Evener, which decides itself whether workers pay."""

    name = "evener"
    home = None

    def open(self):
        import evener

        self.evener = evener

    def map(self, function, items):
        return list(self.evener.map(function, items, home=self.home))

    def read(self, array, parts):
        step = len(array) // 16

        def part_of(part):
            return float(array[part * step : (part + 1) * step].sum())

        return list(self.evener.map(part_of, parts, home=self.home))

    def close(self):
        self.evener.shut_down()


class EvenerWorkers(Evener):
    """Evener, always with workers."""

    name = "evener, workers only"
    home = 0


class ProcessPool:
    """The standard library's pool. Tiny items go in chunks of 100, as its documentation advises."""

    name = "ProcessPoolExecutor"

    def open(self):
        self.pool = ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("fork"))

    def map(self, function, items):
        return list(self.pool.map(function, items, chunksize=100 if len(items) > 5000 else 1))

    def read(self, array, parts):
        # The pool's own way: processes are forked when the array is there. A pool that is warm cannot have it.
        set_array(array)
        with ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("fork")) as pool:
            return list(pool.map(read_part, parts))

    def close(self):
        self.pool.shutdown()


class Joblib:
    """joblib with loky."""

    name = "joblib (loky)"

    def open(self):
        import joblib

        self.joblib = joblib

    def map(self, function, items):
        return self.joblib.Parallel(n_jobs=WORKERS)(self.joblib.delayed(function)(item) for item in items)

    def read(self, array, parts):
        step = len(array) // 16

        def part_of(array, part):
            return float(array[part * step : (part + 1) * step].sum())

        return self.joblib.Parallel(n_jobs=WORKERS)(self.joblib.delayed(part_of)(array, part) for part in parts)

    def close(self):
        from joblib.externals.loky import get_reusable_executor

        get_reusable_executor().shutdown(wait=True)


class Dask:
    """Dask's local cluster of processes."""

    name = "dask"

    def open(self):
        from dask.distributed import Client

        self.client = Client(n_workers=WORKERS, threads_per_worker=1, processes=True, dashboard_address=None)

    def map(self, function, items):
        return self.client.gather(self.client.map(function, items, pure=False))

    def read(self, array, parts):
        step = len(array) // 16
        held = self.client.scatter(array, broadcast=True)

        def part_of(part, array):
            return float(array[part * step : (part + 1) * step].sum())

        return self.client.gather(self.client.map(part_of, parts, array=held, pure=False))

    def close(self):
        self.client.shutdown()


class Ray:
    """Ray on this machine."""

    name = "ray"

    def open(self):
        import ray

        self.ray = ray
        ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, configure_logging=False)

    def map(self, function, items):
        remote = self.ray.remote(function)
        return self.ray.get([remote.remote(item) for item in items])

    def read(self, array, parts):
        step = len(array) // 16
        held = self.ray.put(array)

        @self.ray.remote
        def part_of(array, part):
            return float(array[part * step : (part + 1) * step].sum())

        return self.ray.get([part_of.remote(held, part) for part in parts])

    def close(self):
        self.ray.shutdown()


PEERS = [Evener, EvenerWorkers, ProcessPool, Joblib, Dask, Ray]


def installed():
    """The peers that are there."""
    for peer in PEERS:
        module = {"joblib (loky)": "joblib", "dask": "distributed", "ray": "ray"}.get(peer.name)
        try:
            if module:
                __import__(module)
            yield peer
        except ImportError:
            print("%s is not installed" % peer.name)


def measure(title, peers, rounds, run, note=""):
    """Measures a line, and prints it."""
    print("\n%s" % title)
    times = {}
    for peer_class in peers:
        peer = peer_class()
        peer.open()
        try:
            peer.map(square, [1, 2, 3, 4])
            times[peer.name] = min(_timed(lambda: run(peer)) for _ in range(rounds))
        finally:
            peer.close()
    best = min(times["evener"], times.get("evener, workers only", times["evener"]))
    for name, seconds in times.items():
        ratio = "" if name.startswith("evener") else "  %.2f x evener" % (seconds / best)
        print("  %-24s %10.2f ms%s" % (name, seconds * 1e3, ratio))
    behind = [name for name, seconds in times.items() if seconds < best]
    if behind:
        print("  behind %s: %s" % (", ".join(behind), note or "not explained"))
    return times


def tiny(peers, rounds, scale):
    items = range(10_000)
    measure("10,000 tiny calls", peers, rounds, lambda peer: peer.map(square, items))


def uneven_items(scale):
    import random

    rng = random.Random(1)
    milliseconds = sorted((rng.uniform(1, 100) for _ in range(int(1000 * scale))), reverse=True)
    return [int(each * SPIN_PER_MS) for each in milliseconds]


def uneven(peers, rounds, scale):
    items = uneven_items(scale)
    title = "%d calls of 1 to 100 ms, the longest first" % len(items)
    measure(title, peers, 1, lambda peer: peer.map(spin, items))


def busy(peers, rounds, scale):
    items = uneven_items(scale)
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        title = "%d calls of 1 to 100 ms, one core taken by another program" % len(items)
        measure(title, peers, 1, lambda peer: peer.map(spin, items))
    finally:
        other.kill()
        other.wait()


def read(peers, rounds, scale):
    import numpy

    array = numpy.ones(int(GIB * min(scale, 1.0)) // 8)
    note = "forked processes have the array already; all others copy it once"
    title = "a %.2f GiB array, read by all workers" % (array.nbytes / GIB)
    measure(title, peers, rounds, lambda peer: peer.read(array, list(range(16)) * 2), note)


def results(peers, rounds, scale):
    count = max(2, int(64 * min(scale, 1.0)))
    title = "%.2f GiB of results, 16 MiB each" % (count / 64)
    measure(title, peers, rounds, lambda peer: peer.map(make_result, range(count)))


FIRST = """
import sys, time
sys.path.insert(0, {folder!r})
import peers
if __name__ == "__main__":
    peer = peers.{peer}()
    peer.open()
    assert len(peer.map(peers.spin, [{rounds}] * 40)) == 40
    peer.close()
"""


def first(peers, rounds, scale):
    """The first call in a fresh process, from its start to its end."""
    print("\nthe first call in a fresh process: 40 calls of 10 ms, from the start of Python to its end")
    times = {}
    # Ray's workers have the path of the environment only.
    folder = os.path.dirname(os.path.abspath(__file__))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])}
    for peer in peers:
        text = FIRST.format(folder=folder, peer=peer.__name__, rounds=10 * SPIN_PER_MS)
        command = [sys.executable, "-c", text]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
        times[peer.name] = min(_timed(lambda: subprocess.run(command, check=True, **quiet)) for _ in range(rounds))
    best = min(times["evener"], times.get("evener, workers only", times["evener"]))
    for name, seconds in times.items():
        ratio = "" if name.startswith("evener") else "  %.2f x evener" % (seconds / best)
        print("  %-24s %10.2f ms%s" % (name, seconds * 1e3, ratio))
    if any(seconds < best for seconds in times.values()):
        print("  behind: forked processes start in a millisecond with all modules; Evener starts fresh ones, safe with threads")


def small(peers, rounds, scale):
    """Small loops: the time that Evener adds to a loop that is not worth a worker."""
    import evener

    print("\nsmall loops, beside the built-in map")
    for count in (10, 100, 1000, 10_000):
        items = list(range(count))
        repeat = max(5, 20_000 // count)
        plain = min(_timed(lambda: list(map(square, items))) for _ in range(repeat))
        ours = min(_timed(lambda: list(evener.map(square, items))) for _ in range(repeat))
        added = ours - plain
        parts = (count, plain * 1e6, ours * 1e6, added * 1e6, added / plain * 100)
        print("  %6d calls: plain %8.1f µs, evener %8.1f µs: %+.1f µs, %+.1f %%" % parts)


LINES = {"tiny": tiny, "uneven": uneven, "busy": busy, "read": read, "results": results, "first": first, "small": small}


def run_in_venv(folder, arguments):
    """Runs this program in an environment with all peers, which is made if it is not there, and with this Python's Evener."""
    import evener

    python = os.path.join(folder, "bin", "python")
    if not os.path.exists(os.path.join(folder, "ready")):
        print("making an environment in %s" % folder, flush=True)
        requirements = os.path.join(os.path.dirname(os.path.abspath(__file__)), "requirements.txt")
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", requirements], check=True)
        open(os.path.join(folder, "ready"), "w").close()
    package = os.path.dirname(os.path.dirname(os.path.abspath(evener.__file__)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])}
    return subprocess.run([python, os.path.abspath(__file__), *arguments], env=environment).returncode


def main():
    """Measures the lines that are asked for."""
    global SPIN_PER_MS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", default=",".join(LINES))
    parser.add_argument("--peers", default=None, help="names of peers, separated by commas")
    parser.add_argument("--scale", type=float, default=1.0, help="part of the 1,000 calls of 1 to 100 ms, and of a GiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--venv", metavar="FOLDER", help="run in this environment, which is made with all peers if it is missing")
    options = parser.parse_args()
    if options.venv:
        rest = sys.argv[1:]
        at = next(i for i, argument in enumerate(rest) if argument.startswith("--venv"))
        sys.exit(run_in_venv(options.venv, rest[:at] + rest[at + (1 if "=" in rest[at] else 2) :]))
    unknown = [name for name in options.lines.split(",") if name not in LINES]
    if unknown:
        parser.error("no line %s: there are %s" % (", ".join(unknown), ", ".join(LINES)))
    print("%s, Python %s, %d cores, %s" % (platform.platform(), platform.python_version(), WORKERS, time.strftime("%Y-%m-%d")))
    SPIN_PER_MS = calibrate()
    peers = list(installed())
    if options.peers:
        wanted = [name.strip().lower() for name in options.peers.split(",")]
        peers = [peer for peer in peers if peer.name == "evener" or any(name in peer.name.lower() for name in wanted)]
    for name in options.lines.split(","):
        LINES[name](peers, options.rounds, options.scale)


if __name__ == "__main__":
    main()
