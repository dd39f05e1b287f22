"""Functions that workers import."""

import os
import signal
import time


def square(x):
    return x * x


def slow_square(x):
    time.sleep(0.002)
    return x * x


def die_once(argument):
    """Kills its worker, if nobody has run this item before."""
    folder, x, how = argument
    mark = os.path.join(folder, str(x))
    if x % 5 == 2 and not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), how)
    return x


def die(x):
    if x == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def segfault(x):
    if x == 3:
        import ctypes

        ctypes.string_at(0)
    return x


def nonce(argument):
    """Leaves a mark for each time that an item runs."""
    folder, x = argument
    with open(os.path.join(folder, "%d" % x), "a") as file:
        file.write("%d\n" % os.getpid())
    time.sleep(0.001 * (x % 3))
    return x


def wait_long(x):
    time.sleep(60)
    return x


def process(_):
    return os.getpid()


counter = 0


def initialize(value):
    global counter
    counter = value


def read_counter(_):
    return counter


def fail_to_initialize():
    raise ValueError("no licence")
