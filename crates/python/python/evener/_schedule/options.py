"""The options of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional, Union


@dataclass
class Options:
    """How a run is done. The defaults are those of `evener.map`."""

    #: Maximum number of workers; by default one a core.
    workers: Optional[int] = None
    #: How often an item is run again after its worker died, or its own time was up. Zero for what must not run twice.
    retries: int = 2
    #: Maximum seconds for one item.
    timeout: Optional[float] = None
    #: Whether to show progress: `None` for calls of over a second, on a terminal or in a notebook.
    progress: Union[bool, Any, None] = None
    #: The run's name in the progress bar, the report and the log.
    label: str = "run"
    #: What learned costs are kept under, or a function that says so. Without it, nothing is learned.
    cost_key: Union[str, Callable[[], Optional[str]], None] = None
    #: Maximum number of items that the caller's process runs before workers are used: `None` for as many as it takes to know
    #: whether workers pay, and 0 to use workers in any case.
    home: Optional[int] = None
    #: Number of items, where the iterable does not say.
    length: Optional[int] = None
    #: How the function is called: `index` for function(index, item), `item` for function(item), `items` for
    #: function(*item), `call` if each item is a function, its arguments and its keyword arguments.
    style: str = "index"
