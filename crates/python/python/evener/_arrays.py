"""Arrays of NumPy and other libraries, as the Rust part takes them: by address. Whoever passes one keeps it alive."""

from __future__ import annotations

from typing import Any, Tuple

#: The names of element types in the Rust part, by NumPy's names.
TYPES = {
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "int8": "i8", "int16": "i16", "int32": "i32",
    "int64": "i64", "float16": "f16", "float32": "f32", "float64": "f64", "bfloat16": "bf16",
}

#: What the Rust part takes: the name of the element type, elements per item, address and bytes.
Given = Tuple[str, int, int, int]


def as_array(value: Any, what: str) -> Any:
    """A NumPy array with the memory of an array: one of NumPy, or of a library that speaks DLPack and has it in main memory."""
    import numpy

    if isinstance(value, numpy.ndarray):
        return value
    if hasattr(value, "__dlpack_device__"):
        kind = int(value.__dlpack_device__()[0])
        # 1 is the processor's memory, and 3 and 11 that of the processor which CUDA or ROCm have pinned.
        if kind not in (1, 3, 11):
            text = "%s is in the memory of a device (DLPack's type %d): kernels take arrays in main memory, so copy it (`.cpu()`)"
            raise TypeError(text % (what, kind))
        try:
            # PyTorch's arrays share their memory this way, and can be written to.
            return value.numpy() if hasattr(value, "numpy") else numpy.from_dlpack(value)
        except (TypeError, RuntimeError, BufferError) as error:
            raise TypeError("%s cannot be used in place: %s" % (what, error)) from error
    raise TypeError("%s must be an array of NumPy or one that speaks DLPack, not %s" % (what, type(value).__name__))


def given(array: Any, what: str) -> Given:
    """An array of NumPy that lies in memory without gaps, as the Rust part takes it."""
    name = TYPES.get(array.dtype.name)
    if name is None or not array.dtype.isnative:
        raise TypeError("%s has elements of type %s: there are %s" % (what, array.dtype, ", ".join(TYPES)))
    if array.ndim == 0:
        raise ValueError("%s is one number: kernels take arrays, with one item or more" % what)
    width = 1
    for size in array.shape[1:]:
        width *= size
    return name, width, array.__array_interface__["data"][0], array.nbytes


def selection(devices: Any) -> Any:
    """A selection of devices as one text: what was given, or else what is configured."""
    from . import configuration

    chosen = devices if devices is not None else configuration.get("devices")
    return chosen if chosen is None or isinstance(chosen, str) else ",".join(map(str, chosen))
