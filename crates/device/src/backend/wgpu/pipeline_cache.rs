//! The disk cache of compiled pipelines, by means of Vulkan's pipeline caches: the driver compiles a kernel once per
//! machine, not once per run. Each kernel has its own file, so that no file grows with unused pipelines.

use wgpu::{AdapterInfo, Device, PipelineCache, PipelineCacheDescriptor, util::pipeline_cache_key};

use crate::{disk_cache::CacheFile, kernel::Kernel, module::WgslBody};

/// Returns the device's part of the cache key: the device and its driver. `None` if the device has no pipeline caches.
pub(super) fn device_key(info: &AdapterInfo, features: wgpu::Features) -> Option<String> {
    let key = pipeline_cache_key(info).filter(|_| features.contains(wgpu::Features::PIPELINE_CACHE))?;
    Some(format!("{key}\0{}\0{}\0{}", info.name, info.driver, info.driver_info))
}

/// The pipeline cache of one kernel.
pub(super) struct KernelCache {
    pub(super) cache: PipelineCache,
    place: CacheFile,
    /// The contents of the file, if it was read.
    data: Option<Vec<u8>>,
}

impl KernelCache {
    /// Creates a kernel's pipeline cache with its file's contents. Returns `None` if the device has no pipeline caches,
    /// or there is no cache folder.
    pub(super) fn of(
        device: &Device,
        device_key: Option<&str>,
        kernel: &Kernel,
        body: &WgslBody,
    ) -> Option<Self> {
        let place = place(device_key?, kernel, body)?;
        let data = place.read();
        let descriptor = PipelineCacheDescriptor { label: None, data: data.as_deref(), fallback: true };
        // SAFETY: the data came from `get_data` of a cache for this device, driver and kernel: `CacheFile::read` checks
        // the checksum, which is keyed with all of these, and that other users cannot write to the folder.
        let cache = unsafe { device.create_pipeline_cache(&descriptor) };
        Some(KernelCache { cache, place, data })
    }

    /// Writes the cache to its file if it has changed.
    pub(super) fn write(self) {
        let Some(data) = self.cache.get_data().filter(|data| Some(data) != self.data.as_ref()) else {
            return;
        };
        if let Err(why) = self.place.write(&data) {
            tracing::debug!("{}: cannot cache a compiled kernel: {why}", self.place.path.display());
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
