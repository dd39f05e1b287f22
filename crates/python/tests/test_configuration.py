"""Settings: from where, which counts most, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys

import evener
import pytest


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """No settings but those of the test."""
    for name in list(os.environ):
        if name.startswith("EVENER_") and name != "EVENER_CACHE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    project = tmp_path / "project" / "below"
    project.mkdir(parents=True)
    monkeypatch.chdir(project)
    evener.config()
    yield
    evener.configure(**{name: None for name in ("workers", "retries", "strict", "progress")})
    monkeypatch.undo()
    evener.config()


def user(tmp_path, text):
    folder = tmp_path / "user" / "evener"
    folder.mkdir(parents=True)
    (folder / "evener.toml").write_text(text)


def test_without_settings_all_are_defaults():
    found = evener.config()
    assert found["retries"] == 2 and found.source("retries") == "default"
    assert found.files == []


def test_each_place_counts_more_than_the_next_and_is_named(tmp_path, monkeypatch):
    user(tmp_path, "retries = 7\nworkers = 7\ntimeout = 7\nstrict = true\n[jobs]\ndays = 7\n")
    (tmp_path / "project" / "evener.toml").write_text("retries = 6\nworkers = 6\ntimeout = 6\n")
    monkeypatch.setenv("EVENER_RETRIES", "5")
    monkeypatch.setenv("EVENER_WORKERS", "5")
    evener.configure(workers=4)
    found = evener.config()
    assert (found["workers"], found.source("workers")) == (4, "configure()")
    assert (found["retries"], found.source("retries")) == (5, "environment variable EVENER_RETRIES")
    assert (found["timeout"], found.source("timeout")) == (6.0, str(tmp_path / "project" / "evener.toml"))
    assert (found["strict"], found.source("strict")) == (True, str(tmp_path / "user" / "evener" / "evener.toml"))
    assert found["jobs.days"] == 7.0
    assert "EVENER_RETRIES" in repr(found)
    evener.configure(workers=None)
    assert evener.config()["workers"] == 5


def test_a_table_of_pyproject_counts_and_other_tables_do_not(tmp_path):
    file = tmp_path / "project" / "pyproject.toml"
    file.write_text("[tool.other]\nwerkers = 1\n[tool.evener]\nworkers = 3\n")
    found = evener.config()
    assert found["workers"] == 3 and found.source("workers") == f"{file} [tool.evener]"
    file.write_text("[tool.other]\nx = 1\n")
    assert evener.config()["workers"] is None


def test_an_unknown_name_is_an_error_that_names_the_nearest(tmp_path, monkeypatch):
    with pytest.raises(evener.ConfigError, match=r"configure\(\): unknown setting 'werkers': did you mean 'workers'"):
        evener.configure(werkers=3)
    with pytest.raises(evener.ConfigError, match="'jobs.dais': did you mean 'jobs.days'"):
        evener.configure(jobs={"dais": 3})
    (tmp_path / "project" / "evener.toml").write_text("retrys = 1\n")
    with pytest.raises(evener.ConfigError, match="evener.toml: unknown setting 'retrys': did you mean 'retries'"):
        evener.config()
    with pytest.raises(TypeError, match="did you mean 'strict'"):
        evener.parallel(strickt=True)


@pytest.mark.parametrize(
    "settings, said",
    [({"workers": 0}, "whole number from 1"), ({"workers": True}, "whole number"), ({"timeout": -1}, "over 0"),
     ({"randomness": "some"}, "'streams', 'refuse'"), ({"progress": "yes"}, "true or false"), ({"where": []}, "list of texts")],
)
def test_a_value_that_cannot_be_used_is_an_error_and_changes_nothing(settings, said):
    before = dict(evener.config())
    with pytest.raises(evener.ConfigError, match=said):
        evener.configure(**settings, retries=9)
    assert dict(evener.config()) == before


def test_a_file_that_is_not_toml_is_an_error_with_its_line(tmp_path):
    (tmp_path / "project" / "evener.toml").write_text("workers = 1\nretries = \n")
    with pytest.raises(evener.ConfigError, match="(?s)evener.toml.*line 2"):
        evener.config()


def test_variables_have_numbers_flags_and_texts(monkeypatch):
    monkeypatch.setenv("EVENER_PROGRESS", "off")
    monkeypatch.setenv("EVENER_TIMEOUT", "1.5")
    monkeypatch.setenv("EVENER_WHERE", "cpu")
    found = evener.config()
    assert (found["progress"], found["timeout"], found["where"]) == (False, 1.5, "cpu")
    monkeypatch.setenv("EVENER_WORKERS", "many")
    with pytest.raises(evener.ConfigError, match="EVENER_WORKERS"):
        evener.config()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_not_used(tmp_path):
    file = tmp_path / "project" / "evener.toml"
    file.write_text("workers = 3\n")
    os.chown(file, 12345, -1)
    assert evener.config()["workers"] is None


def test_settings_reach_decorated_functions_also_later():
    @evener.parallel
    def totals(numbers):
        out = [0]
        for number in numbers:
            out.append(out[-1] + number)
        return out

    assert totals([1, 2]) == [0, 1, 3]
    evener.configure(strict=True)
    with pytest.raises(evener.NotParallel):
        totals([1, 2])
    evener.configure(strict=None)
    assert totals([1, 2]) == [0, 1, 3]


def test_the_command_shows_settings_and_errors(tmp_path):
    (tmp_path / "project" / "evener.toml").write_text("workers = 3\n")
    ran = subprocess.run([sys.executable, "-m", "evener", "config"], capture_output=True, text=True)
    assert ran.returncode == 0 and "evener.toml" in ran.stdout, ran.stderr
    (tmp_path / "project" / "evener.toml").write_text("wrkers = 3\n")
    ran = subprocess.run([sys.executable, "-m", "evener", "config"], capture_output=True, text=True)
    assert ran.returncode == 1 and "did you mean 'workers'" in ran.stderr
