"""Registers the backend of joblib when joblib is imported."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def register_now_or_later() -> None:
    """Registers the backend: now if joblib is imported, and otherwise when it is."""
    if "joblib" in sys.modules:
        from .joblib_backend import register

        register()
    else:
        sys.meta_path.insert(0, JoblibFinder())


class JoblibFinder:
    """Waits for the import of joblib, and registers the backend after it."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Finds joblib as the other finders do, and nothing else."""
        if name != "joblib":
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            from .joblib_backend import register

            register()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
