//! A cluster and a model described by a TOML file.

use evener_device::DeviceKind;
use serde::Deserialize;

use super::{
    links::Links,
    workload::{Layer, Workload},
};
use crate::topology::Member;

/// Devices, links and layers to plan for, each optional.
///
/// ```
/// use evener_mesh::placement::ClusterSpec;
///
/// let blueprint = ClusterSpec::from_toml(
///     r#"
///     about = "Two pairs of cards, a machine each."
///
///     [[device]]
///     id = "card"
///     count = 2
///     machine = "one"
///     rate_per_s = 20e12
///     memory_bytes = 24_000_000_000
///
///     [[device]]
///     id = "card"
///     count = 2
///     machine = "two"
///     rate_per_s = 10e12
///     memory_bytes = 12_000_000_000
///
///     [[link]]
///     between = ["one", "two"]
///     bytes_per_s = 1.2e9
///
///     [[layer]]
///     count = 24
///     cost = 50e9
///     memory_bytes = 500_000_000
///     "#,
/// )?;
/// assert_eq!(blueprint.members[3].to_string(), "two/card-1");
/// assert_eq!(blueprint.workload.unwrap().layers.len(), 24);
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterSpec {
    /// A description to display.
    pub about: String,
    /// The devices, in order.
    pub members: Vec<Member>,
    /// The bandwidths of their links.
    pub links: Links,
    /// The model, if there are layers.
    pub workload: Option<Workload>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    about: String,
    micro_batches: Option<u64>,
    #[serde(default, rename = "device")]
    devices: Vec<DeviceEntry>,
    #[serde(default, rename = "link")]
    links: Vec<LinkEntry>,
    #[serde(default, rename = "layer")]
    layers: Vec<LayerEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceEntry {
    /// If `count` is above 1, a number is appended.
    id: String,
    #[serde(default = "one")]
    count: usize,
    machine: Option<String>,
    #[serde(default = "discrete")]
    kind: DeviceKind,
    memory_bytes: Option<u64>,
    compute_units: Option<u32>,
    rate_per_s: Option<f64>,
    score: Option<f64>,
    host_bytes_per_s: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkEntry {
    between: [String; 2],
    bytes_per_s: f64,
}

/// `count` equal layers.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LayerEntry {
    #[serde(default = "one")]
    count: usize,
    cost: f64,
    #[serde(default)]
    memory_bytes: u64,
    #[serde(default)]
    tensor_bytes: u64,
    #[serde(default)]
    output_bytes: u64,
    #[serde(default)]
    gradient_bytes: u64,
}

fn one() -> usize {
    1
}

fn discrete() -> DeviceKind {
    DeviceKind::Discrete
}

/// Maximum number of devices and of layers: more are taken for a typing error.
const MAX_ENTRIES: usize = 4096;

impl ClusterSpec {
    /// Reads a cluster from TOML. The error says what is wrong and where.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|why| why.to_string())?;
        let counts = |counts: &mut dyn Iterator<Item = usize>| counts.fold(0, usize::saturating_add);
        let devices = counts(&mut file.devices.iter().map(|device| device.count));
        let layers = counts(&mut file.layers.iter().map(|layer| layer.count));
        for (what, count) in [("devices", devices), ("layers", layers)] {
            if count > MAX_ENTRIES {
                return Err(format!("{count} {what}: at most {MAX_ENTRIES} are allowed"));
            }
        }
        if file.layers.is_empty() && file.micro_batches.is_some() {
            return Err("micro_batches without layers: add a [[layer]]".into());
        }
        let links = file
            .links
            .into_iter()
            .fold(Links::new(), |links, LinkEntry { between: [one, other], bytes_per_s }| {
                links.between(one, other, bytes_per_s)
            });
        let layers: Vec<Layer> = file.layers.iter().flat_map(LayerEntry::layers).collect();
        let workload = (!file.layers.is_empty()).then(|| {
            Workload::new(layers).with_micro_batches(file.micro_batches.unwrap_or(Workload::MICRO_BATCHES))
        });
        let members = file.devices.iter().flat_map(DeviceEntry::members).collect();
        Ok(ClusterSpec { about: file.about, members, links, workload })
    }
}

impl DeviceEntry {
    fn members(&self) -> impl Iterator<Item = Member> + '_ {
        (0..self.count).map(|index| {
            let id = if self.count == 1 { self.id.clone() } else { format!("{}-{index}", self.id) };
            let mut member = Member::new(id, self.kind);
            member.machine = self.machine.clone();
            member.memory_bytes = self.memory_bytes;
            member.compute_units = self.compute_units;
            member.rate_per_s = self.rate_per_s;
            member.score = self.score;
            member.host_bytes_per_s = self.host_bytes_per_s;
            member
        })
    }
}

impl LayerEntry {
    fn layers(&self) -> impl Iterator<Item = Layer> {
        let &LayerEntry { count, cost, memory_bytes, tensor_bytes, output_bytes, gradient_bytes } = self;
        std::iter::repeat_n(Layer { cost, memory_bytes, tensor_bytes, output_bytes, gradient_bytes }, count)
    }
}
