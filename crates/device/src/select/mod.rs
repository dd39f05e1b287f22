//! Selections of devices as text: `gpu,-cuda:1,cpu[8,8]`.

mod name;
mod parse;

pub use self::name::is_device as is_device_name;
use self::{
    name::{Breadth, TermKind},
    parse::Term,
};
use crate::{
    describe::{DeviceId, DeviceKind},
    device::Device,
    discover::{Inventory, repeats, same_hardware},
    error::{Error, Result},
};

/// The environment variable with the selection for programs that are given none.
pub const DEVICES_VARIABLE: &str = "EVENER_DEVICES";

/// Returns the selection in `EVENER_DEVICES`, if it is set and not blank.
pub fn selection_from_environment() -> Option<String> {
    let selection = std::env::var_os(DEVICES_VARIABLE)?.to_string_lossy().into_owned();
    Some(selection).filter(|selection| !selection.trim().is_empty())
}

impl Inventory {
    /// Returns the devices of a selection, in the order of its terms, each once.
    ///
    /// A selection is a list of terms, separated by commas and applied from left to right:
    ///
    /// | term | meaning |
    /// | --- | --- |
    /// | `cuda:0`, `vulkan:1`, `cpu` | the device with that id |
    /// | `cuda`, `vulkan`, `metal`, `dx12`, `gl` | every device of this API |
    /// | `gpu`, `software`, `all` | every GPU, every software device, every device |
    /// | `01:00.0`, `0000:01:00.0` | the device at that PCI address |
    /// | `GPU-12345678…`, `12345678…` | the device with this UUID, or with the only UUID that begins like this |
    /// | `h200` | every device whose name contains this, in lower or upper case |
    /// | `cuda:0[40,92]`, `cpu[8,8]` | this device, split into partitions of these many compute units |
    /// | `gpu-box/cuda:0`, `gpu-box/gpu`, `lab3/cpu[8]` | the same of the devices of another host |
    /// | `-…` | excludes the devices that the rest of the term means |
    ///
    /// A selection that begins with an exclusion starts from the default devices.
    ///
    /// No hardware is used twice. A group adds those of its devices that are not selected yet, and a term that names a
    /// device has priority over a group that contains it: `all,cuda:0[40,92]` is everything, with `cuda:0` in two
    /// partitions, and `all,vulkan:0` is everything, with that card through Vulkan. Two terms that *name* the same
    /// hardware are an error.
    ///
    /// Fails with [`Error::Selection`] if a term cannot be parsed or matches no device, if no device is left, or if the
    /// same hardware would be used twice; and with [`Error::Split`] if a device cannot be split into these sizes.
    pub fn select(&self, selection: &str) -> Result<Vec<Device>> {
        let terms = parse::parse(selection)
            .map_err(|malformed| self.refuse_selection(&malformed.term, malformed.detail))?;
        let mut result = Selection { inventory: self, partitions: Vec::new(), selected: Vec::new() };
        if terms.first().is_some_and(|term| term.excludes) {
            result.selected.extend(self.default_devices().into_iter().map(Selected::by_group));
        }
        for term in &terms {
            result.apply(term)?;
        }
        result.finish(selection)
    }

    /// Returns the devices of the given selection, or else of the one in `EVENER_DEVICES`, or else the default devices.
    /// Fails as [`select`](Inventory::select) does.
    pub fn select_or_default(&self, selection: Option<&str>) -> Result<Vec<Device>> {
        match selection.map(str::to_owned).or_else(selection_from_environment) {
            Some(selection) => self.select(&selection),
            None => Ok(self.default_devices()),
        }
    }

    /// Every device except software ones, which use the processor's cores as `cpu` does; software devices too if there is
    /// no other.
    pub fn default_devices(&self) -> Vec<Device> {
        let mut preferred = self.preferred();
        preferred.retain(|device| !self.needs_its_host(device));
        let is_hardware = |device: &&Device| device.describe().kind != DeviceKind::Software;
        let hardware: Vec<Device> = preferred.iter().filter(is_hardware).cloned().collect();
        if hardware.is_empty() { preferred } else { hardware }
    }

