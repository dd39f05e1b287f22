"""The programs of the README run as they are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_readme_has_programs():
    assert len(PROGRAMS) == 3


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_of_the_readme_runs(number, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(PROGRAMS[number])
    ran = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_loops_of_a_file_are_explained(tmp_path):
    file = tmp_path / "loops.py"
    file.write_text("def f(xs):\n    out = []\n    for x in xs:\n        if x:\n            break\n        out.append(x)\n    return out\n")
    ran = subprocess.run([sys.executable, "-m", "evener", "explain", str(file)], capture_output=True, text=True)
    assert ran.returncode == 0 and "break" in ran.stdout, (ran.stdout, ran.stderr)
    ran = subprocess.run([sys.executable, "-m", "evener", "explain", str(tmp_path / "none.py")], capture_output=True, text=True)
    assert ran.returncode == 1 and "none.py" in ran.stderr


def test_names_are_what_they_say_after_all_modules_were_imported():
    program = (
        "import importlib, pkgutil, evener\n"
        "evener.Pool(devices='all').shutdown()\n"
        "for module in pkgutil.iter_modules(evener.__path__):\n"
        "    if module.name not in ('__main__', 'joblib_backend'): importlib.import_module('evener.' + module.name)\n"
        "assert callable(evener.devices) and callable(evener.parallel) and callable(evener.map) and callable(evener.explain)\n"
        "assert evener.devices()[-1]['id']\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_settings_of_the_decorator_reach_the_run():
    import evener.decorator as decorator

    settings = decorator.Settings(workers=3, retries=0, timeout=5.0, progress=False)
    options = decorator._options(settings, "label", "key")
    assert (options.workers, options.retries, options.timeout, options.progress) == (3, 0, 5.0, False)
    assert (options.label, options.cost_key) == ("label", "key")
