"""How many items a worker on another machine is handed ahead of the one that it runs.

A plain state machine: it is told the round trip and how long parts took, and says how many items to hand out next. Enough work
is on its way that the worker never waits for a message, and not more: what it has not begun cannot be given to others at once.
"""

from __future__ import annotations

from typing import Optional

#: Seconds of work that are on their way beside two round trips.
AHEAD = 0.02
#: Items that take longer than this many round trips are handed out one by one: waiting for the next costs 2 % at most.
LONG = 50.0
#: Seconds that a message takes beside the round trip: the agent and the driver have other things to do.
HANDLING = 0.001
MOST_ITEMS = 1 << 14


class Window:
    """The window of one worker for one job."""

    def __init__(self, seconds_per_item: Optional[float] = None) -> None:
        #: Seconds per item there, once known.
        self.seconds_per_item = seconds_per_item
        self._last = 1

    def target(self, round_trip: float) -> float:
        """Seconds of work that are to be on their way."""
        return 2.0 * (round_trip + HANDLING) + AHEAD

    def next(self, outstanding: int, round_trip: float) -> int:
        """How many items to hand out now, while so many have no result yet."""
        each = self.seconds_per_item
        if each is None:
            return 1 if outstanding < 2 else 0
        target = self.target(round_trip)
        if outstanding:
            if each > LONG * (round_trip + HANDLING) or outstanding * each >= target:
                return 0
        count = int(target / 2.0 / max(each, 1e-9))
        self._last = max(1, min(count, 2 * self._last, MOST_ITEMS))
        return self._last

    def took(self, items: int, seconds: float) -> None:
        """A part of so many items took so many seconds there."""
        if items:
            each = seconds / items
            self.seconds_per_item = each if self.seconds_per_item is None else 0.5 * (self.seconds_per_item + each)
