//! The wgpu instances: one per API, created at the first use and kept until the process ends.

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use wgpu::{Adapter, Backends, DownlevelFlags, Instance, InstanceDescriptor, InstanceFlags};

use crate::describe::Api;

/// The APIs that are searched on this system, in order of preference.
pub(super) const PREFERRED: &[Api] = if cfg!(target_vendor = "apple") {
    &[Api::Metal]
} else if cfg!(windows) {
    &[Api::Vulkan, Api::Dx12]
} else {
    &[Api::Vulkan]
};

/// The APIs that are searched if the others have no device.
pub(super) const FALLBACK: &[Api] =
    if cfg!(any(windows, target_vendor = "apple")) { &[] } else { &[Api::Gl] };

/// Locks the creation of instances and devices, and the search for adapters. Vulkan allows several threads to do so at
/// once, but NVIDIA's driver has crashed (gfx-rs/wgpu#5930, kvark/blade#336).
pub(super) fn driver_lock() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the API's adapters that support compute, or the reason why there are none.
pub(super) fn adapters(api: Api) -> Result<Vec<Adapter>, String> {
    let _lock = driver_lock();
    static VULKAN: LazyLock<Result<Instance, String>> = LazyLock::new(vulkan);
    static METAL: LazyLock<Instance> = LazyLock::new(|| plain(Backends::METAL));
    static DX12: LazyLock<Instance> = LazyLock::new(|| plain(Backends::DX12));
    static GL: LazyLock<Instance> = LazyLock::new(|| plain(Backends::GL));
    let (instance, backends) = match api {
        Api::Vulkan => (VULKAN.as_ref().map_err(Clone::clone)?, Backends::VULKAN),
        Api::Metal => (&*METAL, Backends::METAL),
        Api::Dx12 => (&*DX12, Backends::DX12),
        Api::Gl => (&*GL, Backends::GL),
        Api::Cuda | Api::Cpu => return Err("not driven through wgpu".into()),
    };
    let mut adapters = pollster::block_on(instance.enumerate_adapters(backends));
    if adapters.is_empty() {
        return Err("no driver found".into());
    }
    adapters.retain(|adapter| {
        adapter.get_downlevel_capabilities().flags.contains(DownlevelFlags::COMPUTE_SHADERS)
    });
    if adapters.is_empty() { Err("its devices do not support compute".into()) } else { Ok(adapters) }
}

/// Creates an instance without validation layers, which print, and without a display.
fn plain(backends: Backends) -> Instance {
    Instance::new(InstanceDescriptor {
        backends,
        flags: InstanceFlags::empty(),
        ..InstanceDescriptor::new_without_display_handle()
    })
}

#[cfg(not(target_vendor = "apple"))]
fn vulkan() -> Result<Instance, String> {
    super::vulkan::instance()
}

#[cfg(target_vendor = "apple")]
fn vulkan() -> Result<Instance, String> {
    Err("not on this system".into())
}
