//! DLPack: tensors that PyTorch, NumPy, JAX, CuPy and others exchange without a copy.
//!
//! [`AnyBuffer::to_dlpack`] exports a buffer as a managed tensor, which keeps the buffer until its deleter is called.
//! [`Device::import_dlpack`] imports another library's tensor as a buffer; the tensor's deleter is called when the last
//! handle of the buffer is dropped and no operation uses it. Both work for buffers of the processor and of CUDA devices.
//! Buffers of devices driven through wgpu have no address.
//!
//! DLPack does not define when the elements may be used, and Evener's streams are not ordered with the other library's
//! work. Wait for the stream before you hand a tensor over, or order both with [`Stream::record_cuda_event`] and
//! [`Stream::wait_cuda_event`]. The same holds for the way back: once the deleter is called, the memory may be reused for
//! another buffer at once, so the other library's work on it must have finished by then, even if a garbage collector
//! calls the deleter (call `torch.cuda.synchronize()` before the last reference goes).
//!
//! ```
//! use evener_device::{AnyBuffer, Device, dlpack::{DLManagedTensor, ManagedTensor}};
//!
//! let device = Device::cpu();
//! let buffer = AnyBuffer::from(device.buffer_from(&[1i64, 2, 3, 4, 5, 6])?);
//! let tensor: ManagedTensor<DLManagedTensor> = buffer.to_dlpack(&[2, 3])?;
//! assert_eq!(tensor.tensor().ndim, 2);
//!
//! let raw = tensor.into_raw(); // the pointer in a `PyCapsule` named "dltensor"
//! // SAFETY: no other code has the tensor, and Evener made it.
//! let (again, shape) = unsafe { device.import_dlpack(ManagedTensor::from_raw(raw))? };
//! assert_eq!((again.len(), shape), (6, vec![2, 3]));
//! # Ok::<(), evener_device::Error>(())
//! ```
//!
//! [`Stream::record_cuda_event`]: crate::Stream::record_cuda_event
//! [`Stream::wait_cuda_event`]: crate::Stream::wait_cuda_event
// The C structures have dlpack.h's names. They are few and fixed by the specification; crates that define them add their
// own error types and array traits.

use std::{ffi::c_void, ptr::NonNull};

use super::Address;
use crate::{
    any_buffer::AnyBuffer,
    device::Device,
    dtype::DType,
    error::{Error, Result},
};

/// `kDLCPU`: the host's memory.
pub const CPU: i32 = 1;
/// `kDLCUDA`: a CUDA device's memory.
pub const CUDA: i32 = 2;
/// `kDLCUDAHost`: the host's memory, pinned for CUDA.
pub const CUDA_HOST: i32 = 3;
/// `kDLCUDAManaged`: memory that CUDA moves between the host and its devices.
pub const CUDA_MANAGED: i32 = 13;

/// `DLPACK_FLAG_BITMASK_READ_ONLY`: the consumer must not write to the elements.
pub const READ_ONLY: u64 = 1;

/// The device that a tensor is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct DLDevice {
    /// The kind of device: [`CPU`], [`CUDA`] and others.
    pub device_type: i32,
    /// CUDA's number of the device in this process, 0 for the host.
    pub device_id: i32,
}

/// The type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct DLDataType {
    /// 0: signed integer, 1: unsigned integer, 2: floating point, 4: brain floating point, and others.
    pub code: u8,
    /// Bits of a number.
    pub bits: u8,
    /// Numbers in an element.
    pub lanes: u16,
}

/// A tensor's address and shape.
#[derive(Debug)]
#[repr(C)]
pub struct DLTensor {
    /// The address of the data. The first element is `byte_offset` bytes behind it.
    pub data: *mut c_void,
    /// The device of that address.
    pub device: DLDevice,
    /// The number of dimensions.
    pub ndim: i32,
    /// The type of the elements.
    pub dtype: DLDataType,
    /// The length of each dimension.
    pub shape: *mut i64,
    /// The distance between neighbours in each dimension, in elements. Null for a contiguous tensor in row-major order.
    pub strides: *mut i64,
    /// The bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// A tensor with its deleter, in the form without a version.
#[derive(Debug)]
#[repr(C)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// For the producer's use.
    pub manager_ctx: *mut c_void,
    /// Called once by the consumer, when it no longer uses the tensor.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// The version of DLPack that a tensor follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct DLPackVersion {
    /// If this differs, only the deleter may be used.
    pub major: u32,
    /// If this differs, there may be more flags and element types.
    pub minor: u32,
}

