//! DLPack: arrays that PyTorch, NumPy, JAX, CuPy and others hand to one another without a copy.
//!
//! [`AnyBuffer::to_dlpack`] makes a managed tensor of a buffer, which holds the buffer until its deleter is called.
//! [`Device::import_dlpack`] makes a buffer of another library's tensor, whose deleter is called when the last handle on the
//! buffer is gone and no operation uses it any more. Buffers of the processor and of CUDA devices have the addresses that
//! this takes; through wgpu there are none.
//!
//! DLPack says nothing about when the elements may be used. Evener's streams are not ordered with the other library's work:
//! wait for the stream before the tensor is handed over, or order both with [`Stream::record_cuda_event`] and
//! [`Stream::wait_cuda_event`]. The same holds for the way back: when the deleter is called, the memory is used for
//! other buffers at once, so the other library's work on it must have ended by then, also where its garbage collector is the
//! one that calls (`torch.cuda.synchronize()` before the last reference goes).
//!
//! ```
//! use evener_device::{AnyBuffer, Device, dlpack::{DLManagedTensor, ManagedTensor}};
//!
//! let device = Device::cpu();
//! let buffer = AnyBuffer::from(device.buffer_from(&[1i64, 2, 3, 4, 5, 6])?);
//! let tensor: ManagedTensor<DLManagedTensor> = buffer.to_dlpack(&[2, 3])?;
//! assert_eq!(tensor.tensor().ndim, 2);
//!
//! let raw = tensor.into_raw(); // what a `PyCapsule` called "dltensor" holds
//! // SAFETY: nobody else has the tensor, and its producer is Evener.
//! let (again, shape) = unsafe { device.import_dlpack(ManagedTensor::from_raw(raw))? };
//! assert_eq!((again.len(), shape), (6, vec![2, 3]));
//! # Ok::<(), evener_device::Error>(())
//! ```
//!
//! [`Stream::record_cuda_event`]: crate::Stream::record_cuda_event
//! [`Stream::wait_cuda_event`]: crate::Stream::wait_cuda_event
// The C structures are those of dlpack.h, under its names. They are few and fixed by the specification; crates that have
// them bring error types and array traits of their own.

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
    /// What kind of device: [`CPU`], [`CUDA`] and others.
    pub device_type: i32,
    /// Which one: CUDA's number in this process, 0 for the host.
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

/// A tensor's place and shape.
#[derive(Debug)]
#[repr(C)]
pub struct DLTensor {
    /// The address of the first element, but for `byte_offset`.
    pub data: *mut c_void,
    /// Where that address is.
    pub device: DLDevice,
    /// The number of dimensions.
    pub ndim: i32,
    /// The type of the elements.
    pub dtype: DLDataType,
    /// The length of each dimension.
    pub shape: *mut i64,
    /// The elements between neighbours in each dimension. Null where the tensor is contiguous, the last dimension first.
    pub strides: *mut i64,
    /// The bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// A tensor and who deletes it, in the form without a version.
#[derive(Debug)]
#[repr(C)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// The producer's own.
    pub manager_ctx: *mut c_void,
    /// Called once by the consumer, when it no longer uses the tensor.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// The version of DLPack that a tensor follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct DLPackVersion {
    /// Where this differs, nothing but the deleter may be used.
    pub major: u32,
    /// Where this differs, there may be more flags and element types.
    pub minor: u32,
}

/// A tensor and who deletes it, since version 1.
#[derive(Debug)]
#[repr(C)]
pub struct DLManagedTensorVersioned {
    /// The version that it follows.
    pub version: DLPackVersion,
    /// The producer's own.
    pub manager_ctx: *mut c_void,
    /// Called once by the consumer, when it no longer uses the tensor.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// [`READ_ONLY`] and others.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

/// The version that is exported, and the major one that is imported.
const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 0 };

mod sealed {
    use super::*;

    /// What both forms of a managed tensor have.
    pub trait TensorFormat: Sized + 'static {
        fn new(tensor: DLTensor, context: *mut c_void, deleter: unsafe extern "C" fn(*mut Self)) -> Self;
        fn tensor(&self) -> &DLTensor;
        fn context(&self) -> *mut c_void;
        fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)>;
        /// Why it cannot be imported, apart from the tensor.
        fn objection(&self) -> Option<String>;
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
    fn objection(&self) -> Option<String> {
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
    fn objection(&self) -> Option<String> {
        let DLPackVersion { major, minor } = self.version;
        if major != VERSION.major {
            return Some(format!(
                "it follows version {major}.{minor} of DLPack, known here is {}",
                VERSION.major
            ));
        }
        (self.flags & READ_ONLY != 0).then(|| "it is read only, and buffers can be written: copy it".into())
    }
}

