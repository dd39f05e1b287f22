"""Whether modules of the program were reloaded since workers imported them.

A worker that has imported a module keeps it. When the module is reloaded here, as notebooks do after an edit, warm workers
would go on with the old code, so they are replaced.
"""

from __future__ import annotations

import os
import sys
from typing import Dict, List, Tuple

_count = 0
_local: List[str] = []


def _local_modules() -> List[str]:
    """The names of modules that are neither of Python nor of an installed package."""
    global _count, _local
    if len(sys.modules) != _count:
        installed = tuple({os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)})
        names = []
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if not file or name == "__main__" or name.split(".")[0] == "evener":
                continue
            file = os.path.realpath(file)
            if "site-packages" not in file and "dist-packages" not in file and not file.startswith(installed):
                names.append(name)
        _local, _count = names, len(sys.modules)
    return _local


def state() -> Dict[str, Tuple[int, int]]:
    """What changes when a module is reloaded: the identity of each local module and of its spec."""
    found = {}
    for name in _local_modules():
        module = sys.modules.get(name)
        if module is not None:
            found[name] = (id(module), id(getattr(module, "__spec__", None)))
    return found


def is_stale(before: Dict[str, Tuple[int, int]], now: Dict[str, Tuple[int, int]]) -> bool:
    """Whether a module that was there before is another one now."""
    return any(now.get(name, value) != value for name, value in before.items())
