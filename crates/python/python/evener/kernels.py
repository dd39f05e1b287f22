"""`evener.Kernel`: CUDA C, WGSL and Python code that run over the items of arrays, on all devices together."""

from __future__ import annotations

import re
import struct
import threading
from typing import Any, Callable, List, Mapping, Optional, Sequence, Union

from . import _evener
from ._arrays import as_array, given, selection

__all__ = ["Kernel"]

_WGSL_ENTRY = re.compile(r"@compute\b[^{;]*?\bfn\s+(\w+)", re.DOTALL)
_CUDA_ENTRY = re.compile(r"__global__\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)")
_WORKGROUP = re.compile(r"@workgroup_size\s*\(\s*(\d+)")


class Kernel:
    """Code that computes the items of arrays: `kernel(x, out)` reads `x` and writes `out`, on all devices together.

    An item is an element of each array, or a row of one with several dimensions. Each body is for some devices: `cuda` is CUDA
    C, `wgsl` is for Vulkan, Metal and DX12, and `cpu` a Python function for the processor. A call uses the devices that have a
    body, each by its measured speed.

    A thread of `cuda` and `wgsl` computes one item. Their buffers are the inputs, then the `tables` (arrays that all items
    read), then the outputs; their parameters begin with the number of the chunk's first item (two words), the number of its
    items and an unused word:

        struct Params { unsigned long long first; unsigned count, unused; };           // CUDA C, the last argument
        struct Params { first: vec2<u32>, count: u32, unused: u32 }                    // WGSL: var<immediate> p: Params;

    Buffers have the items of the chunk only, and threads past `count` must do nothing: CUDA C that reads or writes past its
    buffers is undefined behaviour, as in CUDA itself. `cpu` is called as `cpu(*inputs, *tables, *outputs)` with arrays of the
    chunk's items, and with the call's `parameters=` if it has some. Every element of the outputs must be written.
    """

    def __init__(
        self,
        name: Optional[str] = None,
        *,
        cuda: Optional[str] = None,
        wgsl: Optional[str] = None,
        cpu: Optional[Callable[..., Any]] = None,
        outputs: int = 1,
        tables: Mapping[str, Any] = {},
        workgroup: Optional[int] = None,
        devices: Union[str, Sequence[str], None] = None,
    ) -> None:
        if cuda is None and wgsl is None and cpu is None:
            raise ValueError("a kernel needs a body: cuda=, wgsl= or cpu=")
        if outputs < 1:
            raise ValueError("a kernel needs at least one output, not %d" % outputs)
        self.name = name or _name(cuda, wgsl, cpu)
        #: How many of a call's last arrays are written.
        self.outputs = outputs
        self.devices = devices
        self._cpu = cpu
        found = _WORKGROUP.search(wgsl) if wgsl is not None else None
        if found is not None and workgroup is not None and int(found.group(1)) != workgroup:
            raise ValueError("workgroup=%d, but the WGSL body has workgroups of %s" % (workgroup, found.group(1)))
        size = workgroup or (int(found.group(1)) if found is not None else 64)
        import numpy

        self._tables = {key: numpy.ascontiguousarray(as_array(table, "table %r" % key)) for key, table in tables.items()}
        listed = [(key, given(table, "table %r" % key)) for key, table in self._tables.items()]
        #: What the body for the processor needs to know of the call: types and shapes, the number of inputs, parameters.
        self._call: Any = None
        self._lock = threading.Lock()
        self._kernel = _evener.Kernel(self.name, cuda, wgsl, self._run_cpu if cpu is not None else None, size, listed)
        self._report: Optional[str] = None

    def __call__(
        self,
        *arrays: Any,
        parameters: Any = b"",
        devices: Union[str, Sequence[str], None] = None,
    ) -> Any:
        """Runs it over the items of arrays: inputs, then outputs. Returns the outputs: one, or a tuple.

        `parameters` are bytes, or numbers: NumPy's as they are, `int` as 32-bit integers and `float` as 32-bit numbers. Arrays of
        other libraries (DLPack) are used in place if they are in main memory. An input that is not contiguous is copied.
        """
        import numpy

        count = len(arrays) - self.outputs
        if count < 0:
            raise TypeError("kernel %s writes %d arrays, and has got %d" % (self.name, self.outputs, len(arrays)))
        inputs = [numpy.require(as_array(array, "input %d" % i), None, ["C", "A"]) for i, array in enumerate(arrays[:count])]
        outputs = [as_array(array, "output %d" % i) for i, array in enumerate(arrays[count:])]
        self._check(inputs, outputs)
        layout = [(array.dtype, array.shape[1:]) for array in inputs + outputs]
        # The body for the processor gets bytes, and one call at a time is described to it.
        with self._lock:
            self._call = (layout, count, parameters)
            self._report = self._kernel.run(
                [given(array, "input %d" % i) for i, array in enumerate(inputs)],
                [given(array, "output %d" % i) for i, array in enumerate(outputs)],
                _packed(parameters),
                selection(devices if devices is not None else self.devices),
            )
        written = arrays[count:]
        return written[0] if len(written) == 1 else written

    def report(self) -> Optional[str]:
        """What each device did in the last call."""
        return self._report

    def _check(self, inputs: List[Any], outputs: List[Any]) -> None:
        import numpy

        for number, output in enumerate(outputs):
            flags = output.flags
            if not (flags.c_contiguous and flags.aligned and flags.writeable):
                raise ValueError("output %d must be contiguous (C order), aligned and writeable" % number)
            for kind, others in (("input", inputs), ("output", outputs[:number])):
                for index, other in enumerate(others):
                    if numpy.may_share_memory(output, other):
                        raise ValueError("output %d shares memory with %s %d" % (number, kind, index))

    def _run_cpu(self, reads: Sequence[bytes], first: int, count: int) -> List[bytes]:
        """Runs the processor's body over the items of a chunk, and returns what it wrote."""
        import numpy

        layout, inputs, parameters = self._call
        arrays = [
            numpy.frombuffer(data, dtype).reshape((count, *shape)) for data, (dtype, shape) in zip(reads, layout[:inputs])
        ]
        outputs = [numpy.empty((count, *shape), dtype) for dtype, shape in layout[inputs:]]
        more = {"parameters": parameters} if not isinstance(parameters, bytes) or parameters else {}
        assert self._cpu is not None
        self._cpu(*arrays, *self._tables.values(), *outputs, **more)
        return [output.tobytes() for output in outputs]

    def __repr__(self) -> str:
        return "<evener.Kernel %s>" % self.name


