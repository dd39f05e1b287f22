"""What is handed out ahead of need, and the protocol between home and a host, with random events."""

from __future__ import annotations

import random

import pytest
from evener._remote.window import HANDLING, LONG, Window
from evener._worker import stream


@pytest.mark.parametrize("seed", range(60))
def test_a_worker_neither_waits_for_messages_nor_hoards_items(seed):
    draw = random.Random(seed)
    round_trip = 10 ** draw.uniform(-4, -1)
    each = 10 ** draw.uniform(-6, 0.5)
    window = Window()
    # Events: parts that arrive there, and ends of parts that arrive here.
    now, items, given, done, idle, worker_free = 0.0, 20_000, 0, 0, 0.0, 0.0
    coming = []
    while done < items and now < 60:
        while given < items:
            count = min(window.next(given - done, round_trip), items - given)
            if not count:
                break
            arrives = now + round_trip / 2
            begins = max(arrives, worker_free)
            if given > 100:
                idle += max(0.0, arrives - worker_free)
            took = sum(each * draw.uniform(0.7, 1.3) for _ in range(min(count, 50))) * count / min(count, 50)
            worker_free = begins + took
            coming.append((worker_free + round_trip / 2, count, took))
            given += count
            # Never more than the target, the part that crosses it, and the two items before anything is known.
            ahead = (given - done) * (window.seconds_per_item or 0.0)
            assert ahead <= 2 * window.target(round_trip) + 2 * (window.seconds_per_item or 0.0) or given - done <= 2
        assert coming, "items are left, and none is on its way"
        now, count, took = coming.pop(0)
        done += count
        window.took(count, took)
    if done > 2000 and each < LONG * (round_trip + HANDLING):
        assert idle <= 0.25 * now, (idle, now, round_trip, each)


@pytest.mark.parametrize("seed", range(10))
def test_frames_arrive_whole_however_they_are_cut(seed):
    draw = random.Random(seed)
    sent = []
    for _ in range(draw.randrange(1, 12)):
        size = draw.choice([0, 1, 100, 70_000, 600_000])
        buffers = [draw.randbytes(draw.choice([0, 3, 5_000, 300_000])) for _ in range(draw.randrange(4))]
        sent.append((draw.randrange(60), draw.randrange(9), draw.randrange(99), draw.randbytes(size), buffers))
    data = stream.pack_frames(sent)
    position = 0

    def read_into(view):
        nonlocal position
        count = min(len(view), draw.choice([1, 17, 4_000, 250_000]), len(data) - position)
        view[:count] = data[position : position + count]
        position += count
        return count

    reader = stream.StreamReader(read_into)
    got = []
    while reader.read():
        while True:
            frame = reader.next()
            if frame is None:
                break
            got.append((frame.kind, frame.worker, frame.job, bytes(frame.body), [bytes(part) for part in frame.buffers]))
    assert got == sent and reader.is_between
    assert len(stream.unpack_frames(data)) == len(sent)
    if len(data) > 30:
        with pytest.raises(stream.StreamError):
            stream.unpack_frames(data[:-1])


def test_what_is_no_frame_is_refused_before_memory_is_reserved():
    reader = stream.StreamReader(lambda view: 0)
    reader.feed(bytearray(b"Welcome to gpu-box! Have a nice day, and read the rules.\n"))
    with pytest.raises(stream.StreamError):
        reader.next()
