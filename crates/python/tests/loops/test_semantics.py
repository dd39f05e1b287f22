"""The decorated function gives what the plain one gives: values, types, order, exceptions, effects."""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import math
import warnings
from dataclasses import dataclass

import pytest

import evener

from .compare import compare, outcome
from .stand_in import round_trip, sharing


def square(x):
    return x * x


def noisy(x):
    print("noisy", x)
    return x + 1


def as_set(x, at):
    if x == at:
        return set("abcdef")
    return x


def fails_at(x, bad):
    if x == bad:
        raise ValueError("bad item", x)
    return x


# Loops that are shared.


def test_append():
    def f(xs):
        out = []
        for x in xs:
            out.append(square(x))
        return out

    compare(f, [1, 2, 3, 4, 5], parallel=True)


def test_append_in_branches_and_continue():
    def f(n):
        even, odd = [], []
        for i in range(n):
            if i == 3:
                continue
            if i % 2 == 0:
                even.append(square(i))
            else:
                odd.append(i)
                odd.append(square(i))
        return even, odd

    compare(f, 9, parallel=True)


def test_float_sum_has_the_bits_of_the_plain_loop():
    def f(n):
        total, product, text = 0.0, 1, ""
        for i in range(n):
            total += 0.1 * square(i)
            product *= i + 1
            text += str(i)
        return total, product, text

    compare(f, 50, parallel=True)


def test_sum_that_changes_its_type():
    def f(xs):
        total = 0
        for x in xs:
            total += square(x)
        return total

    compare(f, [1, 2, 0.5, 3, 1j], parallel=True)


def test_dict_set_and_subscripts():
    def f(words):
        lengths, seen, counts, groups, lists = {}, set(), {}, collections.defaultdict(list), [0] * 10
        for w in words:
            lengths[w] = len(w)
            seen.add(w[0])
            counts.setdefault(len(w), []).append(w)
            groups[w[0]].append(noisy(len(w)))
            lists[len(w)] += 1
        return lengths, seen, counts, groups, lists

    compare(f, ["pear", "apple", "fig", "plum", "peach", "apple"], parallel=True)


def test_counter_update_extend_insert():
    def f(texts):
        counts, flat, front = collections.Counter(), [], []
        for t in texts:
            counts.update(t.split())
            flat.extend(w.upper() for w in t.split())
            front.insert(0, len(t))
        return counts, flat, front

    compare(f, ["a b a", "b c", "c c a d", ""], parallel=True)


def test_target_and_names_after_the_loop():
    def f(xs):
        for i, x in enumerate(xs, start=5):
            y = square(x)
            if y > 5:
                big = y
        return i, x, y, big

    compare(f, [1, 2, 3, 2, 1], parallel=True)


def test_unbound_names_after_an_empty_loop():
    def f(xs):
        for x in xs:
            y = square(x)
        return x, y

    compare(f, [])
    compare(f, [1])
    compare(f, [1, 2, 3, 4], parallel=True)


def test_name_that_is_conditionally_bound():
    def f(xs):
        for x in xs:
            if x > 100:
                y = square(x)
        return y

    compare(f, [1, 2, 3, 4], parallel=True)
    compare(f, [1, 2, 3, 400, 5], parallel=True)


def test_tuple_and_star_targets():
    def f(rows):
        out = []
        for a, *b, (c, d) in rows:
            out.append((a, b, c, d, square(a)))
        return out, b

    compare(f, [(1, 2, 3, (4, 5)), (1, (2, 3)), (7, 8, (9, 9)), (0, (1, 2))], parallel=True)
    compare(f, [(1, 2, 3, (4, 5)), (1, (2, 3)), (7, 8, (9, 9)), (0, (1, 2)), (1,), (2, (3, 4))], parallel=True)


def test_zip_of_unequal_lengths():
    def f(a, b):
        out = []
        for x, y in zip(a, b):
            out.append(square(x) + y)
        return out

    compare(f, [1, 2, 3, 4, 5], [1, 2, 3], parallel=True)


def test_dict_views_and_reversed():
    def f(d):
        out = []
        for k, v in d.items():
            out.append((k, square(v)))
        for k in reversed(list(d)):
            out.append(square(d[k]))
        return out

    compare(f, {"a": 1, "b": 2, "c": 3, "d": 4}, parallel=True)


def test_yield():
    def f(xs):
        yield "start"
        for x in xs:
            yield square(x)
            if x == 2:
                yield "two"
        yield x

    compare(f, [1, 2, 3, 4], parallel=True)


