"""Settings of the user: `evener.configure`, environment variables, `evener.toml` and `pyproject.toml`.

A value is looked for in this order, and the first that is found counts:

1. the argument of a call or of a decorator,
2. `evener.configure(...)` in this process,
3. the environment variable `EVENER_NAME` (`EVENER_SLURM_TIME` for `slurm.time`),
4. the project: `evener.toml`, or `[tool.evener]` in `pyproject.toml`, of the working folder or the nearest folder above it,
5. the user: `evener.toml` in the configuration folder (`~/.config/evener` on Linux),
6. the default.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from . import _evener
from .settings import KEYS, Key

__all__ = ["Config", "ConfigError", "Value", "config", "configure"]

log = logging.getLogger("evener")


class ConfigError(ValueError):
    """A setting has an unknown name or a value that cannot be used. The message says where it was found."""


@dataclass(frozen=True)
class Value:
    """A setting's value, and where it came from."""

    value: Any
    #: `default`, `configure()`, `environment variable EVENER_WORKERS`, or a file.
    source: str


class Config(Mapping[str, Any]):
    """All settings, as `evener.config()` found them. Printed, it says where each value came from."""

    def __init__(self, values: Dict[str, Value], files: List[str]) -> None:
        self._values = values
        #: The files that were read, those that count most first.
        self.files = files

    def __getitem__(self, name: str) -> Any:
        return self._values[name].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def source(self, name: str) -> str:
        """Says where a value came from."""
        return self._values[name].source

    def __repr__(self) -> str:
        width = max(map(len, self._values))
        shown = {name: repr(found.value) for name, found in self._values.items()}
        column = min(40, max(map(len, shown.values())))
        return "\n".join(
            "%-*s = %-*s  # %s" % (width, name, column, shown[name], found.source) for name, found in self._values.items()
        )


_lock = threading.Lock()
_configured: Dict[str, Any] = {}
_found: Optional[Config] = None
#: Grows with every change, so that decorated functions notice one.
generation = 0


def configure(**settings: Any) -> None:
    """Sets values for this process and the jobs that it submits: `evener.configure(workers=4)`.

    They count more than environment variables and files, and less than arguments of a call or of a decorator. `None` takes a
    value back. Settings of a group are given as a dict: `evener.configure(jobs={"days": 30})`. Nothing is changed if a name is
    unknown or a value cannot be used.
    """
    global _found, generation
    flat = _flat(settings, "configure()")
    checked = {
        name: None if value is None else _checked(name, value, "configure()") for name, value in flat.items()
    }
    with _lock:
        for name, value in checked.items():
            if value is None:
                _configured.pop(name, None)
            else:
                _configured[name] = value
        _found = None
        generation += 1


def configured() -> Dict[str, Any]:
    """What `configure` has set in this process."""
    with _lock:
        return dict(_configured)


def restore(settings: Mapping[str, Any]) -> None:
    """Sets what another process had set with `configure`."""
    global _found, generation
    with _lock:
        _configured.update(settings)
        _found = None
        generation += 1


def config() -> Config:
    """All settings and where each came from. Files and environment variables are read again, and count from now on."""
    global _found, generation
    with _lock:
        found = _read()
        if _found is None or dict(_found) != dict(found):
            generation += 1
        _found = found
        return found


def get(name: str) -> Any:
    """A setting's value. Files and environment variables are read when a process first asks, and by `config`."""
    global _found
    found = _found
    if found is None:
        with _lock:
            found = _found = _read()
    return found[name]


def _folder() -> Optional[str]:
    try:
        return os.getcwd()
    except OSError:
        # It was removed: there is no project then.
        return None


def _read() -> Config:
    layers: List[Tuple[Dict[str, Any], Callable[[str], str]]] = []
    layers.append((_configured, lambda name: "configure()"))
    layers.append((_environment(), lambda name: "environment variable %s" % variable_of(name)))
    files = []
    for path, table in _project_files() + _user_files():
        files.append(path)
        layers.append((_from_table(table, path), lambda name, path=path: path))  # type: ignore[misc]
    values = {}
    for name, key in KEYS.items():
        values[name] = Value(key.default, "default")
        for layer, source in layers:
            if name in layer:
                values[name] = Value(layer[name], source(name))
                break
    return Config(values, files)


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return "EVENER_" + name.upper().replace(".", "_")