/// A tensor with its deleter, since version 1.
#[derive(Debug)]
#[repr(C)]
pub struct DLManagedTensorVersioned {
    /// The version that it follows.
    pub version: DLPackVersion,
    /// For the producer's use.
    pub manager_ctx: *mut c_void,
    /// Called once by the consumer, when it no longer uses the tensor.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// [`READ_ONLY`] and others.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

/// The exported version. Tensors of the same major version are imported.
const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 0 };

mod sealed {
    use super::*;

    /// The common interface of both forms of a managed tensor.
    pub trait TensorFormat: Sized + 'static {
        fn new(tensor: DLTensor, context: *mut c_void, deleter: unsafe extern "C" fn(*mut Self)) -> Self;
        fn tensor(&self) -> &DLTensor;
        fn context(&self) -> *mut c_void;
        fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)>;
        /// Returns why a tensor cannot be imported, from its version and flags.
        fn refusal(&self) -> Option<String>;
    }
}
use sealed::TensorFormat;

impl TensorFormat for DLManagedTensor {
    fn new(tensor: DLTensor, context: *mut c_void, deleter: unsafe extern "C" fn(*mut Self)) -> Self {
        DLManagedTensor { dl_tensor: tensor, manager_ctx: context, deleter: Some(deleter) }
    }
    fn tensor(&self) -> &DLTensor {
        &self.dl_tensor
    }
    fn context(&self) -> *mut c_void {
        self.manager_ctx
    }
    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)> {
        self.deleter
    }
    fn refusal(&self) -> Option<String> {
        None
    }
}

impl TensorFormat for DLManagedTensorVersioned {
    fn new(tensor: DLTensor, context: *mut c_void, deleter: unsafe extern "C" fn(*mut Self)) -> Self {
        let deleter = Some(deleter);
        DLManagedTensorVersioned {
            version: VERSION,
            manager_ctx: context,
            deleter,
            flags: 0,
            dl_tensor: tensor,
        }
    }
    fn tensor(&self) -> &DLTensor {
        &self.dl_tensor
    }
    fn context(&self) -> *mut c_void {
        self.manager_ctx
    }
    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)> {
        self.deleter
    }
    fn refusal(&self) -> Option<String> {
        let DLPackVersion { major, minor } = self.version;
        if major != VERSION.major {
            return Some(format!(
                "the tensor has version {major}.{minor} of DLPack, and only version {} is supported",
                VERSION.major
            ));
        }
        (self.flags & READ_ONLY != 0)
            .then(|| "the tensor is read-only, and buffers can be written: copy it".into())
    }
}

/// The owner of a managed tensor: dropping it calls the deleter.
///
/// `M` is [`DLManagedTensor`] or [`DLManagedTensorVersioned`], whichever the other library uses.
#[derive(Debug)]
pub struct ManagedTensor<M: TensorFormat>(NonNull<M>);

// SAFETY: the caller of `from_raw` promised that the tensor may be used and deleted on any thread; exported tensors may.
unsafe impl<M: TensorFormat> Send for ManagedTensor<M> {}
// SAFETY: `&ManagedTensor` only reads, and the caller of `from_raw` promised that the tensor may be read on any thread.
unsafe impl<M: TensorFormat> Sync for ManagedTensor<M> {}

impl<M: TensorFormat> ManagedTensor<M> {
    /// Takes ownership of another library's tensor.
    ///
    /// # Safety
    /// - The pointer is to a managed tensor as DLPack specifies it, is not null, and its shape and strides have a number
    ///   for each dimension (or are null).
    /// - No other code uses the tensor or calls its deleter: a consumer of a `PyCapsule` has renamed the capsule.
    /// - The tensor may be read, and its deleter called, on any thread.
    pub unsafe fn from_raw(tensor: *mut M) -> Self {
        // SAFETY: the caller promises that it is not null.
        ManagedTensor(unsafe { NonNull::new_unchecked(tensor) })
    }

    /// Returns the tensor. The caller has to call its deleter.
    pub fn into_raw(self) -> *mut M {
        std::mem::ManuallyDrop::new(self).0.as_ptr()
    }

    /// The tensor.
    pub fn tensor(&self) -> &DLTensor {
        // SAFETY: the tensor is alive until `self` is dropped, and is not written meanwhile.
        unsafe { self.0.as_ref() }.tensor()
    }
}