def test_a_generator_stopped_early():
    def f(xs):
        for x in xs:
            print("at", x)
            yield square(x)

    def firsts(g):
        return [next(g) for _ in range(4)]

    decorated = evener.parallel(f)
    with sharing(round_trip) as count:
        generator = decorated(range(100))
        assert firsts(generator) == [0, 1, 4, 9]
        generator.close()
        assert count.iterations < 10


def test_comprehensions():
    def f(n, k):
        a = [square(i) + k for i in range(n) if i % 2]
        b = {i % 3: square(i) for i in range(n)}
        c = {square(i) % 7 for i in range(n)}
        d = [(i, j) for i in range(n) for j in range(i) if square(j) > 3]
        return a, b, c, d

    compare(f, 8, 3, parallel=True)


@pytest.mark.parametrize("reduce", [
    sum, max, min, list, tuple, set, frozenset, sorted, any, all,
    lambda g: dict((x, x) for x in g), lambda g: "".join(map(str, g)), next,
])
def test_generators_in_calls(reduce):
    def f(xs):
        return reduce(square(x) - 4 for x in xs)

    compare(f, [1, 2, 3, 4, 5])
    compare(f, [])


def test_any_and_all_stop_where_the_plain_function_stops():
    def f(xs):
        return any(noisy(x) > 4 for x in xs), all(noisy(x) < 4 for x in xs)

    compare(f, list(range(10)), parallel=True)


def test_generator_arguments_with_key_and_default():
    def f(xs):
        return max((square(x) for x in xs), key=lambda v: -v), min((square(x) for x in xs), default=None)

    compare(f, [3, 1, 2, 5, 4], parallel=True)
    compare(f, [])


def test_the_consumer_fails_before_a_later_element():
    def f(xs):
        return sum(fails_at(x, 9) for x in xs)

    compare(f, [1, 2, "a", 4, 9, 3], parallel=True)
    compare(f, [1, 2, 3, 4, 9, "a"], parallel=True)


def test_comprehension_in_conditions_and_conditional_expressions():
    def f(xs, flag):
        if [square(x) for x in xs if x > 2]:
            y = [square(x) for x in xs] if flag else [noisy(x) for x in xs]
        else:
            y = flag and [noisy(x) for x in xs]
        return y, f"{[square(x) for x in xs]}", (lambda: [x for x in xs])()

    for flag in (True, False):
        compare(f, [1, 2, 3, 4], flag, parallel=True)
        compare(f, [1, 2, 1, 2], flag)


def test_several_loops_and_nested_loops():
    def f(n):
        table = []
        for i in range(n):
            row = []
            for j in range(n):
                row.append(square(i) * j)
            table.append(row)
        flat = []
        for row in table:
            for v in row:
                flat.append(v + square(v))
        return table, flat

    compare(f, 5, parallel=True)


def test_an_inner_loop_is_shared_where_the_outer_cannot_be():
    def f(n):
        state = 1
        out = []
        for step in range(n):
            new = [square(state + i) % 101 for i in range(6)]
            state = sum(new)
            out.append(state)
        return out

    compare(f, 5, parallel=True)


def test_closure_method_lambda():
    k = 7

    def f(xs):
        out = []
        for x in xs:
            out.append(square(x) + k)
        return out

    compare(f, [1, 2, 3, 4], parallel=True)
    compare(lambda xs: [square(x) + k for x in xs], [1, 2, 3, 4], parallel=True)


class Model:
    def __init__(self, k):
        self.k = k
        self.calls = []

    def value(self, x):
        return self.k * x

    def run(self, xs):
        out = []
        for x in xs:
            out.append(self.value(x))
        return out

    def changes(self, xs):
        out = []
        for x in xs:
            out.append(self.remember(x))
        return out

    def remember(self, x):
        self.calls.append(x)
        return len(self.calls)


def test_methods():
    compare(lambda m, xs: Model.run(m, xs), Model(3), [1, 2, 3])
    compare(Model.run, Model(3), [1, 2, 3, 4], parallel=True)
    compare(Model.changes, Model(3), [1, 2, 3, 4], parallel=False)

    class Decorated(Model):
        run = evener.parallel(Model.run)

    with sharing(round_trip) as count:
        assert Decorated(4).run([1, 2, 3, 4]) == [4, 8, 12, 16]
        assert Decorated(4).run.plain([1, 2]) == [4, 8]
        assert count.iterations


