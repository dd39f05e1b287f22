"""`python -m evener`: explains loops, and lists devices, from the command line."""

from __future__ import annotations

import argparse
import sys
from typing import List, Optional


def main(arguments: Optional[List[str]] = None) -> int:
    """Runs a command. Returns the exit code: 0, or 1 if a file could not be read."""
    parser = argparse.ArgumentParser(prog="python -m evener", description="Explain loops of Python files, and list devices.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    explain = commands.add_parser("explain", help="say of each loop of a file whether it can be shared, and why not")
    explain.add_argument("files", nargs="+", metavar="FILE.py")
    commands.add_parser("devices", help="list the compute devices of this machine")
    chosen = parser.parse_args(arguments)
    return _explain(chosen.files) if chosen.command == "explain" else _devices()


def _explain(files: List[str]) -> int:
    from .loops.explain import explain_file

    code = 0
    for file in files:
        try:
            found = explain_file(file)
        except (OSError, SyntaxError, ValueError) as error:
            print(f"{file}: {error}", file=sys.stderr)
            code = 1
            continue
        for explanation in found:
            print(explanation)
        if not found:
            print(f"{file}: no function has a loop")
    return code


def _devices() -> int:
    from .device_list import devices

    for device in devices():
        print(f"{device['id']:<12} {device['name']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
