//! Kernels over arrays whose element types are known at run time.
#![allow(unsafe_code)] // CUDA C, and arrays that are lent to a run.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use evener_device::{BoxError, DType, Kernel as DeviceKernel, Launch};
use evener_schedule::{Arrays, Cancel, KernelParams, KernelTask, RunError};
use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    types::{PyBytes, PyTuple},
};

use crate::{errors::from_run, interrupt::run_interruptibly, lent::Lent, pools::pool};

/// Calls `$body` with the Rust type of a `DType` as `$element`.
macro_rules! with_element {
    ($dtype:expr, $element:ident => $body:expr, else $other:expr) => {
        with_element!(@all $dtype, $element, $body, $other,
            U8 u8, U16 u16, U32 u32, U64 u64, I8 i8, I16 i16, I32 i32, I64 i64, F16 half::f16, Bf16 half::bf16, F32 f32, F64 f64)
    };
    (@all $dtype:expr, $element:ident, $body:expr, $other:expr, $($name:ident $type:ty),*) => {
        match $dtype {
            $(DType::$name => {
                type $element = $type;
                $body
            })*
            _ => $other,
        }
    };
}

/// One array of a call, as Python's part of the package gives it.
#[derive(Clone, Copy)]
struct Array {
    dtype: DType,
    /// Number of elements per item.
    width: usize,
    memory: Lent,
}

impl Array {
    /// From the name of the element type, the elements per item, the address and the number of bytes.
    fn new((dtype, width, address, bytes): (String, usize, usize, usize)) -> PyResult<Array> {
        let dtype = dtype
            .parse()
            .map_err(|_| PyTypeError::new_err(format!("no kernel has elements of type {dtype}")))?;
        Ok(Array { dtype, width, memory: Lent { address, bytes } })
    }
}

/// An array of a call: the name of its element type, the elements per item, its address and its number of bytes.
type Given = (String, usize, usize, usize);

/// What a task depends on: type and width of each input and output, and the size of the parameters in words.
type Signature = (Vec<(DType, usize)>, usize, usize);

/// The task of each signature that was used. Devices keep its compiled kernel.
type Tasks = HashMap<Signature, KernelTask<(), ()>>;

/// A kernel with bodies for some kinds of devices.
#[pyclass(module = "evener._evener", frozen)]
pub(crate) struct Kernel {
    name: String,
    cuda: Option<String>,
    wgsl: Option<String>,
    cpu: Option<Arc<Py<PyAny>>>,
    workgroup: u32,
    tables: Vec<(String, DType, Arc<[u8]>)>,
    tasks: Mutex<Tasks>,
    /// The exception of the body for the processor, if it raised one.
    raised: Arc<Mutex<Option<PyErr>>>,
}

#[pymethods]
impl Kernel {
    /// Creates a kernel. `cpu` is called with the inputs, tables and outputs of a chunk: see `kernels.py`.
    #[new]
    fn new(
        name: String,
        cuda: Option<String>,
        wgsl: Option<String>,
        cpu: Option<Py<PyAny>>,
        workgroup: u32,
        tables: Vec<(String, Given)>,
    ) -> PyResult<Kernel> {
        let table = |(name, given): (String, Given)| {
            let array = Array::new(given)?;
            Ok((name, array.dtype, Arc::from(array.memory.read())))
        };
        let tables = tables.into_iter().map(table).collect::<PyResult<_>>()?;
        let (cpu, tasks, raised) = (cpu.map(Arc::new), Mutex::default(), Arc::default());
        Ok(Kernel { name, cuda, wgsl, cpu, workgroup, tables, tasks, raised })
    }

    /// Runs the kernel over the items of arrays. Returns the report as text. `parameters` is a multiple of four bytes.
    #[pyo3(signature = (inputs, outputs, parameters, devices = None))]
    fn run(
        &self,
        py: Python<'_>,
        inputs: Vec<Given>,
        outputs: Vec<Given>,
        parameters: &[u8],
        devices: Option<&str>,
    ) -> PyResult<String> {
        let inputs = inputs.into_iter().map(Array::new).collect::<PyResult<Vec<_>>>()?;
        let outputs = outputs.into_iter().map(Array::new).collect::<PyResult<Vec<_>>>()?;
        let words: Vec<u32> = parameters.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
        let size = match words.len() {
            0 => 4,
            1..=4 => 8,
            5..=12 => 16,
            13..=28 => 32,
            count => {
                let message = format!(
                    "{count} words of parameters are more than the 28 that every device has room for"
                );
                return Err(PyValueError::new_err(message));
            }
        };
        let task = self.task(&inputs, &outputs, size);
        *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let cancel = Cancel::new();
        let ran = run_interruptibly(py, &cancel, || {
            let arrays = lend(&inputs, &outputs);
            let pool = pool(devices)?;
            // The parameters of a chunk come first, and are set for each.
            macro_rules! with_parameters {
                ($size:literal) => {{
                    let mut all = [0u32; $size];
                    all[4..4 + words.len()].copy_from_slice(&words);
                    pool.job(&task.parameters(all)).cancel(&cancel).map_arrays(arrays)
                }};
            }
            match size {
                4 => pool.job(&task).cancel(&cancel).map_arrays(arrays),
                8 => with_parameters!(8),
                16 => with_parameters!(16),
                _ => with_parameters!(32),
            }
        })?;
        ran.map(|report| report.to_string()).map_err(|error| self.exception(&error))
    }
}