def test_staticmethod_and_classmethod():
    class C:
        factor = 3

        @evener.parallel
        @staticmethod
        def s(xs):
            return [square(x) for x in xs]

        @evener.parallel
        @classmethod
        def c(cls, xs):
            return [cls.factor * x for x in xs]

    with sharing(round_trip) as count:
        assert C.s([1, 2, 3, 4]) == [1, 4, 9, 16]
        assert C().c([1, 2, 3]) == [3, 6, 9]
        assert count.iterations


def test_defaults_keywords_and_docstring():
    def f(xs, *more, k=3, **named):
        """Doc."""
        return [square(x) + k + len(more) + named["z"] for x in xs]

    decorated = evener.parallel(f)
    with sharing(round_trip):
        assert decorated([1, 2, 3, 4], 1, 2, z=5) == f([1, 2, 3, 4], 1, 2, z=5)
    assert decorated.__doc__ == "Doc." and decorated.__name__ == "f"
    import inspect

    assert inspect.signature(decorated) == inspect.signature(f)


# Exceptions.


def test_exception_midway():
    def f(xs, out, bad):
        for x in xs:
            out.append(("before", x))
            y = fails_at(x, bad)
            out.append(("after", y))
        return out

    for bad in range(7):
        compare(f, list(range(6)), [], bad, parallel=bad > 1)


def test_exception_in_an_effect():
    def f(xs, d, total):
        for x in xs:
            print("item", x)
            d[x] = square(len(str(x)))
            total += x
            print("done", x)
        return total

    compare(f, [1, 2, 3, "a", 5], {}, 0, parallel=True)
    compare(f, [1, 2, 3, [4], 5], {}, 0)
    compare(f, [(1,), (2,), (3,), 4], {}, (), parallel=True)


def test_exceptions_caught_around_and_finally():
    def f(xs, bad):
        out = []
        try:
            for x in xs:
                y = square(x)
                out.append(fails_at(x, bad))
                z = y
        except ValueError as e:
            out.append(("caught", e.args, x, y, z))
        finally:
            out.append("end")
        return out

    for bad in (1, 3, 9):
        compare(f, [0, 1, 2, 3, 4], bad, parallel=True) if bad > 1 else compare(f, [0, 1, 2], bad)


def test_chained_exceptions():
    def f(xs):
        out = []
        for x in xs:
            try:
                out.append(x)
                fails_at(x, 3)
            except ValueError as e:
                raise KeyError(x) from e
        return out

    compare(f, [0, 1, 2, 3, 4], parallel=True)

    def g(xs):
        try:
            raise RuntimeError("outer")
        except RuntimeError:
            for x in xs:
                try:
                    fails_at(x, 3)
                except ValueError:
                    raise KeyError(x)

    compare(g, [0, 1, 2, 3, 4], parallel=True)


class Odd(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a}-{b}")
        self.a = a


def test_exceptions_with_their_own_constructor_and_notes():
    def f(xs):
        for x in xs:
            if x == 3:
                e = Odd(x, "b")
                if hasattr(e, "add_note"):
                    e.add_note("a note")
                raise e

    compare(f, [0, 1, 2, 3, 4], parallel=True)


def test_exceptions_of_the_system():
    def f(xs):
        for x in xs:
            if x == 3:
                open("/no/such/file")

    def stop(xs):
        for x in xs:
            if x == 3:
                raise StopIteration(5)

    def end(xs):
        for x in xs:
            if x == 3:
                raise SystemExit(2)

    def stop_in_generator(xs):
        for x in xs:
            yield x
            if x == 3:
                raise StopIteration(5)

    for each in (f, stop, end, stop_in_generator):
        compare(each, [0, 1, 2, 3, 4], parallel=True)


def test_exceptions_over_several_lines_and_in_comprehensions():
    def f(xs):
        return [
            square(x)
            + fails_at(
                x,
                3,
            )
            for x in xs
        ]

    def g(xs):
        return {
            x:
            fails_at(x, 3)
            for x in xs
        }, 1

    def h(xs):
        return sum(
            fails_at(x, 3)
            for x in xs
        )

    for each in (f, g, h):
        compare(each, [0, 1, 2, 3, 4], parallel=True)


def test_recursion():
    @evener.parallel
    def tree(n):
        return [tree(n - 1) for _ in range(3)] if n else "leaf"

    def plain(n):
        return [plain(n - 1) for _ in range(3)] if n else "leaf"

    with sharing(round_trip) as count:
        assert tree(3) == plain(3)
        assert count.iterations


