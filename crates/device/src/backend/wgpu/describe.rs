//! The description, features and capabilities of an adapter.

use wgpu::{Adapter, AdapterInfo, DeviceType, Limits};

use crate::describe::{Api, Capabilities, Description, DeviceId, DeviceKind, Features};

pub(super) fn describe(id: DeviceId, api: Api, adapter: &Adapter) -> Description {
    let info = adapter.get_info();
    #[cfg(not(target_vendor = "apple"))]
    let super::vulkan::Properties { memory_bytes, compute_units, uuid } = super::vulkan::properties(adapter);
    #[cfg(target_vendor = "apple")]
    let (memory_bytes, compute_units, uuid) = (None, None, None);
    Description {
        id,
        kind: kind(&info),
        api,
        memory_bytes,
        compute_units,
        pci: pci(&info),
        uuid,
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
        part_of: None,
        rounded_from: None,
        host: None,
        name: info.name,
    }
}

fn kind(info: &AdapterInfo) -> DeviceKind {
    const SOFTWARE: [&str; 5] = ["llvmpipe", "lavapipe", "softpipe", "swiftshader", "basic render driver"];
    let name = info.name.to_lowercase();
    if SOFTWARE.iter().any(|software| name.contains(software)) {
        return DeviceKind::Software;
    }
    match info.device_type {
        DeviceType::DiscreteGpu => DeviceKind::Discrete,
        DeviceType::IntegratedGpu => DeviceKind::Integrated,
        DeviceType::VirtualGpu | DeviceType::Other => DeviceKind::Virtual,
        DeviceType::Cpu => DeviceKind::Software,
    }
}

/// The PCI address, such as `0000:01:00.0`, if the driver reports it.
pub(super) fn pci(info: &AdapterInfo) -> Option<String> {
    let address = info.device_pci_bus_id.trim().to_lowercase();
    (!address.is_empty()).then_some(address)
}

/// The features of this crate, and the features of wgpu that each one needs.
const FEATURES: [(Features, wgpu::Features); 5] = [
    (Features::INT64, wgpu::Features::SHADER_INT64),
    (Features::FLOAT64, wgpu::Features::SHADER_F64),
    (Features::FLOAT16, wgpu::Features::SHADER_F16),
    (Features::SUBGROUPS, wgpu::Features::SUBGROUP),
    (
        Features::TIMESTAMPS,
        wgpu::Features::TIMESTAMP_QUERY.union(wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS),
    ),
];

/// Returns this crate's features of an adapter, and the features of wgpu to request.
pub(super) fn features(has: wgpu::Features) -> (Features, wgpu::Features) {
    // Immediates carry a kernel's parameters, the barrier belongs to the subgroup operations, and the pipeline cache
    // stores compiled pipelines on disk. A device may lack any of these.
    let optional =
        wgpu::Features::IMMEDIATES | wgpu::Features::SUBGROUP_BARRIER | wgpu::Features::PIPELINE_CACHE;
    let mut ask = has & optional;
    let mut means = Features::empty();
    for (feature, wants) in FEATURES {
        if has.contains(wants) {
            ask |= wants;
            means |= feature;
        }
    }
    (means, ask)
}

/// The capabilities of a device that was requested with these limits.
pub(super) fn capabilities(
    features: Features,
    asked: wgpu::Features,
    limits: &Limits,
    info: &AdapterInfo,
) -> Capabilities {
    // Sizes in wgpu are multiples of four.
    let even = |bytes: u64| bytes & !3;
    let immediates = if asked.contains(wgpu::Features::IMMEDIATES) { limits.max_immediate_size } else { 0 };
    Capabilities {
        features,
        max_buffer_bytes: even(limits.max_buffer_size),
        max_binding_bytes: even(limits.max_storage_buffer_binding_size),
        // The same maximum as in the other back ends: some drivers report a million, which is not practical.
        max_bindings: limits
            .max_storage_buffers_per_shader_stage
            .min(limits.max_bindings_per_bind_group)
            .min(64),
        max_params_bytes: immediates & !3,
        max_workgroup: [
            limits.max_compute_workgroup_size_x,
            limits.max_compute_workgroup_size_y,
            limits.max_compute_workgroup_size_z,
        ],
        max_workgroup_threads: limits.max_compute_invocations_per_workgroup,
        max_groups: [limits.max_compute_workgroups_per_dimension; 3],
        max_shared_bytes: limits.max_compute_workgroup_storage_size,
        subgroup_size: (info.subgroup_min_size == info.subgroup_max_size).then_some(info.subgroup_min_size),
        binding_alignment: u64::from(limits.min_storage_buffer_offset_alignment),
        copy_alignment: wgpu::COPY_BUFFER_ALIGNMENT,
    }
}
