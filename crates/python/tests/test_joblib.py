"""joblib's calls run by Evener's workers."""

import os
import subprocess
import sys

import evener
import functions
import pytest

joblib = pytest.importorskip("joblib")


def test_the_backend_gives_what_joblib_gives():
    with joblib.parallel_config(backend="evener", n_jobs=2):
        got = joblib.Parallel()(joblib.delayed(functions.square)(x) for x in range(200))
        processes = set(joblib.Parallel()(joblib.delayed(functions.process)(x) for x in range(8)))
    assert got == [x * x for x in range(200)]
    assert os.getpid() not in processes


def test_exceptions_end_the_call_and_the_next_one_works():
    with joblib.parallel_config(backend="evener", n_jobs=2):
        with pytest.raises(ZeroDivisionError):
            joblib.Parallel()(joblib.delayed(divmod)(1, x) for x in (1, 2, 0, 3))
        assert joblib.Parallel()(joblib.delayed(abs)(x) for x in (-1, 2)) == [1, 2]


def test_generators_and_nested_calls_work():
    def outer(x):
        inner = joblib.Parallel(n_jobs=2)(joblib.delayed(functions.square)(y) for y in range(x))
        return sum(inner)

    with joblib.parallel_config(backend="evener", n_jobs=2):
        got = list(joblib.Parallel(return_as="generator")(joblib.delayed(outer)(x) for x in range(5)))
    assert got == [0, 0, 1, 5, 14]


def test_joblib_may_be_imported_after_evener():
    text = (
        "import evener, joblib, math\n"
        "with joblib.parallel_config(backend='evener', n_jobs=2):\n"
        "    print(joblib.Parallel()(joblib.delayed(math.sqrt)(x) for x in (1, 4)))\n"
    )
    got = subprocess.run([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, timeout=60)
    assert got.stdout == "[1.0, 2.0]\n"
    assert evener is not None
