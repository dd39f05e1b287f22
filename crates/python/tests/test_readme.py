"""The programs of the README and the notebook run as they are."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_readme_has_programs():
    assert len(PROGRAMS) == 5


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_of_the_readme_runs(number, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(PROGRAMS[number])
    environment = {**os.environ, "EVENER_JOBS_FOLDER": str(tmp_path / "jobs")}
    ran = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert ran.returncode == 0, ran.stderr


def test_the_settings_of_the_readme_are_settings():
    from evener import configuration
    from evener.settings import KEYS

    text = README.read_text()
    table = text[text.index("| setting | meaning |") : text.index("## Kernels")]
    named = re.findall(r"`([a-z.]+)`", "".join(row.split("|")[1] for row in table.splitlines() if row.startswith("| `")))
    assert sorted(named) == sorted(KEYS)
    example = re.search(r"```toml\n(.*?)```", text, re.DOTALL).group(1)
    read = configuration._from_table(json.loads(configuration._evener.toml_to_json(example)), "README")
    assert read == {"workers": 4, "retries": 0, "jobs.days": 30.0}


def test_the_notebook_runs(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("EVENER_JOBS_FOLDER", str(tmp_path / "jobs"))
    # The kernel of this Python, whatever kernels the user has.
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    kernel = tmp_path / "jupyter" / "kernels" / "this"
    kernel.mkdir(parents=True)
    arguments = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": arguments, "display_name": "this", "language": "python"}))
    notebook = nbformat.read(README.parent / "examples" / "tour.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="this", resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("<svg" in output.get("data", {}).get("text/html", "") for output in shown), "the report's picture"


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
        "assert evener.devices()[-1].id\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_settings_of_the_decorator_reach_the_run():
    import evener.decorator as decorator

    settings = decorator.Settings(workers=3, retries=0, timeout=5.0, progress=False)
    options = decorator._options(settings, "label", "key")
    assert (options.workers, options.retries, options.timeout, options.progress) == (3, 0, 5.0, False)
    assert (options.label, options.cost_key) == ("label", "key")
