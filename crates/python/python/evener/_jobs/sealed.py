"""Files that are signed with a job's key. Nothing in them is used before the signature was checked."""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import Any

#: The beginning of a sealed file: the format and its version.
MAGIC = b"evener-job-1\n"
_SIGNATURE_BYTES = 32


class BadSignature(RuntimeError):
    """A job's file was damaged, changed, or signed for another job: nothing of it was unpickled."""


def new_key() -> bytes:
    """A random key for a job."""
    return os.urandom(32)


def _signature(key: bytes, job: str, kind: str, data: Any) -> bytes:
    # With the job and the kind, a call cannot stand for a result, nor the result of one job for that of another.
    made = hmac.new(key, MAGIC + ("%s\n%s\n" % (job, kind)).encode(), hashlib.sha256)
    made.update(data)
    return made.digest()


def seal(key: bytes, job: str, kind: str, data: bytes) -> bytes:
    """The beginning of a file of this kind with this data: what is written before the data."""
    return MAGIC + _signature(key, job, kind, data)


def open_sealed(key: bytes, job: str, kind: str, sealed: bytes, name: str) -> memoryview:
    """The data of a sealed file. Fails with `BadSignature` unless it was signed with this key for this job and kind."""
    start = len(MAGIC) + _SIGNATURE_BYTES
    data = memoryview(sealed)[start:]
    if not sealed.startswith(MAGIC) or len(sealed) < start:
        raise BadSignature("%s: it is not a file of a job, or was cut short" % name)
    if not hmac.compare_digest(sealed[len(MAGIC) : start], _signature(key, job, kind, data)):
        raise BadSignature("%s: its signature is not that of job %s, so nothing of it is read" % (name, job))
    return data
