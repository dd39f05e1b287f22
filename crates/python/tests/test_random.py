"""Random runs from a seed: random costs, kills, exceptions and consumers.

Whatever happens, no item is lost, doubled or out of order, nothing hangs, and no process, descriptor or shared memory is left.
`EVENER_SOAK_SECONDS=600` runs for longer; `EVENER_SOAK_SEED` repeats a failure.
"""

import itertools
import os
import random
import signal
import threading
import time

import evener
import pytest
from conftest import children


class Fault(Exception):
    """An exception of an item."""


def work(argument):
    index, seconds, fails, dies, folder, home = argument
    with open(os.path.join(folder, str(index)), "a") as file:
        file.write("x")
    if seconds:
        time.sleep(seconds)
    # What runs at home must not kill this process.
    if dies and os.getpid() != home and os.path.getsize(os.path.join(folder, str(index))) <= dies:
        os.kill(os.getpid(), signal.SIGKILL)
    if fails:
        raise Fault(index)
    return index, "payload" * (index % 7)


def scenario(rng, folder):
    """Items with random costs and faults, and what must come of them."""
    count = rng.choice([0, 1, 3, 20, 100, 400])
    slow = rng.choice([0.0, 0.0, 0.001, 0.004])
    items = []
    for index in range(count):
        seconds = slow * rng.random() * (20 if rng.random() < 0.01 else 1)
        fails = rng.random() < 0.002
        dies = rng.choice([1, 2]) if rng.random() < 0.005 else 0
        items.append((index, seconds, fails, dies, folder, os.getpid()))
    return items


def kill_at_random(rng, stop):
    """Kills workers now and then."""
    while not stop.wait(rng.random() * 0.4):
        workers = list(children())
        if workers:
            try:
                victim = rng.choice(workers)
                if rng.random() < 0.3:
                    os.kill(victim, signal.SIGSTOP)
                    stop.wait(0.05)
                    os.kill(victim, signal.SIGCONT)
                else:
                    os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                pass


def one_run(rng, folder):
    items = scenario(rng, folder)
    is_endless = rng.random() < 0.2
    source = items if rng.random() < 0.5 else iter(items)
    if is_endless:
        extra = ((index, 0.0, False, 0, folder, 0) for index in itertools.count(len(items)))
        source = itertools.chain(items, extra)
    wanted = rng.choice([len(items), len(items) // 2]) if is_endless or rng.random() < 0.3 else None
    stop = threading.Event()
    killer = threading.Thread(target=kill_at_random, args=(random.Random(rng.random()), stop))
    has_killer = rng.random() < 0.4
    results = evener.map(
        work, source, home=rng.choice([0, 0, 2, 5]), workers=rng.choice([1, 2, 3]), retries=1000 if has_killer else 2
    )
    pace = rng.choice([0, 0, 0.002])
    got, error = [], None
    if has_killer:
        killer.start()
    try:
        for result in results if wanted is None else itertools.islice(results, wanted):
            got.append(result)
            if pace:
                time.sleep(pace * rng.random())
    except Fault as fault:
        error = fault
    finally:
        results.close()
        stop.set()
        if has_killer:
            killer.join()
    first_fault = next((item[0] for item in items if item[2]), None)
    end = len(items) if wanted is None else wanted
    if first_fault is not None and (wanted is None or first_fault < wanted):
        assert error is not None and error.args == (first_fault,)
        end = first_fault
    else:
        assert error is None
    assert got == [(index, "payload" * (index % 7)) for index in range(end)]
    if not has_killer:
        for index in range(end):
            times = os.path.getsize(os.path.join(folder, str(index)))
            allowed = 1 + (items[index][3] if index < len(items) else 0)
            # The neighbours of an item that killed its worker may have run without their results being sent.
            assert 1 <= times <= allowed or any(item[3] for item in items)


@pytest.mark.timeout(3600)
def test_random_runs(tmp_path, nothing_left):
    seconds = float(os.environ.get("EVENER_SOAK_SECONDS", "15"))
    seed = int(os.environ.get("EVENER_SOAK_SEED", random.SystemRandom().randrange(1 << 32)))
    ends = time.monotonic() + seconds
    for number in itertools.count():
        if time.monotonic() > ends:
            break
        rng = random.Random(seed + number)
        folder = tmp_path / str(number)
        folder.mkdir()
        print("EVENER_SOAK_SEED=%d" % (seed + number), flush=True)
        began = time.monotonic()
        one_run(rng, str(folder))
        assert time.monotonic() - began < 50
