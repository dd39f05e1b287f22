"""Functions that workers on other machines run."""

import os
import signal
import time


def place(x):
    """Where an item ran: the rig's host, SLURM's node, and the GPU that the worker sees."""
    time.sleep(0.01)
    return (
        os.environ.get("EVENER_TEST_RIG", "").rsplit("/", 1)[-1], os.environ.get("SLURMD_NODENAME"),
        os.environ.get("CUDA_VISIBLE_DEVICES"), os.getpid(),
    )


def slow(x):
    time.sleep(0.02)
    return x * x


def slow_nonce(argument):
    """Leaves a mark for each time that an item runs."""
    folder, x = argument
    with open(os.path.join(folder, "%d" % x), "a") as file:
        file.write("%d\n" % os.getpid())
    time.sleep(0.02)
    return x


def die_once(argument):
    folder, x = argument
    mark = os.path.join(folder, "died-%d" % x)
    if x % 7 == 3 and not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.002)
    return x


def first_is_long(x):
    time.sleep(1.5 if x == 0 else 0.001)
    return x, os.getpid()


def fail_at_five(x):
    if x == 5:
        raise ValueError("five", x)
    return x


def shout(x):
    print("item", x, flush=True)
    return x


def wait(x):
    print(os.getpid(), flush=True)
    time.sleep(60)
    return x
