//! Discovery: queries every back end, and merges the views of one physical GPU into one device.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    affinity::unbound,
    backend::{self, Source},
    describe::{Api, Description, DeviceKind},
    device::Device,
    remote::RemoteHost,
};

/// A back end or device that is not available, and why. One line for the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absent {
    /// The back end: `cuda`, `vulkan` and so on.
    pub back_end: String,
    /// Why it is not available.
    pub reason: String,
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.back_end, self.reason)
    }
}

/// The devices that one back end found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) sources: Vec<Arc<dyn Source>>,
    pub(crate) absent: Vec<Absent>,
}

impl Found {
    pub(crate) fn nothing(back_end: &str, reason: impl Into<String>) -> Self {
        let absent = Absent { back_end: back_end.into(), reason: reason.into() };
        Found { sources: Vec::new(), absent: vec![absent] }
    }
}

/// The devices of this machine, and why others are absent.
#[derive(Debug)]
pub struct Inventory {
    devices: Vec<Device>,
    /// Other views of the same hardware: the same GPUs through other APIs. They are not listed, but can be selected.
    hidden: Vec<Device>,
    absent: Vec<Absent>,
    /// Hosts whose devices are selected only by terms that name the host.
    named_only: Vec<String>,
}

impl Inventory {
    /// Finds every device, each physical GPU once: through CUDA if CUDA can compile kernels for it, and otherwise through
    /// the first API that lists it.
    pub fn discover() -> Self {
        let Inventory { devices, absent, .. } = Self::discover_all_apis();
        Self::each_once(devices, absent)
    }

    #[cfg(test)]
    pub(crate) fn from_parts(devices: Vec<Device>, hidden: Vec<Device>) -> Self {
        Inventory { devices, hidden, absent: Vec::new(), named_only: Vec::new() }
    }

    /// Makes a host one whose devices are selected by terms that name it only.
    #[cfg(test)]
    pub(crate) fn with_named_only(mut self, host: &str) -> Self {
        self.named_only.push(host.into());
        self
    }

    /// Keeps the first view of each physical device and hides the others.
    pub(crate) fn each_once(views: Vec<Device>, absent: Vec<Absent>) -> Self {
        let mut repeated = repeats(views.iter()).into_iter();
        let (hidden, devices) = views.into_iter().partition(|_| repeated.next().unwrap_or(false));
        Inventory { devices, hidden, absent, named_only: Vec::new() }
    }

    /// Finds every device, a physical GPU once for each API that lists it.
    pub fn discover_all_apis() -> Self {
        let cuda = backend::cuda::find();
        // Drivers start threads, too.
        let wgpu = unbound(backend::wgpu::find);
        let sources = in_order_of_preference(cuda.sources, wgpu.sources, backend::cuda::compiles_kernels);
        let mut devices: Vec<Device> = sources.into_iter().map(Device::from_source).collect();
        devices.push(Device::cpu());
        Inventory {
            devices,
            hidden: Vec::new(),
            absent: cuda.absent.into_iter().chain(wgpu.absent).collect(),
            named_only: Vec::new(),
        }
    }

    /// The devices, in order of preference: CUDA if it can compile kernels, then the other APIs, then the processor.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Every view of every device, the preferred ones first.
    pub(crate) fn views(&self) -> impl Iterator<Item = &Device> + Clone {
        self.devices.iter().chain(&self.hidden)
    }

    /// Adds the devices of another machine, behind those that are there, and what it lacks.
    pub fn add_host(&mut self, host: &RemoteHost) {
        let devices = std::mem::take(&mut self.devices);
        let views = devices.into_iter().chain(host.devices().iter().cloned()).collect();
        let added = Self::each_once(views, Vec::new());
        self.devices = added.devices;
        self.hidden.extend(added.hidden);
        let named = |absent: &Absent| Absent {
            back_end: format!("{}/{}", host.name(), absent.back_end),
            reason: absent.reason.clone(),
        };
        self.absent.extend(host.absent().iter().map(named));
    }

    /// Adds the devices of another machine as [`add_host`](Inventory::add_host) does, but for selections that name the
    /// host only: `gpu-box/gpu` selects them, and `gpu` and `all` do not.
    pub fn add_named_host(&mut self, host: &RemoteHost) {
        self.add_host(host);
        self.named_only.push(host.name().to_owned());
    }

    /// Whether only terms that name the device's host select it.
    pub(crate) fn needs_its_host(&self, device: &Device) -> bool {
        let host = device.describe().host.as_ref();
        host.is_some_and(|host| self.named_only.contains(host))
    }

    /// Adds a line about a back end, device or machine that is not available.
    pub fn add_absent(&mut self, absent: Absent) {
        self.absent.push(absent);
    }

    /// The back ends and devices that are not available.
    pub fn absent(&self) -> &[Absent] {
        &self.absent
    }
}

/// For each view, whether an earlier one is of the same hardware.
pub(crate) fn repeats<'a>(views: impl Iterator<Item = &'a Device> + Clone) -> Vec<bool> {
    let earlier = views.clone();
    let is_repeat = |(index, view): (usize, &Device)| {
        earlier.clone().take(index).any(|other| same_hardware(other.describe(), view.describe()))
    };
    views.enumerate().map(is_repeat).collect()
}

