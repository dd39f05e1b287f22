"""Every function of the gallery gives, decorated, what it gives plainly."""

from __future__ import annotations

import copy

import pytest

from evener._schedule.options import Options
from evener._schedule.ordered import ordered as by_workers
from loops.compare import compare
from loops.stand_in import round_trip

from .functions import PLAIN, SHARED


def test_the_gallery_is_large():
    assert len(SHARED) + len(PLAIN) >= 60
    assert len(PLAIN) >= 20


def _cases(listed):
    return [pytest.param(f, a, id=f.__name__, marks=[pytest.mark.skipif(
        needs is None and f.__name__ in NEEDY, reason="a library is missing")]) for f, a, needs in listed]


NEEDY = {f.__name__ for f, _, needs in SHARED + PLAIN if needs is None and f.__code__.co_names and (
    {"np", "pd", "sklearn"} & set(f.__code__.co_names))}


def workers(number):
    def ordered(function, items, *, where=None, options=None):
        return by_workers(function, items, where=where, options=Options(workers=number, home=0))

    def counted(function, items, **rest):
        from loops.stand_in import Count

        for result in ordered(function, items, **rest):
            Count.iterations += 1
            yield result

    return counted


@pytest.mark.parametrize("function, arguments", _cases(SHARED))
def test_shared(function, arguments):
    compare(function, make=lambda: copy.deepcopy(arguments), parallel=True, ordered=round_trip)


@pytest.mark.parametrize("function, arguments", _cases(PLAIN))
def test_not_shared(function, arguments):
    compare(function, make=lambda: copy.deepcopy(arguments), parallel=False, ordered=round_trip)


@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_with_worker_processes(number):
    for function, arguments, needs in SHARED + PLAIN:
        if function.__name__ not in NEEDY:
            compare(function, make=lambda a=arguments: copy.deepcopy(a), ordered=workers(number))
