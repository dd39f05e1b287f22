//! Bandwidths between devices.

use super::error::PlacementError;
use crate::topology::Member;

/// The bandwidths between devices. By default two devices of one machine reach each other through its memory, at the
/// bandwidth of the slower one.
///
/// ```
/// use evener_device::DeviceKind;
/// use evener_mesh::{placement::Links, topology::Member};
///
/// let device = |id: &str| Member::new(id, DeviceKind::Discrete).on_machine("big").with_host_bytes_per_s(50e9);
/// let (a, b, c) = (device("a"), device("b"), device("c"));
/// let links = Links::new().between("a", "b", 450e9);
/// assert_eq!(links.bandwidth(&a, &b), Some(450e9));
/// assert_eq!(links.bandwidth(&b, &c), Some(50e9));
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Links {
    links: Vec<Link>,
}

#[derive(Debug, Clone, PartialEq)]
struct Link {
    ends: [String; 2],
    bytes_per_s: f64,
}

impl Links {
    /// Creates a table with the defaults only.
    pub fn new() -> Self {
        Links::default()
    }

    /// Sets the bytes per second between two ends: each a device (`a`, or `machine/a`) or a machine, which stands for
    /// all its devices. A machine twice means the devices within it. A link between devices takes precedence over one
    /// between a device and a machine, and that over one between machines; of equal links the last one counts.
    pub fn between(mut self, one: impl Into<String>, other: impl Into<String>, bytes_per_s: f64) -> Self {
        self.links.push(Link { ends: [one.into(), other.into()], bytes_per_s });
        self
    }

    /// Returns the bytes per second between two devices, if known.
    pub fn bandwidth(&self, one: &Member, other: &Member) -> Option<f64> {
        let closest =
            self.links.iter().filter_map(|link| Some((link.closeness(one, other)?, link.bytes_per_s)));
        if let Some((_, bytes_per_s)) = closest.max_by_key(|(closeness, _)| *closeness) {
            return Some(bytes_per_s);
        }
        if one.machine != other.machine {
            return None;
        }
        Some(one.host_bytes_per_s?.min(other.host_bytes_per_s?))
    }

    /// Checks that every end exists: an unused link is taken for a typing error.
    pub(super) fn check(&self, members: &[Member]) -> Result<(), PlacementError> {
        for Link { ends: [from, to], bytes_per_s } in &self.links {
            let is_there = |end: &String| members.iter().any(|member| closeness(end, member).is_some());
            let missing: Vec<String> = [from, to].into_iter().filter(|end| !is_there(end)).cloned().collect();
            if !missing.is_empty() {
                return Err(PlacementError::UnknownLinkEnd { from: from.clone(), to: to.clone(), missing });
            }
            if !bytes_per_s.is_finite() || *bytes_per_s <= 0.0 {
                let device = format!("the link between {from} and {to}");
                let (what, value) = ("its bandwidth", *bytes_per_s);
                return Err(PlacementError::InvalidNumber { device, what, value });
            }
        }
        Ok(())
    }
}

impl Link {
    /// Returns how specific this link is for two devices, or `None` if it does not apply.
    fn closeness(&self, one: &Member, other: &Member) -> Option<u32> {
        let [first, second] = &self.ends;
        let along = closeness(first, one).zip(closeness(second, other));
        let against = closeness(first, other).zip(closeness(second, one));
        [along, against].into_iter().flatten().map(|(a, b)| a + b).max()
    }
}

fn closeness(end: &str, member: &Member) -> Option<u32> {
    if member.id.as_str() == end || member.to_string() == end {
        Some(2)
    } else {
        (member.machine.as_deref() == Some(end)).then_some(1)
    }
}
