"""Workers on other machines through real SSH servers: the same results, whatever happens to machines and connections."""

from __future__ import annotations

import os
import signal
import time
import traceback

import evener
import pytest
from test_failures import are_gone

from . import functions_there as there
from .rigs import SSH, processes_of_hosts, program, rig, run_gallery, until, with_sshd

pytestmark = [with_sshd, pytest.mark.timeout(120)]


def hosts(*names, workers=1, **options):
    return evener.ssh(*names, workers=workers, environment="same", **options)


BOTH = evener.ssh("host1", "host2", workers=1, environment="same")


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left():
    yield
    evener.shut_down()
    until(lambda: not processes_of_hosts(), 5, "processes are left on the hosts: %s" % processes_of_hosts())


def test_the_gallery_gives_the_same_over_ssh():
    with evener.Pool(where=BOTH) as pool:
        run_gallery(pool._driver)


def test_items_run_on_all_hosts_and_here():
    where = [evener.local(1), BOTH]
    found = list(evener.map(there.place, range(120), where=where, home=0))
    assert {host for host, *_ in found} == {"", "host1", "host2"}
    with evener.Pool(where=where) as pool:
        assert pool.workers == 3
        assert [pool.submit(there.slow, x).result() for x in range(5)] == [0, 1, 4, 9, 16]


def test_a_decorated_loop_runs_there():
    @evener.parallel(where=BOTH)
    def squares(n):
        out = []
        for x in range(n):
            time.sleep(0.02)
            out.append((x * x, os.environ.get("EVENER_TEST_RIG", "")))
        return out

    found = squares(100)
    assert [square for square, _ in found] == [x * x for x in range(100)]
    assert len({host for _, host in found}) >= 2
    found = squares.on([evener.local(1)])(20)
    assert {host for _, host in found} == {os.environ.get("EVENER_TEST_RIG", "")}


def test_every_item_runs_exactly_once(tmp_path):
    items = [(str(tmp_path), x) for x in range(150)]
    assert list(evener.map(there.slow_nonce, items, where=[evener.local(1), BOTH], home=0)) == list(range(150))
    assert sorted(int(name) for name in os.listdir(tmp_path)) == list(range(150))
    for name in os.listdir(tmp_path):
        assert len((tmp_path / name).read_text().splitlines()) == 1, name


def test_arrays_and_kept_values_travel_and_captured_data_goes_once():
    np = pytest.importorskip("numpy")
    table = np.arange(200_000.0)
    kept = evener.put(np.arange(100_000))

    def work(array):
        return array * 2 + table[:5].sum() + kept[3]

    arrays = [np.full(20_000, float(x)) for x in range(30)]
    for x, got in enumerate(evener.map(work, arrays, where=BOTH, home=0)):
        assert got.dtype == np.float64 and got.flags.writeable
        assert (got == 2.0 * x + 13.0).all()


def test_an_exception_is_the_one_of_the_plain_loop():
    with pytest.raises(ValueError) as caught:
        list(evener.map(there.fail_at_five, range(40), where=BOTH, home=0))
    assert caught.value.args == ("five", 5)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[-1].name == "fail_at_five" and frames[-1].filename == there.__file__


def test_what_workers_print_is_printed_here():
    ran = program(
        "import places.functions_there as there\n"
        "list(evener.map(there.shout, range(6), where=evener.ssh('host1', workers=2, environment='same'), home=0))\n"
    )
    output, errors = ran.communicate(timeout=60)
    assert sorted(output.splitlines()) == ["item %d" % x for x in range(6)], errors


def test_items_behind_a_long_one_are_given_to_others():
    with evener.Pool(where=hosts("host1", workers=2)) as pool:
        list(pool.map(there.slow, range(4)))
        began = time.monotonic()
        found = list(pool.map(there.first_is_long, range(300)))
        took = time.monotonic() - began
    long_one = found[0][1]
    assert [x for x, _ in found] == list(range(300))
    # What it was handed ahead of need was recalled while it was at the long one.
    assert sum(process == long_one for _, process in found) < 250
    assert took < 10


def test_items_of_a_killed_worker_run_again(tmp_path):
    items = [(str(tmp_path), x) for x in range(60)]
    assert list(evener.map(there.die_once, items, where=BOTH, home=0)) == list(range(60))


def test_an_item_that_always_kills_its_worker_is_named():
    import functions

    with pytest.raises(evener.WorkerDied, match=r"item 3 of die was killed by SIGKILL \(signal 9\) \(3 times\)"):
        list(evener.map(functions.die, range(10), where=BOTH, home=0))


