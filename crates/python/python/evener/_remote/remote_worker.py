"""A worker on another machine, as its driver sees it.

It claims items in this process on behalf of the worker, in small parts, and hands them out ahead of need. What it has not
claimed can be stolen by other lanes at once, and what the worker has not begun is recalled if another lane has nothing to do.
"""

from __future__ import annotations

import json
import os
from collections import deque
from typing import TYPE_CHECKING, Any, Deque, Dict, Mapping, Optional, Tuple

from .._schedule.worker_process import LaneWorker, new_claims, start_state
from .._worker import frames, stream
from .window import Window

if TYPE_CHECKING:
    from .._schedule.driver import Driver
    from .._schedule.job import Job
    from .link import Link

#: No more is handed out while this many bytes wait for the connection.
MOST_WAITING = 16 << 20
#: A worker whose items others want is asked for them if it delivers nothing for this many seconds beside two round trips.
PATIENCE = 0.02


class RemoteWorker(LaneWorker):
    """A worker of a host, at the other end of the host's connection."""

    def __init__(
        self, lane: int, link: Link, driver: Driver, device: str, environment: Mapping[str, str], initializer: Optional[bytes]
    ) -> None:
        super().__init__(lane)
        import pickle

        self.link = link
        self._driver = driver
        self.claims, file = new_claims()
        os.close(file)
        self._window = Window()
        self._windows: Dict[int, Window] = {}
        #: The parts that were handed out and have not ended, and the end of what was handed out.
        self._parts: Deque[Tuple[int, int]] = deque()
        self._handed = 0
        self._is_recalling = False
        self._is_stopping = False
        self._last_progress = 0.0
        self._is_writing_alone = False
        self._begun: Optional[Tuple[int, int]] = None
        start = start_state(device, initializer)
        link.send(stream.BEGIN_WORKER, lane, 0, pickle.dumps((start, dict(environment)), 5))

    # What the driver asks for.

    def begin(self, job: Job, first: int, end: int) -> None:
        self._window = self._windows.setdefault(job.number, Window())
        self._parts.clear()
        self._handed = first
        self._is_recalling = self._is_stopping = False
        self._begun = None
        self._last_progress = self._driver.now()
        self.functions.add(job.number)
        self.link.send_values()
        self.link.send_function(job)
        self._hand_out()

    def begun(self) -> Tuple[int, int]:
        if self._begun is not None:
            return self._begun
        # It is unknown which of them it has begun.
        return self._handed, self.delivered

    def forget(self, job: int) -> None:
        self.functions.discard(job)
        self._windows.pop(job, None)

    def exit(self) -> None:
        self.link.send(frames.EXIT, self.lane, 0)

    def kill(self, reason: Optional[str] = None) -> None:
        if self.killed_for is None:
            self.killed_for = reason
            self.link.send(stream.KILL, self.lane, 0, (reason or "").encode())

    def stop(self) -> None:
        if self.job is not None and not self._is_stopping:
            self._is_stopping = self._is_recalling = True
            self.link.send(stream.RECALL, self.lane, self.job.number, b"!")

    def look(self, now: float) -> float:
        if self._is_recalling or not self.claims.is_interrupted() or self._handed - self.delivered < 2:
            return super().look(now)
        due = self._last_progress + PATIENCE + 2.0 * self.link.round_trip
        if due > now:
            return due
        self._is_recalling = True
        assert self.job is not None
        self.link.send(stream.RECALL, self.lane, self.job.number)
        return super().look(now)

    # What the agent says.

    def delivered_some(self) -> None:
        """Results came."""
        self._last_progress = self._driver.now()
        self._go_on()

    def part_ended(self, body: Any) -> None:
        """A part has ended, of which the worker kept so many items."""
        first, kept, took = json.loads(bytes(body))
        if self.job is None:
            return
        self._window.took(kept, took)
        while self._parts and self._parts[0][0] <= first:
            self._parts.popleft()
        if self._is_stopping:
            self._parts.clear()
            self._driver.chunk_ended(self, self.job)
            return
        self._go_on()

    def recalled(self, body: Any) -> None:
        """The agent has given back what the worker had not begun."""
        back, is_reply, is_busy = json.loads(bytes(body))
        if self.job is None:
            return
        if back is not None and back < self._handed:
            self._handed = back
            self.claims.unclaim(back - self.chunk[0])
            while self._parts and self._parts[-1][0] >= back:
                self._parts.pop()
        if is_reply:
            self._is_recalling = self._is_stopping
            if self._is_stopping and not is_busy:
                self._driver.chunk_ended(self, self.job)
                return
        if not self._is_stopping:
            self._go_on()

    def died(self, body: Any) -> Tuple[str, Optional[str]]:
        """The worker has ended: says how, and why the agent killed it, if it did."""
        how, reason, claimed, current = json.loads(bytes(body))
        if self.killed_for is None:
            self.killed_for = reason
        if claimed >= 0:
            self._begun = (max(claimed, self.delivered), current)
        else:
            self._begun = (self.delivered, self.delivered)
        return how, reason

    def _go_on(self) -> None:
        """Hands out more, or ends the chunk."""
        job = self.job
        if job is None or self._is_stopping:
            return
        if not self._is_recalling:
            try:
                self._hand_out()
            except Exception as error:
                self._driver.chunk_failed(self, job, error)
                return
        if self.delivered >= self._handed and not self._parts and not self._is_recalling:
            # Nothing was left to claim, or the loop above would have handed it out.
            self._driver.chunk_ended(self, job)

    def _hand_out(self) -> None:
        job = self.job
        assert job is not None
        first = self.chunk[0]
        while True:
            outstanding = self._handed - self.delivered
            if outstanding and self.link.waiting > MOST_WAITING:
                return
            count = self._window.next(outstanding, self.link.round_trip)
            if not count:
                return
            block = self.claims.claim(count)
            if block is None:
                return
            start, end = first + block[0], first + block[1]
            body, buffers = job.encode(start, end)
            self._parts.append((start, end))
            self._handed = end
            self.link.send(frames.CHUNK, self.lane, job.number, body, [json.dumps([start, end - start]).encode(), *buffers])
