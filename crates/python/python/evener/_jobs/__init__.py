"""Jobs: calls that outlive the process that made them.

A job is a folder of the user (`store`), with files that are signed with a key of the job's own (`sealed`), and a process in a
session of its own (`process`, started by `submit`). `handle` is what users have: status, result, logs, cancel.
"""
