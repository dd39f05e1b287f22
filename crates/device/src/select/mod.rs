//! Which devices to use, in words: `gpu,-cuda:1,cpu[8,8]`.

mod name;
mod parse;

use self::{
    name::{Breadth, Meaning},
    parse::Term,
};
use crate::{
    describe::{DeviceId, DeviceKind},
    device::Device,
    discover::{Inventory, repeats, same_hardware},
    error::{Error, Result},
};

/// The variable that holds a selection for whoever gives none.
pub const DEVICES_VARIABLE: &str = "EVENER_DEVICES";

/// The selection in `EVENER_DEVICES`, where it is set and not blank.
pub fn selection_from_environment() -> Option<String> {
    let selection = std::env::var_os(DEVICES_VARIABLE)?.to_string_lossy().into_owned();
    Some(selection).filter(|selection| !selection.trim().is_empty())
}

impl Inventory {
    /// The devices that a selection stands for, in the order asked for, each once.
    ///
    /// A selection is a list of terms, separated by commas and applied from left to right:
    ///
    /// | term | stands for |
    /// | --- | --- |
    /// | `cuda:0`, `vulkan:1`, `cpu` | the device with that id |
    /// | `cuda`, `vulkan`, `metal`, `dx12`, `gl` | every device that this API shows |
    /// | `gpu`, `software`, `all` | every GPU, every software device, every device |
    /// | `01:00.0`, `0000:01:00.0` | the device at that PCI address |
    /// | `GPU-12345678…`, `12345678…` | the device with that UUID, or with the only one that begins so |
    /// | `h200` | every device whose name contains this, in small or capital letters |
    /// | `cuda:0[40,92]`, `cpu[8,8]` | that device split into partitions of so many compute units |
    /// | `-…` | leaves out what the rest stands for |
    ///
    /// A selection that begins with leaving something out starts from the default devices.
    ///
    /// No hardware is ever used twice. A group means whatever of it is not there yet, and a term that names a
    /// device wins over a group that contains it: `all,cuda:0[40,92]` is everything, with `cuda:0` in two parts,
    /// and `all,vulkan:0` is everything, with that card through Vulkan. Where two terms *name* the same
    /// hardware, that is an error, because nobody can mean it.
    ///
    /// Fails with [`Error::Selection`] where a term cannot be read or matches nothing, where nothing is left,
    /// and where the same hardware would be used twice; and with [`Error::Split`] where a device cannot be
    /// split as asked.
    pub fn select(&self, selection: &str) -> Result<Vec<Device>> {
        let terms = parse::parse(selection)
            .map_err(|malformed| self.refuse_selection(&malformed.term, malformed.detail))?;
        let mut choice = Choice { inventory: self, partitions: Vec::new(), chosen: Vec::new() };
        if terms.first().is_some_and(|term| term.leaves_out) {
            choice.chosen.extend(self.default_devices().into_iter().map(Chosen::by_group));
        }
        for term in &terms {
            choice.apply(term)?;
        }
        choice.finish(selection)
    }

    /// The devices that a selection stands for: the one given, or else the one in `EVENER_DEVICES`, or else
    /// the default devices. Fails as [`select`](Inventory::select) does.
    pub fn select_or_default(&self, selection: Option<&str>) -> Result<Vec<Device>> {
        match selection.map(str::to_owned).or_else(selection_from_environment) {
            Some(selection) => self.select(&selection),
            None => Ok(self.default_devices()),
        }
    }

