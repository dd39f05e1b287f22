"""What runs have shown about the time of items, kept between processes.

The file is a JSON object in the user's cache folder. It is advice: a file that is missing, unreadable or of another version
counts as empty, and failing to write it changes nothing.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from typing import Any, Dict, Optional, Tuple

_VERSION = 1
_MOST = 500
#: Seconds to start workers, before it was measured.
_USUAL_START = 0.15

_lock = threading.Lock()
_known: Optional[Dict[str, Any]] = None
_is_changed = False


def path() -> str:
    """The file of learned costs."""
    from .. import configuration

    folder = configuration.get("cache")
    if folder is None:
        if sys.platform == "darwin":
            folder = os.path.expanduser("~/Library/Caches/evener")
        else:
            folder = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "evener")
    return os.path.join(folder, "python-costs.json")


def is_loaded() -> bool:
    """Whether the file has been read: for the shortest runs, reading it takes longer than the run."""
    return _known is not None


def _load() -> Dict[str, Any]:
    global _known
    with _lock:
        if _known is None:
            _known = {"version": _VERSION, "start": None, "items": {}}
            try:
                with open(path()) as file:
                    found = json.load(file)
                if found["version"] == _VERSION and isinstance(found["items"], dict):
                    _known = found
            except (OSError, ValueError, KeyError, TypeError):
                pass
            atexit.register(save)
        return _known


def of(key: str) -> Optional[Tuple[float, float]]:
    """Seconds per item, and seconds to send it, of earlier runs."""
    try:
        each, sending = _load()["items"][key]
        return float(each), float(sending)
    except (KeyError, TypeError, ValueError):
        return None


def start_seconds() -> float:
    """Seconds until a started worker is ready."""
    try:
        return float(_load()["start"])
    except (TypeError, ValueError, KeyError):
        return _USUAL_START


def learn_start(seconds: float) -> None:
    """Learns how long it takes to start a worker."""
    global _is_changed
    known = _load()
    with _lock:
        before = known.get("start")
        known["start"] = seconds if not isinstance(before, float) else 0.7 * before + 0.3 * seconds
        _is_changed = True


def learn(key: str, each: float, sending: float) -> None:
    """Learns seconds per item, and seconds to send one. Later runs count more."""
    global _is_changed
    known = _load()
    before = of(key)
    if before is not None:
        each, sending = (0.5 * old + 0.5 * new for old, new in zip(before, (each, sending)))
    with _lock:
        items = known["items"]
        # The last ones learned are at the end.
        items.pop(key, None)
        items[key] = [each, sending]
        while len(items) > _MOST:
            del items[next(iter(items))]
        _is_changed = True


def forget_lock() -> None:
    """Makes a new lock, in a forked process: another thread may have held the old one."""
    global _lock
    _lock = threading.Lock()


def save() -> None:
    """Writes the file, if anything was learned."""
    global _is_changed
    with _lock:
        if not _is_changed or _known is None:
            return
        _is_changed = False
        text = json.dumps(_known)
    target = path()
    temporary = "%s.%d" % (target, os.getpid())
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(temporary, "w") as file:
            file.write(text)
        os.replace(temporary, target)
    except OSError:
        try:
            os.unlink(temporary)
        except OSError:
            pass
