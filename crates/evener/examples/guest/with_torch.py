"""PyTorch and Evener in one process, on one GPU: both work before, while and after Evener's device is lost.

    cargo build --release -p evener --example guest
    python3 crates/evener/examples/guest/with_torch.py [LIBRARY]

Without PyTorch or without a CUDA device it says `skipped: ...` and ends with exit code 77.
"""

import ctypes
import pathlib
import sys
import threading

try:
    import torch
except ImportError:
    print("skipped: no PyTorch")
    sys.exit(77)
if not torch.cuda.is_available():
    print("skipped: no CUDA device")
    sys.exit(77)

root = pathlib.Path(__file__).resolve().parents[4]
library = sys.argv[1] if len(sys.argv) > 1 else root / "target/release/examples/libguest.so"
guest = ctypes.CDLL(str(library))
guest.guest_map.restype = ctypes.c_int64
guest.guest_map.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
guest.guest_failures.restype = ctypes.c_uint64

COUNT = 20_000_000
MASK = 0xFFFFFFFF


def churn(value):
    """One item, as a plain loop."""
    for _ in range(2000):
        value = (value * 0x9E3779B1 + 0x7F4A7C15) & MASK
        value ^= value >> 15
    return value


def map_all(items, results):
    """Evener does all items; some are checked. Returns how many the GPU did."""
    results.zero_()
    by_gpu = guest.guest_map(items.data_ptr(), results.data_ptr(), COUNT)
    assert by_gpu >= 0, "Evener failed"
    for index in range(0, COUNT, COUNT // 50):
        assert results[index].item() & MASK == churn(items[index].item()), index
    return by_gpu


class Torch:
    """PyTorch's own work on the same GPU, in a thread of its own, checked all the time."""

    def __init__(self):
        torch.manual_seed(1)
        self.kept = torch.randint(0, 100, (4096, 4096), device="cuda", dtype=torch.float64)
        self.sum = self.kept.sum().item()
        self.rounds = 0
        self.error = None
        self.ends = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def round(self):
        small = self.kept[:512, :512]
        assert torch.equal(small @ small, (small.cpu() @ small.cpu()).cuda()), "a wrong product"
        assert self.kept.sum().item() == self.sum, "memory has changed"
        self.rounds += 1

    def run(self):
        stream = torch.cuda.Stream()
        try:
            with torch.cuda.stream(stream):
                while not self.ends.is_set():
                    self.round()
        except Exception as error:
            self.error = error

    def end(self):
        self.ends.set()
        self.thread.join()
        if self.error:
            raise self.error


items = torch.arange(COUNT, dtype=torch.int32)
results = torch.zeros(COUNT, dtype=torch.int32)
work = Torch()
device_before = torch.cuda.current_device()
assert guest.guest_open(b"cuda:0") == 0

before = [map_all(items, results) for _ in range(3)]
print(f"before: of {COUNT} items the GPU did {before}; PyTorch did {work.rounds} rounds meanwhile")
assert before[-1] > COUNT // 2, "the GPU took no part"

rounds = work.rounds
assert guest.guest_failures() == 0
during = []
for delay in (0.0, 0.001, 0.003, 0.01):
    before_loss = guest.guest_failures()
    while guest.guest_failures() == before_loss:  # until the loss came in the middle of a map
        timer = threading.Timer(delay, guest.guest_lose)
        timer.start()
        during.append(map_all(items, results))
        timer.join()
print(f"lost in the middle, {guest.guest_failures()} chunks failed: the GPU did {during}")
print(f"PyTorch did {work.rounds - rounds} rounds meanwhile")

rounds = work.rounds
after = [map_all(items, results) for _ in range(5)]
print(f"after: the GPU did {after}; PyTorch did {work.rounds - rounds} rounds meanwhile")
assert after[-1] > COUNT // 2, "the GPU did not come back"
work.end()
work.round()
assert torch.cuda.current_device() == device_before
print(f"PyTorch did {work.rounds} rounds in all, each of them right; its memory is as it was")