    /// Returns the hosts that a selection names and that have no device in this inventory: `gpu-box` for `gpu-box/gpu`.
    /// What is before a slash is a host if `is_host` says so, or if what follows is an id, an API or a group.
    ///
    /// Fails with [`Error::Selection`] if a term cannot be parsed.
    pub fn hosts_in(&self, selection: &str, is_host: impl Fn(&str) -> bool) -> Result<Vec<String>> {
        let terms = parse::parse(selection)
            .map_err(|malformed| self.refuse_selection(&malformed.term, malformed.detail))?;
        let mut hosts: Vec<String> = Vec::new();
        for (host, rest) in terms.iter().filter_map(|term| term.name.split_once('/')) {
            let is_here = |device: &Device| {
                let it = device.describe();
                it.id.as_str().eq_ignore_ascii_case(host) || is_of_host(device, host)
            };
            let is_named = is_host(host) || (name::is_device(rest) && !name::is_device(host));
            if is_named && !self.views().any(is_here) && !hosts.iter().any(|it| it == host) {
                hosts.push(host.to_owned());
            }
        }
        Ok(hosts)
    }

    /// The preferred view of each physical device.
    fn preferred(&self) -> Vec<Device> {
        let repeated = repeats(self.views());
        self.views().zip(repeated).filter(|(_, repeated)| !repeated).map(|(view, _)| view.clone()).collect()
    }

    fn refuse_selection(&self, asked: &str, detail: impl Into<String>) -> Error {
        let preferred = self.preferred();
        let line = |view: &Device| {
            let device = view.describe();
            let line = format!("  {:<10} {} ({})", device.id, device.name, device.kind);
            match preferred.iter().find(|other| same_hardware(other.describe(), device)) {
                Some(first) if first.id() != view.id() => format!("{line}, the same as {}", first.id()),
                _ => line,
            }
        };
        let available = self.views().map(line).collect::<Vec<_>>().join("\n");
        Error::Selection { asked: asked.into(), detail: detail.into(), available }
    }
}

/// How a device was selected, which decides what may replace it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SelectedBy {
    /// As one of a group: a term that names the same hardware replaces it.
    Group,
    /// As a partition: only a split of itself replaces it.
    Partition,
    /// By name: nothing replaces it.
    Named,
}

#[derive(Debug)]
struct Selected {
    device: Device,
    selected_by: SelectedBy,
}

impl Selected {
    fn by_group(device: Device) -> Self {
        Selected { device, selected_by: SelectedBy::Group }
    }
}

/// A selection in progress.
struct Selection<'a> {
    inventory: &'a Inventory,
    /// Every partition that was made, selected or not.
    partitions: Vec<Device>,
    selected: Vec<Selected>,
}

