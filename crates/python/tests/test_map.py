"""Ordered results: values, order, laziness and exceptions are those of the plain loop."""

import itertools
import logging
import os
import threading
import time
import traceback

import evener
import functions
import pytest


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 2, 10, 1000])
def test_results_are_in_order(workers, count):
    assert list(evener.map(functions.square, range(count), workers=workers, home=0)) == [x * x for x in range(count)]


@pytest.mark.parametrize("home", [None, 0, 3])
def test_any_iterable_gives_its_items(home):
    for items in ([1, 2, 3], (1, 2, 3), {1: 2, 3: 4}, {5, 6}, "abc", b"abc", iter([1, 2]), (x for x in range(5))):
        again = list(items) if not hasattr(items, "__next__") else None
        got = list(evener.map(lambda x: [x], items, home=home, workers=2))
        if again is not None:
            assert got == [[x] for x in again]
    assert list(evener.map(lambda a, b: a + b, [1, 2, 3], iter([4, 5]), home=home)) == [5, 7]


def test_values_keep_their_types():
    values = [1, 1.5, 2j, "a", b"b", None, True, (1, 2), [3], {4: 5}, {6}, frozenset([7]), range(3), Exception("e")]
    for value, got in zip(values, evener.map(lambda x: x, values, home=0)):
        assert type(got) is type(value)
        assert repr(got) == repr(value)


def test_an_endless_source_is_read_a_bounded_way_ahead():
    read = 0

    def source():
        nonlocal read
        for read in itertools.count():
            yield read

    results = evener.map(functions.square, source(), home=0, workers=2)
    iterator = iter(results)
    assert list(itertools.islice(iterator, 2000)) == [x * x for x in range(2000)]
    assert read < 2000 + (1 << 17)
    results.close()
    before = read
    time.sleep(0.05)
    assert read == before


def test_the_source_is_read_in_the_thread_that_iterates():
    threads = set()

    def source():
        for x in range(500):
            threads.add(threading.get_ident())
            yield x

    assert len(list(evener.map(functions.square, source(), home=0))) == 500
    assert threads == {threading.get_ident()}


def test_an_exception_comes_in_its_place_and_keeps_everything():
    class Problem(Exception):
        def __init__(self, code, **details):
            super().__init__(code)
            self.code = code
            self.details = details

        def __reduce__(self):
            return (Problem, (self.code,), {"details": self.details})

    def work(x):
        if x == 40:
            try:
                {}["missing"]
            except KeyError as error:
                problem = Problem(7, why="x")
                if hasattr(problem, "add_note"):
                    problem.add_note("a note")
                raise problem from error
        return x

    results = []
    with pytest.raises(Problem) as caught:
        for result in evener.map(work, range(100), home=0, workers=2):
            results.append(result)
    assert results == list(range(40))
    error = caught.value
    assert type(error) is Problem and error.args == (7,) and error.details == {"why": "x"}
    assert type(error.__cause__) is KeyError and error.__cause__.args == ("missing",)
    assert error.__context__ is error.__cause__ and error.__suppress_context__
    if hasattr(error, "add_note"):
        assert error.__notes__ == ["a note"]
    frames = traceback.extract_tb(error.__traceback__)
    assert frames[-1].name == "work" and frames[-1].filename == __file__
    assert "raise problem from error" in "".join(traceback.format_exception(type(error), error, error.__traceback__))


def test_the_first_exception_is_raised_whatever_comes_first_in_time():
    def work(x):
        if x == 5:
            time.sleep(0.2)
            raise ValueError(5)
        if x > 5:
            raise KeyError(x)
        return x

    with pytest.raises(ValueError):
        list(evener.map(work, range(50), home=0, workers=3))


def test_an_exception_of_the_source_comes_after_the_results_before_it():
    def source():
        yield from range(30)
        raise LookupError("the source")

    results = []
    with pytest.raises(LookupError):
        for result in evener.map(functions.square, source(), home=0):
            results.append(result)
    assert results == [x * x for x in range(30)]


def test_system_exit_and_keyboard_interrupt_of_an_item_are_raised():
    for kind in (SystemExit, KeyboardInterrupt):

        def work(x, kind=kind):
            if x == 2:
                raise kind(3)
            return x

        with pytest.raises(kind):
            list(evener.map(work, range(5), home=0))


def test_an_exception_that_cannot_be_sent_is_described():
    class Locked(Exception):
        def __init__(self, a, b):
            super().__init__("locked up")
            self.lock = threading.Lock()

    def work(x):
        raise Locked(1, 2)

    with pytest.raises(evener.RemoteError, match="Locked: locked up"):
        list(evener.map(work, range(3), home=0))


def test_a_result_that_cannot_be_sent_is_named():
    def work(x):
        return threading.Lock() if x == 4 else x

    with pytest.raises(evener.PicklingError, match="result of item 4 .*lock"):
        list(evener.map(work, range(10), home=0))


def test_an_item_that_cannot_be_sent_runs_at_home_and_is_logged(caplog):
    here = os.getpid()
    lock = threading.Lock()
    items = [1, lock, 2]
    with caplog.at_level(logging.WARNING, "evener"):
        got = list(evener.map(lambda x: (type(x).__name__, __import__("os").getpid()), items, home=0))
    assert [name for name, _ in got] == ["int", type(lock).__name__, "int"]
    assert got[1][1] == here and got[0][1] != here
    assert "item 1 cannot be sent" in caplog.text


