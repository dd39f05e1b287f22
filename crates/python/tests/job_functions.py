"""Functions for jobs, in a module that job processes import."""

import os
import random
import time

import evener


class Odd(Exception):
    """An exception with an argument of its own."""


@evener.parallel
def squares(numbers):
    print("squares of", len(numbers))
    out = []
    for number in numbers:
        out.append(number * number)
    return out


def fail(text):
    raise Odd(text, 7)


def draw():
    return [random.random() for _ in range(3)]


def sleep_for(seconds, mark=None):
    if mark is not None:
        with open(mark, "w") as file:
            file.write(str(os.getpid()))
    try:
        time.sleep(seconds)
    finally:
        print("over")
    return seconds


def stubborn(mark):
    while True:
        try:
            with open(mark, "w") as file:
                file.write(str(os.getpid()))
            time.sleep(60)
        except BaseException:
            pass


def child_sleeps(mark):
    """A forked child must not keep the job alive."""
    child = os.fork()
    if child == 0:
        time.sleep(20)
        os._exit(0)
    with open(mark, "w") as file:
        file.write("%d %d" % (os.getpid(), child))
    time.sleep(60)


def generator():
    yield 1


@evener.parallel(workers=2)
def slow(seconds, mark):
    out = []
    for number in range(4):
        with open(mark + str(number), "w") as file:
            file.write(str(os.getpid()))
        time.sleep(seconds)
        out.append(number)
    return out
