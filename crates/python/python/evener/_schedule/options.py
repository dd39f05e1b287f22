"""The options of a run."""

from __future__ import annotations

from typing import Any, Callable, Optional, Tuple, Union


class Options:
    """How a run is done. The defaults are those of `evener.map`."""

    __slots__ = (
        "workers",
        "retries",
        "timeout",
        "progress",
        "label",
        "cost_key",
        "home",
        "length",
        "style",
        "before",
    )

    def __init__(
        self,
        *,
        workers: Optional[int] = None,
        retries: int = 2,
        timeout: Optional[float] = None,
        progress: Union[bool, Any, None] = None,
        label: str = "run",
        cost_key: Union[str, Callable[[], Optional[str]], None] = None,
        home: Optional[int] = None,
        length: Optional[int] = None,
        style: str = "index",
    ) -> None:
        #: Maximum number of workers; by default one a core.
        self.workers = workers
        #: How often an item is run again after its worker died, or its own time was up. Zero for what must not run twice.
        self.retries = retries
        #: Maximum seconds for one item.
        self.timeout = timeout
        #: Whether to show progress: `None` for calls of over a second, on a terminal or in a notebook.
        self.progress = progress
        #: The run's name in the progress bar, the report and the log.
        self.label = label
        #: What learned costs are kept under, or a function that says so. Without it, nothing is learned.
        self.cost_key = cost_key
        #: Maximum number of items that the caller's process runs before workers are used: `None` for as many as it takes to
        #: know whether workers pay, and 0 to use workers in any case.
        self.home = home
        #: Number of items, where the iterable does not say.
        self.length = length
        #: How the function is called: `index` for function(index, item), `item` for function(item), `items` for
        #: function(*item), `call` if each item is a function, its arguments and its keyword arguments.
        self.style = style
        #: For the rest of a loop: how many of its iterations have run, their seconds, and the seconds of a recent one.
        self.before: Optional[Tuple[int, float, float]] = None
