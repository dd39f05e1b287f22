"""Environments on other machines: made once from what the code imports, and the program's own modules travel with it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time

import evener
import pytest
from evener._remote import imports
from evener._remote.environment import Setup, _named

from .rigs import SSH, with_sshd

HELPER = """
import sys
import tqdm
from parts import deep

def where(x):
    return x + deep.ONE, sys.prefix, tqdm.__version__

def bad(x):
    raise KeyError(x)
"""

PROGRAM = """
import sys, time, traceback
import evener, helper

FACTOR = 3

def scaled(x):
    return helper.where(x)[0] * FACTOR

if __name__ == "__main__":
    place = evener.ssh("host2", workers=1)
    began = time.monotonic()
    first = next(iter(evener.map(helper.where, range(5), where=place, home=0)))
    print("started after %.2f s" % (time.monotonic() - began), file=sys.stderr)
    print(first)
    print(list(evener.map(scaled, range(3), where=place, home=0)))
    try:
        list(evener.map(helper.bad, [7], where=place, home=0))
    except KeyError as error:
        print(traceback.extract_tb(error.__traceback__)[-1].filename)
"""


@with_sshd
@pytest.mark.timeout(300)
def test_an_environment_is_made_once_and_own_modules_travel(tmp_path):
    import tqdm

    found = subprocess.run(["/bin/sh", "-c", "command -v python%d.%d" % sys.version_info[:2]],
                           capture_output=True, env={"PATH": "/usr/local/bin:/usr/bin:/bin"})
    if found.returncode:
        pytest.skip("no Python %d.%d in the PATH of an SSH session" % sys.version_info[:2])
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("")
    (tmp_path / "parts" / "deep.py").write_text("ONE = 1\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    took = []
    for _ in range(2):
        began = time.monotonic()
        ran = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200)
        took.append(time.monotonic() - began)
        assert ran.returncode == 0, ran.stderr
        first, scaled, file = ran.stdout.splitlines()
        number, prefix, version = eval(first)
        assert number == 1 and version == tqdm.__version__
        assert prefix.startswith(os.path.join(SSH, "host2")) and "environment-" in prefix
        assert scaled == "[3, 6, 9]"
        # The traceback names the file that the module has here.
        assert file == str(tmp_path / "helper.py")
        print(ran.stderr.strip())
    cache = os.path.join(SSH, "host2", "home", ".cache", "evener", "python")
    assert os.stat(cache).st_mode & 0o077 == 0
    assert len([name for name in os.listdir(cache) if name.startswith("environment-") and "." not in name]) >= 1
    assert took[1] < max(took[0], 20.0)


@with_sshd
def test_the_folder_of_an_environment_can_be_named():
    if sys.prefix == sys.base_prefix:
        pytest.skip("this Python is in no virtual environment")
    from . import functions_there as there

    place = evener.ssh("host1", workers=1, environment=sys.prefix)
    assert [host for host, *_ in evener.map(there.place, range(3), where=place, home=0)] == ["host1"] * 3


@with_sshd
def test_an_environment_that_is_not_there_is_an_error():
    with pytest.raises(evener.HostError, match="not found|No such file"):
        list(evener.map(len, [""], where=evener.ssh("host1", environment="/nowhere/venv"), home=0))


def test_what_a_module_imports_is_found(tmp_path, monkeypatch):
    (tmp_path / "evener_own_a.py").write_text("import json, numpy as np\nfrom evener_own_b import c\n")
    (tmp_path / "evener_own_b").mkdir()
    (tmp_path / "evener_own_b" / "__init__.py").write_text("def f():\n    import tqdm.auto\n")
    (tmp_path / "evener_own_b" / "c.py").write_text("from . import d\nimport evener, os.path\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    own, installed = imports.what_is_imported(["evener_own_a"])
    assert set(own) == {"evener_own_a", "evener_own_b"}
    assert {"numpy", "tqdm"} <= set(installed) and not {"json", "os", "evener"} & set(installed)
    import tqdm

    assert "tqdm==%s" % tqdm.__version__ in imports.distributions(["tqdm"])


@pytest.mark.parametrize(
    "environment, interpreter, lines",
    [
        ("/opt/venv", '"/opt/venv/bin/python"', []),
        ({"venv": "~/v"}, '"$HOME/v/bin/python"', []),
        ("conda:torch", "conda run --no-capture-output -n torch python", []),
        ({"container": "docker:python:3.11"}, "docker run --rm -i python:3.11 python3", []),
        (["module load python"], "python%d.%d" % sys.version_info[:2], ["module load python"]),
    ],
)
def test_named_environments_are_commands_of_a_shell(environment, interpreter, lines):
    interpreters, found = _named(environment)
    assert interpreters[0] == interpreter and found == lines
    assert "'" not in interpreter


def test_the_environment_is_the_same_for_the_same_imports():
    first, second = Setup(None, textwrap.dedent, False), Setup(None, textwrap.dedent, False)
    assert first.specification() == second.specification()
    assert first.requirements == ["cloudpickle==%s" % __import__("cloudpickle").__version__]
    assert "'" not in first.command[len("exec sh -c '") : -1]
