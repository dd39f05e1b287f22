"""The first words between this process and another machine: what is there, and what has to be sent."""

from __future__ import annotations

import json
import logging
import os
import platform
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, Dict, List, Tuple

from .._worker import stream

if TYPE_CHECKING:
    from .._evener import Connection, Host
    from .environment import Setup

log = logging.getLogger("evener")

#: Seconds that making an environment may take.
MAKING_SECONDS = 1800.0
_FOLDER = os.path.dirname(os.path.abspath(__file__))


class Refused(ConnectionError):
    """A host that no further try can make usable: another version of Python, for example."""


class Shaken:
    """A connection whose agent is there."""

    def __init__(self, sock: socket.socket, reader: stream.StreamReader, hello: Dict[str, Any], round_trip: float) -> None:
        self.socket = sock
        self.reader = reader
        self.hello = hello
        self.round_trip = round_trip


def first_command(interpreters: List[str]) -> str:
    """The line for the shell of another machine that starts Python there, which then reads the rest from the connection.

    It has no single quote in it, so that any shell can pass it on.
    """
    import base64

    text = (
        "import os\n"
        "def r(n):\n"
        " b=b''\n"
        " while len(b)<n:\n"
        "  d=os.read(0,n-len(b))\n"
        "  if not d:os._exit(0)\n"
        "  b+=d\n"
        " return b\n"
        "exec(r(int(r(16))).decode())\n"
    )
    code = base64.b64encode(text.encode()).decode()
    run = 'exec %%s -c "exec(__import__(\\"base64\\").b64decode(\\"%s\\").decode())"' % code
    if len(interpreters) == 1:
        return run % interpreters[0]
    find = "for p in %s; do if command -v $p >/dev/null 2>&1; then %s; fi; done" % (" ".join(interpreters), run % "$p")
    return "%s; echo \"it has no Python: none of %s is in the PATH there\" >&2; exit 3" % (find, ", ".join(interpreters))


def in_shell(line: str) -> str:
    """A command that runs a line with `sh`, whatever the shell is that reads it."""
    return "exec sh -c '%s'" % line


def shake_hands(connection: Connection, host: Host, setup: Setup) -> Shaken:
    """Sends what the machine needs, and waits for its agent. Raises ConnectionError with the reason if there will be none."""
    sock = socket.socket(fileno=connection.take_socket())
    try:
        return _Hands(sock, connection, host, setup).shake()
    except socket.timeout:
        sock.close()
        raise ConnectionError("no answer within %g s" % host.timeout) from None
    except ConnectionError:
        sock.close()
        raise
    except OSError as error:
        sock.close()
        raise ConnectionError(str(error)) from None
    except BaseException:
        sock.close()
        raise


class _Hands:
    def __init__(self, sock: socket.socket, connection: Connection, host: Host, setup: Setup) -> None:
        self._socket = sock
        self._connection = connection
        self._host = host
        self._setup = setup
        self._nonce = os.urandom(8).hex()
        self._buffer = bytearray()
        self._deadline = time.monotonic() + host.timeout

    def shake(self) -> Shaken:
        setup = self._setup
        with open(os.path.join(_FOLDER, "boot.py")) as file:
            source = file.read()
        text = "NONCE = %r\nSOURCE = %r\nexec(SOURCE)\n" % (self._nonce, source)
        spec = json.dumps(setup.specification()).encode()
        self._send(_sized(text.encode()) + _sized(spec))
        ready = False
        while not ready:
            word, value = self._line()
            if word == "HELLO":
                self._check(value)
            elif word == "NOTE":
                log.info("%s: %s", self._host.name, value)
                self._deadline = time.monotonic() + MAKING_SECONDS
            elif word == "NEED":
                for name in value:
                    data = setup.archive(name)
                    log.info("%s: sends %s (%.1f MB)", self._host.name, name.split("-")[0], len(data) / 1e6)
                    self._deadline = time.monotonic() + max(self._host.timeout, 30.0 + len(data) / 1e5)
                    self._send(_sized(data))
            elif word == "READY":
                ready = True
            elif word == "ERROR":
                raise Refused(value)
        self._deadline = time.monotonic() + max(self._host.timeout, 10.0)
        return self._agent()

    def _agent(self) -> Shaken:
        reader = stream.StreamReader(self._receive_into)
        reader.feed(self._buffer)
        hello = json.loads(bytes(self._frame(reader, stream.HELLO).body))
        writer = stream.StreamWriter(lambda views: self._socket.sendmsg(views))
        shortest = 1.0
        for _ in range(3):
            began = time.monotonic()
            writer.add(stream.PING, 0, 0, b"0")
            writer.flush()
            self._frame(reader, stream.PONG)
            shortest = min(shortest, time.monotonic() - began)
        reader.read_into = self._socket.recv_into
        return Shaken(self._socket, reader, hello, shortest)

    def _frame(self, reader: stream.StreamReader, kind: int) -> stream.Frame:
        while True:
            frame = reader.next()
            if frame is None:
                if not reader.read():
                    self._ended()
            elif frame.kind == kind:
                return frame

    def _check(self, hello: Dict[str, Any]) -> None:
        """Refuses a machine whose Python cannot read what this one writes."""
        wanted = "%d.%d" % sys.version_info[:2]
        if hello["version"] != wanted:
            text = "its Python is %s (%s), and this one is %s: pickled code does not pass between the two; "
            text += "name an environment there with Python %s: environment=\"/path/to/venv\""
            raise Refused(text % (hello["version"], hello["python"], wanted, wanted))
        if hello["implementation"] != sys.implementation.name:
            raise Refused("its Python is %s, and this one is %s" % (hello["implementation"], sys.implementation.name))
        here, there = (platform.system(), platform.machine()), (hello["system"], hello["machine"])
        if here != there and self._setup.sends_package:
            text = "it is %s on %s, and this machine is %s on %s: install evener there, and name that environment by environment="
            raise Refused(text % (*there, *here))

    # Bytes.

    def _wait(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise socket.timeout()
        self._socket.settimeout(left)

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view.nbytes:
            self._wait()
            try:
                view = view[self._socket.send(view) :]
            except (BrokenPipeError, ConnectionResetError):
                self._ended()

    def _receive_into(self, view: memoryview) -> int:
        self._wait()
        return self._socket.recv_into(view)

    def _line(self) -> Tuple[str, Any]:
        """The next message. Lines that a shell's profile prints are passed over."""
        while True:
            end = self._buffer.find(b"\n")
            if end >= 0:
                line = bytes(self._buffer[:end]).decode(errors="replace")
                del self._buffer[: end + 1]
                words = line.split(" ", 3)
                if len(words) == 4 and words[:2] == ["evener-python", self._nonce]:
                    return words[2], json.loads(words[3])
                continue
            if len(self._buffer) > 1 << 22:
                raise ConnectionError("it prints without end")
            self._wait()
            data = self._socket.recv(1 << 16)
            if not data:
                self._ended()
            self._buffer += data

    def _ended(self) -> None:
        raise ConnectionError(self._connection.last_words() or "the connection was closed before a worker was there")


def _sized(data: bytes) -> bytes:
    return b"%16d" % len(data) + data
