"""What a run did: its report, and its trace for Perfetto."""

from __future__ import annotations

import html
import json
from typing import Any, Dict, List, Optional, Tuple

__all__ = ["LastRun", "last_run"]


class LastRun:
    """The last run: how many items ran where, how fast, and how evenly."""

    def __init__(self, label: str, home: Tuple[int, float], job: Any = None) -> None:
        self.label = label
        #: Items that the calling process ran itself, and their seconds.
        self.home = home
        self._run: Any = None
        self._lanes: List[str] = []
        self._failures: List[Tuple[str, str]] = []
        self._trace: Optional[str] = None
        if job is not None:
            self._run = job.run
            self._lanes = [lane.device for lane in job.driver.lanes[: job.lanes]]
            self._failures = job.failures

    @property
    def used_workers(self) -> bool:
        """Whether workers were used."""
        return self._run is not None

    def to_dict(self) -> Dict[str, Any]:
        """The report as plain values."""
        if self._run is None:
            items, seconds = self.home
            return {"task": self.label, "items": items, "done": items, "wall_s": seconds, "devices": []}
        return json.loads(self._report()[0])  # type: ignore[no-any-return]

    def report(self) -> str:
        """The report as text."""
        if self._run is None:
            items, seconds = self.home
            return "%d items in %.3g s in this process: workers would not have saved time" % (items, seconds)
        return self._report()[1]

    def trace(self) -> str:
        """The trace as a JSON document that ui.perfetto.dev opens."""
        if self._trace is None:
            names = ["%s worker %d" % (device, lane) for lane, device in enumerate(self._lanes)]
            self._trace = self._run.trace(self.label, names) if self._run is not None else '{"traceEvents": []}'
        return self._trace

    def save_trace(self, path: str) -> None:
        """Writes the trace to a file."""
        with open(path, "w") as file:
            file.write(self.trace())

    def _report(self) -> Tuple[str, str]:
        return self._run.report(self.label, self._lanes, self._failures, self.home)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return self.report()

    def _repr_html_(self) -> str:
        """The report as a table, and the workers' time as a picture, in a notebook."""
        if self._run is None:
            return "<p>%s</p>" % html.escape(self.report())
        rows = []
        for device in self.to_dict()["devices"]:
            cells = (device["id"], device["items"], device["chunks"], "%.3f" % device["busy_s"], device["steals"])
            rows.append("<tr>%s</tr>" % "".join("<td>%s</td>" % html.escape(str(cell)) for cell in cells))
        head = "".join("<th>%s</th>" % name for name in ("device", "items", "chunks", "busy s", "steals"))
        table = "<table><thead><tr>%s</tr></thead><tbody>%s</tbody></table>" % (head, "".join(rows))
        last = self.report().rstrip().splitlines()[-1]
        return "%s%s<p>%s</p>" % (table, self._picture(), html.escape(last))

    def _picture(self) -> str:
        """What each worker did when, as an SVG image."""
        events = json.loads(self.trace())["traceEvents"]
        spans = [event for event in events if event.get("ph") == "X"]
        end = max((span["ts"] + span["dur"] for span in spans), default=0.0)
        if not end:
            return ""
        height, width = 14, 720
        colours = {"work": "#4c78a8", "failure": "#e45756", "dropped": "#bab0ac"}
        boxes = []
        for span in spans:
            x, length = span["ts"] / end * width, max(span["dur"] / end * width, 0.5)
            colour = colours.get(span.get("cat"), "#72b7b2")
            box = '<rect x="%.2f" y="%d" width="%.2f" height="%d" fill="%s"><title>%s</title></rect>'
            boxes.append(box % (x, span["tid"] * height, length, height - 3, colour, html.escape(span["name"])))
        rows = max(span["tid"] for span in spans) + 1
        return '<svg width="%d" height="%d">%s</svg>' % (width, rows * height, "".join(boxes))


_last: Optional[LastRun] = None


def last_run() -> Optional[LastRun]:
    """The last run of this process that has ended, or `None` if there was none."""
    return _last


def keep(label: str, home: Tuple[int, float], job: Any) -> None:
    """Keeps a run as the last one."""
    global _last
    _last = LastRun(label, home, job)