def test_a_function_that_cannot_be_sent_runs_at_home_and_is_logged(caplog):
    lock = threading.Lock()

    def work(x):
        with lock:
            return x + 1

    with caplog.at_level(logging.WARNING, "evener"):
        assert list(evener.map(work, range(5), home=0)) == [1, 2, 3, 4, 5]
        assert list(evener.map(work, iter(range(5)), home=2)) == [1, 2, 3, 4, 5]
    assert "work cannot be sent" in caplog.text


def test_a_function_that_cannot_be_loaded_is_an_error():
    class Bad:
        def __call__(self, x):
            return x

        def __reduce__(self):
            return (__import__, ("no_such_module_anywhere",))

    with pytest.raises(evener.NotLoadable, match="no_such_module_anywhere"):
        list(evener.map(Bad(), range(5), home=0))
    assert list(evener.map(functions.square, range(3), home=0)) == [0, 1, 4]


def test_a_worker_that_maps_does_so_plainly_and_says_so(caplog):
    def outer(x):
        import evener

        return sum(evener.map(functions.square, range(x), home=0))

    with caplog.at_level(logging.INFO, "evener"):
        assert list(evener.map(outer, range(5), home=0)) == [0, 0, 1, 5, 14]
    assert "called in a worker" in caplog.text


def test_cheap_items_start_no_worker():
    evener.shut_down()
    assert list(evener.map(functions.square, range(10_000))) == [x * x for x in range(10_000)]
    assert list(evener.map(functions.square, iter(range(2_000)))) == [x * x for x in range(2_000)]
    assert not evener.last_run().used_workers


def test_expensive_items_start_workers_and_a_cheap_beginning_does_not_hide_them():
    def work(x):
        if x >= 20_000:
            __import__("time").sleep(0.02)
        return x

    began = time.monotonic()
    assert list(evener.map(work, range(20_060), workers=2)) == list(range(20_060))
    assert evener.last_run().used_workers
    assert time.monotonic() - began < 1.4


def test_dropping_the_iterator_cancels_what_is_in_flight():
    results = evener.map(functions.wait_long, range(10), home=0)
    iterator = iter(results)
    threading.Thread(target=lambda: None).start()
    del results, iterator
    results = evener.map(functions.wait_long, range(10), home=0, workers=2)
    results.start()
    time.sleep(0.3)
    results.close()
    began = time.monotonic()
    assert list(evener.map(functions.square, range(10), home=0, workers=2)) == [x * x for x in range(10)]
    assert time.monotonic() - began < 5


def test_several_threads_map_at_once():
    problems = []

    def caller(number):
        try:
            for _ in range(5):
                got = list(evener.map(lambda x: x + number, range(200), home=0, workers=2))
                assert got == [x + number for x in range(200)]
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=caller, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join(30) for thread in threads]
    assert not problems and not any(thread.is_alive() for thread in threads)


def test_each_item_runs_exactly_once(tmp_path):
    items = [(str(tmp_path), x) for x in range(300)]
    assert list(evener.map(functions.nonce, items, home=0, workers=3)) == list(range(300))
    for x in range(300):
        assert len((tmp_path / str(x)).read_text().splitlines()) == 1


def test_the_report_and_the_trace_count_every_item():
    import json

    assert len(list(evener.map(functions.slow_square, range(100), home=4, workers=2))) == 100
    last = evener.last_run()
    report = last.to_dict()
    assert report["items"] == report["done"] == 100
    assert sum(device["items"] for device in report["devices"]) == 100
    spans = [event for event in json.loads(last.trace())["traceEvents"] if event["ph"] == "X"]
    assert sum(span["args"]["accepted"] for span in spans) + last.home[0] == 100
    assert "100 of 100 items" in last.report() and "<table>" in last._repr_html_()


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError):
        evener.map(functions.square)
    with pytest.raises(TypeError):
        evener.map(3, [1])


def test_progress_is_shown_when_asked_for(capsys):
    list(evener.map(functions.slow_square, range(100), home=0, progress=True))
    assert "100/100" in capsys.readouterr().err
    list(evener.map(functions.slow_square, range(10), home=0))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("home", [None, 0])
@pytest.mark.parametrize("at", [0, 1, 3, 40])
@pytest.mark.parametrize("kind", [list, iter])
def test_stop_iteration_of_a_function_is_an_error_and_loses_no_item(home, at, kind):
    def work(x):
        if x == at:
            raise StopIteration
        return x

    results = []
    with pytest.raises(RuntimeError, match="StopIteration"):
        for result in evener.map(work, kind(range(50)), home=home):
            results.append(result)
    assert results == list(range(at))


def number_and_item(index, item):
    return index, item


@pytest.mark.parametrize("home", [0, 1, 7])
@pytest.mark.parametrize("make", [list, iter])
def test_workers_count_items_as_the_caller_does(home, make):
    from evener._schedule.options import Options
    from evener._schedule.ordered import ordered

    results = ordered(number_and_item, make(range(100, 150)), options=Options(home=home, workers=2))
    assert list(results) == list(enumerate(range(100, 150)))