    /// Every device except software ones, which share the processor's cores with `cpu`; those too where
    /// there is nothing else.
    pub fn default_devices(&self) -> Vec<Device> {
        let preferred = self.preferred();
        let hardware: Vec<Device> = preferred
            .iter()
            .filter(|device| device.describe().kind != DeviceKind::Software)
            .cloned()
            .collect();
        if hardware.is_empty() { preferred } else { hardware }
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

/// How a device came to be chosen, which decides what may replace it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// As one of a group: a term that names the same hardware replaces it.
    Group,
    /// As a partition: only a split of itself replaces it.
    Partition,
    /// By name: nothing replaces it.
    Named,
}

#[derive(Debug)]
struct Chosen {
    device: Device,
    standing: Standing,
}

impl Chosen {
    fn by_group(device: Device) -> Self {
        Chosen { device, standing: Standing::Group }
    }
}

/// A selection while it is being made.
struct Choice<'a> {
    inventory: &'a Inventory,
    /// Every partition that was made, chosen or not.
    partitions: Vec<Device>,
    chosen: Vec<Chosen>,
}

impl Choice<'_> {
    fn apply(&mut self, term: &Term<'_>) -> Result<()> {
        let meaning = Meaning::of(term.name, self.candidates());
        let matches: Vec<Device> =
            self.candidates().filter(|device| meaning.matches(device.describe())).cloned().collect();
        if term.leaves_out {
            return self.leave_out(term, &meaning, &matches);
        }
        let found = self.preferred_of(&meaning, matches);
        if found.is_empty() {
            return Err(self.inventory.refuse_selection(term.text, self.why_nothing(&meaning)));
        }
        if meaning.breadth() == Breadth::One && found.len() > 1 {
            let detail = format!("it could be {}: write more of it", ids(&found));
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

    /// What a term can be about: every view of every device, and the partitions made so far.
    fn candidates(&self) -> impl Iterator<Item = &Device> + Clone {
        self.inventory.views().chain(&self.partitions)
    }

    /// Of several views of the same hardware, the preferred one; all of them where the term says which API
    /// it wants. Partitions are only meant where they are named.
    fn preferred_of(&self, meaning: &Meaning, mut matches: Vec<Device>) -> Vec<Device> {
        if !matches!(meaning, Meaning::Id(_)) {
            matches.retain(|device| !self.partitions.iter().any(|partition| partition.id() == device.id()));
        }
        if matches!(meaning, Meaning::Id(_) | Meaning::Api(_)) {
            // Preferred views come first among the candidates; a list of one API reads best by number.
            matches.sort_by_key(|device| (device.id().as_str().len(), device.id().clone()));
            return matches;
        }
        let mut repeated = repeats(matches.iter()).into_iter();
        matches.retain(|_| !repeated.next().unwrap_or(false));
        matches
    }

    fn why_nothing(&self, meaning: &Meaning) -> String {
        match meaning {
            Meaning::Name(name) => match name.split_once('/') {
                Some((whole, _)) if self.candidates().any(|device| device.id().as_str() == whole) => {
                    format!("a partition exists once its device is split, as in `{whole}[…]`")
                }
                _ => "no id, API, group, address, UUID or name here is like this".into(),
            },
            Meaning::Group(_) => "this machine has none".into(),
            Meaning::Api(_) => "no device here is driven through it".into(),
            _ => "nothing here has it".into(),
        }
    }

    /// Groups and APIs that are not there are left out already; anything else may be a slip of the pen.
    fn leave_out(&mut self, term: &Term<'_>, meaning: &Meaning, matches: &[Device]) -> Result<()> {
        let is_certain = matches!(meaning, Meaning::Group(_) | Meaning::Api(_));
        if matches.is_empty() && !is_certain {
            return Err(self.inventory.refuse_selection(term.text, self.why_nothing(meaning)));
        }
        let mut chosen = std::mem::take(&mut self.chosen);
        chosen.retain(|chosen| !matches.iter().any(|left_out| self.is_within(&chosen.device, left_out.id())));
        self.chosen = chosen;
        Ok(())
    }

    fn add(&mut self, device: Device, breadth: Breadth) {
        let named = breadth == Breadth::One;
        let standing = if named { Standing::Named } else { Standing::Group };
        if let Some(same) = self.chosen.iter_mut().find(|chosen| chosen.device.id() == device.id()) {
            if named {
                same.standing = Standing::Named;
            }
            return;
        }
        let rivals: Vec<usize> = self.rivals(&device);
        match breadth {
            // Two APIs that were asked for by name and show the same card are left for the final check.
            Breadth::Api if rivals.iter().any(|&index| self.is_related(index, &device)) => {}
            Breadth::Many if !rivals.is_empty() => {}
            Breadth::Api | Breadth::Many => self.chosen.push(Chosen { device, standing }),
            Breadth::One => {
                let may_replace = |chosen: &Chosen| chosen.standing == Standing::Group;
                self.replace(may_replace, &device.clone(), vec![Chosen { device, standing }]);
            }
        }
    }

    fn add_split(&mut self, term: &Term<'_>, found: &[Device], sizes: &[u32]) -> Result<()> {
        let [whole] = found else {
            let detail = format!("one device at a time can be split, and this is {}", ids(found));
            return Err(self.inventory.refuse_selection(term.text, detail));
        };
        if self.partitions.iter().any(|partition| partition.describe().part_of.as_ref() == Some(whole.id())) {
            let detail = format!("{} is split already", whole.id());
            return Err(self.inventory.refuse_selection(term.text, detail));
        }
        let partitions = whole.split(sizes)?;
        self.partitions.extend(partitions.iter().cloned());
        let chosen =
            partitions.into_iter().map(|device| Chosen { device, standing: Standing::Partition }).collect();
        let may_replace = |chosen: &Chosen| match chosen.standing {
            Standing::Group => true,
            Standing::Partition => chosen.device.id() == whole.id(),
            Standing::Named => false,
        };
        self.replace(may_replace, whole, chosen);
        Ok(())
    }

    /// Puts devices in the place of what may be replaced of the same hardware, or at the end. What may not be
    /// replaced stays, for the final check.
    fn replace(&mut self, may_replace: impl Fn(&Chosen) -> bool, hardware: &Device, by: Vec<Chosen>) {
        let gone: Vec<usize> =
            self.rivals(hardware).into_iter().filter(|&index| may_replace(&self.chosen[index])).collect();
        let place = gone.first().copied().unwrap_or(self.chosen.len());
        for &index in gone.iter().rev() {
            self.chosen.remove(index);
        }
        self.chosen.splice(place..place, by);
    }

    /// Where in the choice the same hardware is, whole or in part, through this API or another.
    fn rivals(&self, device: &Device) -> Vec<usize> {
        (0..self.chosen.len()).filter(|&index| self.is_same(&self.chosen[index].device, device)).collect()
    }

    fn is_same(&self, a: &Device, b: &Device) -> bool {
        let (whole_a, whole_b) = (self.whole(a), self.whole(b));
        self.is_within(a, b.id())
            || self.is_within(b, a.id())
            || same_hardware(whole_a.describe(), whole_b.describe())
    }

    /// Whether a chosen device is part of this one, or this one part of it.
    fn is_related(&self, index: usize, device: &Device) -> bool {
        let chosen = &self.chosen[index].device;
        self.is_within(chosen, device.id()) || self.is_within(device, chosen.id())
    }

    /// Whether a device is this one or, through however many splits, part of it.
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
        for (index, Chosen { device, .. }) in self.chosen.iter().enumerate() {
            if let Some(&first) = self.rivals(device).first()
                && first < index
            {
                let first = self.chosen[first].device.id();
                let detail = format!("{first} and {} are the same hardware: leave one out", device.id());
                return Err(self.inventory.refuse_selection(selection, detail));
            }
        }
        if self.chosen.is_empty() {
            return Err(self.inventory.refuse_selection(selection, "nothing is left"));
        }
        Ok(self.chosen.into_iter().map(|chosen| chosen.device).collect())
    }
}

fn ids(devices: &[Device]) -> String {
    devices.iter().map(|device| device.id().as_str()).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod test;
