"""Ends blocks of items that turn out expensive.

Cheap items run at home in large blocks, since a look at the clock after each would take longer than the item. A thread looks
at the clock instead, every few milliseconds, and cuts off a block that takes too long: it removes from the block's list what
has not begun.
"""

from __future__ import annotations

import threading
import time
from operator import length_hint
from typing import Any, Dict, List, Optional

#: Seconds between two looks.
INTERVAL = 0.005
#: The thread ends when there was nothing to watch for this many looks.
IDLE_LOOKS = 40

_lock = threading.Lock()
_thread: Optional[threading.Thread] = None
#: The blocks that run now, by the run that they belong to: the list, its iterator, when it began, and where it was at the last
#: look.
_running: Dict[int, List[Any]] = {}


def begin(owner: int, block: List[Any], iterator: Any) -> None:
    """Watches a block of items, of which the iterator gives those that have not begun."""
    global _thread
    _running[owner] = [block, iterator, time.perf_counter(), None]
    if _thread is None or not _thread.is_alive():
        with _lock:
            if _thread is None or not _thread.is_alive():
                _thread = threading.Thread(target=_watch, name="evener watch", daemon=True)
                _thread.start()


def end(owner: int) -> None:
    """Stops watching."""
    _running.pop(owner, None)


def _watch() -> None:
    idle = 0
    while idle < IDLE_LOOKS:
        time.sleep(INTERVAL)
        idle = 0 if _running else idle + 1
        now = time.perf_counter()
        for watched in list(_running.values()):
            block, iterator, began, before = watched
            position = len(block) - length_hint(iterator)
            if now - began > 2 * INTERVAL and before is not None:
                # Ahead of where the iterator is by more than it moves between two looks: it may move before the cut, and must
                # not be past it then.
                del block[position + 4 * (position - before) + 1 :]
            watched[3] = position
