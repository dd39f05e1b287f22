"""Progress of a run, as users of tqdm know it: on a terminal or in a notebook, for runs of over a second."""

from __future__ import annotations

import sys
import time
from typing import Any, Optional

#: Seconds before the bar appears, and between two updates.
APPEARS_AFTER = 1.0
INTERVAL = 0.1


def bar_for(progress: Any, label: str, total: Optional[int]) -> "Optional[Bar]":
    """The bar of a run; `None` if nobody would see it, or the user wants none."""
    if progress is False:
        return None
    if progress is None and not (_in_notebook() or _on_terminal()):
        return None
    return Bar(label, total, at_once=progress is True)


def _on_terminal() -> bool:
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


class Bar:
    """A progress bar: tqdm's where it is installed, and otherwise a line on standard error."""

    def __init__(self, label: str, total: Optional[int], at_once: bool = False) -> None:
        self._label = label
        self._total = total
        self._began = time.monotonic()
        self._next = self._began + (0.0 if at_once else APPEARS_AFTER)
        self._done = 0
        self._tqdm: Any = None
        self._is_shown = False
        self._width = 0

    def update(self, done: int) -> None:
        """Shows how many items are done, if it is time to."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + INTERVAL
            self._show(done, now)

    def close(self, done: int) -> None:
        """Shows the end, if anything was shown."""
        if self._is_shown:
            self._show(done, time.monotonic())
            if self._tqdm is not None:
                self._tqdm.close()
            else:
                sys.stderr.write("\n")

    def _show(self, done: int, now: float) -> None:
        if not self._is_shown:
            self._is_shown = True
            try:
                from tqdm.auto import tqdm

                self._tqdm = tqdm(total=self._total, desc=self._label)
                # The bar appears late, and the run began before.
                self._tqdm.start_t -= now - self._began
            except ImportError:
                pass
        if self._tqdm is not None:
            self._tqdm.update(done - self._done)
            self._done = done
            return
        self._done = done
        text = line(self._label, done, self._total, now - self._began)
        sys.stderr.write("\r" + text.ljust(self._width))
        sys.stderr.flush()
        self._width = len(text)


def line(label: str, done: int, total: Optional[int], seconds: float) -> str:
    """One line of progress."""
    rate = done / seconds if seconds > 0 else 0.0
    speed = "%.1f items/s" % rate if rate >= 1 or not rate else "%.1f s/item" % (1 / rate)
    if not total:
        return "%s: %d [%s, %s]" % (label, done, _clock(seconds), speed)
    share = min(done / total, 1.0)
    filled = int(share * 20)
    left = _clock((total - done) / rate) if rate else "?"
    parts = (label, share * 100, "█" * filled + " " * (20 - filled), done, total, _clock(seconds), left, speed)
    return "%s: %3.0f%%|%s| %d/%d [%s<%s, %s]" % parts


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return "%d:%02d:%02d" % (hours, minutes, rest) if hours else "%02d:%02d" % (minutes, rest)
