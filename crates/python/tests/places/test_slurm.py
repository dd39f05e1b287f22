"""Workers on the nodes of a real SLURM cluster of virtual nodes: nodes come and go, and no item is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import evener
import pytest
from test_failures import are_gone

from . import functions_there as there
from .rigs import jobs_of_slurm, program, rig, run_gallery, until, with_slurm

pytestmark = [with_slurm, pytest.mark.timeout(170)]


def nodes(count, **request):
    return evener.slurm(nodes=count, environment="same", exclusive=True, **request)


@pytest.fixture(autouse=True)
def no_job_is_left():
    yield
    evener.shut_down()
    until(lambda: not jobs_of_slurm(), 15, "SLURM has jobs: %s" % jobs_of_slurm())


def job_of_node(node):
    """The job that runs on a node."""
    command = ["squeue", "--noheader", "--nodelist=" + node, "--format=%i"]
    return subprocess.run(command, capture_output=True, text=True).stdout.split()[0]


def test_the_gallery_gives_the_same_over_slurm_and_workers_see_their_own_gpus():
    with evener.Pool(where=nodes(2, gpus=2)) as pool:
        assert pool.workers == 4
        found = list(pool.map(there.place, range(200)))
        asked = subprocess.run(["squeue", "--noheader", "--format=%b"], capture_output=True, text=True).stdout.split()
        assert len(asked) == 2 and all("gpu:2" in gres for gres in asked), asked
        seen = {(node, gpu) for _, node, gpu, _ in found}
        assert len(seen) == 4 and {gpu for _, gpu in seen} == {"0", "1"}, seen
        by_process = {}
        for _, node, gpu, process in found:
            by_process.setdefault(process, set()).add((node, gpu))
        assert all(len(places) == 1 for places in by_process.values())
        assert [pool.submit(evener.device).result() for _ in range(4)] == ["cuda:0"] * 4
        run_gallery(pool._driver, part=3)


def test_one_pool_of_this_machine_and_of_nodes(tmp_path):
    items = [(str(tmp_path), x) for x in range(300)]
    where = [evener.local(1), nodes(2, cores=2)]
    assert list(evener.map(there.slow_nonce, items, where=where, home=0)) == list(range(300))
    for name in os.listdir(tmp_path):
        assert len((tmp_path / name).read_text().splitlines()) == 1, name
    devices = {device["id"] for device in evener.last_run().to_dict()["devices"] if device["items"]}
    assert {"cpu"} < devices


def test_a_job_that_is_cancelled_loses_no_item():
    with evener.Pool(where=nodes(2)) as pool:
        found = {node for _, node, *_ in pool.map(there.place, range(60))}
        assert len(found) == 2
        results = pool.map(there.slow, range(300))
        time.sleep(0.5)
        subprocess.run(["scancel", job_of_node(sorted(found)[0])], check=True)
        assert list(results) == [x * x for x in range(300)]


def test_a_run_whose_jobs_are_all_cancelled_is_an_error_that_says_so():
    with evener.Pool(where=nodes(2)) as pool:
        list(pool.map(there.slow, range(20)))
        results = pool.map(there.slow, range(600))
        time.sleep(0.3)
        subprocess.run(["scancel", *[line.split()[0] for line in jobs_of_slurm()]], check=True)
        with pytest.raises(evener.WorkerDied, match="was cancelled"):
            list(results)


def test_a_node_that_is_drained_finishes():
    with evener.Pool(where=nodes(2)) as pool:
        found = {node for _, node, *_ in pool.map(there.place, range(60))}
        results = pool.map(there.slow, range(150))
        drained = sorted(found)[0]
        rig("slurm", "drain", drained)
        try:
            assert list(results) == [x * x for x in range(150)]
        finally:
            rig("slurm", "resume", drained)


def test_items_of_a_killed_worker_run_again(tmp_path):
    items = [(str(tmp_path), x) for x in range(40)]
    assert list(evener.map(there.die_once, items, where=nodes(2), home=0)) == list(range(40))


def test_a_time_limit_that_is_reached_loses_no_item():
    with evener.Pool(where=[evener.local(1), nodes(1, time="1:00")]) as pool:
        found = {node for _, node, *_ in pool.map(there.place, range(200))} - {None}
        assert len(found) == 1
        results = pool.map(there.slow, range(3000))
        rig("slurm", "expire", job_of_node(found.pop()))
        assert list(results) == [x * x for x in range(3000)]
        said = " ".join(failure for device in evener.last_run().to_dict()["devices"] for failure in device.get("failures", ()))
        assert "time limit" in said, said


@pytest.mark.parametrize(
    "request_, reason",
    [({"partition": "nope"}, "Invalid partition"), ({"gpus": 9}, "Requested node config"), ({"memory": "900GB"}, "refuses")],
)
def test_a_request_that_cannot_be_met_is_an_error_in_slurms_words(request_, reason):
    with pytest.raises((evener.WorkerDied, evener.HostError), match=reason):
        list(evener.map(there.slow, range(3), where=nodes(1, **request_), home=0))


WAITING = """
import places.functions_there as there
list(evener.map(there.wait, range(4), where=evener.slurm(nodes=2, partition=%r, environment="same"), home=0))
"""


def test_no_process_and_no_job_is_left_when_the_caller_is_killed():
    caller = program(WAITING % "main")
    workers = [int(caller.stdout.readline()) for _ in range(2)]
    caller.send_signal(signal.SIGKILL)
    caller.communicate(timeout=20)
    assert are_gone(workers, 5.0)
    until(lambda: not jobs_of_slurm(), 5, "jobs are left")


def test_no_pending_job_is_left_when_the_caller_is_killed():
    caller = program(WAITING % "down")
    until(lambda: len(jobs_of_slurm()) == 2, 20, "no job is pending")
    caller.kill()
    caller.communicate(timeout=20)
    until(lambda: not jobs_of_slurm(), 5, "jobs are left")


def test_inside_an_allocation_its_nodes_are_used():
    text = (
        "import places.functions_there as there\n"
        "found = list(evener.map(there.place, range(60), where=evener.slurm(environment='same'), home=0))\n"
        "print(sorted({node for _, node, *_ in found}))\n"
    )
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    import sys

    text = "import sys\nsys.path.insert(0, %r)\nimport evener\n" % here + text
    ran = subprocess.run(["salloc", "--quiet", "--nodes=2", "--exclusive", sys.executable, "-c", text],
                         capture_output=True, text=True, timeout=60)
    assert ran.stdout.count("'n") == 2, (ran.stdout, ran.stderr)