def test_an_item_that_takes_too_long_is_ended():
    import functions

    with pytest.raises(TimeoutError, match="item 0 of wait_long took longer than 0.3 s"):
        list(evener.map(functions.wait_long, range(3), where=BOTH, home=0, timeout=0.3, retries=0))


@pytest.mark.parametrize("how", ["cut", "down"])
def test_a_connection_that_is_cut_loses_no_item(how):
    with evener.Pool(where=BOTH) as pool:
        list(pool.map(there.slow, range(40)))
        results = pool.map(there.slow, range(300))
        time.sleep(0.5)
        rig("sshd", how, "host1")
        try:
            assert list(results) == [x * x for x in range(300)]
        finally:
            if how == "down":
                rig("sshd", "up", "host1")


def test_without_retries_no_item_runs_twice_when_a_connection_is_cut(tmp_path):
    items = [(str(tmp_path), x) for x in range(200)]
    with evener.Pool(where=BOTH) as pool:
        list(pool.map(there.slow, range(40)))
        results = pool.map(there.slow_nonce, items, retries=0)
        time.sleep(0.5)
        rig("sshd", "cut", "host1")
        with pytest.raises(evener.WorkerDied, match="lost with the connection to host1"):
            list(results)
    for name in os.listdir(tmp_path):
        assert len((tmp_path / name).read_text().splitlines()) == 1, name


def test_a_host_that_hangs_is_given_up_and_its_items_run_elsewhere(monkeypatch):
    monkeypatch.setenv("EVENER_HOST_SILENCE", "2")
    with evener.Pool(where=hosts("host1", "host2", timeout=2)) as pool:
        results = pool.map(there.slow, range(150))
        time.sleep(0.6)
        rig("sshd", "hang", "host2")
        try:
            assert list(results) == [x * x for x in range(150)]
        finally:
            rig("sshd", "resume", "host2")


@pytest.mark.parametrize(
    "name, reason",
    [("unknown-key", "host key is unknown"), ("changed-key", "host key has changed"), ("no-permission", "refuses your key"),
     ("down", "runs no SSH server"), ("no-such-name", "name is unknown")],
)
def test_a_host_that_cannot_be_reached_is_an_error_that_says_why(name, reason):
    with pytest.raises(evener.HostError, match=reason):
        list(evener.map(there.slow, range(3), where=hosts(name), home=0))


def test_the_others_go_on_without_a_host_that_cannot_be_reached(caplog):
    found = list(evener.map(there.slow, range(20), where=[evener.local(1), hosts("unknown-key")], home=0))
    assert found == [x * x for x in range(20)]
    assert "host key is unknown" in caplog.text and "go on without it" in caplog.text


def test_another_version_of_python_is_an_error_before_anything_runs(tmp_path):
    fake = tmp_path / "python3"
    fake.write_text("#!/bin/sh\nshift\nexec /usr/bin/env python3 -c \"import sys, platform\nsys.version_info = (3, 4, 0)\n$1\"\n")
    fake.chmod(0o755)
    with pytest.raises(evener.HostError, match=r"its Python is 3\.4 .* and this one is 3\.\d+: pickled code does not pass"):
        list(evener.map(there.slow, range(3), where=evener.ssh("host1", environment=str(fake)), home=0))


WAITING = """
import places.functions_there as there
list(evener.map(there.wait, range(4), where=evener.ssh("host1", workers=2, environment="same"), home=0))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_process_is_left_when_the_caller_is_ended(how):
    caller = program(WAITING)
    workers = [int(caller.stdout.readline()) for _ in range(2)]
    caller.send_signal(how)
    caller.communicate(timeout=20)
    assert are_gone(workers, 5.0)
    until(lambda: not set(workers) & set(processes_of_hosts()), 5, "workers are left")


def test_stopped_workers_end_too_when_the_caller_is_killed():
    caller = program(WAITING)
    workers = [int(caller.stdout.readline()) for _ in range(2)]
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    caller.kill()
    caller.communicate(timeout=20)
    assert are_gone(workers, 5.0)


def test_hosts_of_the_file_are_known_by_their_names(tmp_path):
    (tmp_path / "hosts.toml").write_text('[lab]\naddress = "host2"\nsetup = ["export EVENER_TEST_SETUP=done"]\n')
    ran = program(
        "import places.functions_there as there\n"
        "where = evener.ssh('lab', workers=1, environment='same')\n"
        "print({place[0] for place in evener.map(there.place, range(4), where=where, home=0)})\n",
        cwd=tmp_path,
    )
    output, errors = ran.communicate(timeout=60)
    assert output.strip() == "{'host2'}", errors


assert SSH is None or os.path.isdir(SSH)