def _name(cuda: Optional[str], wgsl: Optional[str], cpu: Optional[Callable[..., Any]]) -> str:
    """The entry point's name, which all bodies must agree on."""
    named = {
        kind: found.group(1)
        for kind, found in (("cuda", _CUDA_ENTRY.search(cuda or "")), ("wgsl", _WGSL_ENTRY.search(wgsl or "")))
        if found is not None
    }
    if len(set(named.values())) == 1:
        return next(iter(named.values()))
    if not named and cuda is None and wgsl is None:
        return getattr(cpu, "__name__", "kernel").strip("<>") or "kernel"
    if not named:
        raise ValueError("the source has no entry point (`extern \"C\" __global__ void NAME`, `@compute … fn NAME`)")
    raise ValueError("the bodies have entry points of different names: %s" % named)


def _packed(parameters: Any) -> bytes:
    import numpy

    if isinstance(parameters, (bytes, bytearray, memoryview)):
        data = bytes(parameters)
    elif isinstance(parameters, numpy.ndarray):
        data = parameters.tobytes()
    else:
        data = b"".join(map(_word, parameters if isinstance(parameters, (list, tuple)) else [parameters]))
    if len(data) % 4:
        raise ValueError("parameters have %d bytes, which is not a multiple of 4" % len(data))
    return data


def _word(value: Any) -> bytes:
    import numpy

    if isinstance(value, numpy.generic):
        return value.tobytes()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError("a parameter must be a number, not %s" % type(value).__name__)
    if isinstance(value, float):
        return struct.pack("=f", value)
    return struct.pack("=i" if value < 2**31 else "=I", value)
