//! The description of a device, which discovery makes before anything runs on it.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The id of a device on a machine: `cuda:0`, `vulkan:1`, `cpu`, or `cuda:0/a` for a partition. A device of another
/// machine has the host's name in front: `gpu-box/cuda:0`.
///
/// Ids are stable between runs as long as the machine's devices stay the same: they are numbered within an API in the
/// order of PCI addresses.
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

/// The kind of hardware of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the processor's memory.
    Integrated,
    /// A GPU of a virtual machine.
    Virtual,
    /// A graphics API that the processor emulates. It uses the processor's cores, so it adds nothing to `cpu`: it is for
    /// tests.
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

/// The API through which a device is driven.
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

/// The properties of a device. `None` means that nothing on this machine reports the property.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// Its id on this machine.
    pub id: DeviceId,
    /// The name that its vendor gave it.
    pub name: String,
    /// The kind of hardware.
    pub kind: DeviceKind,
    /// The API that drives it.
    pub api: Api,
    /// The total memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Multiprocessors of an NVIDIA GPU, compute units of an AMD one, logical cores of a processor.
    pub compute_units: Option<u32>,
    /// The PCI address, such as `0000:01:00.0`.
    pub pci: Option<String>,
    /// The driver's UUID of it, as `GPU-…` or plain hexadecimal.
    pub uuid: Option<String>,
    /// The driver's name and version.
    pub driver: String,
    /// The device that this is a partition of.
    pub part_of: Option<DeviceId>,
    /// The requested size of this partition, if it was rounded.
    pub rounded_from: Option<u32>,
    /// The host that it is on; `None` for this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

impl Description {
    /// Whether it is cores of this machine's processor, on which a program can run code of its own.
    pub fn is_local_processor(&self) -> bool {
        self.kind == DeviceKind::Cpu && self.host.is_none()
    }

    /// Whether it is cores of another machine's processor, which run only Rust code that the worker there has.
    pub fn is_remote_processor(&self) -> bool {
        self.kind == DeviceKind::Cpu && self.host.is_some()
    }

    /// Identifies the device for files that outlive the process: all properties that tell it from others, and none that
    /// changes while it stays the same.
    pub fn identity(&self) -> String {
        format!(
            "{}|{}|{}|{:?}|{:?}|{:?}|{:?}{}",
            self.api,
            self.name,
            self.driver,
            self.uuid,
            self.pci,
            self.compute_units,
            self.part_of,
            self.host.as_deref().map(|host| format!("|{host}")).unwrap_or_default()
        )
    }
}

bitflags::bitflags! {
    /// Optional features of a device's kernels and streams. A WGSL body declares the ones that it needs.
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
        /// Timestamps: the device's own clock can be read between operations.
        const TIMESTAMPS = 1 << 4;
    }
}

impl Serialize for Features {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.bits().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Features {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u32::deserialize(deserializer).map(Features::from_bits_truncate)
    }
}

/// The features and limits of an open device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Capabilities {
    /// The features of its kernels and streams.
    pub features: Features,
    /// The largest buffer, in bytes.
    pub max_buffer_bytes: u64,
    /// The largest part of a buffer that can be bound to a kernel, in bytes.
    pub max_binding_bytes: u64,
    /// Maximum number of buffers of a kernel.
    pub max_bindings: u32,
    /// Maximum bytes of a kernel's parameters.
    pub max_params_bytes: u32,
    /// Maximum size of a workgroup in each dimension.
    pub max_workgroup: [u32; 3],
    /// Maximum number of threads in a workgroup.
    pub max_workgroup_threads: u32,
    /// Maximum number of workgroups of a launch in each dimension.
    pub max_groups: [u32; 3],
    /// Maximum bytes of shared memory of a workgroup.
    pub max_shared_bytes: u32,
    /// Number of threads in a subgroup (warp), if it is fixed.
    pub subgroup_size: Option<u32>,
    /// A slice of a buffer can be bound to a kernel if its offset is a multiple of this many bytes.
    pub binding_alignment: u64,
    /// A copy must begin and end at a multiple of this many bytes, or at the buffer's end.
    pub copy_alignment: u64,
}
