"""`python -m evener`: explains loops, lists devices and settings, and manages jobs from the command line."""

from __future__ import annotations

import argparse
import sys
from typing import Any, List, Optional

_EXAMPLES = """\
examples:
  python -m evener explain analysis.py     say of each loop whether it can be shared, and why not
  python -m evener jobs                    list submitted jobs
  python -m evener result --wait JOB       wait for a job, and print its result
  python -m evener config                  show all settings, and where each came from
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m evener",
        description="Explain loops of Python files, list devices and settings, and manage submitted jobs.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    explain = commands.add_parser("explain", help="say of each loop of a file whether it can be shared, and why not")
    explain.add_argument("files", nargs="+", metavar="FILE.py")
    explain.set_defaults(run=_explain)
    commands.add_parser("devices", help="list the compute devices of this machine").set_defaults(run=_devices)
    commands.add_parser("config", help="show all settings, and where each came from").set_defaults(run=_config)
    from ._jobs.commands import add_to

    add_to(commands)
    return parser


def main(arguments: Optional[List[str]] = None) -> int:
    """Runs a command. Returns the exit code: 0, or 1 if something could not be done."""
    chosen = _parser().parse_args(arguments)
    from .configuration import ConfigError

    try:
        code: int = chosen.run(chosen)
        sys.stdout.flush()
        return code
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    except BrokenPipeError:
        # As `head` does it: nobody wants the rest.
        sys.stderr.close()
        return 0


def _explain(chosen: Any) -> int:
    from .loops.explain import explain_file

    code = 0
    for file in chosen.files:
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


def _devices(chosen: Any) -> int:
    from .device_list import devices

    for device in devices():
        print(f"{device['id']:<12} {device['name']}")
    return 0


def _config(chosen: Any) -> int:
    from .configuration import config

    print(config())
    return 0


if __name__ == "__main__":
    sys.exit(main())
