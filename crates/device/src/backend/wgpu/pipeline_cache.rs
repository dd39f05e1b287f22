//! Compiled pipelines on disk, through Vulkan's pipeline caches: the driver compiles a kernel once on a machine and not once
//! a run. Each kernel has a file of its own, so that none grows with what is no longer used.

use wgpu::{AdapterInfo, Device, PipelineCache, PipelineCacheDescriptor, util::pipeline_cache_key};

use crate::{disk_cache::CacheFile, kernel::Kernel, module::WgslBody};

/// What the files of a device are named by: the device and its driver. Nothing where it has no such caches.
pub(super) fn device_key(info: &AdapterInfo, features: wgpu::Features) -> Option<String> {
    let key = pipeline_cache_key(info).filter(|_| features.contains(wgpu::Features::PIPELINE_CACHE))?;
    Some(format!("{key}\0{}\0{}\0{}", info.name, info.driver, info.driver_info))
}

/// The cache of one kernel.
pub(super) struct KernelCache {
    pub(super) cache: PipelineCache,
    place: CacheFile,
    /// What the file had.
    data: Option<Vec<u8>>,
}

impl KernelCache {
    /// The cache of a kernel, with what is on disk for it. Nothing where the device has no caches, or there is no folder.
    pub(super) fn of(
        device: &Device,
        device_key: Option<&str>,
        kernel: &Kernel,
        body: &WgslBody,
    ) -> Option<Self> {
        let place = place(device_key?, kernel, body)?;
        let data = place.read();
        let descriptor = PipelineCacheDescriptor { label: None, data: data.as_deref(), fallback: true };
        // SAFETY: the data came from `get_data` of a cache for this device, driver and kernel: `write` wrote it, with a
        // checksum that is keyed with all of these, to a folder that nobody else may write to.
        let cache = unsafe { device.create_pipeline_cache(&descriptor) };
        Some(KernelCache { cache, place, data })
    }

    /// Writes what the cache has now, where that is something else than before.
    pub(super) fn write(self) {
        let Some(data) = self.cache.get_data().filter(|data| Some(data) != self.data.as_ref()) else {
            return;
        };
        if let Err(why) = self.place.write(&data) {
            tracing::debug!("{}: compiled kernels are not kept: {why}", self.place.path.display());
        }
    }
}

#[cfg(test)]
impl KernelCache {
    pub(super) fn was_on_disk(&self) -> bool {
        self.data.is_some()
    }

    pub(super) fn path(&self) -> std::path::PathBuf {
        self.place.path.clone()
    }
}

fn place(device_key: &str, kernel: &Kernel, body: &WgslBody) -> Option<CacheFile> {
    let mut hasher = blake3::Hasher::new();
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    };
    for text in [device_key, &kernel.name, &body.source] {
        part(text.as_bytes());
    }
    part(&[body.is_checked.into()]);
    for (name, value) in &body.constants {
        part(name.as_bytes());
        part(&value.to_le_bytes());
    }
    let key = hasher.finalize();
    CacheFile::new("pipelines", &format!("{}.bin", key.to_hex()), *key.as_bytes())
}