def _environment() -> Dict[str, Any]:
    found = {}
    for name, key in KEYS.items():
        text = os.environ.get(variable_of(name), "")
        if text.strip():
            found[name] = _checked(name, key.from_text(text), "environment variable " + variable_of(name))
    return found


def _from_table(table: Mapping[str, Any], path: str) -> Dict[str, Any]:
    return {name: _checked(name, value, path) for name, value in _flat(table, path).items()}


def _flat(table: Mapping[str, Any], source: str) -> Dict[str, Any]:
    """The settings of a table, those of the tables in it with a dot in their name."""
    flat: Dict[str, Any] = {}
    groups = {name.split(".")[0] for name in KEYS if "." in name}

    def add(prefix: str, part: Mapping[str, Any]) -> None:
        for name, value in part.items():
            whole = prefix + str(name)
            if isinstance(value, Mapping) and whole in groups:
                add(whole + ".", value)
            else:
                _known(whole, source)
                flat[whole] = value

    add("", table)
    return flat


def _known(name: str, source: str) -> Key:
    key = KEYS.get(name)
    if key is not None:
        return key
    raise ConfigError("%s: unknown setting %r%s" % (source, name, nearest(name, KEYS)))


def nearest(name: str, known: Any) -> str:
    """The end of an error message about an unknown name: the nearest known one, or all of them."""
    import difflib

    close = difflib.get_close_matches(name, list(known), 1, 0.6)
    return ": did you mean %r?" % close[0] if close else ": there are %s" % ", ".join(sorted(known))


def _checked(name: str, value: Any, source: str) -> Any:
    try:
        return _known(name, source).check(value)
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError("%s: %s %s, not %r" % (source, name, error, value)) from None


def _project_files() -> List[Tuple[str, Dict[str, Any]]]:
    """The project's file: that of the working folder, or of the nearest folder above that has one."""
    folder = _folder()
    while folder is not None:
        for name in ("evener.toml", "pyproject.toml"):
            path = os.path.join(folder, name)
            table = _load(path)
            if table is None:
                continue
            if name == "pyproject.toml":
                tool = table.get("tool")
                table = tool.get("evener") if isinstance(tool, dict) else None
                if table is None:
                    continue
                path += " [tool.evener]"
            return [(path, table)]
        above = os.path.dirname(folder)
        folder = None if above == folder else above
    return []


def user_folder() -> str:
    """The user's folder of configuration files."""
    if sys.platform == "darwin":
        return os.path.expanduser("~/Library/Application Support/evener")
    return os.path.join(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "evener")


def _user_files() -> List[Tuple[str, Dict[str, Any]]]:
    path = os.path.join(user_folder(), "evener.toml")
    table = _load(path)
    return [] if table is None else [(path, table)]


def _load(path: str) -> Optional[Dict[str, Any]]:
    """The contents of a TOML file, or `None` if there is none."""
    try:
        with open(path, "rb") as file:
            # Anybody can leave a file in `/tmp`, above whatever folder a program runs in.
            owner = os.fstat(file.fileno()).st_uid
            if hasattr(os, "getuid") and owner not in (os.getuid(), 0):
                log.info("%s is not used: it belongs to another user (%d)", path, owner)
                return None
            data = file.read()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        log.info("%s is not used: %s", path, error)
        return None
    try:
        found: Dict[str, Any] = json.loads(_evener.toml_to_json(data.decode()))
    except ValueError as error:
        if os.path.basename(path) == "pyproject.toml":
            # Others say so better; and it may have no table of ours.
            log.info("%s is not used: %s", path, error)
            return None
        raise ConfigError("%s: %s" % (path, error)) from None
    return found