/// A managed tensor, as its only owner: dropping it calls the deleter.
///
/// `M` is [`DLManagedTensor`] or [`DLManagedTensorVersioned`], as the other library wants it.
#[derive(Debug)]
pub struct ManagedTensor<M: TensorFormat>(NonNull<M>);

// SAFETY: whoever made it from a pointer promised that it may be used and deleted on any thread; what is exported here may.
unsafe impl<M: TensorFormat> Send for ManagedTensor<M> {}
// SAFETY: a shared reference only reads.
unsafe impl<M: TensorFormat> Sync for ManagedTensor<M> {}

impl<M: TensorFormat> ManagedTensor<M> {
    /// Takes over a tensor of another library's.
    ///
    /// # Safety
    /// - The pointer is to a managed tensor as DLPack specifies it, not null, whose shape and strides have as many numbers as
    ///   it has dimensions (or are null).
    /// - Nobody else uses it or calls its deleter any more: a consumer of a `PyCapsule` has renamed it.
    /// - It may be read and its deleter called on any thread.
    pub unsafe fn from_raw(tensor: *mut M) -> Self {
        // SAFETY: the caller promises that it is not null.
        ManagedTensor(unsafe { NonNull::new_unchecked(tensor) })
    }

    /// Gives the tensor away, with the duty to call its deleter.
    pub fn into_raw(self) -> *mut M {
        std::mem::ManuallyDrop::new(self).0.as_ptr()
    }

    /// The tensor.
    pub fn tensor(&self) -> &DLTensor {
        // SAFETY: it is alive until this is dropped, and nobody writes to it.
        unsafe { self.0.as_ref() }.tensor()
    }
}

impl<M: TensorFormat> Drop for ManagedTensor<M> {
    fn drop(&mut self) {
        // SAFETY: it is alive, and its deleter was not called before: this is its only owner.
        unsafe {
            if let Some(deleter) = self.0.as_ref().deleter() {
                deleter(self.0.as_ptr());
            }
        }
    }
}

/// What an exported tensor points into. The tensor itself is part of it, so that one allocation holds all.
struct Exported<M> {
    managed: Option<M>,
    shape: Vec<i64>,
    strides: Vec<i64>,
    _buffer: AnyBuffer,
}

unsafe extern "C" fn delete<M: TensorFormat>(tensor: *mut M) {
    // SAFETY: the tensor is one of ours, whose context is its box; its consumer calls this once.
    unsafe { drop(Box::from_raw((*tensor).context().cast::<Exported<M>>())) };
}

