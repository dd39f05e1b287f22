//! What a device is: the facts that discovery finds, before anything runs on it.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

/// A device's name within a machine: `cuda:0`, `vulkan:1`, `cpu`, or `cuda:0/a` for a partition.
///
/// Ids are stable between runs as long as the machine's devices stay the same: they are numbered in
/// the order of PCI addresses within an API.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeviceId(Arc<str>);

impl DeviceId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The id of this device's n-th partition: `cuda:0/a`, `cuda:0/b`, … `cuda:0/z`, `cuda:0/aa`.
    pub fn partition(&self, index: usize) -> DeviceId {
        let mut letters = Vec::new();
        let mut rest = index + 1;
        while rest > 0 {
            rest -= 1;
            letters.push(char::from(b'a' + (rest % 26) as u8));
            rest /= 26;
        }
        let suffix: String = letters.into_iter().rev().collect();
        DeviceId::from(format!("{}/{suffix}", self.0))
    }
}

impl From<&str> for DeviceId {
    fn from(text: &str) -> Self {
        DeviceId(text.into())
    }
}

impl From<String> for DeviceId {
    fn from(text: String) -> Self {
        DeviceId(text.into())
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What sort of hardware a device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the processor's memory.
    Integrated,
    /// A GPU that a hypervisor lends.
    Virtual,
    /// A graphics API that is computed by the processor. It shares the processor's cores, so using it
    /// beside `cpu` gains nothing: it is for tests.
    Software,
    /// The processor's cores.
    Cpu,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DeviceKind::Discrete => "discrete",
            DeviceKind::Integrated => "integrated",
            DeviceKind::Virtual => "virtual",
            DeviceKind::Software => "software",
            DeviceKind::Cpu => "cpu",
        })
    }
}

/// The interface through which a device is driven.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Api {
    /// NVIDIA's driver.
    Cuda,
    /// Vulkan.
    Vulkan,
    /// Metal.
    Metal,
    /// Direct3D 12.
    Dx12,
    /// OpenGL.
    Gl,
    /// Threads on the processor's cores.
    Cpu,
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Api::Cuda => "cuda",
            Api::Vulkan => "vulkan",
            Api::Metal => "metal",
            Api::Dx12 => "dx12",
            Api::Gl => "gl",
            Api::Cpu => "cpu",
        })
    }
}

/// The facts about a device. A `None` is a fact too: nothing on this machine tells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// Its id on this machine.
    pub id: DeviceId,
    /// The name that its maker gave it.
    pub name: String,
    /// What sort of hardware it is.
    pub kind: DeviceKind,
    /// How it is driven.
    pub api: Api,
    /// Its memory in all, in bytes.
    pub memory_bytes: Option<u64>,
    /// Multiprocessors of an NVIDIA GPU, compute units of an AMD one, logical cores of a processor.
    pub compute_units: Option<u32>,
    /// Its PCI address, as `0000:01:00.0`.
    pub pci: Option<String>,
    /// The UUID that its driver gives it, as `GPU-…` or plain hexadecimal.
    pub uuid: Option<String>,
    /// The driver's name and version.
    pub driver: String,
    /// The device that this is a partition of.
    pub part_of: Option<DeviceId>,
    /// Where this partition's size differs from what was asked for: what was asked for.
    pub rounded_from: Option<u32>,
}

bitflags::bitflags! {
    /// What a device's kernels may use. A WGSL body states the ones it needs.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Features: u32 {
        /// 64-bit integers in kernels.
        const INT64 = 1;
        /// 64-bit floating point in kernels.
        const FLOAT64 = 1 << 1;
        /// 16-bit floating point in kernels.
        const FLOAT16 = 1 << 2;
        /// Subgroup (warp) operations in kernels.
        const SUBGROUPS = 1 << 3;
        /// The device's own clock can be read between operations.
        const TIMESTAMPS = 1 << 4;
    }
}

/// What an open device can do, and how much of it at once.
#[derive(Debug, Clone, PartialEq)]
pub struct Capabilities {
    /// What its kernels may use.
    pub features: Features,
    /// The largest single buffer, in bytes.
    pub max_buffer_bytes: u64,
    /// The largest part of a buffer that a kernel can be given, in bytes.
    pub max_binding_bytes: u64,
    /// How many buffers a kernel can be given.
    pub max_bindings: u32,
    /// The largest parameter block, in bytes.
    pub max_params_bytes: u32,
    /// The largest workgroup, a dimension each.
    pub max_workgroup: [u32; 3],
    /// The most threads in a workgroup.
    pub max_workgroup_threads: u32,
    /// The most workgroups in a launch, a dimension each.
    pub max_groups: [u32; 3],
    /// The most shared memory of a workgroup, in bytes.
    pub max_shared_bytes: u32,
    /// Threads in a subgroup (warp), where that is one number.
    pub subgroup_size: Option<u32>,
    /// A buffer's part must begin at a multiple of this many bytes to be given to a kernel.
    pub binding_alignment: u64,
    /// A copy must begin and end at a multiple of this many bytes, or at the buffer's end.
    pub copy_alignment: u64,
}
