"""Each iteration draws from its own stream, whoever runs it."""

from __future__ import annotations

import random
import time

import pytest

import evener

from .stand_in import in_processes, round_trip, sharing

np = pytest.importorskip("numpy")


def walk(n):
    return sum(random.choice([-1, 1]) for _ in range(n))


def simulate(n):
    out = []
    for i in range(n):
        out.append((walk(20), np.random.rand(2).tolist(), np.random.normal()))
    return out, random.random(), np.random.rand()


def with_generator(rng, n):
    return [rng.normal(size=3).tolist() for _ in range(n)], rng.random()


class Simulation:
    def __init__(self):
        self.rng = np.random.default_rng(3)

    def run(self, n):
        return [self.rng.normal(size=2).tolist() for _ in range(n)]


def seeded(function, *arguments):
    random.seed(7)
    np.random.seed(7)
    return function(*arguments)


def test_workers_and_plain_draw_the_same_numbers():
    decorated = evener.parallel(simulate)
    plain = seeded(decorated.plain, 8)
    assert plain != seeded(decorated.plain, 7)
    with sharing(round_trip) as count:
        assert seeded(decorated, 8) == plain
        assert count.iterations
    for workers in (1, 2):
        with sharing(in_processes(workers)) as count:
            assert seeded(evener.parallel(simulate), 8) == plain
            assert count.iterations
    assert len({str(o) for o in plain[0]}) == 8


def test_another_seed_gives_other_numbers():
    decorated = evener.parallel(simulate)
    random.seed(8)
    np.random.seed(8)
    assert decorated.plain(4) != seeded(decorated.plain, 4)


def test_captured_generators():
    for make in (lambda: np.random.default_rng(5), lambda: np.random.RandomState(5)):
        decorated = evener.parallel(with_generator)
        if not hasattr(make(), "random"):
            continue
        plain = decorated.plain(make(), 6)
        with sharing(round_trip) as count:
            assert decorated(make(), 6) == plain
            assert count.iterations
        assert len({str(v) for v in plain[0]}) == 6


def test_generators_of_objects():
    run = evener.parallel(Simulation.run)
    plain = run.plain(Simulation(), 6)
    with sharing(round_trip) as count:
        assert run(Simulation(), 6) == plain
        assert count.iterations


def test_refused():
    decorated = evener.parallel(simulate, randomness="refuse")
    expected = seeded(simulate, 6)
    with sharing(round_trip):
        assert seeded(decorated, 6) == expected


def test_seeds_in_the_body_give_what_the_undecorated_function_gives():
    def f(n):
        out = []
        for i in range(n):
            random.seed(i)
            out.append([random.random() for _ in range(3)])
        return out

    with sharing(round_trip):
        assert seeded(evener.parallel(f), 6) == f(6)


def test_loops_that_only_draw_numbers_keep_the_one_stream():
    def pi(n):
        inside = 0
        for _ in range(n):
            x, y = random.random(), random.random()
            if x * x + y * y < 1:
                inside += 1
        return inside

    with sharing(round_trip) as count:
        assert seeded(evener.parallel(pi), 500) == seeded(pi, 500)
        assert not count.iterations


def test_draws_that_begin_late_go_on_with_the_one_stream():
    def f(n):
        out = []
        for i in range(n):
            out.append(walk(3) if i > 3 else 0)
        return out

    with sharing(round_trip):
        assert seeded(evener.parallel(f), 8) == seeded(f, 8)


def slow_draws(n):
    random.seed(1)
    out = []
    for _ in range(n):
        time.sleep(0.004)
        out.append(random.random())
    return out


def test_no_stream_is_drawn_from_twice_where_some_iterations_run_at_home():
    # Without a stand-in: while workers start, iterations run at home.
    for _ in range(2):
        decorated = evener.parallel(slow_draws, workers=2)
        drawn = decorated(80)
        assert len(set(drawn)) == 80
        assert drawn == decorated.plain(80)
