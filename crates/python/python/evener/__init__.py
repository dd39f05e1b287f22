"""Evener for Python."""

from .loops.explain import explain, explain_file
from .loops.reasons import NotParallel
from .parallel import parallel

__all__ = ["NotParallel", "explain", "explain_file", "parallel"]
