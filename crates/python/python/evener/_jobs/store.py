"""The folders of jobs.

```text
FOLDER/                 0700, of the user (EVENER_JOBS_FOLDER, or ~/.local/state/evener)
  keys/ID               the job's key
  jobs/ID/record.json   what was called, when and where: written once, before the job can be seen
  jobs/ID/call          the function and its arguments, sealed
  jobs/ID/lock          locked by the job's process for as long as it lives
  jobs/ID/state.json    how far it is; replaced as a whole
  jobs/ID/cancel        there once somebody has asked for the job's end
  jobs/ID/log           what it printed
  jobs/ID/result        its result or exception, sealed
```

A folder gets its name once it has a call and its lock is held: by the process that submits it, which hands the lock to the job's
process when it starts that. So a job that can be seen and whose lock nobody holds is one whose process has ended.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import stat
import sys
import time
from typing import Any, Dict, List, Optional

from .. import configuration
from . import sealed

__all__ = ["Folder", "NoSuchJob", "all_ids", "find", "new_folder", "prune"]

_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"
#: The states in which a job stays.
ENDED = ("done", "failed", "cancelled", "died")
#: Folders that were being made when their process was killed are removed after this many seconds.
_ABANDONED_SECONDS = 3600.0
#: Old jobs are looked for at most this often.
_PRUNE_SECONDS = 600.0


class NoSuchJob(KeyError):
    """There is no job with this id: it was removed, or never was."""

    def __str__(self) -> str:
        return str(self.args[0])


def root() -> str:
    """The folder of all jobs, which only the user can read."""
    folder = configuration.get("jobs.folder")
    if folder is None:
        if sys.platform == "darwin":
            folder = os.path.expanduser("~/Library/Application Support/evener")
        else:
            folder = os.path.join(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state"), "evener")
    return str(folder)


def _private(folder: str) -> str:
    """Makes a folder that only the user can use, or checks that it is one."""
    os.makedirs(os.path.dirname(folder) or ".", exist_ok=True)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError("%s must be a folder of yours: it holds what jobs run and return" % folder)
    if stat.S_IMODE(found.st_mode) & 0o077:
        os.chmod(folder, 0o700)
    return folder


class Folder:
    """The folder of one job."""

    def __init__(self, base: str, id: str, path: Optional[str] = None) -> None:
        self.id = id
        self._base = base
        self.path = path if path is not None else os.path.join(base, "jobs", id)

    def file(self, name: str) -> str:
        """The path of one of its files."""
        return os.path.join(self.path, name)

    def write(self, name: str, *parts: bytes, durable: bool = False) -> None:
        """Writes a file as a whole: others see the old one or the new one, with `durable` also after a power failure."""
        target = self.file(name)
        temporary = "%s.%d.%s" % (target, os.getpid(), secrets.token_hex(4))
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for part in parts:
                    file.write(part)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            try:
                os.unlink(temporary)
            except OSError:
                pass
            raise

    def write_json(self, name: str, value: Any) -> None:
        """Writes plain values."""
        self.write(name, json.dumps(value).encode())

    def read_json(self, name: str) -> Dict[str, Any]:
        """Reads plain values; none if there is no such file."""
        try:
            with open(self.file(name), "rb") as file:
                found = json.loads(file.read())
        except FileNotFoundError:
            return {}
        return found if isinstance(found, dict) else {}

    def seal(self, kind: str, data: bytes, durable: bool = False) -> None:
        """Writes a file that is signed with the job's key."""
        self.write(kind, sealed.seal(self.key(), self.id, kind, data), data, durable=durable)

    def open_sealed(self, kind: str) -> memoryview:
        """Reads a file that must be signed with the job's key."""
        with open(self.file(kind), "rb") as file:
            return sealed.open_sealed(self.key(), self.id, kind, file.read(), file.name)

    def _key_file(self) -> str:
        return os.path.join(self._base, "keys", self.id)

    def make_key(self) -> None:
        """Makes the job's key. Fails if there is one."""
        _private(os.path.dirname(self._key_file()))
        descriptor = os.open(self._key_file(), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(sealed.new_key())

    def key(self) -> bytes:
        """The job's key."""
        try:
            with open(self._key_file(), "rb") as file:
                key = file.read()
        except FileNotFoundError:
            raise sealed.BadSignature("job %s has no key, so nothing of it is read" % self.id) from None
        if len(key) < 32:
            raise sealed.BadSignature("the key of job %s was cut short, so nothing of it is read" % self.id)
        return key

    def take_lock(self) -> int:
        """Locks it, and returns the file that holds the lock: it is held until all copies of the file are closed."""
        file = os.open(self.file("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file

    def is_alive(self) -> bool:
        """Whether its process lives."""
        try:
            file = os.open(self.file("lock"), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            # Shared, so that two processes that look do not see each other.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        return False

    def publish(self) -> None:
        """Gives a folder that is complete its name."""
        final = os.path.join(self._base, "jobs", self.id)
        os.rename(self.path, final)
        self.path = final

    def remove(self) -> None:
        """Removes the job."""
        hidden = os.path.join(self._base, "jobs", ".old-%s-%s" % (self.id, secrets.token_hex(4)))
        try:
            # Of several processes that remove it, one succeeds.
            os.rename(self.path, hidden)
        except FileNotFoundError:
            return
        self.path = hidden
        self.discard()

    def discard(self) -> None:
        """Removes the files."""
        shutil.rmtree(self.path, ignore_errors=True)
        try:
            os.unlink(self._key_file())
        except FileNotFoundError:
            pass


def new_folder() -> Folder:
    """Makes the folder of a new job, which others cannot see yet."""
    base = _private(root())
    jobs = _private(os.path.join(base, "jobs"))
    while True:
        # Sorted by time; what makes it the only one is that making its key and its folder fails if there is one.
        word = "".join(secrets.choice(_LETTERS) for _ in range(8))
        id = "%s-%s" % (time.strftime("%Y%m%d-%H%M%S"), word)
        folder = Folder(base, id, os.path.join(jobs, ".new-" + id))
        try:
            folder.make_key()
        except FileExistsError:
            continue
        os.mkdir(folder.path, 0o700)
        return folder


def all_ids() -> List[str]:
    """The ids of all jobs, the oldest first."""
    try:
        return sorted(name for name in os.listdir(os.path.join(root(), "jobs")) if not name.startswith("."))
    except FileNotFoundError:
        return []


def find(id: str) -> Folder:
    """The folder of a job, by its id or by the beginning or end of it that no other has."""
    ids = all_ids()
    found = [known for known in ids if known == id] or [
        known for known in ids if id and (known.startswith(id) or known.endswith(id))
    ]
    if len(found) == 1:
        return Folder(root(), found[0])
    if found:
        raise NoSuchJob("%r may be any of %d jobs: %s" % (id, len(found), ", ".join(found[:5])))
    raise NoSuchJob("no job %r in %s (`python -m evener jobs` lists them)" % (id, os.path.join(root(), "jobs")))


def prune_sometimes() -> None:
    """Removes old jobs, if no process has done so in the last ten minutes: looking at a thousand jobs takes time."""
    mark = os.path.join(_private(root()), "pruned")
    try:
        if time.time() - os.stat(mark).st_mtime < _PRUNE_SECONDS:
            return
    except FileNotFoundError:
        pass
    os.close(os.open(mark, os.O_WRONLY | os.O_CREAT, 0o600))
    os.utime(mark)
    prune()


def prune() -> List[str]:
    """Removes old jobs. Returns their ids.

    A job that has ended, or whose process is gone, is removed `jobs.days` days after its last change, or when there are
    `jobs.kept` newer ones. A job whose process lives is never removed.
    """
    base, now = root(), time.time()
    days, kept = configuration.get("jobs.days"), configuration.get("jobs.kept")
    removed, ended = [], 0
    for id in reversed(all_ids()):
        folder = Folder(base, id)
        try:
            if folder.is_alive():
                continue
            changed = max(entry.stat().st_mtime for entry in os.scandir(folder.path))
        except (OSError, ValueError):
            # Another process removes it.
            continue
        ended += 1
        if ended > kept or now - changed > days * 86400:
            folder.remove()
            removed.append(id)
    _remove_abandoned(base, now)
    return removed


def _remove_abandoned(base: str, now: float) -> None:
    """Removes folders whose process was killed while it made or removed them."""
    try:
        hidden = [name for name in os.listdir(os.path.join(base, "jobs")) if name.startswith((".new-", ".old-"))]
    except FileNotFoundError:
        return
    for name in hidden:
        folder = Folder(base, "-".join(name.split("-")[1:4]), os.path.join(base, "jobs", name))
        try:
            if now - os.stat(folder.path).st_mtime > _ABANDONED_SECONDS and not folder.is_alive():
                folder.discard()
        except OSError:
            pass
