"""Ends the pools of the stand-ins after each module, so that no process is left."""

from multiprocessing import resource_tracker

import pytest

from . import stand_in


@pytest.fixture(scope="module", autouse=True)
def no_pool_is_left():
    yield
    for pool in stand_in._pools.values():
        pool.shutdown()
    stand_in._pools.clear()
    resource_tracker._resource_tracker._stop()
