use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use super::*;
use crate::{Buffer, Kernel, WithDType};

/// A tensor of another library.
struct Produced<T> {
    elements: Vec<T>,
    shape: Vec<i64>,
    strides: Option<Vec<i64>>,
    managed: DLManagedTensorVersioned,
    deleted: Arc<AtomicUsize>,
}

unsafe extern "C" fn count_and_free<T>(tensor: *mut DLManagedTensorVersioned) {
    // SAFETY: the context is the box that `produce` leaked.
    let produced = unsafe { Box::from_raw((*tensor).manager_ctx.cast::<Produced<T>>()) };
    produced.deleted.fetch_add(1, SeqCst);
}

/// Returns the tensor, after `change`, and the number of calls of its deleter.
fn produce<T: WithDType>(
    elements: &[T],
    shape: &[i64],
    strides: Option<&[i64]>,
    change: impl FnOnce(&mut DLManagedTensorVersioned),
) -> (ManagedTensor<DLManagedTensorVersioned>, Arc<AtomicUsize>) {
    let deleted = Arc::new(AtomicUsize::new(0));
    let dl_tensor = DLTensor {
        data: std::ptr::null_mut(),
        device: DLDevice { device_type: CPU, device_id: 0 },
        ndim: shape.len() as i32,
        dtype: to_dl(T::DTYPE),
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let managed = DLManagedTensorVersioned::new(dl_tensor, std::ptr::null_mut(), count_and_free::<T>);
    let produced = Box::into_raw(Box::new(Produced {
        elements: elements.to_vec(),
        shape: shape.to_vec(),
        strides: strides.map(<[i64]>::to_vec),
        managed,
        deleted: deleted.clone(),
    }));
    // SAFETY: the box was just leaked, and the deleter takes it back.
    unsafe {
        let inner = &mut *produced;
        inner.managed.manager_ctx = produced.cast();
        inner.managed.dl_tensor.data = inner.elements.as_mut_ptr().cast();
        inner.managed.dl_tensor.shape = inner.shape.as_mut_ptr();
        if let Some(strides) = &mut inner.strides {
            inner.managed.dl_tensor.strides = strides.as_mut_ptr();
        }
        change(&mut inner.managed);
        (ManagedTensor::from_raw(&raw mut (*produced).managed), deleted)
    }
}

fn import<M: TensorFormat>(tensor: ManagedTensor<M>) -> Result<(AnyBuffer, Vec<i64>)> {
    // SAFETY: the tensors of these tests own their memory, which no other code uses during operations.
    unsafe { Device::cpu().import_dlpack(tensor) }
}

#[test]
fn another_librarys_tensor_is_used_in_place_and_deleted_once() {
    let (tensor, deleted) = produce(&[1u32, 2, 3, 4, 5, 6], &[2, 3], Some(&[3, 1]), |_| {});
    let elements = tensor.tensor().data.cast::<u32>();
    let device = Device::cpu();
    // SAFETY: only the operations below use the elements.
    let (any, shape) = unsafe { device.import_dlpack(tensor) }.unwrap();
    assert_eq!((any.dtype(), any.len(), shape), (DType::U32, 6, vec![2, 3]));
    let kernel = Kernel::new("double").writes::<u32>().rust(|launch| {
        launch.write::<u32>(0)?.iter_mut().for_each(|number| *number *= 2);
        Ok(())
    });
    let mut stream = device.stream().unwrap();
    stream.launch(&device.compile(&kernel).unwrap().bind(&[any.arg()]).unwrap(), 1, &()).unwrap();
    stream.wait().unwrap();
    // SAFETY: the tensor is alive, and no operation uses it.
    let found = unsafe { std::slice::from_raw_parts(elements, 6) };
    assert_eq!(found, [2, 4, 6, 8, 10, 12]);
    let part = any.typed::<u32>().unwrap().slice(4..).unwrap();
    drop(any);
    assert_eq!(deleted.load(SeqCst), 0, "a slice of it is left");
    let download = stream.download(&part).unwrap();
    drop(part);
    assert_eq!(download.wait().unwrap(), [10, 12]);
    drop(stream);
    assert_eq!(deleted.load(SeqCst), 1);
    assert_eq!(device.memory().cached_bytes, 0, "another library's memory is not cached");
}

#[test]
fn a_buffer_is_read_and_written_by_another_library_in_place() {
    fn round_trip<M: TensorFormat>() {
        let device = Device::cpu();
        let buffer = device.buffer_from(&[1.0f32, 2.0, 3.0, 4.0]).unwrap();
        let mut stream = device.stream().unwrap();
        let exported: ManagedTensor<M> =
            AnyBuffer::from(buffer.slice(1..).unwrap()).to_dlpack(&[3, 1]).unwrap();
        let before = device.memory().in_use_bytes;
        let raw = exported.into_raw();
        // SAFETY: the consumer has the tensor, and no operation uses it.
        unsafe {
            let tensor = (*raw).tensor();
            assert_eq!((tensor.device, tensor.ndim), (DLDevice { device_type: CPU, device_id: 0 }, 2));
            assert_eq!(tensor.dtype, DLDataType { code: 2, bits: 32, lanes: 1 });
            assert_eq!(std::slice::from_raw_parts(tensor.shape, 2), [3, 1]);
            assert_eq!(std::slice::from_raw_parts(tensor.strides, 2), [1, 1]);
            let elements = std::slice::from_raw_parts_mut(tensor.data.cast::<f32>(), 3);
            assert_eq!(elements, [2.0, 3.0, 4.0]);
            elements[2] = 9.0;
        }
        assert_eq!(stream.download(&buffer).unwrap().wait().unwrap(), [1.0, 2.0, 3.0, 9.0]);
        drop(buffer);
        assert_eq!(device.memory().in_use_bytes, before, "the tensor holds the buffer");
        // SAFETY: the consumer calls the deleter once.
        unsafe { (*raw).deleter().unwrap()(raw) };
        assert_eq!(device.memory().in_use_bytes, 0);
    }
    round_trip::<DLManagedTensor>();
    round_trip::<DLManagedTensorVersioned>();
}

#[test]
fn memory_that_a_consumer_wrote_to_is_zeroed_before_it_is_a_new_buffer() {
    let device = Device::cpu();
    let tensor: ManagedTensor<DLManagedTensor> =
        device.any_buffer(DType::U8, 4096).unwrap().to_dlpack(&[4096]).unwrap();
    // SAFETY: no operation uses it.
    unsafe { tensor.tensor().data.cast::<u8>().write_bytes(7, 4096) };
    drop(tensor);
    assert_eq!(device.memory().cached_bytes, 4096);
    let again: Buffer<u8> = device.buffer(4096).unwrap();
    assert_eq!(device.stream().unwrap().download(&again).unwrap().wait().unwrap(), [0; 4096]);
}

#[test]
fn every_element_type_survives_the_round_trip() {
    let device = Device::cpu();
    for &dtype in DType::ALL {
        let any = device.any_buffer(dtype, 3).unwrap();
        let (again, shape) = import(any.to_dlpack::<DLManagedTensorVersioned>(&[3]).unwrap()).unwrap();
        assert_eq!((again.dtype(), again.len(), shape), (dtype, 3, vec![3]));
    }
}

#[test]
fn tensors_that_do_not_fit_are_refused_and_deleted_once() {
    type Change = fn(&mut DLManagedTensorVersioned);
    let refused = |shape: &[i64], strides: Option<&[i64]>, change: Change, expected: &str| {
        let (tensor, deleted) = produce(&[0u32; 6], shape, strides, change);
        let error = import(tensor).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(deleted.load(SeqCst), 1, "{error}");
    };
    refused(&[2, 3], Some(&[1, 2]), |_| {}, "not contiguous");
    refused(&[2, 2], Some(&[3, 1]), |_| {}, "not contiguous");
    refused(&[3], Some(&[2]), |_| {}, "not contiguous");
    refused(&[3], Some(&[-1]), |_| {}, "not contiguous");
    refused(&[-1], None, |_| {}, "shape [-1]");
    refused(&[1 << 40, 1 << 40], None, |_| {}, "impossible shape");
    refused(&[6], None, |it| it.flags = READ_ONLY, "read-only");
    refused(&[6], None, |it| it.version.major = 2, "version 2.0");
    refused(&[6], None, |it| it.dl_tensor.dtype.lanes = 4, "lanes: 4");
    refused(&[6], None, |it| it.dl_tensor.dtype.code = 6, "code: 6");
    refused(&[6], None, |it| it.dl_tensor.ndim = -1, "-1 dimensions");
    refused(&[6], None, |it| it.dl_tensor.shape = std::ptr::null_mut(), "without lengths");
    refused(&[6], None, |it| it.dl_tensor.device.device_type = CUDA, "the device is not a CUDA device");
    refused(&[6], None, |it| it.dl_tensor.device.device_type = 7, "type 7");
    refused(&[5], None, |it| it.dl_tensor.byte_offset = 2, "not aligned to 4");
    refused(&[6], None, |it| it.dl_tensor.data = std::ptr::null_mut(), "no address");
}

#[test]
fn strides_of_dimensions_of_length_one_are_ignored() {
    let (tensor, _) = produce(&[1u32, 2, 3], &[1, 3, 1], Some(&[77, 1, -5]), |_| {});
    assert_eq!(import(tensor).unwrap().0.len(), 3);
    // An offset, no strides, and no dimensions at all: a single number.
    let (tensor, _) = produce(&[1u32, 2, 3], &[], None, |it| it.dl_tensor.byte_offset = 8);
    let (any, shape) = import(tensor).unwrap();
    assert!(shape.is_empty());
    let mut stream = Device::cpu().stream().unwrap();
    assert_eq!(stream.download(&any.typed::<u32>().unwrap()).unwrap().wait().unwrap(), [3]);
}

#[test]
fn an_empty_tensor_is_an_empty_buffer() {
    let (tensor, deleted) = produce::<f64>(&[], &[1 << 40, 0, 1 << 40], Some(&[5, 5, 5]), |it| {
        it.dl_tensor.data = std::ptr::null_mut();
    });
    let (any, shape) = import(tensor).unwrap();
    assert_eq!((any.len(), any.dtype(), shape.len()), (0, DType::F64, 3));
    assert_eq!(deleted.load(SeqCst), 1);
    let exported: ManagedTensor<DLManagedTensor> = any.to_dlpack(&[0, 4]).unwrap();
    assert_eq!(exported.tensor().ndim, 2);
}

#[test]
fn a_shape_with_another_number_of_elements_is_refused() {
    let any = Device::cpu().any_buffer(DType::F32, 6).unwrap();
    for shape in [&[][..], &[5], &[2, 2], &[-6], &[-2, -3], &[6, 0]] {
        let error = any.to_dlpack::<DLManagedTensor>(shape).unwrap_err();
        assert!(error.to_string().contains("has 6 elements"), "{error}");
    }
    assert!(any.to_dlpack::<DLManagedTensor>(&[3, 1, 2]).is_ok());
}
