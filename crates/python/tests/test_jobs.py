"""Submitted jobs: they outlive their submitter, and nothing unsigned is unpickled."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import random
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import evener
import job_functions
import pytest
from evener._jobs import store

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder of jobs for each test; all its jobs have ended after it."""
    monkeypatch.setenv("EVENER_JOBS_FOLDER", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    evener.config()
    yield tmp_path / "state"
    for job in evener.jobs():
        job.cancel()
    monkeypatch.undo()
    evener.config()


def until(condition, seconds=20.0):
    ends = time.monotonic() + seconds
    while not condition() and time.monotonic() < ends:
        time.sleep(0.02)
    assert condition()


def command(*arguments):
    return subprocess.run([sys.executable, "-m", "evener", *arguments], capture_output=True, text=True)


def is_running(process):
    try:
        with open("/proc/%d/stat" % process) as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_job_gives_the_result_of_the_call():
    job = job_functions.squares.submit(list(range(5)))
    assert job.result(timeout=30) == [0, 1, 4, 9, 16]
    assert job.status() == "done" and job.done()
    assert "squares of 5" in job.logs()
    assert evener.job(job.id) == job and evener.jobs() == [job]
    assert pickle.loads(pickle.dumps(job)) == job


def test_an_exception_of_a_job_keeps_type_arguments_and_frames():
    job = evener.submit(job_functions.fail, "no")
    with pytest.raises(job_functions.Odd) as caught:
        job.result(timeout=30)
    assert caught.value.args == ("no", 7)
    assert caught.traceback[-1].name == "fail"
    assert job.status() == "failed" and "Odd" in job.logs()
    assert isinstance(job.exception(), job_functions.Odd)


def test_a_job_outlives_its_submitter_and_is_managed_by_commands(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import evener, time\n"
        "@evener.parallel\n"
        "def late(numbers):\n"
        "    time.sleep(0.5)\n"
        "    out = []\n"
        "    for n in numbers:\n"
        "        out.append(n + 0.5)\n"
        "    print('calculated')\n"
        "    return out\n"
        "if __name__ == '__main__':\n"
        "    print(late.submit([1, 2]).id, flush=True)\n"
    )
    ran = subprocess.run([sys.executable, str(program)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    id = ran.stdout.strip()
    result = command("result", "--wait", id)
    assert (result.returncode, result.stdout.strip()) == (0, "[1.5, 2.5]"), result.stderr
    assert "calculated" in command("logs", id[-8:]).stdout
    listed = command("jobs")
    assert id in listed.stdout and "done" in listed.stdout and "late" in listed.stdout
    assert json.loads(command("jobs", "--json").stdout)[0]["status"] == "done"
    written = command("result", id, "--output", str(tmp_path / "result.pickle"))
    assert written.returncode == 0 and pickle.loads((tmp_path / "result.pickle").read_bytes()) == [1.5, 2.5]
    late = command("cancel", id)
    assert late.returncode == 1 and "had ended" in late.stderr
    assert command("remove", id).returncode == 0
    gone = command("result", id)
    assert gone.returncode == 1 and "no job" in gone.stderr


def test_the_result_of_a_job_that_runs_is_an_exit_code_of_its_own():
    job = evener.submit(job_functions.sleep_for, 30)
    assert command("result", job.id).returncode == 3
    assert command("cancel", job.id).returncode == 0
    assert command("result", job.id).returncode == 1


def test_the_help_names_all_commands():
    said = command("--help").stdout
    assert all(word in said for word in ("jobs", "logs", "cancel", "result", "explain", "devices", "config"))


def test_a_result_that_does_not_come_in_time_is_a_timeout():
    job = evener.submit(job_functions.sleep_for, 30)
    with pytest.raises(TimeoutError, match=job.id):
        job.result(timeout=0.2)
    assert job.cancel()
    with pytest.raises(evener.JobCancelled):
        job.result()
    assert job.cancel()


def test_cancel_ends_the_process_after_its_finally_clauses(tmp_path):
    mark = tmp_path / "mark"
    job = evener.submit(job_functions.sleep_for, 60, str(mark))
    until(mark.exists)
    began = time.monotonic()
    assert job.cancel() and job.status() == "cancelled"
    assert time.monotonic() - began < 3
    assert "over" in job.logs()
    until(lambda: not is_running(int(mark.read_text() or 0)))


def test_a_job_that_catches_everything_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("evener._jobs.handle.GRACE", 0.5)
    mark = tmp_path / "mark"
    job = evener.submit(job_functions.stubborn, str(mark))
    until(lambda: mark.exists() and mark.read_text())
    assert job.cancel() and job.status() == "cancelled"
    until(lambda: not is_running(int(mark.read_text())))


def test_cancel_ends_the_workers_of_a_job(tmp_path):
    job = job_functions.slow.submit(30, str(tmp_path) + "/w")
    until(lambda: (tmp_path / "w0").exists() and (tmp_path / "w0").read_text())
    assert job.cancel()
    processes = [int(file.read_text()) for file in tmp_path.glob("w?")]
    until(lambda: not any(map(is_running, processes)))


def test_a_job_whose_process_was_killed_says_so(tmp_path):
    mark = tmp_path / "mark"
    job = evener.submit(job_functions.sleep_for, 60, str(mark))
    until(lambda: mark.exists() and mark.read_text())
    os.kill(int(mark.read_text()), signal.SIGKILL)
    with pytest.raises(evener.JobDied, match="killed"):
        job.result(timeout=10)
    assert job.status() == "died"
    assert command("result", job.id).returncode == 1


def test_a_forked_child_does_not_keep_a_dead_job_alive(tmp_path):
    mark = tmp_path / "mark"
    job = evener.submit(job_functions.child_sleeps, str(mark))
    until(lambda: mark.exists() and len(mark.read_text().split()) == 2)
    process, child = map(int, mark.read_text().split())
    os.kill(process, signal.SIGKILL)
    try:
        with pytest.raises(evener.JobDied):
            job.result(timeout=10)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_job_whose_submitter_was_killed_before_it_began_has_died(folder):
    made = store.new_folder()
    made.write_json("record.json", {"label": "f"})
    lock = made.take_lock()
    made.publish()
    assert evener.job(made.id).status() == "starting"
    os.close(lock)
    with pytest.raises(evener.JobDied):
        evener.job(made.id).result(timeout=5)


def test_a_job_is_awaited_beside_others():
    async def both():
        one, other = (evener.submit(job_functions.sleep_for, 0.2) for _ in range(2))
        return await asyncio.gather(one, other)

    assert asyncio.run(both()) == [0.2, 0.2]


def test_what_cannot_be_pickled_is_refused_at_once_or_said_by_the_job():
    with pytest.raises(evener.PicklingError, match="sleep_for"):
        evener.submit(job_functions.sleep_for, (n for n in range(3)))
    job = evener.submit(job_functions.generator)
    with pytest.raises(evener.PicklingError, match="generator"):
        job.result(timeout=30)
    with evener.Pool(workers=1) as pool, pytest.raises(evener.PicklingError):
        job_functions.squares.on(pool).submit([1])


def test_folders_and_keys_are_for_the_user_only(folder):
    folder.mkdir(mode=0o755)
    job = evener.submit(job_functions.sleep_for, 0)
    job.result(timeout=30)
    paths = [folder, *folder.rglob("*")]
    assert len(paths) > 7
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in paths if path.is_dir() or path.parent.name == "keys")
    assert not [path for path in paths if stat.S_IMODE(path.stat().st_mode) & 0o077]


class Trap:
    """Unpickling it leaves a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("change", ["other contents", "one bit", "cut short", "of another job", "no key", "unsigned"])
def test_a_result_that_was_tampered_with_is_not_unpickled(change, tmp_path, folder):
    job = evener.submit(job_functions.sleep_for, 0)
    job.result(timeout=30)
    file, trap = folder / "jobs" / job.id / "result", str(tmp_path / "trap")
    data = file.read_bytes()
    if change == "other contents":
        file.write_bytes(data[: len(store.sealed.MAGIC) + 32] + pickle.dumps(("value", Trap(trap))))
    elif change == "one bit":
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif change == "cut short":
        file.write_bytes(data[:20])
    elif change == "of another job":
        other = evener.submit(Trap, trap)
        assert other.wait(30)
        file.write_bytes((folder / "jobs" / other.id / "result").read_bytes())
    elif change == "no key":
        (folder / "keys" / job.id).unlink()
    else:
        file.write_bytes(pickle.dumps(("value", Trap(trap))))
    with pytest.raises(evener.BadSignature):
        job.result()
    assert not os.path.exists(trap)


def test_a_call_that_was_tampered_with_is_not_run(tmp_path, folder, monkeypatch):
    trap = str(tmp_path / "trap")

    def swapped(made, lock, log):
        Path(made.file("call")).write_bytes(pickle.dumps(Trap(trap)))
        start(made, lock, log)

    import evener._jobs.submit as submitting

    start = submitting._start
    monkeypatch.setattr(submitting, "_start", swapped)
    job = evener.submit(job_functions.sleep_for, 0)
    with pytest.raises(evener.JobDied, match="BadSignature"):
        job.result(timeout=30)
    assert not os.path.exists(trap)


def test_ids_of_a_hundred_jobs_from_four_processes_do_not_collide(folder):
    # The folders are made at once; starting a hundred interpreters would only take longer.
    program = (
        "import os, sys\n"
        "from evener._jobs import store, submit\n"
        "submit._start = lambda *arguments: None\n"
        "sys.stdin.readline()\n"
        "for number in range(25): print(submit.submit(pow, 2, number).id)\n"
    )
    ran = [subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, text=True) for _ in range(4)]
    ids = []
    for process in ran:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in ran:
        ids += process.communicate()[0].split()
    assert len(ids) == len(set(ids)) == 100
    assert set(store.all_ids()) == set(ids)


def test_old_jobs_are_removed_and_living_ones_never(folder, monkeypatch):
    living = evener.submit(job_functions.sleep_for, 30)
    ended = [evener.submit(job_functions.sleep_for, 0) for _ in range(3)]
    for job in ended:
        job.result(timeout=30)
    weeks_ago = time.time() - 15 * 86400
    for job in (living, ended[0]):
        for file in (folder / "jobs" / job.id).iterdir():
            os.utime(file, (weeks_ago, weeks_ago))
    until(lambda: living.status() == "running")
    # A job has ended a moment before its process has.
    until(lambda: not any(job._folder.is_alive() for job in ended))
    assert store.prune() == [ended[0].id]
    with pytest.raises(evener.NoSuchJob):
        ended[0].status()
    assert not (folder / "keys" / ended[0].id).exists()
    monkeypatch.setenv("EVENER_JOBS_KEPT", "1")
    evener.config()
    assert store.prune() == [min(ended[1].id, ended[2].id)]
    assert living.status() == "running"


def test_a_job_draws_what_a_call_would_and_the_next_one_something_else():
    random.seed(5)
    first, second = evener.submit(job_functions.draw), evener.submit(job_functions.draw)
    random.seed(5)
    expected = job_functions.draw()
    assert first.result(timeout=30) == expected
    assert second.result(timeout=30) != expected


def test_a_job_has_the_settings_of_its_submitter():
    evener.configure(workers=3)
    try:
        job = evener.submit(lambda: __import__("evener").config().source("workers"))
        assert job.result(timeout=30) == "configure()"
    finally:
        evener.configure(workers=None)
