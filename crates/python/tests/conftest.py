"""Lets the tests import the package from the source tree where it is not installed."""

import importlib.util
import pathlib
import sys

if importlib.util.find_spec("evener") is None:
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "python"))
