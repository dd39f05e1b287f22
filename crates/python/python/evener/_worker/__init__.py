"""What runs in a worker process.

Starting workers is part of a call's time, so nothing here imports more than a handful of small modules.
"""

import sys

#: Whether this process is a worker. The command that starts one says so.
is_worker: bool = getattr(sys, "_evener_worker", False)
#: The name of the worker's device, as PyTorch and others name it.
device = "cpu"
#: Whether the process that drives this worker is on another machine, or may be.
is_remote = False
#: Variables of the environment that are this worker's own, such as those that say which GPU it sees.
own_variables: frozenset = frozenset()