impl<M: TensorFormat> Drop for ManagedTensor<M> {
    fn drop(&mut self) {
        // SAFETY: the tensor is alive, and `self` is its only owner, so its deleter was not called before.
        unsafe {
            if let Some(deleter) = self.0.as_ref().deleter() {
                deleter(self.0.as_ptr());
            }
        }
    }
}

/// The data of an exported tensor. It contains the tensor itself, so that one allocation holds everything.
struct Exported<M> {
    managed: Option<M>,
    shape: Vec<i64>,
    strides: Vec<i64>,
    _buffer: AnyBuffer,
}

unsafe extern "C" fn delete<M: TensorFormat>(tensor: *mut M) {
    // SAFETY: `to_dlpack` made the tensor, with its box as the context; the consumer calls this once.
    unsafe { drop(Box::from_raw((*tensor).context().cast::<Exported<M>>())) };
}

impl AnyBuffer {
    /// Exports this buffer as a managed tensor of this shape, contiguous in row-major order. The tensor keeps the buffer
    /// until its deleter is called.
    ///
    /// The consumer uses the elements in place, so its work and Evener's operations must be ordered
    /// ([module](crate::dlpack)). Fails if the shape has another number of elements, and with `Unsupported` if the memory
    /// has no address, as on devices driven through wgpu.
    pub fn to_dlpack<M: TensorFormat>(&self, shape: &[i64]) -> Result<ManagedTensor<M>> {
        let refuse = |detail: String| Err(Error::unsupported(self.device(), "exporting a tensor", detail));
        let count = element_count(shape);
        if count != Some(self.len() as u64) {
            return refuse(format!(
                "the shape {shape:?} does not fit: the buffer has {} elements",
                self.len()
            ));
        }
        let region = self.as_bytes().region();
        let offset = region.offset as usize;
        let (device, data) = match region.memory.address() {
            Some(Address::Host(pointer)) => {
                (DLDevice { device_type: CPU, device_id: 0 }, pointer.as_ptr().wrapping_add(offset).cast())
            }
            Some(Address::Cuda { ordinal, address }) => {
                let device = DLDevice { device_type: CUDA, device_id: ordinal.unwrap_or(0) };
                (device, std::ptr::without_provenance_mut(address as usize + offset))
            }
            None => {
                return refuse("the device's memory has no address: copy the elements to the host".into());
            }
        };
        let exported = Box::into_raw(Box::new(Exported::<M> {
            managed: None,
            shape: shape.to_vec(),
            strides: contiguous(shape),
            _buffer: self.clone(),
        }));
        // SAFETY: the box was just leaked, and no other reference exists until the deleter takes it back.
        let inner = unsafe { &mut *exported };
        let tensor = DLTensor {
            data,
            device,
            ndim: shape.len() as i32,
            dtype: to_dl(self.dtype()),
            shape: inner.shape.as_mut_ptr(),
            strides: inner.strides.as_mut_ptr(),
            byte_offset: 0,
        };
        let managed = inner.managed.insert(M::new(tensor, exported.cast(), delete::<M>));
        Ok(ManagedTensor(NonNull::from(managed)))
    }
}

