"""Signatures of what comes back through other systems: it is unpickled only if it was signed with this job's key."""

from __future__ import annotations

import hashlib
import hmac

#: Bytes of a signature.
SIZE = 32


class Forged(Exception):
    """What came back was not signed with this job's key, or is of another part."""


def sign(key: bytes, part: bytes, data: bytes) -> bytes:
    """Puts a signature before data, for the part of a job that is named."""
    return hmac.new(key, len(part).to_bytes(4, "little") + part + data, hashlib.sha256).digest() + data


def checked(key: bytes, part: bytes, signed: bytes) -> memoryview:
    """The data of what was signed. Raises `Forged` if the signature is not this job's, or is of another part."""
    if not isinstance(signed, (bytes, bytearray, memoryview)) or len(signed) < SIZE:
        raise Forged("a result has no signature")
    view = memoryview(signed)
    made = hmac.new(key, len(part).to_bytes(4, "little") + part, hashlib.sha256)
    made.update(view[SIZE:])
    if not hmac.compare_digest(made.digest(), bytes(view[:SIZE])):
        raise Forged("the signature of a result is wrong: it was not made with this job's key, or was changed on its way")
    return view[SIZE:]
