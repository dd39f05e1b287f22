"""Arrays of NumPy's and PyTorch's are used in place by Evener, and Evener's by them, through DLPack.

    cargo build -p evener --example guest
    python3 crates/evener/examples/guest/with_dlpack.py LIBRARY

NumPy's are on the processor; PyTorch's, where it is installed, also on the GPU, where there is one.
"""

import ctypes
import gc
import sys

import numpy

guest = ctypes.CDLL(sys.argv[1])
guest.guest_dlpack.restype = ctypes.c_void_p
guest.guest_dlpack.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
python = ctypes.pythonapi
python.PyCapsule_GetPointer.restype = ctypes.c_void_p
python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_New.restype = ctypes.py_object
python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
NEW, USED = b"dltensor", b"used_dltensor"  # kept: a capsule holds a pointer to its name

SHAPES = [(1,), (7,), (3, 5), (64, 1024), (3, 1, 1001), (2_000_003,)]


class Result:
    """A tensor of Evener's, for `from_dlpack` of any library."""

    def __init__(self, tensor, device):
        self.tensor, self.device = tensor, device

    def __dlpack__(self, **_):
        return python.PyCapsule_New(self.tensor, NEW, None)

    def __dlpack_device__(self):
        return self.device


def churn(device, capsule, dlpack_device):
    """What Evener makes of a tensor, without a copy. None where it refuses."""
    tensor = python.PyCapsule_GetPointer(capsule, NEW)
    python.PyCapsule_SetName(capsule, USED)  # Evener deletes it
    result = guest.guest_dlpack(device, tensor)
    return Result(result, dlpack_device) if result else None


def expected(array):
    """The same in NumPy."""
    value = array.astype(numpy.uint32)
    for _ in range(2000):
        value = value * numpy.uint32(0x9E3779B1) + numpy.uint32(0x7F4A7C15)
        value ^= value >> numpy.uint32(15)
    return value.astype(numpy.int32)


def check(name, device, from_numpy, to_numpy, from_dlpack, synchronize=lambda: None):
    for shape in SHAPES:
        count = int(numpy.prod(shape))
        array = numpy.random.default_rng(count).integers(-(2**31), 2**31, shape).astype(numpy.int32)
        theirs = from_numpy(array)
        result = from_dlpack(churn(device, theirs.__dlpack__(), theirs.__dlpack_device__()))
        assert tuple(result.shape) == shape, (name, shape)
        few = slice(0, 4096)
        got = to_numpy(result)
        assert numpy.array_equal(got.reshape(-1)[few], expected(array.reshape(-1)[few])), (name, shape)
        assert numpy.array_equal(to_numpy(theirs), array), "Evener changed its input"
        # A result outlives everything that it came from.
        result = result + 1
        synchronize()
        again = churn(device, result.__dlpack__(), theirs.__dlpack_device__())
        del theirs, result
        gc.collect()
        again = to_numpy(from_dlpack(again)).reshape(-1)[few]
        assert numpy.array_equal(again, expected(got.reshape(-1)[few] + numpy.int32(1))), (name, shape)
    print(f"{name}: {len(SHAPES)} shapes, there and back twice, each of them right")


numpy.seterr(over="ignore")
check("NumPy", b"cpu", numpy.array, numpy.array, numpy.from_dlpack)
every_other = numpy.arange(10, dtype=numpy.int32)[::2]
assert churn(b"cpu", every_other.__dlpack__(), None) is None, "strides are not refused"

try:
    import torch
except ImportError:
    print("skipped: no PyTorch")
    sys.exit(0)
check("PyTorch, processor", b"cpu", torch.tensor, lambda it: it.numpy().copy(), torch.from_dlpack)
if not torch.cuda.is_available():
    print("skipped: no CUDA device")
    sys.exit(0)


def to_gpu(array):
    tensor = torch.tensor(array, device="cuda")
    torch.cuda.synchronize()  # Evener's streams are not ordered with PyTorch's
    return tensor


check("PyTorch, GPU", b"cuda:0", to_gpu, lambda it: it.cpu().numpy(), torch.from_dlpack, torch.cuda.synchronize)
