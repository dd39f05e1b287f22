"""The agent of a host: starts workers there, and passes on what home and they say to each other.

One process a connection. It runs no code of the user. It ends with its connection, and the workers end with it.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections import deque

from evener import _worker
from evener._evener import end_with_session
from evener._schedule.worker_process import Sized, WorkerProcess
from evener._worker import frames, stream
from evener._worker.shared_files import write_parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Deque, Dict, List, Optional, Set, Tuple

#: Seconds without a word from home after which the agent ends: the machine of the caller, or the network, is gone.
LEASE = 120.0
#: The agent looks after limits of time this often.
TICK = 0.05
#: As long as this many bytes wait for home, nothing more is read from workers.
MOST_WAITING = 64 << 20


class Part:
    """Consecutive items of a job, as they were sent from home."""

    __slots__ = ("job", "first", "count", "body", "buffers")

    def __init__(self, job: int, first: int, count: int, body: Any, buffers: Any) -> None:
        self.job = job
        self.first = first
        self.count = count
        self.body = body
        self.buffers = buffers


class Hosted:
    """A worker of this host."""

    def __init__(self, number: int, process: WorkerProcess) -> None:
        self.number = number
        self.process = process
        #: The part that it runs, when that began, and those that wait.
        self.part: Optional[Part] = None
        self.began = 0.0
        self.waiting: Deque[Part] = deque()
        self.values: Set[int] = set()


class Agent:
    """The agent of this host."""

    def __init__(self, settings: Any) -> None:
        self._settings = settings
        self._input, self._output = os.dup(0), os.dup(1)
        # What is printed here must not get into the connection.
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(2, 1)
        os.close(null)
        for file in (self._input, self._output):
            os.set_blocking(file, False)
        self._reader = stream.StreamReader(lambda view: os.readv(self._input, [view]))
        self._writer = stream.StreamWriter(lambda views: os.writev(self._output, views))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._input, selectors.EVENT_READ, self)
        self._workers: Dict[int, Hosted] = {}
        #: The functions of jobs: body, sizes of their buffers, the file with them, and the limit of an item's seconds.
        self._functions: Dict[int, Tuple[Any, List[Sized], Optional[int], Optional[float]]] = {}
        self._values: Dict[int, Tuple[List[Sized], int]] = {}
        self._last_word = time.monotonic()
        lease = os.environ.get("EVENER_WORKER_LEASE", "")
        self._lease = float(lease) if lease.replace(".", "", 1).isdigit() and float(lease) >= 1 else LEASE
        #: What workers print: which stream it is, and the beginning of a line whose rest has not come.
        self._pipes: Dict[int, Tuple[int, bytes]] = {}
        self._reads_workers = True

    # The loop.

    def serve(self) -> None:
        """Does what home asks for, until the connection ends."""
        self._hello()
        while True:
            for key, mask in self._selector.select(self._wait()):
                if key.data is self:
                    if mask & selectors.EVENT_READ and not self._hear():
                        return
                elif key.data == "output":
                    self._pass_output(key.fd)
                elif key.data.number in self._workers and self._workers[key.data.number] is key.data:
                    self._worker_event(key, mask)
            self._look()
            self._writer.flush()
            self._watch_output()

    def _wait(self) -> float:
        return TICK if any(self._limit(hosted) is not None for hosted in self._workers.values()) else 1.0

    def _limit(self, hosted: Hosted) -> Optional[float]:
        """The limit of an item's seconds. A job that has ended has none: home says when its worker is to be killed."""
        function = self._functions.get(hosted.part.job) if hosted.part is not None else None
        return None if function is None else function[3]

    def _hear(self) -> bool:
        try:
            is_open = self._reader.read()
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        self._last_word = time.monotonic()
        while True:
            frame = self._reader.next()
            if frame is None:
                return is_open
            self._take(frame)

    def _watch_output(self) -> None:
        """Waits for the connection where it is slow, and lets workers wait where it is much slower than they."""
        wanted = bool(self._writer.waiting)
        registered = self._output in self._selector.get_map()
        if wanted and not registered:
            self._selector.register(self._output, selectors.EVENT_WRITE, self)
        elif registered and not wanted:
            self._selector.unregister(self._output)
        reads = self._writer.waiting < MOST_WAITING
        if reads != self._reads_workers:
            self._reads_workers = reads
            for hosted in self._workers.values():
                self._watch(hosted)

    def _look(self) -> None:
        """Looks after limits of time."""
        now = time.monotonic()
        if now - self._last_word > self._lease:
            self._lease_ended()
        for hosted in self._workers.values():
            limit = self._limit(hosted)
            if limit is not None:
                taken = hosted.process.claims.current_seconds()
                if taken is not None and taken >= limit and hosted.process.killed_for is None:
                    hosted.process.kill("timeout")

    def _lease_ended(self) -> None:
        job = os.environ.get("EVENER_WORKER_JOB")
        if job:
            # `srun` may be gone too, and then nothing else ends the job.
            subprocess.run(["scancel", "--quiet", job], stdin=subprocess.DEVNULL)
        os._exit(1)

    # What home says.

    def _hello(self) -> None:
        from evener._schedule.cores import usable_cores

        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hello = {
            "cores": usable_cores(), "process": os.getpid(), "name": os.uname().nodename,
            "gpus": _gpus(visible) if self._settings["gpus"] else [],
            "node": os.environ.get("SLURMD_NODENAME"), "job": os.environ.get("SLURM_JOB_ID"),
        }
        self._writer.add(stream.HELLO, 0, 0, json.dumps(hello).encode())

    def _take(self, frame: stream.Frame) -> None:
        kind = frame.kind
        if kind == frames.CHUNK:
            first, count = json.loads(bytes(frame.buffers[0]))
            part = Part(frame.job, first, count, frame.body, frame.buffers[1:])
            hosted = self._workers.get(frame.worker)
            if hosted is None or frame.job not in self._functions:
                # It has died, or the job has ended, which home will know or knows already.
                return
            hosted.waiting.append(part)
            self._begin_part(hosted)
        elif kind == frames.FUNCTION:
            limit = json.loads(bytes(frame.buffers[0]))
            buffers = frame.buffers[1:]
            file = write_parts(buffers) if buffers else None
            self._functions[frame.job] = (frame.body, [Sized(part.nbytes) for part in buffers], file, limit)
        elif kind == frames.FORGET:
            _, _, file, _ = self._functions.pop(frame.job, (b"", [], None, None))
            if file is not None:
                os.close(file)
            for hosted in self._workers.values():
                if frame.job in hosted.process.functions:
                    hosted.process.functions.discard(frame.job)
                    hosted.process.send(frames.FORGET, frame.job)
                    self._watch(hosted)
        elif kind == frames.VALUE:
            self._values[frame.job] = ([Sized(part.nbytes) for part in frame.buffers], write_parts(frame.buffers))
        elif kind == frames.FORGET_VALUE:
            _, file = self._values.pop(frame.job)
            os.close(file)
        elif kind == stream.PING:
            self._writer.add(stream.PONG, 0, 0, frame.body)
        elif kind == stream.BEGIN_WORKER:
            self._start(frame)
        elif kind == stream.RECALL:
            self._recall(frame.worker, frame.job, frame.body[:1] == b"!")
        elif kind == stream.KILL:
            hosted = self._workers.get(frame.worker)
            if hosted is not None:
                hosted.process.kill(bytes(frame.body).decode() or None)
        elif kind == frames.EXIT:
            hosted = self._workers.get(frame.worker)
            if hosted is not None:
                hosted.process.killed_for = "idle"
                hosted.process.send(frames.EXIT, 0)
                self._watch(hosted)

    def _start(self, frame: stream.Frame) -> None:
        import pickle

        start, environment = pickle.loads(frame.body)
        start["own"] = sorted(set(start.get("own", ())) | set(environment))
        start["is_remote"] = True
        start["paths"] = self._settings["paths"]
        if not self._settings["same"]:
            start["path"] = None
        try:
            process = WorkerProcess(frame.worker, start, environment, outputs=self._output_pipes())
        except OSError as error:
            self._writer.add(stream.DIED, frame.worker, 0, json.dumps(["could not be started: %s" % error, None, 0, 0]).encode())
            return
        finally:
            self._close_output_pipes()
        hosted = self._workers[frame.worker] = Hosted(frame.worker, process)
        self._selector.register(process.socket, selectors.EVENT_READ, hosted)
        if process.exit_file is not None:
            self._selector.register(process.exit_file, selectors.EVENT_READ, hosted)
        self._watch(hosted)

    # What is printed on this host is printed at home.

    def _output_pipes(self) -> Tuple[int, int]:
        made = []
        for stream_number in (1, 2):
            read, write = os.pipe()
            os.set_blocking(read, False)
            self._pipes[read] = (stream_number, b"")
            self._selector.register(read, selectors.EVENT_READ, "output")
            made.append(write)
        self._open_pipes = made
        return made[0], made[1]

    def _close_output_pipes(self) -> None:
        for file in self._open_pipes:
            os.close(file)

    def _pass_output(self, file: int) -> bool:
        if file not in self._pipes:
            # It was closed by an earlier event.
            return False
        try:
            data = os.read(file, 1 << 16)
        except (BlockingIOError, InterruptedError):
            return False
        number, line = self._pipes[file]
        # Whole lines, so that those of two workers are not mixed; but a line without end is not kept for ever.
        whole = data.rfind(b"\n") + 1 if data and len(line) < 1 << 16 else len(data)
        if whole or not data:
            data, line = line + data[:whole], data[whole:]
            if data:
                self._writer.add(stream.OUTPUT, number, 0, data)
        else:
            line, data = line + data, b"?"
        self._pipes[file] = (number, line)
        if not data:
            self._selector.unregister(file)
            os.close(file)
            del self._pipes[file]
            return False
        return True

    def _pass_all_output(self) -> None:
        """Passes on all that was printed, also lines that have not ended."""
        for file in list(self._pipes):
            while file in self._pipes and self._pass_output(file):
                pass
            if file in self._pipes and self._pipes[file][1]:
                number, line = self._pipes[file]
                self._pipes[file] = (number, b"")
                self._writer.add(stream.OUTPUT, number, 0, line)

    # Parts.

    def _begin_part(self, hosted: Hosted) -> None:
        if hosted.part is not None or not hosted.waiting or not hosted.process.ready:
            return
        part = hosted.waiting.popleft()
        if part.job not in self._functions:
            # The job has ended.
            return self._begin_part(hosted)
        hosted.part = part
        hosted.began = time.monotonic()
        process = hosted.process
        for number in hosted.values.difference(self._values):
            hosted.values.discard(number)
            process.send(frames.FORGET_VALUE, number)
        for number, (sizes, file) in self._values.items():
            if number not in hosted.values:
                hosted.values.add(number)
                process.send(frames.VALUE, number, b"", sizes, file)
        body, sizes, file, _ = self._functions[part.job]
        if part.job not in process.functions:
            process.functions.add(part.job)
            process.send(frames.FUNCTION, part.job, body, sizes if file is not None else (), file)
        process.claims.begin(part.count)
        process.send(frames.CHUNK, part.job, part.body, part.buffers)
        part.body = part.buffers = None
        self._watch(hosted)

    def _recall(self, number: int, job: int, ends: bool) -> None:
        """Gives back what a worker has not begun. With `ends`, the worker also stops after its present item."""
        hosted = self._workers.get(number)
        if hosted is None:
            return
        waiting = hosted.waiting[0].first if hosted.waiting else None
        hosted.waiting.clear()
        part, claims = hosted.part, hosted.process.claims
        back = waiting
        if part is not None:
            taken = claims.take_rest()
            if taken is not None:
                back = part.first + taken
                part.count = taken
            if ends:
                claims.end_run()
        self._writer.add(stream.RECALLED, number, job, json.dumps([back, True, part is not None]).encode())

    def _part_ended(self, hosted: Hosted, part: Part) -> None:
        kept = hosted.process.claims.end()
        hosted.part = None
        took = time.monotonic() - hosted.began
        self._writer.add(stream.PART_ENDED, hosted.number, part.job, json.dumps([part.first, kept, took]).encode())
        if kept < part.count:
            # It was asked to give back what it had claimed and not begun: what comes after that is of no use here either.
            hosted.waiting.clear()
            self._writer.add(stream.RECALLED, hosted.number, part.job, json.dumps([part.first + kept, False, False]).encode())
        self._begin_part(hosted)

    # What workers say.

    def _watch(self, hosted: Hosted) -> None:
        process = hosted.process
        events = selectors.EVENT_READ if self._reads_workers else 0
        if process.has_outgoing:
            events |= selectors.EVENT_WRITE
        registered = process.socket.fileno() in self._selector.get_map()
        if not events:
            if registered:
                self._selector.unregister(process.socket)
        elif registered:
            self._selector.modify(process.socket, events, hosted)
        else:
            self._selector.register(process.socket, events, hosted)

    def _worker_event(self, key: Any, mask: int) -> None:
        hosted: Hosted = key.data
        process = hosted.process
        if key.fd == process.exit_file:
            self._drain(hosted)
            self._died(hosted)
            return
        if mask & selectors.EVENT_WRITE:
            process.flush()
            self._watch(hosted)
        if mask & selectors.EVENT_READ and not self._read(hosted):
            self._died(hosted)

    def _drain(self, hosted: Hosted) -> None:
        while True:
            try:
                if not hosted.process.reader.read():
                    break
            except (BlockingIOError, InterruptedError, OSError):
                break
        self._pass_frames(hosted)

    def _read(self, hosted: Hosted) -> bool:
        try:
            is_open = hosted.process.reader.read()
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            is_open = False
        self._pass_frames(hosted)
        return is_open

    def _pass_frames(self, hosted: Hosted) -> None:
        while True:
            frame = hosted.process.reader.next()
            if frame is None:
                return
            kind = frame.kind
            if kind == frames.READY:
                hosted.process.ready = True
            if kind == frames.LAST_RESULTS:
                # What was printed meanwhile is shown before the results are used.
                self._pass_all_output()
                kind = frames.RESULTS
            self._writer.add(kind, hosted.number, frame.job, frame.body, frame.buffers)
            if frame.kind == frames.LAST_RESULTS and hosted.part is not None:
                self._part_ended(hosted, hosted.part)
            elif frame.kind == frames.FAILED:
                hosted.part = None
                hosted.waiting.clear()
            elif frame.kind == frames.READY:
                self._begin_part(hosted)

    def _died(self, hosted: Hosted) -> None:
        process = hosted.process
        how = process.ended(0.0)
        if how is None:
            process.kill()
            how = process.ended(5.0) or "closed its socket"
        if process.socket.fileno() in self._selector.get_map():
            self._selector.unregister(process.socket)
        if process.exit_file is not None:
            self._selector.unregister(process.exit_file)
        self._pass_all_output()
        part = hosted.part
        claimed = current = -1
        if part is not None:
            claimed = part.first + process.claims.claimed()
            current = part.first + process.claims.current()
        body = json.dumps([how, process.killed_for, claimed, current]).encode()
        self._writer.add(stream.DIED, hosted.number, part.job if part is not None else 0, body)
        del self._workers[hosted.number]
        process.close()


def _gpus(visible: Optional[str]) -> List[str]:
    """The GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    if visible is not None:
        return [name for name in visible.split(",") if name and name != "-1" and name != "NoDevFiles"]
    try:
        from evener._evener import devices

        found = json.loads(devices())["devices"]
    except Exception:
        return []
    return [one["id"].split(":")[1] for one in found if one["api"] == "cuda" and one["kind"] != "cpu"]


def main(settings: str) -> None:
    """Serves the connection of standard input and output."""
    end_with_session()
    _worker.is_worker = False
    agent = Agent(json.loads(settings))
    try:
        agent.serve()
    except (BrokenPipeError, ConnectionResetError):
        pass
    except BaseException as error:
        # The last line of standard error is what the caller is told.
        import traceback

        traceback.print_exc()
        print("the agent there failed: %s: %s" % (type(error).__name__, error), file=sys.stderr, flush=True)
        os._exit(1)
    # The workers end with this process.
    os._exit(0)

