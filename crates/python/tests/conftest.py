"""What all tests need."""

import gc
import os
import sys
import tempfile
import time

import pytest

# Learned costs of the user must not change tests, nor tests those.
os.environ["EVENER_CACHE"] = tempfile.mkdtemp(prefix="evener-test-")

import evener  # noqa: E402


def descriptors():
    """The open descriptors of this process."""
    return set(os.listdir("/proc/self/fd"))


def children():
    """The processes that this one has started and not reaped."""
    found = set()
    for process in os.listdir("/proc"):
        if process.isdigit():
            try:
                with open("/proc/%s/stat" % process) as file:
                    fields = file.read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid():
                found.add(int(process))
    return found


@pytest.fixture
def nothing_left():
    """Checks that a test leaves no process and no descriptor, once its workers are shut down."""
    evener.shut_down()
    before = children(), descriptors()
    yield
    evener.shut_down()
    gc.collect()

    def is_clean():
        # Pools of earlier tests may have ended meanwhile.
        return children() <= before[0] and descriptors() <= before[1]

    _until(is_clean)
    assert is_clean(), (children() - before[0], descriptors() - before[1])


def _until(condition, seconds=10.0):
    """Waits for a condition, for a limited time."""
    ends = time.monotonic() + seconds
    while not condition() and time.monotonic() < ends:
        time.sleep(0.02)


@pytest.fixture(scope="session", autouse=True)
def end():
    yield
    evener.shut_down()
    gc.collect()
    _until(lambda: not children())
    assert not children()


sys.path.insert(0, os.path.dirname(__file__))
