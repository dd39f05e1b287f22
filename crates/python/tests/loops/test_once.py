"""Each iteration runs exactly once, in real worker processes too."""

from __future__ import annotations

import collections
import os
import time
import uuid

import pytest

import evener
from evener._schedule.options import Options
from evener._schedule.ordered import ordered as by_workers

from .stand_in import Count, in_processes, round_trip, sharing


def workers(number):
    def ordered(function, items, *, where=None, options=None):
        for result in by_workers(function, items, where=where, options=Options(workers=number, home=0)):
            Count.iterations += 1
            yield result

    return ordered


def nonces(n):
    out = []
    for i in range(n):
        out.append((i, uuid.uuid4().hex, os.getpid()))
    return out


@pytest.mark.parametrize("ordered", [round_trip, in_processes(2), workers(1), workers(2), workers(3), workers(7)])
def test_each_iteration_leaves_one_nonce(ordered):
    with sharing(ordered) as count:
        left = evener.parallel(nonces)(40)
        assert count.iterations == 38
    assert [i for i, _, _ in left] == list(range(40))
    assert len({n for _, n, _ in left}) == 40


def leaves_a_file(i, folder):
    with open(os.path.join(folder, f"{i}-{uuid.uuid4().hex}"), "x"):
        pass
    return i


@pytest.mark.parametrize("external", ["refuse", "allow"])
@pytest.mark.parametrize("ordered", [round_trip, workers(2)])
def test_files_are_written_once(tmp_path, ordered, external):
    def f(n, folder):
        return [leaves_a_file(i, folder) for i in range(n)]

    with sharing(ordered) as count:
        assert evener.parallel(f, external=external)(20, str(tmp_path)) == list(range(20))
        assert (count.iterations > 2) == (external == "allow")
    left = collections.Counter(int(name.split("-")[0]) for name in os.listdir(tmp_path))
    assert left == collections.Counter(range(20))


def slow(x):
    time.sleep(0.02)
    return x * x


def test_without_force_slow_loops_are_shared_and_quick_ones_are_not():
    @evener.parallel
    def f(n):
        out = []
        for i in range(n):
            out.append((slow(i), os.getpid()))
        return out

    result = f(60)
    assert [r for r, _ in result] == [i * i for i in range(60)]
    assert len({p for _, p in result}) > 1

    @evener.parallel
    def g(n):
        return [(i, os.getpid()) for i in range(n)]

    assert {p for _, p in g(10_000)} == {os.getpid()}


def test_errors_and_reports_count_the_iterations_that_ran_at_home(tmp_path):
    import os
    import signal

    import pytest

    import evener

    @evener.parallel(workers=2, retries=0, external="allow")
    def dies(numbers):
        import time

        out = []
        for number in numbers:
            time.sleep(0.02)
            if number == 60:
                os.kill(os.getpid(), signal.SIGKILL)
            out.append(number)
        return out

    with pytest.raises(evener.WorkerDied, match="item 60 of"):
        dies(list(range(100)))

    @evener.parallel(workers=2)
    def sleeps(numbers):
        import time

        out = []
        for number in numbers:
            time.sleep(0.01)
            out.append(number)
        return out

    assert sleeps(list(range(100))) == list(range(100))
    report = sleeps.last_run
    assert report.used_workers and report.home[0] >= 2
    assert report.to_dict()["done"] == 100, report.to_dict()
    assert evener.last_run().to_dict()["done"] == 100


def test_a_call_that_stays_at_home_has_a_report_too():
    import evener

    @evener.parallel
    def squares(numbers):
        return [number * number for number in numbers]

    assert squares.last_run is None
    squares(range(50))
    assert not squares.last_run.used_workers
    assert squares.last_run.to_dict()["items"] == 50


def test_of_two_nested_loops_the_one_with_more_to_share_is_shared():
    import os

    import evener

    @evener.parallel(workers=2)
    def grid(rows, columns):
        import time

        out, processes = [], []
        for row in rows:
            for column in columns:
                time.sleep(0.01)
                out.append((row, column))
                processes.append(os.getpid())
        return out, processes

    for rows, columns in ((range(3), range(40)), (range(40), range(3))):
        out, processes = grid(rows, columns)
        assert out == [(row, column) for row in rows for column in columns]
        # Both workers and this process; with rows alone, three could only have been two workers' after the first ones.
        last = processes[-len(columns) * len(rows) // 3 :]
        assert len(set(last)) >= 2, last
