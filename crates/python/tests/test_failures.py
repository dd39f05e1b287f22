"""Workers that die, hang or are stopped cost their items only, and nothing is left."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import evener
import functions
import pytest
from conftest import children

HERE = os.path.dirname(__file__)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_items_of_a_dead_worker_run_again(tmp_path, how):
    items = [(str(tmp_path), x, int(how)) for x in range(30)]
    assert list(evener.map(functions.die_once, items, home=0, workers=2)) == list(range(30))


def test_an_item_that_always_kills_its_worker_fails_in_its_place():
    results = []
    with pytest.raises(evener.WorkerDied, match=r"item 3 of die was killed by SIGKILL \(signal 9\) \(3 times\)"):
        for result in evener.map(functions.die, range(10), home=0, workers=2):
            results.append(result)
    assert results == [0, 1, 2]


def test_a_segmentation_fault_is_named():
    with pytest.raises(evener.WorkerDied, match="SIGSEGV"):
        list(evener.map(functions.segfault, range(10), home=0, retries=0))


def test_without_retries_no_item_runs_twice(tmp_path):
    def work(argument):
        functions.nonce(argument)
        if argument[1] == 25:
            os.kill(os.getpid(), signal.SIGKILL)
        return argument[1]

    items = [(str(tmp_path), x) for x in range(60)]
    with pytest.raises(evener.WorkerDied):
        list(evener.map(work, items, home=0, workers=2, retries=0))
    for mark in os.listdir(tmp_path):
        assert len((tmp_path / mark).read_text().splitlines()) == 1


def test_an_item_that_takes_too_long_is_ended():
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="item 0 of wait_long took longer than 0.3 s"):
        list(evener.map(functions.wait_long, range(3), home=0, timeout=0.3, retries=0, workers=2))
    assert time.monotonic() - began < 10


def test_a_stopped_worker_is_waited_for_and_others_take_what_it_has_not_begun():
    evener.shut_down()
    list(evener.map(functions.square, range(2), home=0, workers=2))
    workers = sorted(children())
    results = evener.map(functions.slow_square, range(400), home=0, workers=2)
    results.start()
    time.sleep(0.1)
    os.kill(workers[0], signal.SIGSTOP)
    threading.Timer(1.0, os.kill, (workers[0], signal.SIGCONT)).start()
    assert list(results) == [x * x for x in range(400)]


def test_workers_that_are_killed_while_idle_are_replaced():
    list(evener.map(functions.square, range(2), home=0, workers=2))
    for worker in children():
        os.kill(worker, signal.SIGKILL)
    assert list(evener.map(functions.square, range(100), home=0, workers=2)) == [x * x for x in range(100)]


def program(text, *arguments, **options):
    """Starts a program of its own."""
    text = "import sys\nsys.path.insert(0, %r)\n" % HERE + textwrap.dedent(text)
    # Unbuffered, a line is written in two parts, between which another worker can write.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    options = {"env": environment, **options}
    return subprocess.Popen(
        [sys.executable, "-c", text, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def are_gone(processes, seconds):
    """Waits until processes have ended."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        left = [process for process in processes if is_running(process)]
        if not left:
            return True
        time.sleep(0.02)
    return False


def is_running(process):
    try:
        with open("/proc/%d/stat" % process) as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