impl Kernel {
    /// The exception of an error: that of the processor's body, if it raised one.
    fn exception(&self, error: &RunError) -> PyErr {
        let raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (error, raised) {
            (RunError::Task { .. }, Some(raised)) => raised,
            (error, _) => from_run(error),
        }
    }

    /// The task for arrays of these types and widths, which is kept.
    fn task(&self, inputs: &[Array], outputs: &[Array], size: usize) -> KernelTask<(), ()> {
        let types = inputs.iter().chain(outputs).map(|array| (array.dtype, array.width)).collect();
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || self.new_task(inputs, outputs, size);
        tasks.entry((types, inputs.len(), size)).or_insert_with(make).clone()
    }

    fn new_task(&self, inputs: &[Array], outputs: &[Array], size: usize) -> KernelTask<(), ()> {
        let mut kernel = DeviceKernel::new(self.name.clone()).workgroup(self.workgroup);
        if let Some(source) = &self.wgsl {
            kernel = kernel.wgsl(source.clone());
        }
        if let Some(source) = &self.cuda {
            // SAFETY: the caller of Python promises it, as for CuPy's and Numba's kernels: `evener.Kernel` says so.
            kernel = unsafe { kernel.cuda(source.clone()) };
        }
        if let Some(body) = &self.cpu {
            let tables = self.tables.iter().map(|(_, dtype, _)| (*dtype, 0));
            let of =
                |arrays: &[Array]| arrays.iter().map(|array| (array.dtype, array.width)).collect::<Vec<_>>();
            let body = CpuBody {
                body: body.clone(),
                reads: of(inputs).into_iter().chain(tables).collect(),
                writes: of(outputs),
                size,
                raised: self.raised.clone(),
            };
            kernel = kernel.rust(move |launch| body.run(launch));
        }
        let mut task = KernelTask::arrays(&kernel);
        for array in inputs {
            task = with_element!(array.dtype, T => task.input_rows::<T>(array.width), else task);
        }
        for (name, dtype, bytes) in &self.tables {
            task = with_element!(*dtype, T => {
                let elements: Vec<T> = bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect();
                task.table(name, elements)
            }, else task);
        }
        for array in outputs {
            task = with_element!(array.dtype, T => task.output_rows::<T>(array.width), else task);
        }
        task
    }
}

/// Lends the arrays of a call to a run, which ends before the call does.
fn lend<'a>(inputs: &'a [Array], outputs: &'a [Array]) -> Arrays<'a> {
    let mut arrays = Arrays::new();
    for array in inputs {
        arrays = with_element!(array.dtype, T => arrays.input(array.memory.typed::<T>()), else arrays);
    }
    for array in outputs {
        // SAFETY: `kernels.py` refuses outputs that share memory with each other or with an input.
        arrays = with_element!(array.dtype, T => arrays.output(unsafe { array.memory.typed_mut::<T>() }), else arrays);
    }
    arrays
}

/// The body for the processor: a Python function, which gets copies of the chunk's elements.
struct CpuBody {
    body: Arc<Py<PyAny>>,
    /// Types and widths of inputs and tables, and of outputs.
    reads: Vec<(DType, usize)>,
    writes: Vec<(DType, usize)>,
    size: usize,
    raised: Arc<Mutex<Option<PyErr>>>,
}

impl CpuBody {
    fn run(&self, launch: &mut Launch<'_>) -> Result<(), BoxError> {
        let words: Vec<u32> = match self.size {
            4 => launch.params::<[u32; 4]>()?.to_vec(),
            8 => launch.params::<[u32; 8]>()?.to_vec(),
            16 => launch.params::<[u32; 16]>()?.to_vec(),
            _ => launch.params::<[u32; 32]>()?.to_vec(),
        };
        let chunk: KernelParams = bytemuck::pod_read_unaligned(bytemuck::cast_slice(&words[..4]));
        let count = chunk.count as usize;
        let mut reads: Vec<&[u8]> = Vec::new();
        for (index, &(dtype, width)) in self.reads.iter().enumerate() {
            let bytes: &[u8] =
                with_element!(dtype, T => bytemuck::cast_slice(launch.read::<T>(index)?), else &[]);
            // A table has no width, and is there as a whole.
            reads.push(if width > 0 { &bytes[..count * width * dtype.bytes() as usize] } else { bytes });
        }
        let first = u64::from(chunk.first[0]) | u64::from(chunk.first[1]) << 32;
        let results = Python::attach(|py| self.call(py, &reads, first, count));
        let results = results.map_err(|error| {
            let message = error.to_string();
            *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            BoxError::from(message)
        })?;
        for (index, (&(dtype, width), result)) in self.writes.iter().zip(results).enumerate() {
            let index = self.reads.len() + index;
            let bytes: &mut [u8] =
                with_element!(dtype, T => bytemuck::cast_slice_mut(launch.write::<T>(index)?), else &mut []);
            let wanted = count * width * dtype.bytes() as usize;
            if result.len() != wanted {
                return Err(format!("the processor's body made {} bytes, not {wanted}", result.len()).into());
            }
            bytes[..wanted].copy_from_slice(&result);
        }
        Ok(())
    }

    fn call(&self, py: Python<'_>, reads: &[&[u8]], first: u64, count: usize) -> PyResult<Vec<Vec<u8>>> {
        let reads = PyTuple::new(py, reads.iter().map(|bytes| PyBytes::new(py, bytes)))?;
        self.body.bind(py).call1((reads, first, count))?.extract()
    }
}
