"""Real SSH servers and a real SLURM cluster on loopback, which `scripts/cluster` starts, and what tests do with them."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import time

import pytest
from evener._schedule.options import Options
from evener._schedule.ordered import ordered as by_workers
from gallery.functions import PLAIN, SHARED
from gallery.test_gallery import NEEDY
from loops.compare import compare

SCRIPTS = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..", "..", "scripts", "cluster"))
SSH = os.environ.get("EVENER_TEST_SSHD")
SLURM = os.environ.get("EVENER_TEST_SLURM")

with_sshd = pytest.mark.skipif(SSH is None, reason="no SSH servers: scripts/cluster/sshd start DIR 2, EVENER_TEST_SSHD=DIR")
with_slurm = pytest.mark.skipif(SLURM is None, reason="no SLURM: scripts/cluster/slurm start DIR, EVENER_TEST_SLURM=DIR")

if SSH is not None:
    os.environ["PATH"] = os.path.join(SSH, "bin") + os.pathsep + os.environ["PATH"]
if SLURM is not None:
    os.environ["SLURM_CONF"] = os.path.join(SLURM, "slurm.conf")


def rig(kind, *arguments):
    """Does something to the SSH servers or to SLURM."""
    folder = SSH if kind == "sshd" else SLURM
    done = subprocess.run([os.path.join(SCRIPTS, kind), arguments[0], folder, *arguments[1:]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def processes_of_hosts():
    """The processes that were started through the SSH servers."""
    return [int(process) for process in rig("sshd", "processes").split()]


def until(condition, seconds, what):
    """Waits for a condition."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "after %g s: %s" % (seconds, what)
        time.sleep(0.05)


def jobs_of_slurm():
    """The jobs that SLURM has, pending or running."""
    return subprocess.run(["squeue", "--noheader", "--format=%i %T %j"], capture_output=True, text=True).stdout.splitlines()


def run_gallery(driver, part=1):
    """Runs each function of the gallery, or one of so many, plainly and decorated by the workers of a driver."""
    if os.environ.get("EVENER_TEST_WHOLE_GALLERY"):
        part = 1
    from loops.stand_in import Count

    def ordered(function, items, *, where=None, options=None):
        for result in by_workers(function, items, where=driver, options=Options(home=0)):
            Count.iterations += 1
            yield result

    compared = 0
    for function, arguments, _ in (SHARED + PLAIN)[::part]:
        if function.__name__ not in NEEDY:
            compare(function, make=lambda a=arguments: copy.deepcopy(a), ordered=ordered)
            compared += 1
    assert compared >= 60 // part
    return compared


def program(text, **options):
    """Starts a program of its own, with the tests' functions."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    text = "import sys\nsys.path.insert(0, %r)\nimport evener, functions, os, time\n" % here + text
    # Unbuffered, a line is written in two parts, between which another worker can write.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    options = {"env": environment, **options}
    return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
