"""The program's own modules on a machine that does not have them: imported from a folder that was sent.

Their code names the files that it has at home, so that tracebacks and warnings are those of the plain loop.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.machinery import PathFinder, SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional


class Loader(SourceFileLoader):
    """Loads a module whose code names its file at home."""

    def __init__(self, name: str, path: str, at_home: str) -> None:
        super().__init__(name, path)
        self._at_home = at_home

    def get_code(self, fullname: str) -> Any:
        """The code of the module."""
        return compile(self.get_data(self.path), self._at_home, "exec", dont_inherit=True)


class Finder:
    """Finds modules in a folder that was sent."""

    def __init__(self, folder: str, homes: Dict[str, str]) -> None:
        self._folder = folder
        #: The folder or file at home of each entry of the folder.
        self._homes = homes

    def find_spec(self, name: str, path: Optional[List[str]] = None, target: Any = None) -> Any:
        """The specification of a module, if the folder has it."""
        if path is None:
            path = [self._folder]
        elif not any(part.startswith(self._folder) for part in path):
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is None or not spec.origin or not spec.origin.startswith(self._folder + os.sep):
            return spec if spec is not None and spec.submodule_search_locations else None
        if isinstance(spec.loader, SourceFileLoader):
            spec.loader = Loader(name, spec.origin, self._at_home(spec.origin))
        return spec

    def _at_home(self, file: str) -> str:
        inside = os.path.relpath(file, self._folder)
        top = inside.split(os.sep)[0]
        home = self._homes.get(top)
        if home is None:
            return file
        return home + inside[len(top) :]


def use_code(folders: List[str]) -> None:
    """Makes the folders that were sent importable: this package's own, and that of the program's modules."""
    package, code = folders[0], folders[1:]
    fallback = os.path.join(package, "fallback")
    if os.path.isdir(fallback) and fallback not in sys.path:
        # Used where the environment has no cloudpickle.
        sys.path.append(fallback)
    for folder in code:
        with open(os.path.join(folder, "homes.json")) as file:
            homes = json.load(file)
        sys.meta_path.insert(0, Finder(folder, homes))  # type: ignore[arg-type]
        if folder not in sys.path:
            sys.path.append(folder)
