//! External devices: a `wgpu::Device` that the caller has created.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use wgpu::{Adapter, Device, Queue};

use super::{
    super::{Backend, Source},
    describe,
    idle::RawDevice,
    no_partitions,
    open::{WgpuBackend, open_device_from},
};
use crate::{
    describe::{Api, Description, DeviceId},
    error::{Error, Result},
};

/// Returns those of an adapter's features that Evener uses. Request a `wgpu::Device` with them before you give it to
/// [`Device::from_wgpu`](crate::Device::from_wgpu).
pub fn wgpu_features(has: wgpu::Features) -> wgpu::Features {
    describe::features(has).1
}

pub(crate) fn source_of(adapter: &Adapter, device: &Device, queue: &Queue) -> Result<Arc<dyn Source>> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let refuse =
        |detail: String| Err(Error::unsupported(&DeviceId::from("wgpu"), "using an external device", detail));
    let (info, of_device) = (adapter.get_info(), device.adapter_info());
    if info != of_device {
        return refuse(format!(
            "the device belongs to `{}`, and the adapter is `{}`",
            of_device.name, info.name
        ));
    }
    let backend = info.backend;
    let api = match backend {
        wgpu::Backend::Vulkan => Api::Vulkan,
        wgpu::Backend::Metal => Api::Metal,
        wgpu::Backend::Dx12 => Api::Dx12,
        wgpu::Backend::Gl => Api::Gl,
        _ => return refuse(format!("the API {backend:?} is not supported")),
    };
    let id = DeviceId::from(format!("{api}:caller{}", NUMBER.fetch_add(1, Relaxed)));
    let description = describe::describe(id, api, adapter);
    Ok(Arc::new(ExternalSource {
        description,
        adapter: adapter.clone(),
        device: device.clone(),
        queue: queue.clone(),
    }))
}

#[derive(Debug)]
struct ExternalSource {
    description: Description,
    adapter: Adapter,
    device: Device,
    queue: Queue,
}

impl Source for ExternalSource {
    fn describe(&self) -> &Description {
        &self.description
    }

    fn open(&self) -> Result<Arc<dyn Backend>> {
        let (device, queue) = (self.device.clone(), self.queue.clone());
        // The callbacks belong to the caller, so errors come from the calls themselves.
        let raw = RawDevice { device, queue, failure: Default::default(), transfers: None };
        let (features, limits) = (describe::features(self.device.features()), self.device.limits());
        let mut open = open_device_from(&self.description, &self.adapter, raw, features, &limits);
        open.is_external = true;
        Ok(Arc::new(WgpuBackend::of(open)))
    }

    fn split(&self, sizes: &[u32]) -> Result<Vec<Arc<dyn Source>>> {
        no_partitions(&self.description, sizes)
    }
}
