//! Buffers whose element type is known at run time only.

use std::{fmt, ops::RangeBounds};

use crate::{
    buffer::{Argument, Buffer, slice_range},
    describe::DeviceId,
    device::Device,
    dtype::{DType, WithDType},
    error::{Error, Result},
    stream::{Download, Stream},
};

/// Elements in a device's memory whose type is a value: a [`Buffer`] for programs that learn the type at run time.
///
/// It is a handle of the same memory as the typed buffer that it was made from, and converts back to one of the same
/// type.
///
/// ```
/// use evener_device::{AnyBuffer, Buffer, DType, Device};
///
/// let device = Device::cpu();
/// let numbers = AnyBuffer::from(device.buffer_from(&[1.0f32, 2.0, 3.0])?);
/// assert_eq!((numbers.dtype(), numbers.len()), (DType::F32, 3));
///
/// let mut stream = device.stream()?;
/// stream.upload_bytes(&5.0f32.to_ne_bytes(), DType::F32, &numbers.slice(1..2)?)?;
/// let typed: Buffer<f32> = numbers.typed()?;
/// assert_eq!(stream.download(&typed)?.wait()?, [1.0, 5.0, 3.0]);
/// assert!(numbers.typed::<u32>().is_err());
/// # Ok::<(), evener_device::Error>(())
/// ```
#[derive(Clone)]
pub struct AnyBuffer {
    bytes: Buffer<u8>,
    dtype: DType,
}

impl AnyBuffer {
    /// Makes a buffer of bytes into one of elements. Fails if size or offset is not a multiple of an element.
    pub fn from_bytes(bytes: Buffer<u8>, dtype: DType) -> Result<Self> {
        let (size, offset, element) = (bytes.bytes(), bytes.region().offset, dtype.bytes());
        if !size.is_multiple_of(element) || !offset.is_multiple_of(element) {
            let detail = format!(
                "{size} bytes at offset {offset} are not a whole number of {dtype} of {element} bytes"
            );
            return Err(Error::unsupported(bytes.device(), "casting a buffer", detail));
        }
        Ok(AnyBuffer { bytes, dtype })
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.dtype.bytes() as usize
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The device whose memory it is in.
    pub fn device(&self) -> &DeviceId {
        self.bytes.device()
    }

    /// Its bytes: another handle of the same memory, for operations that need no type.
    pub fn as_bytes(&self) -> &Buffer<u8> {
        &self.bytes
    }

    /// Returns a typed handle of the same elements. Fails if they are of another type.
    pub fn typed<T: WithDType>(&self) -> Result<Buffer<T>> {
        self.check("casting a buffer", T::DTYPE)?;
        self.bytes.cast()
    }

    /// Returns a handle of some of the elements. Fails if the range is out of bounds.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<AnyBuffer> {
        let range = slice_range(range, self.len(), self.device())?;
        let element = self.dtype.bytes() as usize;
        let bytes = self.bytes.slice(range.start * element..range.end * element)?;
        Ok(AnyBuffer { bytes, dtype: self.dtype })
    }

    /// This buffer as an argument of a kernel, which has to declare the same type.
    pub fn arg(&self) -> Argument {
        let (element, element_name) = self.dtype.element();
        Argument { region: self.bytes.region().clone(), element, element_name }
    }

    fn check(&self, operation: &str, dtype: DType) -> Result<()> {
        if dtype == self.dtype {
            return Ok(());
        }
        let detail = format!("the buffer's elements are {}, not {dtype}", self.dtype);
        Err(Error::unsupported(self.device(), operation, detail))
    }
}

impl<T: WithDType> From<Buffer<T>> for AnyBuffer {
    fn from(buffer: Buffer<T>) -> Self {
        AnyBuffer { bytes: buffer.untyped(), dtype: T::DTYPE }
    }
}

impl<T: WithDType> TryFrom<AnyBuffer> for Buffer<T> {
    type Error = Error;

    fn try_from(buffer: AnyBuffer) -> Result<Self> {
        buffer.typed()
    }
}

impl fmt::Debug for AnyBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnyBuffer({} {} on {})", self.len(), self.dtype, self.device())
    }
}

impl Device {
    /// Allocates a zeroed buffer of a type that is known at run time.
    pub fn any_buffer(&self, dtype: DType, len: usize) -> Result<AnyBuffer> {
        let bytes = (len as u64).checked_mul(dtype.bytes()).and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| {
            let detail = format!("{len} elements of {} bytes are more than 2^64 bytes", dtype.bytes());
            Error::unsupported(self.id(), "allocating a buffer", detail)
        })?;
        AnyBuffer::from_bytes(self.buffer(bytes)?, dtype)
    }
}

