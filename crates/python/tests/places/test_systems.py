"""Workers of a real Dask cluster and of a real Ray: the same results, and results that were tampered with are refused."""

from __future__ import annotations

import logging
import os

import evener
import pytest

from . import functions_there as there
from .rigs import run_gallery

WANTED = os.environ.get("EVENER_TEST_SYSTEMS", "")
pytestmark = [pytest.mark.timeout(150)]


@pytest.fixture(scope="module", params=["dask", "ray"])
def system(request):
    if request.param not in WANTED.split(","):
        pytest.skip("%s: only with EVENER_TEST_SYSTEMS=dask,ray, as scripts/test all sets it" % request.param)
    if request.param == "dask":
        distributed = pytest.importorskip("distributed")
        import dask

        dask.config.set({"distributed.admin.log-length": 0})
        # What it logs beside a function is not the function's.
        logging.getLogger("distributed").propagate = False
        with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster:
            with distributed.Client(cluster) as client:
                yield evener.dask(client)
                evener.shut_down()
        from multiprocessing import resource_tracker

        # A process that Dask's processes have shared.
        resource_tracker._resource_tracker._stop()
    else:
        ray = pytest.importorskip("ray")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield evener.ray()
        evener.shut_down()
        ray.shutdown()


def test_the_gallery_gives_the_same(system):
    with evener.Pool(where=system) as pool:
        assert pool.workers == 2
        run_gallery(pool._driver, part=4)


def test_one_pool_with_this_machine_and_every_item_once(system, tmp_path):
    items = [(str(tmp_path), x) for x in range(200)]
    assert list(evener.map(there.slow_nonce, items, where=[evener.local(1), system], home=0)) == list(range(200))
    processes = set()
    for name in os.listdir(tmp_path):
        lines = (tmp_path / name).read_text().splitlines()
        assert len(lines) == 1, name
        processes.update(lines)
    assert len(processes) == 3


def test_an_exception_is_the_one_of_the_plain_loop(system):
    with pytest.raises(ValueError) as caught:
        list(evener.map(there.fail_at_five, range(40), where=system, home=0))
    assert caught.value.args == ("five", 5)


def test_items_of_a_killed_worker_run_again(system, tmp_path):
    items = [(str(tmp_path), x) for x in range(12)]
    assert list(evener.map(there.die_once, items, where=system, home=0)) == list(range(12))


def test_a_result_that_was_tampered_with_is_done_again_elsewhere(system, monkeypatch, caplog):
    from evener._remote.tasks import TaskLink

    changed = []
    submit = TaskLink.submit

    def tampering(self, worker, *rest):
        inner = self._system.submit

        def changing(name, function, part, done):
            def forged(outcome):
                if not changed and isinstance(outcome, bytes):
                    changed.append(name)
                    outcome = outcome[:-1] + bytes([outcome[-1] ^ 1])
                done(outcome)

            return inner(name, function, part, forged)

        self._system.submit = changing
        try:
            return submit(self, worker, *rest)
        finally:
            self._system.submit = inner

    monkeypatch.setattr(TaskLink, "submit", tampering)
    with evener.Pool(where=[system, evener.local(1)]) as pool:
        assert list(pool.map(there.slow, range(40))) == [x * x for x in range(40)]
    assert changed and "signature of a result is wrong" in caplog.text


def test_an_initializer_is_refused_with_a_reason(system):
    import functions

    with pytest.raises(ValueError, match="initializer cannot be run"):
        evener.Pool(where=system, initializer=functions.initialize, initargs=(3,))


def test_a_missing_system_is_an_error_that_says_what_to_install(monkeypatch):
    import sys

    for name, make in (("distributed", evener.dask), ("ray", lambda: evener.ray(workers=1))):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(evener.HostError, match="pip install " + name):
            list(evener.map(there.slow, [1], where=make(), home=0))


def test_signatures_are_of_one_key_one_part_and_all_bytes():
    import random

    from evener._remote.signing import Forged, checked, sign

    random.seed(5)
    key, other = os.urandom(32), os.urandom(32)
    for _ in range(300):
        data, part = os.urandom(random.randrange(200)), os.urandom(random.randrange(1, 30))
        signed = sign(key, part, data)
        assert bytes(checked(key, part, signed)) == data
        at = random.randrange(len(signed))
        wrong = signed[:at] + bytes([signed[at] ^ (1 << random.randrange(8))]) + signed[at + 1 :]
        for bad in (lambda: checked(key, part, wrong), lambda: checked(other, part, signed),
                    lambda: checked(key, part + b"x", signed), lambda: checked(key, part, signed[: random.randrange(32)])):
            with pytest.raises(Forged):
                bad()