def test_two_threads_at_once():
    import concurrent.futures

    def f(n):
        return [square(i) + n for i in range(30)]

    decorated = evener.parallel(f)
    with sharing(round_trip):
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            assert list(threads.map(decorated, range(8))) == [f(n) for n in range(8)]


# Output, warnings, logs.


def test_print_in_the_body_and_below():
    def f(xs):
        for x in xs:
            print("a", noisy(x), sep="-", end="!\n", flush=True)

    compare(f, [1, 2, 3, 4], parallel=True)


def test_warnings_and_logs():
    def f(xs):
        log = logging.getLogger("some.library")
        for x in xs:
            warnings.warn(f"about {x}", UserWarning)
            if x == 3:
                log.warning("three %s", {"a": x})

    compare(f, [1, 2, 3, 4], parallel=True)

    def g(xs):
        for x in xs:
            warnings.warn(f"about {x}", UserWarning)
            if x == 3:
                logging.getLogger("some.library").warning("three %s", {"a": x})

    compare(g, [1, 2, 3, 4], parallel=True)


def test_warnings_as_errors():
    def f(xs):
        for x in xs:
            if x == 3:
                warnings.warn("three", UserWarning)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decorated = evener.parallel(f)
        with sharing(round_trip) as count:
            with pytest.raises(UserWarning, match="three"):
                decorated([1, 2, 3, 4, 5])
            assert count.iterations


# Identity.


def test_items_and_captured_objects_come_back_as_themselves():
    def f(rows, default, table):
        out, by = [], {}
        for i, row in enumerate(rows):
            out.append(row if len(row) > 1 else default)
            by[i] = table["x"]
            out.append((row, default))
        return out, by, rows, default

    compare(f, [[1, 2], [3], [4, 5], [6], [7, 8]], [0], {"x": [9]}, parallel=True)


def test_the_same_object_twice_in_an_iteration():
    def f(xs):
        out = []
        for x in xs:
            row = [square(x)]
            out.append(row)
            out.append(row)
            row.append("late")
        return out

    compare(f, [1, 2, 3, 4], parallel=True)


def test_a_part_of_an_item_that_is_given_away():
    def f(rows):
        out = []
        for row in rows:
            out.append(row["deep"]["list"])
        for o in out:
            o.append(1)
        return out, rows

    compare(f, [{"deep": {"list": [i]}} for i in range(5)])


def test_identity_tests_against_captured_objects():
    def f(points):
        out = []
        for p in points:
            out.append([q for q in points if q is not p])
        return out

    compare(f, [[1], [2], [3], [1]], parallel=True)


@dataclass
class Point:
    x: float
    y: float


def test_instances_of_the_users_classes():
    def f(n):
        out = []
        for i in range(n):
            out.append(Point(i, square(i)))
        return out, [isinstance(p, Point) for p in out]

    compare(f, 5, parallel=True)


# Changes that other iterations could see.


def test_a_value_changed_after_it_was_added():
    def f(xs):
        total = [0]
        for x in xs:
            step = [square(x)]
            total += step
            step.append("late")
        return total

    compare(f, [1, 2, 3, 4])


def test_hidden_changes():
    cache = {}

    def remember(x):
        cache[x] = len(cache)
        return cache[x]

    def through_closure(xs):
        return [remember(x) for x in xs]

    compare(through_closure, [5, 6, 7, 8], parallel=False, make=lambda: (cache.clear(), ([5, 6, 7, 8],))[1])

    def bound(xs):
        out = []
        add = out.append
        for x in xs:
            add(square(x))
        return out

    compare(bound, [1, 2, 3, 4], parallel=False)

    def late_change(xs, box):
        out = []
        for x in xs:
            if x == 3:
                grow(box)
            out.append(len(box))
        return out

    compare(late_change, [0, 1, 2, 3, 4, 5], [])

    def alias(xs):
        out = []
        same = out
        for x in xs:
            out.append(len(same) + square(x))
        return out

    compare(alias, [1, 2, 3, 4], parallel=False)

    def through_item(rows):
        out = []
        for row in rows:
            grow(row)
            out.append(len(row))
        return out

    compare(through_item, [[], [1], [2, 3], []], parallel=False)

    def iterated(xs):
        ys = xs
        for x in xs:
            if x < 10:
                ys.append(x + 5)
        return xs

    compare(iterated, [1, 2, 3], parallel=False)


