"""What the program's code imports: its own modules, which travel, and installed distributions, which are installed there."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
import sysconfig
from typing import Dict, Iterable, List, Optional, Set, Tuple

#: Own modules of more bytes than this are not sent: such a folder is no package, but a disk.
MOST_BYTES = 64 << 20
_SKIPPED = {"__pycache__", ".git", ".hg", ".venv", "venv", "node_modules", "target", ".mypy_cache", ".pytest_cache"}


def is_own(file: str) -> bool:
    """Whether a file is the program's own: neither of Python nor of an installed package."""
    file = os.path.realpath(file)
    if "site-packages" in file or "dist-packages" in file:
        return False
    prefixes = {os.path.realpath(sysconfig.get_paths()[name]) for name in ("stdlib", "platstdlib")}
    return not file.startswith(tuple(prefixes)) and not _is_evener(file)


def _is_evener(file: str) -> bool:
    return file.startswith(os.path.dirname(os.path.dirname(os.path.realpath(__file__))) + os.sep)


def imported_names(source: str) -> Set[str]:
    """The top-level names that a module imports, anywhere in it."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return set()
    names: Set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


def _is_python_own(name: str) -> bool:
    known = getattr(sys, "stdlib_module_names", None)
    if known is not None:
        return name in known
    if name in sys.builtin_module_names:
        return True
    place = _place(name)
    stdlib = os.path.realpath(sysconfig.get_paths()["stdlib"])
    return place is not None and os.path.realpath(place).startswith(stdlib) and "site-packages" not in place


def _place(name: str) -> Optional[str]:
    """The file of a module, or the folder of a package."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if spec is None:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):
            return getattr(module, "__file__", None)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return next(iter(spec.submodule_search_locations), None)
    return spec.origin if spec.origin not in (None, "built-in", "frozen") else None


def _files(place: str) -> List[str]:
    """The files of a module or package."""
    if os.path.isfile(place):
        return [place]
    found = []
    for folder, folders, files in os.walk(place):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED and not name.startswith("."))
        found.extend(os.path.join(folder, name) for name in sorted(files) if not name.endswith((".pyc", ".pyo")))
    return found


def _source_of_main() -> Optional[str]:
    """The text of the program, or of a notebook's cells."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if file is not None:
        if not is_own(file):
            return None
        return _text(file)
    cells = getattr(main, "In", None)
    if isinstance(cells, list):
        return "\n".join(line for cell in cells if isinstance(cell, str) for line in cell.splitlines() if line[:1] not in "%!?")
    modules = [value for value in vars(main).values() if type(value) is type(sys)] if main is not None else []
    return "\n".join("import %s" % module.__name__ for module in modules)


def _text(file: str) -> Optional[str]:
    try:
        with open(file, encoding="utf-8", errors="replace") as opened:
            return opened.read()
    except OSError:
        return None


def what_is_imported(modules: Iterable[str]) -> Tuple[Dict[str, str], List[str]]:
    """What modules import, with all own modules that those import: own ones with their places, and installed names."""
    own: Dict[str, str] = {}
    installed: Set[str] = set()
    todo: List[str] = []
    for name in modules:
        top = name.split(".")[0]
        if name in ("__main__", "__mp_main__"):
            todo.extend(imported_names(_source_of_main() or ""))
        else:
            todo.append(top)
    seen: Set[str] = set()
    while todo:
        name = todo.pop()
        if name in seen or name in ("evener", "__main__", "__mp_main__", "__future__") or _is_python_own(name):
            continue
        seen.add(name)
        place = _place(name)
        if place is None:
            continue
        if not is_own(place):
            installed.add(name)
            continue
        own[name] = place
        for file in _files(place):
            if file.endswith(".py"):
                todo.extend(imported_names(_text(file) or ""))
    return own, sorted(installed)


def own_modules() -> List[str]:
    """The program's own modules that are loaded."""
    names = ["__main__"]
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." not in name and file and name != "__main__" and is_own(file):
            names.append(name)
    return names


def distributions(names: Iterable[str]) -> List[str]:
    """The installed distributions of modules, and those that they need, each with its exact version."""
    from importlib import metadata

    by_module = _distributions_by_module()
    todo = [distribution for name in names for distribution in by_module.get(name, ())]
    found: Dict[str, str] = {}
    while todo:
        name = todo.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in found or key == "evener":
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        found[key] = distribution.version
        for requirement in distribution.requires or ():
            if "extra ==" in requirement or "extra==" in requirement:
                continue
            match = re.match(r"[A-Za-z0-9._-]+", requirement)
            if match:
                todo.append(match.group())
    return ["%s==%s" % item for item in sorted(found.items())]


def _distributions_by_module() -> Dict[str, List[str]]:
    from importlib import metadata

    if hasattr(metadata, "packages_distributions"):
        return dict(metadata.packages_distributions())
    found: Dict[str, List[str]] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        tops = (distribution.read_text("top_level.txt") or "").split()
        if not tops:
            tops = sorted({file.parts[0] if len(file.parts) > 1 else file.stem
                           for file in distribution.files or () if file.suffix == ".py"})
        for top in tops:
            found.setdefault(top, []).append(name)
    return found


def files_of(own: Dict[str, str]) -> Tuple[List[Tuple[str, str]], Dict[str, str]]:
    """The files of own modules as (name in the archive, file), and where each top-level entry is at home."""
    files: List[Tuple[str, str]] = []
    homes: Dict[str, str] = {}
    total = 0
    for name, place in sorted(own.items()):
        top = os.path.basename(place)
        homes[top] = place
        for file in _files(place):
            inside = top + file[len(place) :]
            total += os.path.getsize(file)
            files.append((inside, file))
        if total > MOST_BYTES:
            text = "the program's own modules (%s and others) have more than %d MB, too much to send: install them there"
            raise ValueError(text % (name, MOST_BYTES >> 20))
    return files, homes


__all__ = ["distributions", "files_of", "imported_names", "is_own", "own_modules", "what_is_imported"]
