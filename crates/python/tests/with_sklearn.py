"""Runs scikit-learn's own tests that use joblib with the backends loky and evener, and compares.

    python tests/with_sklearn.py [--all] [MODULE …]

A test that passes with loky and not with evener is a failure, and is named. Without `--all`, a part of them is run, which takes
about a minute on two cores. Needs scikit-learn with its tests (its wheels have them), pytest and joblib.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from pathlib import Path

#: Modules, and the tests of each that use several jobs.
PART = {
    "sklearn.utils.tests.test_parallel": "",
    "sklearn.tests.test_multioutput": "multi_target_regression or n_jobs or parallel or hasattr",
    "sklearn.inspection.tests.test_permutation_importance": "n_jobs or parallel or sequential",
    "sklearn.ensemble.tests.test_bagging": "parallel",
    "sklearn.ensemble.tests.test_voting": "parallel or n_jobs",
    "sklearn.ensemble.tests.test_forest": "backend_respected",
    "sklearn.model_selection.tests.test_search": "n_jobs or parallel or unsupervised or grid_search_cv_results_multimetric",
    "sklearn.model_selection.tests.test_validation": "n_jobs or parallel or permutation",
    "sklearn.metrics.tests.test_pairwise": "parallel or n_jobs",
    "sklearn.feature_selection.tests.test_rfe": "n_jobs or parallel",
}
MORE = {
    "sklearn.ensemble.tests.test_stacking": "",
    "sklearn.ensemble.tests.test_forest": "parallel or n_jobs or backend",
    "sklearn.tests.test_multiclass": "",
    "sklearn.linear_model.tests.test_coordinate_descent": "cv or n_jobs or parallel",
    "sklearn.decomposition.tests.test_dict_learning": "n_jobs or parallel",
    "sklearn.covariance.tests.test_graphical_lasso": "",
    "sklearn.model_selection.tests.test_search": "",
    "sklearn.tests.test_pipeline": "parallel or n_jobs or feature_union",
    "sklearn.compose.tests.test_column_transformer": "parallel or n_jobs",
}
#: With these variables, this file is a plugin of pytest: the backend of all tests, and the modules with their words.
BACKEND, CHOSEN = "EVENER_TEST_BACKEND", "EVENER_TEST_CHOSEN"

if BACKEND in os.environ:
    import pytest

    @pytest.fixture(autouse=True)
    def backend_of_this_run():
        """The backend for all calls of joblib in a test that name none. As with loky, a call that names no number has one job."""
        import evener  # noqa: F401: registers its backend
        import joblib

        with joblib.parallel_config(backend=os.environ[BACKEND], n_jobs=1):
            yield

    def pytest_collection_modifyitems(config, items):
        """Leaves those tests of each module that its words choose."""
        chosen = json.loads(os.environ[CHOSEN])

        def is_chosen(item):
            words = chosen.get(item.module.__name__, "")
            return not words or any(word.strip() in item.name for word in words.split(" or "))

        config.hook.pytest_deselected(items=[item for item in items if not is_chosen(item)])
        items[:] = [item for item in items if is_chosen(item)]


def run(backend: str, modules: dict) -> dict:
    """Runs the tests of modules. Returns what came of each."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "with_sklearn", "-p", "no:cacheprovider", "--pyargs", *modules]
        command += ["--junit-xml", str(report), "-o", "addopts=", "-o", "junit_family=xunit1", "-W", "ignore"]
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, BACKEND: backend, CHOSEN: json.dumps(modules), "PYTHONPATH": path}
        ran = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
        if ran.returncode not in (0, 1) or not report.exists():
            parts = (backend, ran.returncode, ran.stdout[-3000:], ran.stderr[-2000:])
            sys.exit("with %s: pytest ended with %d\n%s%s" % parts)
        outcomes = {}
        for case in xml.parse(report).getroot().iter("testcase"):
            kinds = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
            text = next((child.get("message", "") for child in case if child.tag in ("failure", "error")), "")
            outcomes[case.get("file"), case.get("name")] = (kinds[0] if kinds else "passed", text)
        return outcomes


def main() -> int:
    """Runs and compares. Returns 1 if a test passes with loky only."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="run all tests of these modules of scikit-learn")
    parser.add_argument("--all", action="store_true", help="run all modules, which takes long")
    chosen = parser.parse_args()
    import sklearn

    print("scikit-learn %s, Python %s" % (sklearn.__version__, sys.version.split()[0]))
    modules = {name: "" for name in chosen.modules} or ({**PART, **MORE} if chosen.all else PART)
    began = time.perf_counter()
    loky = run("loky", modules)
    between = time.perf_counter()
    ours = run("evener", modules)
    missing = ("missing", "")
    both = [name for name, (outcome, _) in loky.items() if outcome == "passed"]
    lost = [(name[1], *ours.get(name, missing)) for name in both if ours.get(name, missing)[0] != "passed"]
    passed = len(both) - len(lost)
    parts = (len(both), passed, between - began, time.perf_counter() - between)
    print("%d tests pass with loky, and %d of those with evener (%.0f s, %.0f s)" % parts)
    for backend, outcomes in (("loky", loky), ("evener", ours)):
        counted = collections.Counter(outcome for outcome, _ in outcomes.values())
        print("  %s: %s" % (backend, ", ".join("%d %s" % (count, kind) for kind, count in sorted(counted.items()))))
    for name, outcome, text in lost:
        print("with evener %s: %s\n    %s" % (outcome, name, text.splitlines()[0] if text else ""))
    print("test result: %s. %d passed; %d failed; 0 ignored; of scikit-learn with the backend evener" % (
        "FAILED" if lost else "ok", passed, len(lost)))
    return 1 if lost or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