def grow(box):
    box.append(1)


TOTAL = 0
SEEN = []


def counting(x):
    global TOTAL
    TOTAL += x
    return TOTAL


def listing(x):
    SEEN.append(x)
    return len(SEEN)


def test_changes_of_globals_behind_the_scenes():
    def f(xs):
        return [counting(x) for x in xs]

    def reset():
        global TOTAL
        TOTAL = 0
        SEEN.clear()
        return ([1, 2, 3, 4],)

    compare(f, parallel=False, make=reset)

    def g(xs):
        return [listing(x) for x in xs]

    compare(g, parallel=False, make=reset)

    def receiver(xs):
        for x in xs:
            SEEN.append(square(x))
        return list(SEEN)

    compare(receiver, parallel=True, make=reset)

    def read_by_helper(xs):
        for x in xs:
            SEEN.append(listing(x))
        return list(SEEN)

    compare(read_by_helper, parallel=False, make=reset)


class Sneaky(list):
    def append(self, x):
        super().append(x * 2)


def test_subclasses_and_shadowed_names():
    def f(xs):
        out = Sneaky()
        for x in xs:
            out.append(square(x))
        return out

    compare(f, [1, 2, 3, 4], parallel=False)

    def g(xs):
        range = lambda n: [10, 20, 30, n]  # noqa: A001, E731
        print = str  # noqa: A001
        sum = list  # noqa: A001
        out = []
        for i in range(3):
            out.append(print(i))
        return out, sum(square(x) for x in xs)

    compare(g, [1, 2, 3, 4], parallel=True)


def test_properties_and_slots():
    class Counter:
        __slots__ = ("n",)

        def __init__(self):
            self.n = 0

        @property
        def next(self):
            self.n += 1
            return self.n

    def f(c, xs):
        out = []
        for x in xs:
            out.append(x + c.next)
        return out

    compare(f, parallel=False, make=lambda: (Counter(), [1, 2, 3, 4]))


def test_iterators_that_are_used_again():
    def f(it):
        out = []
        for x in it:
            out.append(fails_at(x, 3))
        return out

    def around(xs):
        it = iter(xs)
        try:
            return evener.parallel(f)(it), list(it)
        except ValueError:
            return list(it)

    with sharing(round_trip):
        assert around([0, 1, 2, 3, 4, 5, 6, 7]) == [4, 5, 6, 7]

    def g(xs):
        it = iter(xs)
        out = []
        for i, x in enumerate(it):
            out.append(square(x) + next(it, 0))
        return out

    compare(g, [1, 2, 3, 4, 5], parallel=False)


def test_comprehensions_over_iterators_that_are_used_again():
    def listed(it, bad):
        return [fails_at(x, bad) for x in it]

    def summed(it, bad):
        return sum(fails_at(x, bad) for x in it)

    def paired(it, bad):
        return [fails_at(x, bad) for _, x in enumerate(it)]

    for f in (listed, summed, paired):
        iterator = iter(range(9))
        with sharing(round_trip) as count, pytest.raises(ValueError):
            evener.parallel(f)(iterator, 4)
        assert list(iterator) == [5, 6, 7, 8] and not count.iterations

    def fresh(n):
        return [square(x) for _, x in enumerate(range(n))], sum(square(x) for x in iter(range(n)))

    compare(fresh, 6, parallel=True)


def test_generators_as_sources():
    def numbers(n):
        for i in range(n):
            yield i
        if n == 6:
            raise OSError("source")

    def f(n):
        out = []
        for x in numbers(n):
            out.append(square(x))
        return out

    compare(f, 5, parallel=True)
    compare(f, 6, parallel=True)

    def h(xs):
        out = []
        for x in (y for y in xs if y):
            out.append(square(x))
        return out, [square(v) for v in map(square, xs)]

    compare(h, [1, 0, 2, 3, 4], parallel=True)


def test_what_a_source_prints_comes_before_its_item():
    def numbers(n):
        for i in range(n):
            print("source", i)
            yield i
        print("source ends")
        if n == 6:
            raise OSError("source")

    def f(n, bad):
        out = []
        for x in numbers(n):
            print("body", x)
            out.append(fails_at(x, bad))
        return out

    for n in (5, 6):
        compare(f, n, 9, parallel=True)
        compare(f, n, 3, parallel=True)

    def gives_up(n):
        return [print("body", x) or as_set(x, 3) for x in numbers(n)]

    compare(gives_up, 6, parallel=True)