impl AnyBuffer {
    /// This buffer as a managed tensor of this shape, contiguous with the last dimension first. It holds the buffer until its
    /// deleter is called.
    ///
    /// The consumer uses the elements in place: it and Evener's operations take turns ([module](crate::dlpack)). Fails where
    /// the shape has another number of elements, and with `Unsupported` where the buffer is in memory without an address,
    /// which is through wgpu.
    pub fn to_dlpack<M: TensorFormat>(&self, shape: &[i64]) -> Result<ManagedTensor<M>> {
        let refuse = |detail: String| Err(Error::unsupported(self.device(), "exporting a tensor", detail));
        let count = element_count(shape);
        if count != Some(self.len() as u64) {
            return refuse(format!("a shape of {shape:?} for {} elements", self.len()));
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
            None => return refuse("its memory has no address that other libraries can use".into()),
        };
        let exported = Box::into_raw(Box::new(Exported::<M> {
            managed: None,
            shape: shape.to_vec(),
            strides: contiguous(shape),
            _buffer: self.clone(),
        }));
        // SAFETY: the box was just leaked, and nobody else has it until the deleter takes it back.
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
    /// A buffer over another library's tensor, and the tensor's shape. The tensor is used in place, and its deleter called when
    /// the last handle on the buffer is gone and no operation uses it any more; or at once, where this fails.
    ///
    /// On the processor for tensors in the host's memory, on a CUDA device for tensors on the same card. Fails with
    /// `Unsupported` for tensors elsewhere, for such as are not contiguous, read only or not aligned (to an element on the
    /// host, to 16 bytes on a card), and for element types that are no [`DType`].
    ///
    /// # Safety
    /// - The tensor's elements are where it says, and stay there until its deleter is called. On a CUDA device they are in
    ///   memory of its primary context. Evener has no other buffer over them.
    /// - Nobody else writes to them while operations of Evener's use them, or reads them while operations write to them:
    ///   streams of both libraries are not ordered by themselves.
    pub unsafe fn import_dlpack<M: TensorFormat>(
        &self,
        tensor: ManagedTensor<M>,
    ) -> Result<(AnyBuffer, Vec<i64>)> {
        let refuse = |detail: String| Error::unsupported(self.id(), "importing a tensor", detail);
        // SAFETY: it is alive, and nobody writes to it.
        if let Some(objection) = unsafe { tensor.0.as_ref() }.objection() {
            return Err(refuse(objection));
        }
        let DLTensor { data, device, ndim, dtype: dl_type, shape, strides, byte_offset } = *tensor.tensor();
        let DLDevice { device_type, device_id } = device;
        let dtype = from_dl(dl_type).ok_or_else(|| refuse(format!("elements of {dl_type:?}")))?;
        let dimensions = match usize::try_from(ndim) {
            Ok(0) => &[],
            // SAFETY: whoever made the tensor promised that there are so many numbers.
            Ok(ndim) if !shape.is_null() => unsafe { std::slice::from_raw_parts(shape, ndim) },
            _ => return Err(refuse(format!("{ndim} dimensions without lengths"))),
        };
        let count = element_count(dimensions);
        let bytes = count
            .and_then(|count| count.checked_mul(dtype.bytes()))
            .filter(|&bytes| bytes <= isize::MAX as u64);
        let bytes = bytes.ok_or_else(|| refuse(format!("a shape of {dimensions:?}")))?;
        let dimensions = dimensions.to_vec();
        if !strides.is_null() {
            // SAFETY: as for the shape.
            let strides = unsafe { std::slice::from_raw_parts(strides, dimensions.len()) };
            let expected = contiguous(&dimensions);
            let fits = |((found, expected), len): ((&i64, &i64), &i64)| *len == 1 || found == expected;
            if bytes > 0 && !strides.iter().zip(&expected).zip(&dimensions).all(fits) {
                let detail = format!(
                    "strides of {strides:?} for a shape of {dimensions:?}: it is not contiguous, copy it"
                );
                return Err(refuse(detail));
            }
        }
        let start = data.cast::<u8>().wrapping_add(byte_offset as usize);
        let address = match device_type {
            CPU | CUDA_HOST => NonNull::new(start).map(Address::Host),
            CUDA => Some(Address::Cuda { ordinal: Some(device_id), address: start.addr() as u64 }),
            // The number is of the device where it was made, and not only that one can use it.
            CUDA_MANAGED => Some(Address::Cuda { ordinal: None, address: start.addr() as u64 }),
            other => return Err(refuse(format!("a tensor on a device of DLPack's kind {other}"))),
        };
        if bytes == 0 {
            // There is nothing to use in place, and often no address.
            return Ok((self.any_buffer(dtype, 0)?, dimensions));
        }
        let address = address.filter(|_| !data.is_null()).ok_or_else(|| refuse("no address".into()))?;
        if matches!(address, Address::Host(_)) && !(start.addr() as u64).is_multiple_of(dtype.bytes()) {
            return Err(refuse(format!(
                "{dtype} at address {start:p}, which is no multiple of {}",
                dtype.bytes()
            )));
        }
        // SAFETY: the caller promises the rest; so many bytes are there, and the tensor, which keeps them, is the owner.
        let buffer = unsafe { self.adopt(address, bytes, Box::new(tensor)) }?;
        Ok((AnyBuffer::from_bytes(buffer, dtype)?, dimensions))
    }
}

/// The number of elements of a shape; nothing where there are too many, or less than none.
fn element_count(shape: &[i64]) -> Option<u64> {
    // A length of zero makes it none, however long the others are.
    let lengths = shape.iter().map(|&len| u64::try_from(len).ok()).collect::<Option<Vec<_>>>()?;
    if lengths.contains(&0) {
        return Some(0);
    }
    lengths.iter().try_fold(1u64, |count, &len| count.checked_mul(len))
}

/// The strides of a contiguous tensor, the last dimension first.
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
