"""How work gets to worker processes: the driver of the scheduler's runs, and what it needs."""
