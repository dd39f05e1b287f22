//! The operations through `cudarc` directly: through its thinnest layer, so that the comparison does not favour Evener.

use std::{ffi::CString, ffi::c_void, sync::Arc};

use cudarc::driver::{CudaContext, CudaStream, PinnedHostSlice, result, sys};
use evener_device::{Description, cuda::compile_for};

use crate::{ADDEND, COPY_BYTES, CUDA_SOURCE, GROUPS, Params, Peer, Result, WORKGROUP};

pub(crate) struct Direct {
    stream: Arc<CudaStream>,
    nothing: sys::CUfunction,
    multiply: sys::CUfunction,
    out: sys::CUdeviceptr,
    target: sys::CUdeviceptr,
    up: PinnedHostSlice<u8>,
    down: PinnedHostSlice<u8>,
}

impl Direct {
    pub(crate) fn new(description: &Description) -> Result<Self> {
        let context = context_of(description)?;
        let (major, minor) = context.compute_capability()?;
        let cubin = compile_for(&format!("sm_{major}{minor}"), "rates", CUDA_SOURCE)?;
        // SAFETY: the image is a cubin for this card and contains the functions; the memory belongs to this context and
        // is never freed.
        unsafe {
            let module = result::module::load_data(cubin.as_ptr().cast())?;
            Ok(Direct {
                stream: context.new_stream()?,
                nothing: result::module::get_function(module, CString::new("nothing")?)?,
                multiply: result::module::get_function(module, CString::new("int32_multiply")?)?,
                out: result::malloc_sync((GROUPS * WORKGROUP * 4) as usize)?,
                target: result::malloc_sync(COPY_BYTES)?,
                up: context.alloc_pinned_with_flags(COPY_BYTES, 0)?,
                down: context.alloc_pinned_with_flags(COPY_BYTES, 0)?,
            })
        }
    }
}

/// The context of the card with the description's PCI address.
fn context_of(description: &Description) -> Result<Arc<CudaContext>> {
    use sys::CUdevice_attribute_enum::{
        CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
    };
    for ordinal in 0..CudaContext::device_count()? {
        let context = CudaContext::new(ordinal as usize)?;
        let [domain, bus, slot] = [
            context.attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
            context.attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
            context.attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
        ];
        if description.pci.as_deref() == Some(&format!("{domain:04x}:{bus:02x}:{slot:02x}.0")) {
            return Ok(context);
        }
    }
    Err(format!("no CUDA device at {:?}", description.pci).into())
}

impl Peer for Direct {
    fn name(&self) -> String {
        "cudarc".into()
    }

    fn launch_and_wait(&mut self) -> Result<()> {
        self.launch_many(1)
    }

    fn launch_many(&mut self, times: u32) -> Result<()> {
        for _ in 0..times {
            // SAFETY: the kernel takes no arguments.
            unsafe {
                result::launch_kernel(
                    self.nothing,
                    (1, 1, 1),
                    (WORKGROUP, 1, 1),
                    0,
                    self.stream.cu_stream(),
                    &mut [],
                )?;
            }
        }
        Ok(self.stream.synchronize()?)
    }

    fn upload(&mut self) -> Result<()> {
        // SAFETY: the target is as long as the source, and both outlive the wait.
        unsafe { result::memcpy_htod_async(self.target, self.up.as_slice()?, self.stream.cu_stream())? };
        Ok(self.stream.synchronize()?)
    }

    fn download(&mut self) -> Result<()> {
        // SAFETY: as for `upload`.
        unsafe {
            result::memcpy_dtoh_async(self.down.as_mut_slice()?, self.target, self.stream.cu_stream())?
        };
        Ok(self.stream.synchronize()?)
    }

    fn multiply(&mut self, iterations: u32) -> Result<()> {
        let mut params = Params { iterations, addend: ADDEND };
        let mut arguments: [*mut c_void; 2] = [(&raw mut self.out).cast(), (&raw mut params).cast()];
        // SAFETY: the kernel takes a pointer to one word per thread, and the parameters.
        unsafe {
            result::launch_kernel(
                self.multiply,
                (GROUPS, 1, 1),
                (WORKGROUP, 1, 1),
                0,
                self.stream.cu_stream(),
                &mut arguments,
            )?;
        }
        Ok(self.stream.synchronize()?)
    }
}