def test_functions_that_escape():
    def f(xs):
        out = []
        for x in xs:
            out.append(lambda: x)
        return [g() for g in out], [g() for g in [lambda: y for y in xs]]

    compare(f, [1, 2, 3, 4])

    def g(xs):
        out = []
        for x in xs:
            out.append(sorted(xs, key=lambda v: abs(v - x)))
        return out

    compare(g, [4, 2, 9, 1], parallel=True)


def test_things_that_cannot_be_pickled():
    import threading

    lock = threading.Lock()

    def f(xs):
        out = []
        for x in xs:
            with lock:
                out.append(square(x))
        return out

    compare(f, [1, 2, 3, 4], parallel=False)

    def g(xs):
        return [(i for i in range(x)) for x in xs]

    assert len(evener.parallel(g)([1, 2, 3])) == 3

    def unpicklable_items(n):
        out = []
        for item in [1, 2, 3, threading.Lock(), 5]:
            out.append(type(item).__name__)
        return out

    compare(unpicklable_items, 1)


def test_sets_whose_order_shows():
    def f(words):
        vowels = {"a", "e", "i", "o", "u"}
        out = []
        for w in words:
            out.append(sum(1 for c in w if c in vowels))
        return out

    compare(f, ["hello", "world", "audio", "queue"], parallel=True)

    def g(words):
        out = []
        for w in words:
            out.append(list(set(w)))
        return out

    compare(g, ["hello", "world", "audio", "queue"], parallel=False)

    def h(words):
        return [len(set(w)) for w in words], [sorted(set(w)) for w in words]

    compare(h, ["hello", "world", "audio", "queue"], parallel=True)

    def given_back(words):
        return [set(w) for w in words]

    compare(given_back, ["hello", "world", "audio", "queue"])


def test_external_effects_stay_at_home(tmp_path):
    path = tmp_path / "log"

    def f(xs, path):
        out = []
        for x in xs:
            with open(path, "a") as file:
                print(x, file=file)
            out.append(x)
        return out

    with sharing(round_trip):
        assert evener.parallel(f)(range(6), path) == list(range(6))
    assert path.read_text() == "".join(f"{x}\n" for x in range(6))


def test_context_managers_around():
    @contextlib.contextmanager
    def tag(out, name):
        out.append("<" + name)
        try:
            yield
        except ValueError as e:
            out.append(e.args)
        finally:
            out.append(name + ">")

    def f(xs, bad):
        out = []
        with tag(out, "a"):
            for x in xs:
                out.append(fails_at(x, bad))
        return out

    compare(f, [0, 1, 2, 3, 4], 9, parallel=True)
    compare(f, [0, 1, 2, 3, 4], 3, parallel=True)


def test_lru_cache_and_partial():
    @functools.lru_cache(maxsize=None)
    def slow(x):
        return x * 3

    third = functools.partial(math.pow, 2.0)

    def f(xs):
        return [slow(x) + third(x) for x in xs]

    compare(f, [1, 2, 3, 2, 1], parallel=True)


def test_numpy():
    np = pytest.importorskip("numpy")

    def f(a, b):
        out = np.zeros((5, 3))
        total = np.zeros(3)
        rows = []
        for i in range(5):
            out[i, :] = a[i] * b
            total += np.sin(a[i])
            rows.append(a[i] @ b)
        return out, total, rows

    compare(f, np.arange(15.0).reshape(5, 3), np.array([1.0, 2.0, 0.5]), parallel=True)

    def g(a):
        s = np.float32(0)
        for row in a:
            s += row.sum()
        for col in a.T:
            s += np.dot(col, col)
        return s

    compare(g, np.random.RandomState(1).rand(7, 5).astype(np.float32), parallel=True)

    def scratch(a):
        buffer = np.zeros(3)
        out = []
        for row in a:
            buffer[:] = row
            out.append(buffer.sum())
        return out

    compare(scratch, np.ones((4, 3)), parallel=False)

    def view(a):
        b = a[1:]
        for i in range(4):
            a[i] = b[i] + 1
        return a

    compare(view, np.arange(6.0), parallel=False)

    def hidden_write(a):
        def bump(i):
            a[i] += 1
            return a.sum()

        return [bump(i) for i in range(5)]

    compare(hidden_write, np.arange(6.0), parallel=False)

    def keeps_rows(a):
        return [row for row in a], [a[i] for i in range(3)]

    compare(keeps_rows, np.ones((4, 3)))
