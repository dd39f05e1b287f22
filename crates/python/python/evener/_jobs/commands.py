"""The commands of `python -m evener` for jobs."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any, Callable, List, Optional

from . import store
from .handle import Job, JobCancelled, JobDied, job, jobs
from .sealed import BadSignature

#: Exit code of `result` for a job that has not ended.
NOT_ENDED = 3


def add_to(commands: Any) -> None:
    """Adds the commands to a parser."""
    listed = commands.add_parser("jobs", help="list submitted jobs", description="List submitted jobs, the oldest first.")
    listed.add_argument("--json", action="store_true", help="print a JSON list")
    listed.set_defaults(run=_jobs)
    logs = _command(commands, "logs", "print what a job has printed", _logs)
    logs.add_argument("-f", "--follow", action="store_true", help="go on printing until the job has ended")
    _command(commands, "cancel", "end a job, with its workers", _cancel)
    result = _command(
        commands, "result", "print a job's result, or its exception",
        _result, "The exit code is 0 for a result, 1 for an exception or a job without a result, 3 if it has not ended.",
    )
    result.add_argument("-w", "--wait", action="store_true", help="wait for the job's end")
    result.add_argument("-o", "--output", metavar="FILE", help="write the result to this file, as a pickle")
    _command(commands, "remove", "remove all that is kept of a job that has ended", _remove)


def _command(commands: Any, name: str, help: str, run: Callable[[Any], int], more: str = "") -> argparse.ArgumentParser:
    text = "%s%s." % (help[0].upper(), help[1:])
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help, description="%s %s" % (text, more))
    parser.add_argument("job", metavar="JOB", help="the job's id, or the beginning or end of it that no other has")
    parser.set_defaults(run=run)
    return parser


def _found(id: str) -> Optional[Job]:
    try:
        return job(id)
    except store.NoSuchJob as error:
        print(error, file=sys.stderr)
        return None


def _jobs(chosen: Any) -> int:
    infos = []
    for one in jobs():
        try:
            infos.append(one.info())
        except (store.NoSuchJob, OSError, ValueError):
            # Another process has just removed it.
            continue
    if chosen.json:
        print(json.dumps(infos, indent=2))
        return 0
    rows: List[List[str]] = [["JOB", "STATUS", "SUBMITTED", "SECONDS", "FUNCTION"]]
    for info in infos:
        began, ended = info.get("started"), info.get("ended")
        until = ended if ended is not None else time.time() if info["status"] == "running" else None
        seconds = "%.1f" % (until - began) if began is not None and until is not None else ""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(info.get("submitted", 0)))
        rows.append([info["id"], info["status"], when, seconds, str(info.get("label", ""))])
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        print("  ".join([cell.ljust(width) for cell, width in zip(row, widths)] + [row[4]]).rstrip())
    return 0


def _logs(chosen: Any) -> int:
    found = _found(chosen.job)
    if found is None:
        return 1
    try:
        with open(found._folder.file("log"), errors="replace") as file:
            while True:
                # Asked before reading, so that nothing is printed after the last look.
                is_over = not chosen.follow or found.done()
                sys.stdout.write(file.read())
                sys.stdout.flush()
                if is_over:
                    return 0
                time.sleep(0.2)
    except FileNotFoundError:
        return 0
    except KeyboardInterrupt:
        return 130


def _cancel(chosen: Any) -> int:
    found = _found(chosen.job)
    if found is None:
        return 1
    if found.cancel():
        print("%s: cancelled" % found.id)
        return 0
    print("%s: had ended before, %s" % (found.id, found.status()), file=sys.stderr)
    return 1


def _result(chosen: Any) -> int:
    found = _found(chosen.job)
    if found is None:
        return 1
    if not chosen.wait and not found.done():
        print("%s: it is %s (--wait waits for its end)" % (found.id, found.status()), file=sys.stderr)
        return NOT_ENDED
    try:
        value = found.result()
    except (JobCancelled, JobDied, BadSignature) as error:
        print(error, file=sys.stderr)
        return 1
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not found.done():
            return 130
        import traceback

        traceback.print_exception(type(error), error, error.__traceback__)
        return 1
    if chosen.output is None:
        print(repr(value))
    else:
        _write(chosen.output, value)
    return 0


def _write(path: str, value: Any) -> None:
    import cloudpickle

    temporary = "%s.%d" % (path, os.getpid())
    try:
        with open(temporary, "wb") as file:
            cloudpickle.dump(value, file)
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def _remove(chosen: Any) -> int:
    found = _found(chosen.job)
    if found is None:
        return 1
    try:
        found.remove()
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0
