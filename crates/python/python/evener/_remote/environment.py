"""What workers on another machine run in: which Python, with which distributions, and which code of the program's own."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import sys
import tarfile
import threading
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from . import imports
from .handshake import first_command, in_shell

#: What `environment=` can be.
Environment = Union[None, str, Sequence[str], Mapping[str, Any]]


class Setup:
    """What is prepared on a machine before its agent starts.

    `environment` is `None` for one that is made from what the code imports here, `"same"` for machines that share this file
    system, the folder of a virtual environment or the path of an interpreter there, `"conda:NAME"`, `"container:IMAGE"`, or a
    list of lines for the shell, such as `module load python/3.11`.
    """

    def __init__(self, environment: Environment, function: Any, gpus: bool) -> None:
        self._gpus = gpus
        self.lines: List[str] = []
        self.is_same = environment == "same"
        self._requirements: Optional[List[str]] = None
        self._archives: Dict[str, bytes] = {}
        self._names: List[str] = []
        version = "%d.%d" % sys.version_info[:2]
        self._finds = False
        interpreters = [_quoted(sys.executable)]
        if environment is None:
            interpreters = ["python" + version, "python3", "python"]
            self._finds = True
        elif not self.is_same:
            interpreters, self.lines = _named(environment)
        self.interpreters = interpreters
        if not self.is_same:
            own, installed = imports.what_is_imported(_roots(function))
            if environment is None:
                self._requirements = imports.distributions(sorted({*installed, "cloudpickle"}))
            loaded, _ = imports.what_is_imported(imports.own_modules())
            package, code = _package_archive(), _code_archive({**loaded, **own})
            for kind, data in (("package", package), ("code", code)):
                name = "%s-%s" % (kind, hashlib.sha256(data).hexdigest())
                self._archives[name] = data
                self._names.append(name)

    @property
    def sends_package(self) -> bool:
        """Whether this package is sent, which works between machines of one kind only."""
        return not self.is_same

    @property
    def requirements(self) -> Optional[List[str]]:
        """The distributions of the environment that is made, if one is."""
        return self._requirements

    @property
    def command(self) -> str:
        """The line for the shell there."""
        return in_shell(first_command(self.interpreters))

    def specification(self) -> Dict[str, Any]:
        """What `boot.py` is told."""
        same = None
        if self.is_same:
            same = {"python": sys.executable, "paths": [_package_folder()]}
        text = json.dumps([self._requirements, sys.version_info[:2]])
        return {
            "version": "%d.%d" % sys.version_info[:2],
            "find": self._finds,
            "same": same,
            "archives": self._names,
            "requirements": self._requirements,
            "key": hashlib.sha256(text.encode()).hexdigest()[:32],
            "variables": _variables(),
            "gpus": self._gpus,
        }

    def archive(self, name: str) -> bytes:
        """The contents of an archive."""
        return self._archives[name]


#: Variables that libraries of linear algebra read: their results differ in the last bits with threads and instructions.
_LIBRARIES = ("OPENBLAS_", "OMP_", "KMP_", "MKL_", "BLIS_", "GOTO_", "NUMEXPR_", "VECLIB_", "PYTHONHASHSEED")


def _variables() -> Dict[str, str]:
    """The variables that workers there take over, so that their results have the bits of this machine's."""
    from .._schedule.cores import usable_cores

    found = {name: value for name, value in os.environ.items() if name.startswith(_LIBRARIES)}
    if not any(name.endswith("NUM_THREADS") for name in found):
        found["OMP_NUM_THREADS"] = str(usable_cores())
    return found


def _quoted(path: str) -> str:
    if any(character in path for character in "'\"$`\\\n"):
        raise ValueError("the path %r has characters that a shell would misread" % path)
    if path.startswith("~/"):
        return "\"$HOME%s\"" % path[1:]
    return '"%s"' % path


def _named(environment: Environment) -> Tuple[List[str], List[str]]:
    """The interpreter of a named environment, and lines for the shell before it."""
    if isinstance(environment, Mapping):
        if len(environment) != 1:
            raise ValueError("environment= has one of venv, conda, container and modules")
        kind, value = next(iter(environment.items()))
        if kind == "modules":
            return _named(list(value))
        if kind not in ("venv", "conda", "container"):
            raise ValueError("environment=%r: it has one of venv, conda, container and modules" % dict(environment))
        environment = str(value) if kind == "venv" else "%s:%s" % (kind, value)
    if isinstance(environment, str):
        if environment.startswith("conda:"):
            name = _word(environment[6:])
            flag = "-p" if "/" in name else "-n"
            return ["conda run --no-capture-output %s %s python" % (flag, name)], []
        if environment.startswith("container:"):
            image = _word(environment[10:])
            if image.startswith("docker:"):
                return ["docker run --rm -i %s python3" % image[7:]], []
            find = "$(command -v apptainer || command -v singularity || echo apptainer)"
            return ["%s exec %s python3" % (find, image)], []
        # A folder may be called `python-3.11`.
        if re.fullmatch(r"python[0-9.]*", os.path.basename(environment)):
            return [_quoted(environment)], []
        if "/" not in environment:
            text = "environment=%r: it is \"same\", the folder of a virtual environment, \"conda:NAME\", \"container:IMAGE\" "
            raise ValueError((text + "or a list of lines such as [\"module load python\"]") % environment)
        return [_quoted(environment.rstrip("/") + "/bin/python")], []
    lines = [str(line) for line in environment or ()]
    return ["python%d.%d" % sys.version_info[:2], "python3", "python"], lines


def _word(text: str) -> str:
    if not text or not all(character.isalnum() or character in "._-/:@+" for character in text):
        raise ValueError("%r has characters that a shell would misread" % text)
    return text


def _roots(function: Any) -> List[str]:
    """The modules whose imports say what an environment needs."""
    if function is None:
        return imports.own_modules()
    function = getattr(function, "__wrapped__", function)
    module = getattr(function, "__module__", None) or getattr(type(function), "__module__", None)
    return [module or "__main__"]


def _package_folder() -> str:
    """The folder that this package is in."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


_lock = threading.Lock()
_package: Optional[bytes] = None


def _package_archive() -> bytes:
    """This package, and cloudpickle for environments that have none."""
    global _package
    with _lock:
        if _package is None:
            import cloudpickle

            folder = os.path.join(_package_folder(), "evener")
            files = [("evener" + file[len(folder) :], file) for file in imports._files(folder)]
            place = os.path.dirname(os.path.abspath(cloudpickle.__file__))
            files += [("fallback/cloudpickle" + file[len(place) :], file) for file in imports._files(place)]
            _package = _tar(files, {})
        return _package


def _code_archive(own: Dict[str, str]) -> bytes:
    files, homes = imports.files_of(own)
    return _tar(files, {"homes.json": json.dumps(homes, sort_keys=True).encode()})


def _tar(files: Sequence[Tuple[str, str]], texts: Mapping[str, bytes]) -> bytes:
    """An archive that is the same for the same files."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in sorted(texts.items()):
            _add(archive, name, data, 0o600)
        for name, file in sorted(files):
            if os.path.isfile(file):
                with open(file, "rb") as opened:
                    _add(archive, name, opened.read(), 0o700 if os.access(file, os.X_OK) else 0o600)
    return made.getvalue()


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))