impl Stream {
    /// Copies elements, given as bytes in native order, to the beginning of a buffer as [`upload`](Stream::upload) does.
    /// Fails if the buffer's elements are of another type, or the bytes are not a whole number of elements.
    pub fn upload_bytes(&mut self, bytes: &[u8], dtype: DType, to: &AnyBuffer) -> Result<()> {
        to.check("uploading bytes", dtype)?;
        if !(bytes.len() as u64).is_multiple_of(dtype.bytes()) {
            let detail =
                format!("{} bytes are not a whole number of {dtype} of {} bytes", bytes.len(), dtype.bytes());
            return Err(Error::unsupported(self.device(), "uploading bytes", detail));
        }
        self.upload(bytes, &to.bytes)
    }

    /// Begins to copy a buffer to the host as [`download`](Stream::download) does; the bytes are in native order. Fails
    /// if the buffer's elements are not of the type `dtype`.
    pub fn download_bytes(&mut self, from: &AnyBuffer, dtype: DType) -> Result<Download<u8>> {
        from.check("downloading bytes", dtype)?;
        self.download(&from.bytes)
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::Kernel;

    fn refused<T>(outcome: Result<T>) -> String {
        match outcome {
            Err(error @ Error::Unsupported { .. }) => error.to_string(),
            Err(other) => panic!("refused with {other}"),
            Ok(_) => panic!("not refused"),
        }
    }

    #[test]
    fn a_typed_buffer_and_its_untyped_form_are_the_same_memory() {
        let device = Device::cpu();
        let typed = device.buffer_from(&[half::f16::ONE; 6]).unwrap();
        let any = AnyBuffer::from(typed.clone());
        assert_eq!((any.dtype(), any.len(), any.as_bytes().len()), (DType::F16, 6, 12));
        let mut stream = device.stream().unwrap();
        let two = half::f16::from_f32(2.0);
        stream.upload_bytes(&two.to_ne_bytes(), DType::F16, &any.slice(4..).unwrap()).unwrap();
        let mut expected = [half::f16::ONE; 6];
        expected[4] = two;
        assert_eq!(stream.download(&typed).unwrap().wait().unwrap(), expected);
        let bytes = stream.download_bytes(&any, DType::F16).unwrap().wait().unwrap();
        assert_eq!(bytes, bytemuck::cast_slice::<_, u8>(&expected));
        let back = Buffer::<half::f16>::try_from(any).unwrap();
        assert_eq!(stream.download(&back).unwrap().wait().unwrap(), expected);
    }

    #[test]
    fn another_type_is_refused_everywhere() {
        let device = Device::cpu();
        let mut stream = device.stream().unwrap();
        for &dtype in DType::ALL {
            let any = device.any_buffer(dtype, 4).unwrap();
            for &other in DType::ALL.iter().filter(|&&other| other != dtype) {
                let bytes = vec![0; other.bytes() as usize];
                let text = refused(stream.upload_bytes(&bytes, other, &any));
                assert!(text.contains(&format!("are {dtype}, not {other}")), "{text}");
                refused(stream.download_bytes(&any, other));
            }
            assert_eq!(any.typed::<u32>().is_ok(), dtype == DType::U32);
            assert_eq!(any.typed::<half::bf16>().is_ok(), dtype == DType::Bf16);
        }
    }

    #[test]
    fn bytes_that_are_not_a_whole_number_of_elements_are_refused() {
        let device = Device::cpu();
        let bytes = device.buffer::<u8>(16).unwrap();
        refused(AnyBuffer::from_bytes(bytes.slice(0..6).unwrap(), DType::F32));
        refused(AnyBuffer::from_bytes(bytes.slice(2..6).unwrap(), DType::F32));
        let any = AnyBuffer::from_bytes(bytes.slice(4..12).unwrap(), DType::F32).unwrap();
        let mut stream = device.stream().unwrap();
        refused(stream.upload_bytes(&[0; 6], DType::F32, &any));
        refused(stream.upload_bytes(&[0; 12], DType::F32, &any));
        refused(any.slice(1..3));
        refused(any.slice(usize::MAX..));
        refused(device.any_buffer(DType::F64, usize::MAX));
    }

    #[test]
    fn a_kernel_takes_only_the_type_that_it_declares() {
        let device = Device::cpu();
        let kernel = Kernel::new("double").writes_dtype(DType::I32).rust(|launch| {
            launch.write::<i32>(0)?.iter_mut().for_each(|number| *number *= 2);
            Ok(())
        });
        let program = device.compile(&kernel).unwrap();
        let any = AnyBuffer::from(device.buffer_from(&[1i32, -2, 3]).unwrap());
        let mut stream = device.stream().unwrap();
        stream.launch(&program.bind(&[any.arg()]).unwrap(), 1, &()).unwrap();
        assert_eq!(stream.download(&any.typed::<i32>().unwrap()).unwrap().wait().unwrap(), [2, -4, 6]);
        let text = refused(program.bind(&[device.any_buffer(DType::U32, 3).unwrap().arg()]));
        assert!(text.contains("declared as i32 and given as u32"), "{text}");
    }
}