/// Puts CUDA first, or last if it has no compiler.
fn in_order_of_preference<S>(cuda: Vec<S>, others: Vec<S>, cuda_compiles: impl FnOnce() -> bool) -> Vec<S> {
    let cuda_first = cuda.is_empty() || cuda_compiles();
    let (mut first, second) = if cuda_first { (cuda, others) } else { (others, cuda) };
    first.extend(second);
    first
}

/// Whether two descriptions are of one physical device through two APIs. Two devices of one API are never the same:
/// identical cards are two devices. PCI addresses and names mean something on one machine only.
pub(crate) fn same_hardware(a: &Description, b: &Description) -> bool {
    if a.api == b.api || a.host != b.host {
        return false;
    }
    if let (Some(a), Some(b)) = (&a.uuid, &b.uuid)
        && plain_uuid(a) == plain_uuid(b)
    {
        return true;
    }
    if let (Some(a), Some(b)) = (&a.pci, &b.pci) {
        return a.eq_ignore_ascii_case(b);
    }
    // OpenGL reports neither address nor UUID, only a name that contains the other API's name of the card.
    let by_name = a.api == Api::Gl || b.api == Api::Gl;
    by_name
        && a.kind != DeviceKind::Cpu
        && b.kind != DeviceKind::Cpu
        && (a.name.contains(&b.name) || b.name.contains(&a.name))
}

/// Returns the lower-case hexadecimal digits of a UUID.
pub(crate) fn plain_uuid(uuid: &str) -> String {
    uuid.trim_start_matches("GPU-").chars().filter(char::is_ascii_hexdigit).collect::<String>().to_lowercase()
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::fake;

    fn card(id: &str, api: Api, name: &str, pci: Option<&str>, uuid: Option<&str>) -> Description {
        Description {
            name: name.into(),
            api,
            pci: pci.map(Into::into),
            uuid: uuid.map(Into::into),
            ..fake::description(id)
        }
    }

    #[test]
    fn one_card_through_two_apis_is_one_device() {
        let cuda = card("cuda:0", Api::Cuda, "NVIDIA H200", Some("0000:01:00.0"), Some("GPU-00AA-bb"));
        let vulkan = card("vulkan:0", Api::Vulkan, "NVIDIA H200", Some("0000:01:00.0"), None);
        let by_uuid = card("vulkan:1", Api::Vulkan, "NVIDIA H200", None, Some("00aabb"));
        let gl = card("gl:0", Api::Gl, "NVIDIA H200/PCIe/SSE2", None, None);
        for other in [&vulkan, &by_uuid, &gl] {
            assert!(same_hardware(&cuda, other), "{other:?}");
            assert!(same_hardware(other, &cuda), "{other:?}");
        }
    }

    #[test]
    fn two_identical_cards_are_two_devices() {
        let first = card("cuda:0", Api::Cuda, "NVIDIA H200", Some("0000:01:00.0"), None);
        let second = card("cuda:1", Api::Cuda, "NVIDIA H200", Some("0000:02:00.0"), None);
        let through_vulkan = card("vulkan:1", Api::Vulkan, "NVIDIA H200", Some("0000:02:00.0"), None);
        assert!(!same_hardware(&first, &second));
        assert!(!same_hardware(&first, &through_vulkan));
        assert!(same_hardware(&second, &through_vulkan));
    }

    #[test]
    fn of_two_views_the_first_is_kept_and_the_other_hidden() {
        let cuda = card("cuda:0", Api::Cuda, "NVIDIA H200", Some("0000:01:00.0"), None);
        let vulkan = card("vulkan:0", Api::Vulkan, "NVIDIA H200", Some("0000:01:00.0"), None);
        let other = card("vulkan:1", Api::Vulkan, "Radeon", Some("0000:02:00.0"), None);
        let views = [cuda, vulkan, other].map(fake::device).to_vec();
        let inventory = Inventory::each_once(views, Vec::new());
        let ids = |devices: &[Device]| devices.iter().map(|d| d.id().to_string()).collect::<Vec<_>>();
        assert_eq!(ids(inventory.devices()), ["cuda:0", "vulkan:1"]);
        assert_eq!(ids(&inventory.hidden), ["vulkan:0"]);
    }

    #[test]
    fn without_a_compiler_cuda_comes_after_the_apis_that_have_one() {
        let order = |compiles| in_order_of_preference(vec!["cuda:0"], vec!["vulkan:0"], || compiles);
        assert_eq!(order(true), ["cuda:0", "vulkan:0"]);
        assert_eq!(order(false), ["vulkan:0", "cuda:0"]);
        let asked = || panic!("a machine without cards is not searched for a compiler");
        assert_eq!(in_order_of_preference(vec![], vec!["vulkan:0"], asked), ["vulkan:0"]);
    }

    #[test]
    fn every_machine_has_its_processor() {
        let inventory = Inventory::discover();
        assert!(inventory.devices().iter().any(|device| device.id().as_str() == "cpu"));
    }
}