WAITING = """
    import os, time, evener, functions
    def work(x):
        print(os.getpid(), flush=True)
        time.sleep(60)
    list(evener.map(work, range(10), home=0, workers=2))
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_workers_end_with_a_parent_that_is_killed(stopped):
    parent = program(WAITING)
    workers = [int(parent.stdout.readline()) for _ in range(2)]
    if stopped and sys.platform == "linux":
        os.kill(workers[0], signal.SIGSTOP)
    parent.kill()
    parent.wait()
    assert are_gone(workers, 2.0)
    parent.stdout.close(), parent.stderr.close()


def test_control_c_ends_everything_within_a_second():
    parent = program(WAITING)
    workers = [int(parent.stdout.readline()) for _ in range(2)]
    began = time.monotonic()
    parent.send_signal(signal.SIGINT)
    _, errors = parent.communicate(timeout=10)
    assert time.monotonic() - began < 1.5
    assert "KeyboardInterrupt" in errors
    assert are_gone(workers, 0.5)


def test_a_program_ends_without_hanging_while_workers_are_busy_or_idle():
    parent = program(
        """
        import evener, functions
        print(list(evener.map(functions.square, range(4), home=0)))
        pool = evener.Pool(1)
        pool.submit(functions.square, 3).result()
        rest = evener.map(functions.wait_long, range(4), home=0, workers=2)
        rest.start()
        """
    )
    output, errors = parent.communicate(timeout=20)
    assert output == "[0, 1, 4, 9]\n" and parent.returncode == 0 and errors == ""


def test_a_forked_process_has_workers_of_its_own():
    parent = program(
        """
        import os, evener, functions
        mine = set(evener.map(functions.process, range(20), home=0))
        child = os.fork()
        if child == 0:
            theirs = set(evener.map(functions.process, range(20), home=0))
            assert list(evener.map(functions.square, range(20), home=0)) == [x * x for x in range(20)]
            os._exit(0 if not mine & theirs else 3)
        _, status = os.waitpid(child, 0)
        assert os.WEXITSTATUS(status) == 0, status
        assert set(evener.map(functions.process, range(20), home=0)) & mine
        print("done")
        """
    )
    output, errors = parent.communicate(timeout=30)
    assert output == "done\n", errors


def test_functions_of_a_main_module_travel_with_their_classes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import evener
            from dataclasses import dataclass
            @dataclass
            class Point:
                x: int
            SCALE = 3
            def move(point):
                return Point(point.x * SCALE)
            results = list(evener.map(move, [Point(1), Point(2)], home=0))
            assert results == [Point(3), Point(6)] and type(results[0]) is Point
            print("done")
            """
        )
    )
    got = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, timeout=30)
    assert got.stdout == "done\n"


def test_output_of_workers_is_not_lost():
    parent = program(
        """
        import evener
        list(evener.map(lambda x: print("item", x), range(6), home=0))
        """
    )
    output, _ = parent.communicate(timeout=20)
    assert sorted(output.split("\n")) == sorted(["item %d" % x for x in range(6)] + [""])


def test_a_worker_that_forks_and_dies_is_noticed():
    def work(x):
        if x == 2 and os.fork() == 0:
            time.sleep(3)
            os._exit(0)
        if x == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    with pytest.raises(evener.WorkerDied):
        list(evener.map(work, range(5), home=0, retries=0, workers=2))


def test_a_fork_after_a_pool_has_ended_leaves_other_descriptors_alone():
    parent = program(
        """
        import os, evener, functions
        pools = [evener.Pool(2) for _ in range(3)]
        for pool in pools:
            assert list(pool.map(functions.square, range(5))) == [0, 1, 4, 9, 16]
            pool.shutdown()
        files = [os.open("/dev/null", os.O_RDONLY) for _ in range(64)]
        child = os.fork()
        if child == 0:
            try:
                [os.fstat(file) for file in files]
            except OSError:
                os._exit(3)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.WEXITSTATUS(status))
        """
    )
    output, errors = parent.communicate(timeout=30)
    assert output == "0\n", errors


def hangs_at_five(item):
    import time

    time.sleep(30.0 if item == 5 else 0.01)
    return item


def test_an_item_that_hangs_again_is_ended_again():
    # Nothing else happens while its last attempt hangs.
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="item 5 of hangs_at_five took longer than 0.3 s .3 times."):
        list(evener.map(hangs_at_five, range(6), workers=2, timeout=0.3, retries=2, home=1))
    assert time.monotonic() - began < 20


def fails_at_five(item):
    return 1 / (item - 5)


def test_frames_of_workers_have_an_instruction():
    # Programs that show tracebacks look for the instruction of each frame.
    with pytest.raises(ZeroDivisionError) as caught:
        list(evener.map(fails_at_five, range(10), workers=2, home=0))
    traceback = caught.value.__traceback__
    last = None
    while traceback is not None:
        assert traceback.tb_lasti >= 0
        last, traceback = traceback, traceback.tb_next
    assert last.tb_frame.f_code.co_name == "fails_at_five"
    assert last.tb_lineno == fails_at_five.__code__.co_firstlineno + 1


SPAWNED = """
import multiprocessing, time
import evener

def square(x):
    time.sleep(0.01)
    return x * x

def child():
    assert list(evener.map(square, range(20), workers=2, home=0)) == [x * x for x in range(20)]

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
    raise SystemExit(process.exitcode)
"""


def test_functions_of_a_spawned_process_are_sent_by_value(tmp_path):
    import subprocess
    import sys

    program = tmp_path / "program.py"
    program.write_text(SPAWNED)
    ran = subprocess.run([sys.executable, str(program)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