impl Selection<'_> {
    fn apply(&mut self, term: &Term<'_>) -> Result<()> {
        let (scope, name) = self.scope(term.name);
        let candidates = || self.candidates().filter(|device| scope.contains(self.inventory, device));
        let meaning = TermKind::of(name, candidates());
        let matches: Vec<Device> =
            candidates().filter(|device| meaning.matches(device.describe())).cloned().collect();
        if term.excludes {
            return self.exclude(term, &meaning, &matches);
        }
        let found = self.preferred_of(&meaning, matches);
        if found.is_empty() {
            return Err(self.inventory.refuse_selection(term.text, self.no_match_reason(&meaning)));
        }
        if meaning.breadth() == Breadth::One && found.len() > 1 {
            let detail = format!("it could be {}: write more of the name", ids(&found));
            return Err(self.inventory.refuse_selection(term.text, detail));
        }
        match &term.sizes {
            Some(sizes) => self.add_split(term, &found, sizes),
            None => {
                for device in found {
                    self.add(device, meaning.breadth());
                }
                Ok(())
            }
        }
    }

    /// Returns the hosts that a name is about, and the name without its host.
    fn scope<'t>(&self, name: &'t str) -> (Scope<'t>, &'t str) {
        if self.candidates().any(|device| device.id().as_str().eq_ignore_ascii_case(name)) {
            return (Scope::Everywhere, name);
        }
        match name.split_once('/') {
            Some((host, rest)) if self.candidates().any(|device| is_of_host(device, host)) => {
                (Scope::Host(host), rest)
            }
            _ => (Scope::Unnamed, name),
        }
    }

    /// The devices that a term can mean: every view of every device, and the partitions made so far.
    fn candidates(&self) -> impl Iterator<Item = &Device> + Clone {
        self.inventory.views().chain(&self.partitions)
    }

    /// Returns the preferred one of several views of the same hardware, or all of them if the term names an API.
    /// Partitions match by id only.
    fn preferred_of(&self, meaning: &TermKind, mut matches: Vec<Device>) -> Vec<Device> {
        if !matches!(meaning, TermKind::Id(_)) {
            matches.retain(|device| !self.partitions.iter().any(|partition| partition.id() == device.id()));
        }
        if matches!(meaning, TermKind::Id(_) | TermKind::Api(_)) {
            // Sorted by number instead of preference, for a list of devices of one API.
            matches.sort_by_key(|device| (device.id().as_str().len(), device.id().clone()));
            return matches;
        }
        let mut repeated = repeats(matches.iter()).into_iter();
        matches.retain(|_| !repeated.next().unwrap_or(false));
        matches
    }

    fn no_match_reason(&self, meaning: &TermKind) -> String {
        match meaning {
            TermKind::Name(name) => match name.split_once('/') {
                Some((whole, _)) if self.candidates().any(|device| device.id().as_str() == whole) => {
                    format!("a partition exists only after its device is split, as in `{whole}[…]`")
                }
                _ => "it matches no id, API, group, address, UUID or device name".into(),
            },
            TermKind::Group(_) => "this machine has no such device".into(),
            TermKind::Api(_) => "no device is driven through this API".into(),
            _ => "no device has it".into(),
        }
    }

    /// Excludes devices. A group or API without devices is accepted; any other name without a match may be a typing
    /// error.
    fn exclude(&mut self, term: &Term<'_>, meaning: &TermKind, matches: &[Device]) -> Result<()> {
        let is_certain = matches!(meaning, TermKind::Group(_) | TermKind::Api(_));
        if matches.is_empty() && !is_certain {
            return Err(self.inventory.refuse_selection(term.text, self.no_match_reason(meaning)));
        }
        let mut selected = std::mem::take(&mut self.selected);
        selected.retain(|selected| {
            !matches.iter().any(|excluded| self.is_within(&selected.device, excluded.id()))
        });
        self.selected = selected;
        Ok(())
    }

    fn add(&mut self, device: Device, breadth: Breadth) {
        let named = breadth == Breadth::One;
        let selected_by = if named { SelectedBy::Named } else { SelectedBy::Group };
        if let Some(same) = self.selected.iter_mut().find(|selected| selected.device.id() == device.id()) {
            if named {
                same.selected_by = SelectedBy::Named;
            }
            return;
        }
        let conflicts: Vec<usize> = self.conflicts(&device);
        match breadth {
            // Two APIs that were named and show the same card are left for the final check.
            Breadth::Api if conflicts.iter().any(|&index| self.is_related(index, &device)) => {}
            Breadth::Many if !conflicts.is_empty() => {}
            Breadth::Api | Breadth::Many => self.selected.push(Selected { device, selected_by }),
            Breadth::One => {
                let may_replace = |selected: &Selected| selected.selected_by == SelectedBy::Group;
                self.replace(may_replace, &device.clone(), vec![Selected { device, selected_by }]);
            }
        }
    }

    fn add_split(&mut self, term: &Term<'_>, found: &[Device], sizes: &[u32]) -> Result<()> {
        let [whole] = found else {
            let detail = format!("only one device at a time can be split, and this means {}", ids(found));
            return Err(self.inventory.refuse_selection(term.text, detail));
        };
        if self.partitions.iter().any(|partition| partition.describe().part_of.as_ref() == Some(whole.id())) {
            let detail = format!("{} is already split: write all sizes in one list", whole.id());
            return Err(self.inventory.refuse_selection(term.text, detail));
        }
        let partitions = whole.split(sizes)?;
        self.partitions.extend(partitions.iter().cloned());
        let selected = partitions
            .into_iter()
            .map(|device| Selected { device, selected_by: SelectedBy::Partition })
            .collect();
        let may_replace = |selected: &Selected| match selected.selected_by {
            SelectedBy::Group => true,
            SelectedBy::Partition => selected.device.id() == whole.id(),
            SelectedBy::Named => false,
        };
        self.replace(may_replace, whole, selected);
        Ok(())
    }

    /// Inserts devices in place of those of the same hardware that may be replaced, or at the end. The others stay, for
    /// the final check.
    fn replace(&mut self, may_replace: impl Fn(&Selected) -> bool, hardware: &Device, by: Vec<Selected>) {
        let replaced: Vec<usize> = self
            .conflicts(hardware)
            .into_iter()
            .filter(|&index| may_replace(&self.selected[index]))
            .collect();
        let index = replaced.first().copied().unwrap_or(self.selected.len());
        for &index in replaced.iter().rev() {
            self.selected.remove(index);
        }
        self.selected.splice(index..index, by);
    }

    /// Returns the indices of selected devices with the same hardware, whole or in part, through any API.
    fn conflicts(&self, device: &Device) -> Vec<usize> {
        (0..self.selected.len()).filter(|&index| self.is_same(&self.selected[index].device, device)).collect()
    }

    fn is_same(&self, a: &Device, b: &Device) -> bool {
        let (whole_a, whole_b) = (self.whole(a), self.whole(b));
        self.is_within(a, b.id())
            || self.is_within(b, a.id())
            || same_hardware(whole_a.describe(), whole_b.describe())
    }

    /// Whether a selected device contains this one, or the other way round.
    fn is_related(&self, index: usize, device: &Device) -> bool {
        let selected = &self.selected[index].device;
        self.is_within(selected, device.id()) || self.is_within(device, selected.id())
    }

    /// Whether a device is `whole` or, through any number of splits, part of it.
    fn is_within(&self, device: &Device, whole: &DeviceId) -> bool {
        device.id() == whole || self.parent(device).is_some_and(|parent| self.is_within(parent, whole))
    }

    /// The physical device that this is, or is part of.
    fn whole<'b>(&'b self, device: &'b Device) -> &'b Device {
        self.parent(device).map_or(device, |parent| self.whole(parent))
    }

    fn parent(&self, device: &Device) -> Option<&Device> {
        let parent = device.describe().part_of.as_ref()?;
        self.candidates().find(|candidate| candidate.id() == parent && candidate.id() != device.id())
    }

    fn finish(self, selection: &str) -> Result<Vec<Device>> {
        for (index, Selected { device, .. }) in self.selected.iter().enumerate() {
            if let Some(&first) = self.conflicts(device).first()
                && first < index
            {
                let first = self.selected[first].device.id();
                let detail = format!("{first} and {} are the same hardware: remove one of them", device.id());
                return Err(self.inventory.refuse_selection(selection, detail));
            }
        }
        if self.selected.is_empty() {
            return Err(self.inventory.refuse_selection(selection, "it excludes every device"));
        }
        Ok(self.selected.into_iter().map(|selected| selected.device).collect())
    }
}

/// The hosts whose devices a name can mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope<'t> {
    /// This machine and every host: the name is an id.
    Everywhere,
    /// This host only.
    Host(&'t str),
    /// This machine and the hosts that need not be named.
    Unnamed,
}

impl Scope<'_> {
    fn contains(self, inventory: &Inventory, device: &Device) -> bool {
        match self {
            Scope::Everywhere => true,
            Scope::Host(host) => is_of_host(device, host),
            Scope::Unnamed => !inventory.needs_its_host(device),
        }
    }
}

fn is_of_host(device: &Device, host: &str) -> bool {
    device.describe().host.as_ref().is_some_and(|it| it.eq_ignore_ascii_case(host))
}

fn ids(devices: &[Device]) -> String {
    devices.iter().map(|device| device.id().as_str()).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod test;
