"""Large data goes through shared memory, and comes back as it was."""

import os

import evener
import pytest

np = pytest.importorskip("numpy")


def test_large_results_are_writable_and_equal():
    results = list(evener.map(lambda x: np.full((1000, 100), x, dtype="f4"), range(6), home=0))
    for x, array in enumerate(results):
        assert array.dtype == np.float32 and array.shape == (1000, 100) and (array == x).all()
        array[0, 0] = -1
    assert [array[1, 1] for array in results] == list(range(6))


def test_large_items_and_captured_arrays_arrive():
    table = np.arange(200_000.0)
    items = [np.full(50_000, x, dtype="i8") for x in range(5)]
    got = list(evener.map(lambda item: (float(table[item[0] * 1000]), int(item.sum())), items, home=0))
    assert got == [(x * 1000.0, x * 50_000) for x in range(5)]


def test_a_captured_array_cannot_be_written_to_by_workers():
    table = np.zeros(100_000)

    def work(x):
        table[0] = x
        return x

    with pytest.raises(ValueError, match="read-only"):
        list(evener.map(work, range(3), home=0))


def test_read_only_and_odd_arrays_keep_their_nature():
    frozen = np.ones(100_000)
    frozen.flags.writeable = False
    for array in (frozen, np.ones((300, 400), order="F"), np.arange(100_000)[::2], np.zeros(0), np.array(3.0)):
        (got,) = evener.map(lambda x: array, [0], home=0)
        assert got.shape == array.shape and got.dtype == array.dtype and (got == array).all()
    (got,) = evener.map(lambda x: frozen, [0], home=0)
    assert not got.flags.writeable


def test_kept_values_are_sent_once_and_shared():
    array = np.arange(300_000.0)
    kept = evener.put(array)
    assert type(kept) is np.ndarray and (kept == array).all() and not kept.flags.writeable

    def work(x):
        return float(kept[x]), id(kept)

    first = list(evener.map(work, range(20), home=0, workers=1))
    second = list(evener.map(work, range(20), home=0, workers=1))
    assert [value for value, _ in first + second] == [float(x) for x in range(20)] * 2
    assert len({identity for _, identity in first + second}) == 1
    assert list(evener.map(lambda a: float(a[5]), [kept, kept], home=0)) == [5.0, 5.0]
    several = evener.put({"a": array, "b": [array, 3]})
    assert list(evener.map(lambda x: float(several["b"][0][x]), range(3), home=0)) == [0.0, 1.0, 2.0]


def test_large_strings_travel():
    text = "x" * 3_000_000
    assert list(evener.map(lambda x: x + text, ["a" * 400_000, "b"], home=0)) == ["a" * 400_000 + text, "b" + text]


def test_an_array_as_iterable_gives_its_elements():
    array = np.arange(12.0).reshape(4, 3)
    got = list(evener.map(lambda row: row * 2, array, home=0))
    assert all((a == b).all() for a, b in zip(got, array * 2))
    got = list(evener.map(lambda x: x + 1, np.arange(5), home=0))
    assert got == [1, 2, 3, 4, 5] and type(got[0]) is np.int64


def test_nothing_is_left_after_large_data(nothing_left):
    for _ in range(3):
        results = list(evener.map(lambda x: np.full(50_000, x), range(20), home=0, workers=2))
    del results
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("evener")]