impl Device {
    /// Imports another library's tensor as a buffer, and returns the buffer and the tensor's shape. The tensor is used in
    /// place. Its deleter is called when the last handle of the buffer is dropped and no operation uses it, or at once if
    /// this fails.
    ///
    /// The processor imports tensors in host memory, a CUDA device those on the same card. Fails with `Unsupported` for
    /// other tensors, for tensors that are not contiguous, read-only or not aligned (to an element on the host, to 16
    /// bytes on a card), and for element types without a [`DType`].
    ///
    /// # Safety
    /// - The tensor's elements are where it says, and stay there until its deleter is called. On a CUDA device they are
    ///   in memory of its primary context. Evener has no other buffer over them.
    /// - No other code writes the elements while Evener's operations use them, or reads them while Evener's operations
    ///   write them: the streams of both libraries are not ordered automatically.
    pub unsafe fn import_dlpack<M: TensorFormat>(
        &self,
        tensor: ManagedTensor<M>,
    ) -> Result<(AnyBuffer, Vec<i64>)> {
        let refuse = |detail: String| Error::unsupported(self.id(), "importing a tensor", detail);
        // SAFETY: the tensor is alive and not written meanwhile.
        if let Some(refusal) = unsafe { tensor.0.as_ref() }.refusal() {
            return Err(refuse(refusal));
        }
        let DLTensor { data, device, ndim, dtype: dl_type, shape, strides, byte_offset } = *tensor.tensor();
        let DLDevice { device_type, device_id } = device;
        let dtype = from_dl(dl_type).ok_or_else(|| refuse(format!("unsupported elements: {dl_type:?}")))?;
        let dimensions = match usize::try_from(ndim) {
            Ok(0) => &[],
            // SAFETY: the caller of `from_raw` promised that there are this many numbers.
            Ok(ndim) if !shape.is_null() => unsafe { std::slice::from_raw_parts(shape, ndim) },
            _ => return Err(refuse(format!("the tensor has {ndim} dimensions without lengths"))),
        };
        let count = element_count(dimensions);
        let bytes = count
            .and_then(|count| count.checked_mul(dtype.bytes()))
            .filter(|&bytes| bytes <= isize::MAX as u64);
        let bytes = bytes.ok_or_else(|| refuse(format!("impossible shape {dimensions:?}")))?;
        let dimensions = dimensions.to_vec();
        if !strides.is_null() {
            // SAFETY: as for the shape.
            let strides = unsafe { std::slice::from_raw_parts(strides, dimensions.len()) };
            let expected = contiguous(&dimensions);
            let fits = |((found, expected), len): ((&i64, &i64), &i64)| *len == 1 || found == expected;
            if bytes > 0 && !strides.iter().zip(&expected).zip(&dimensions).all(fits) {
                let detail = format!(
                    "the tensor is not contiguous (strides {strides:?}, shape {dimensions:?}): copy it"
                );
                return Err(refuse(detail));
            }
        }
        let start = data.cast::<u8>().wrapping_add(byte_offset as usize);
        let address = match device_type {
            CPU | CUDA_HOST => NonNull::new(start).map(Address::Host),
            CUDA => Some(Address::Cuda { ordinal: Some(device_id), address: start.addr() as u64 }),
            // The number names the device where the memory was allocated, but any device can use it.
            CUDA_MANAGED => Some(Address::Cuda { ordinal: None, address: start.addr() as u64 }),
            other => {
                return Err(refuse(format!(
                    "the tensor is on a device of the unsupported DLPack type {other}"
                )));
            }
        };
        if bytes == 0 {
            // An empty tensor has no elements to use in place, and often no address.
            return Ok((self.any_buffer(dtype, 0)?, dimensions));
        }
        let address =
            address.filter(|_| !data.is_null()).ok_or_else(|| refuse("the tensor has no address".into()))?;
        if matches!(address, Address::Host(_)) && !(start.addr() as u64).is_multiple_of(dtype.bytes()) {
            return Err(refuse(format!(
                "the {dtype} elements at address {start:p} are not aligned to {} bytes",
                dtype.bytes()
            )));
        }
        // SAFETY: the caller promises that no other code writes the elements while Evener uses them; the tensor has
        // `bytes` at `address`, and is the owner that keeps them.
        let buffer = unsafe { self.adopt(address, bytes, Box::new(tensor)) }?;
        Ok((AnyBuffer::from_bytes(buffer, dtype)?, dimensions))
    }
}

/// Returns the number of elements of a shape; `None` if a length is negative or the product overflows.
fn element_count(shape: &[i64]) -> Option<u64> {
    // A length of 0 makes the tensor empty, however long the other dimensions are.
    let lengths = shape.iter().map(|&len| u64::try_from(len).ok()).collect::<Option<Vec<_>>>()?;
    if lengths.contains(&0) {
        return Some(0);
    }
    lengths.iter().try_fold(1u64, |count, &len| count.checked_mul(len))
}

/// Returns the strides of a contiguous tensor in row-major order.
fn contiguous(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1i64; shape.len()];
    for index in (1..shape.len()).rev() {
        strides[index - 1] = strides[index].saturating_mul(shape[index]);
    }
    strides
}

const KINDS: [(u8, &[DType]); 4] = [
    (0, &[DType::I8, DType::I16, DType::I32, DType::I64]),
    (1, &[DType::U8, DType::U16, DType::U32, DType::U64]),
    (2, &[DType::F16, DType::F32, DType::F64]),
    (4, &[DType::Bf16]),
];

fn to_dl(dtype: DType) -> DLDataType {
    let kind = KINDS.iter().find(|(_, dtypes)| dtypes.contains(&dtype));
    DLDataType { code: kind.map_or(u8::MAX, |(code, _)| *code), bits: 8 * dtype.bytes() as u8, lanes: 1 }
}

fn from_dl(dl_type: DLDataType) -> Option<DType> {
    DType::ALL.iter().copied().find(|&dtype| to_dl(dtype) == dl_type)
}

#[cfg(test)]
mod test;
