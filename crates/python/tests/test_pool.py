"""The pool is a concurrent.futures.Executor."""

import concurrent.futures
import concurrent.futures.process
import os
import threading
import time

import evener
import functions
import pytest


def test_it_is_an_executor():
    with evener.Pool(2) as pool:
        assert isinstance(pool, concurrent.futures.Executor)
        futures = [pool.submit(pow, 2, x) for x in range(100)]
        assert [future.result(30) for future in futures] == [2**x for x in range(100)]
        assert list(pool.map(pow, [2, 3], [4, 5])) == [16, 243]
        done, waiting = concurrent.futures.wait([pool.submit(functions.square, 3)], timeout=30)
        assert not waiting and done.pop().result() == 9
        assert pool.submit(lambda *a, **k: (a, k), 1, b=2).result(30) == ((1,), {"b": 2})
    with pytest.raises(RuntimeError):
        pool.submit(pow, 2, 2)
    with pytest.raises(RuntimeError):
        pool.map(pow, [1], [2])


def test_exceptions_belong_to_their_future():
    with evener.Pool(1) as pool:
        bad, good = pool.submit(divmod, 1, 0), pool.submit(divmod, 7, 2)
        assert good.result(30) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            bad.result(30)
        unsendable = pool.submit(lambda lock: 1, threading.Lock())
        with pytest.raises(evener.PicklingError, match="cannot be sent"):
            unsendable.result(30)
        with pytest.raises(evener.PicklingError, match="result of item"):
            pool.submit(threading.Lock).result(30)


def test_pending_futures_can_be_cancelled(nothing_left):
    pool = evener.Pool(1)
    running = pool.submit(time.sleep, 0.5)
    while not running.running():
        time.sleep(0.01)
    pending = [pool.submit(functions.square, x) for x in range(20)]
    pool.shutdown(wait=True, cancel_futures=True)
    assert running.result() is None
    assert sum(future.cancelled() for future in pending) >= 19
    assert all(future.done() for future in pending)


def test_shutdown_without_waiting_finishes_the_work():
    pool = evener.Pool(2)
    futures = [pool.submit(functions.slow_square, x) for x in range(50)]
    pool.shutdown(wait=False)
    assert [future.result(30) for future in futures] == [x * x for x in range(50)]


def test_the_initializer_runs_once_in_each_worker():
    with evener.Pool(2, initializer=functions.initialize, initargs=(41,)) as pool:
        assert set(pool.map(functions.read_counter, range(20))) == {41}


def test_an_initializer_that_fails_breaks_the_pool(nothing_left):
    with evener.Pool(2, initializer=functions.fail_to_initialize) as pool:
        with pytest.raises(evener.NotLoadable, match="no licence"):
            pool.submit(functions.square, 1).result(30)
        with pytest.raises(evener.NotLoadable):
            pool.submit(functions.square, 1)


def test_a_dead_worker_is_an_error_after_the_retries_and_the_pool_goes_on():
    with evener.Pool(2, retries=1) as pool:
        with pytest.raises(concurrent.futures.process.BrokenProcessPool, match="SIGKILL"):
            pool.submit(functions.die, 3).result(30)
        assert list(pool.map(functions.square, range(10))) == [x * x for x in range(10)]


def test_map_times_out_as_other_executors_do():
    with evener.Pool(1) as pool:
        with pytest.raises(TimeoutError):
            list(pool.map(time.sleep, [0.01, 20], timeout=0.5))


def test_workers_stay_warm_and_end_with_the_pool(nothing_left):
    with evener.Pool(2) as pool:
        first = set(pool.map(functions.process, range(50)))
        second = set(pool.map(functions.process, range(50)))
        assert first | second and os.getpid() not in first | second
        assert len(first | second) <= 2


def test_threads_can_submit_at_once():
    with evener.Pool(2) as pool:
        results = {}

        def caller(number):
            results[number] = [pool.submit(functions.square, x).result(30) for x in range(number, number + 20)]

        threads = [threading.Thread(target=caller, args=(number,)) for number in range(6)]
        [thread.start() for thread in threads]
        [thread.join(40) for thread in threads]
        assert results == {n: [x * x for x in range(n, n + 20)] for n in range(6)}


def test_a_pool_of_a_device_that_is_not_here_is_refused():
    with pytest.raises(ValueError, match="there are cpu"):
        evener.Pool(devices="cuda:77")


def test_callbacks_may_submit_and_take_locks_that_submitters_hold():
    lock, done = threading.Lock(), threading.Event()
    results = []
    with evener.Pool(2) as pool:

        def next_call(future):
            with lock:
                results.append(future.result())
                if len(results) < 200:
                    pool.submit(functions.square, len(results)).add_done_callback(next_call)
                else:
                    done.set()

        for _ in range(4):
            with lock:
                pool.submit(functions.square, 1).add_done_callback(next_call)
                time.sleep(0.01)
        assert done.wait(30)


def test_a_pool_that_is_dropped_finishes_its_futures_and_ends(nothing_left):
    pool = evener.Pool(2)
    futures = [pool.submit(functions.slow_square, x) for x in range(30)]
    del pool
    assert [future.result(30) for future in futures] == [x * x for x in range(30)]


def test_workers_use_modules_that_were_reloaded(tmp_path, monkeypatch):
    import importlib
    import sys

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "edited.py").write_text("def f(x):\n    return x + 1\n")
    import edited

    assert list(evener.map(edited.f, range(3), home=0)) == [1, 2, 3]
    (tmp_path / "edited.py").write_text("def f(x):\n    return x + 100\n")
    importlib.reload(edited)
    assert list(evener.map(edited.f, range(3), home=0)) == [100, 101, 102]
