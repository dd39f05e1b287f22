//! Direct use of Vulkan: an instance without window-system extensions, and device properties that wgpu does not expose.

use ash::vk;
use wgpu::{
    Adapter, Instance, InstanceFlags,
    hal::{InstanceDescriptor, api::Vulkan, vulkan},
};

/// The file name under which wgpu looks for the Vulkan loader.
const LOADER: &str = if cfg!(windows) {
    "vulkan-1.dll"
} else if cfg!(target_os = "android") {
    "libvulkan.so"
} else {
    "libvulkan.so.1"
};

/// Creates an instance without the window-system extensions: with them, Mesa's device selection connects to Wayland and
/// X11, and prints warnings where there is none.
pub(super) fn instance() -> Result<Instance, String> {
    // SAFETY: loading the system's Vulkan loader runs its initialisers, which are safe to run at any time.
    drop(unsafe { libloading::Library::new(LOADER) }.map_err(|_| format!("no loader found ({LOADER})"))?);
    let descriptor = InstanceDescriptor {
        name: "evener",
        flags: InstanceFlags::empty(),
        memory_budget_thresholds: Default::default(),
        backend_options: Default::default(),
        telemetry: None,
        display: None,
    };
    let without_windows = |arguments: vulkan::CreateInstanceCallbackArgs<'_, '_, '_>| {
        let windows = [
            ash::khr::wayland_surface::NAME,
            ash::khr::xcb_surface::NAME,
            ash::khr::xlib_surface::NAME,
            ash::khr::win32_surface::NAME,
        ];
        arguments.extensions.retain(|name| !windows.contains(name));
    };
    // SAFETY: wgpu-hal uses these extensions only to create surfaces, and checks its list of enabled extensions first. This
    // crate creates no surface.
    let made = unsafe { vulkan::Instance::init_with_callback(&descriptor, Some(Box::new(without_windows))) };
    // The loader creates no instance if it finds no driver.
    let made = made.map_err(|_| "no driver found".to_owned())?;
    // SAFETY: the instance was just created, and nothing else owns it.
    Ok(unsafe { Instance::from_hal::<Vulkan>(made) })
}

/// Properties of an adapter that wgpu does not expose.
#[derive(Debug, Default)]
pub(super) struct Properties {
    pub(super) memory_bytes: Option<u64>,
    pub(super) compute_units: Option<u32>,
    pub(super) uuid: Option<String>,
}

/// Queries the driver. All properties are `None` for adapters of other APIs.
pub(super) fn properties(adapter: &Adapter) -> Properties {
    // SAFETY: the adapter is only queried; no handle of it is kept or destroyed.
    let Some(hal) = (unsafe { adapter.as_hal::<Vulkan>() }) else { return Properties::default() };
    let (instance, physical) = (hal.shared_instance().raw_instance(), hal.raw_physical_device());
    // SAFETY: the physical device belongs to the instance, and both live as long as the adapter.
    let heaps = unsafe { instance.get_physical_device_memory_properties(physical) };
    let local = |heap: &&vk::MemoryHeap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL);
    // A second device-local heap is the host-visible window onto the first, not more memory.
    let memory_bytes = heaps.memory_heaps_as_slice().iter().filter(local).map(|heap| heap.size).max();
    let mut properties = Properties { memory_bytes, ..Properties::default() };

    // SAFETY: as for the heaps.
    let version = unsafe { instance.get_physical_device_properties(physical) }.api_version;
    if version < vk::API_VERSION_1_1 || hal.shared_instance().instance_api_version() < vk::API_VERSION_1_1 {
        return properties;
    }
    let has = |extension| hal.physical_device_capabilities().supports_extension(extension);
    let mut ids = vk::PhysicalDeviceIDProperties::default();
    let mut nvidia = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
    let mut amd = vk::PhysicalDeviceShaderCorePropertiesAMD::default();
    let mut queried = vk::PhysicalDeviceProperties2::default().push_next(&mut ids);
    if has(ash::nv::shader_sm_builtins::NAME) {
        queried = queried.push_next(&mut nvidia);
    }
    if has(ash::amd::shader_core_properties::NAME) {
        queried = queried.push_next(&mut amd);
    }
    // SAFETY: as for the heaps; instance and device are of version 1.1, and each structure in the chain is core in that
    // version or of an extension that `has` found on the device.
    unsafe { instance.get_physical_device_properties2(physical, &mut queried) };
    let units = nvidia.shader_sm_count
        + amd.shader_engine_count * amd.shader_arrays_per_engine_count * amd.compute_units_per_shader_array;
    properties.compute_units = (units > 0).then_some(units);
    properties.uuid = (ids.device_uuid != [0; 16])
        .then(|| ids.device_uuid.iter().map(|byte| format!("{byte:02x}")).collect());
    properties
}
