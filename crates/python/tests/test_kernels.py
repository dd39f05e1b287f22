"""Kernels over arrays, on the processor and on software Vulkan where there is one."""

from __future__ import annotations

import os
import signal
import threading
import time

import evener
import numpy as np
import pytest

os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")

WGSL = """
struct Params { first: vec2<u32>, count: u32, unused: u32, factor: TYPE }
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> x: array<TYPE>;
@group(0) @binding(1) var<storage, read_write> out: array<TYPE>;
@compute @workgroup_size(64)
fn scale(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < p.count) { out[id.x] = p.factor * x[id.x]; }
}
"""


def on_cpu(x, out, parameters):
    out[:] = x * x.dtype.type(parameters[0])


def vulkan():
    """The id of a device that runs WGSL, or skips the test."""
    found = next((device for device in evener.devices() if device.api == "vulkan"), None)
    if found is None:
        pytest.skip("no Vulkan device")
    return found.id


@pytest.mark.parametrize("dtype, name", [(np.float32, "f32"), (np.int32, "i32"), (np.uint32, "u32")])
def test_a_kernel_runs_on_vulkan_for_each_element_type(dtype, name):
    kernel = evener.Kernel(wgsl=WGSL.replace("TYPE", name))
    assert kernel.name == "scale"
    x = np.arange(100_000, dtype=dtype)
    out = np.zeros_like(x)
    assert kernel(x, out, parameters=[dtype(3)], devices=vulkan()) is out
    assert (out == 3 * x).all()
    assert vulkan() in kernel.report()


def test_a_kernel_with_two_bodies_is_shared_by_both_devices():
    kernel = evener.Kernel(wgsl=WGSL.replace("TYPE", "f32"), cpu=on_cpu)
    x = np.linspace(0, 1, 300_000, dtype=np.float32)
    out = np.empty_like(x)
    for factor in (2.0, 5.0):
        kernel(x, out, parameters=[factor], devices=f"cpu,{vulkan()}")
        assert (out == x * np.float32(factor)).all()


@pytest.mark.parametrize("name", ["uint8", "int16", "int64", "uint64", "float16", "float64"])
def test_the_processor_takes_every_type(name):
    kernel = evener.Kernel(cpu=lambda x, out: np.add(x, 1, out=out, casting="unsafe"))
    x = np.arange(200).astype(name)
    assert (kernel(x, np.zeros_like(x), devices="cpu") == (x + 1).astype(name)).all()


def test_rows_tables_and_several_outputs():
    def body(points, weights, table, sums, weighted):
        sums[:] = points.sum(axis=1) + table.sum()
        weighted[:] = points * weights[:, None]

    kernel = evener.Kernel("rows", cpu=body, outputs=2, tables={"table": np.array([1.0, 2.0])})
    points, weights = np.arange(30.0).reshape(10, 3), np.arange(10, dtype=np.int32)
    sums, weighted = kernel(points, weights, np.zeros(10), np.zeros((10, 3)), devices="cpu")
    assert (sums == points.sum(axis=1) + 3).all() and (weighted == points * weights[:, None]).all()


class Other:
    """An array of another library, which speaks DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OnDevice(Other):
    def __dlpack_device__(self):
        return (2, 0)


def test_arrays_of_other_libraries_are_used_in_place_or_refused():
    kernel = evener.Kernel(cpu=lambda x, out: np.multiply(x, 2, out=out))
    out = np.zeros(4)
    kernel(Other(np.arange(4.0)), out, devices="cpu")
    assert (out == [0, 2, 4, 6]).all()
    with pytest.raises(TypeError, match="memory of a device"):
        kernel(OnDevice(np.arange(4.0)), out)
    with pytest.raises(TypeError, match="list"):
        kernel([1.0], out)


def test_wrong_arrays_are_errors_that_name_them():
    kernel = evener.Kernel(cpu=lambda x, out: None)
    x = np.arange(4.0)
    with pytest.raises(ValueError, match="4 items.*5"):
        kernel(x, np.zeros(5), devices="cpu")
    with pytest.raises(ValueError, match="shares memory"):
        kernel(x, x)
    with pytest.raises(ValueError, match="contiguous"):
        kernel(x, np.zeros(8)[::2])
    with pytest.raises(TypeError, match="complex128"):
        kernel(x.astype(complex), np.zeros(4))
    with pytest.raises(TypeError, match="writes 1"):
        kernel()
    with pytest.raises(ValueError, match="needs a body"):
        evener.Kernel("none")
    with pytest.raises(ValueError, match="more than the 28"):
        kernel(x, np.zeros(4), parameters=[0] * 29)


def test_an_input_with_gaps_is_copied():
    kernel = evener.Kernel(cpu=lambda x, out: np.copyto(out, x))
    x = np.arange(20.0)[::2]
    assert (kernel(x, np.zeros(10), devices="cpu") == x).all()


def test_devices_that_are_not_there_or_have_no_body_are_named():
    kernel = evener.Kernel(cpu=lambda x, out: None)
    with pytest.raises(evener.NoDevice, match="nothere"):
        kernel(np.zeros(3), np.zeros(3), devices="nothere")
    with pytest.raises(evener.NoDevice):
        kernel(np.zeros(3), np.zeros(3), devices=vulkan())
    with pytest.raises(evener.KernelError, match="nonsense"):
        evener.Kernel("bad", wgsl="@compute @workgroup_size(64) fn bad() { nonsense; }")(
            np.zeros(3, np.float32), np.zeros(3, np.float32), devices=vulkan()
        )


def test_an_exception_of_the_processors_body_is_raised_as_it_is():
    def body(x, out):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        evener.Kernel(cpu=body)(np.zeros(3), np.zeros(3), devices="cpu")


def test_other_threads_run_while_a_kernel_does():
    ticks = []
    stop = threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.01)

    thread = threading.Thread(target=tick)
    kernel = evener.Kernel(cpu=lambda x, out: (time.sleep(0.4), np.copyto(out, x)))
    thread.start()
    kernel(np.zeros(1), np.zeros(1), devices="cpu")
    stop.set()
    thread.join()
    assert len(ticks) > 10


def test_ctrl_c_ends_a_call():
    kernel = evener.Kernel(cpu=lambda x, out: (time.sleep(0.05), np.copyto(out, x)))
    x = np.zeros(1_000_000)
    kernel(x[:10], np.zeros(10), devices="cpu")
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    slow = evener.Kernel(cpu=lambda x, out: (time.sleep(len(x) * 1e-3), np.copyto(out, x)))
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        slow(x, np.zeros_like(x), devices="cpu")
    assert time.monotonic() - began < 10


def test_devices_are_described():
    found = evener.devices(utilization=True)
    cpu = next(device for device in found if device.kind == "cpu")
    assert cpu.id == "cpu" and cpu.memory > 0 and not cpu.is_gpu
    assert cpu.utilization is None or 0 <= cpu.utilization <= 1
    assert cpu["id"] == "cpu"
