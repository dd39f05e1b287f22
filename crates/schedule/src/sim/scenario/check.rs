//! The ranges of a scenario's numbers.

use std::{collections::HashSet, ops::RangeInclusive};

use super::{Cost, DeviceSpec, EventKind, LinkSpec, Scenario, ScenarioEvent};

const ITEMS: u64 = 1_000_000_000;
/// Each takes eight bytes of memory.
const ITEMS_OF_UNEQUAL_COST: u64 = 100_000_000;
/// Together with `ITEMS`, the bytes of all items still fit a `u64`.
const BYTES_PER_ITEM: u64 = 1_000_000_000;
const DEVICES: u64 = 100_000;
const EVENTS: usize = 100_000;
const DEPTH: u64 = 1000;
/// Each of many devices has a copy of its name.
const ID_BYTES: usize = 100;
const EXPONENT: RangeInclusive<f64> = 1.01..=1000.0;
const PART: RangeInclusive<f64> = 0.0..=1.0;
const COST_FACTOR: RangeInclusive<f64> = 1.0..=1e9;
const RATE: RangeInclusive<f64> = 1e-6..=1e15;
/// At the slowest, the bytes of all items take 1e15 s, of 1.8e19 s that a `Duration` holds.
const COPY_BYTES_PER_S: RangeInclusive<f64> = 1e3..=1e15;
const LAUNCH_S: RangeInclusive<f64> = 0.0..=1e6;
const LINK_DELAY_S: RangeInclusive<f64> = 0.0..=1e3;
const JITTER: RangeInclusive<f64> = 0.0..=0.99;
const UTILIZATION: RangeInclusive<f64> = 0.0..=1.0;
const AT_S: RangeInclusive<f64> = 0.0..=1e9;
const FACTOR: RangeInclusive<f64> = 1e-6..=1e6;

impl Scenario {
    /// Checks that every number is within its range, that no two devices share a name, and that each event names a device of
    /// the scenario. [`Scenario::from_toml`] does so too.
    ///
    /// The error names the first key that is wrong, its value and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        match self.cost {
            Cost::Constant => whole("", "items", self.items, 1, ITEMS)?,
            _ => whole("with costs that are not constant, ", "items", self.items, 1, ITEMS_OF_UNEQUAL_COST)?,
        }
        match self.cost {
            Cost::HeavyTail { exponent } => number("cost: ", "exponent", exponent, EXPONENT)?,
            Cost::Clustered { part, factor, at } => {
                number("cost: ", "part", part, PART)?;
                number("cost: ", "factor", factor, COST_FACTOR)?;
                number("cost: ", "at", at, PART)?;
            }
            Cost::Constant | Cost::Uniform | Cost::Ascending | Cost::Descending => {}
        }
        whole("", "bytes_per_item", self.bytes_per_item, 0, BYTES_PER_ITEM)?;
        if let Some(items) = self.max_items {
            whole("", "max_items", items, 1, u64::MAX)?;
        }
        for (index, device) in self.devices.iter().enumerate() {
            device.check(index + 1)?;
        }
        let count = self.devices.iter().fold(0u64, |sum, device| sum.saturating_add(device.count as u64));
        if !(1..=DEVICES).contains(&count) {
            return Err(format!("`device`: there are {count} devices; allowed is 1 to {DEVICES}"));
        }
        let mut names = HashSet::new();
        for name in self.names() {
            if let Some(name) = names.replace(name) {
                return Err(format!(
                    "`device`: two devices are called `{name}`; each needs an `id` of its own (several of a kind are \
                     called `id-0`, `id-1` and so on)"
                ));
            }
        }
        if self.events.len() > EVENTS {
            return Err(format!("`event`: there are {} events; allowed is 0 to {EVENTS}", self.events.len()));
        }
        for (index, event) in self.events.iter().enumerate() {
            event.check(index + 1)?;
            if !names.contains(&event.device) {
                return Err(format!(
                    "event {}: `device` is `{}`; there is no such device",
                    index + 1,
                    event.device
                ));
            }
        }
        Ok(())
    }
}

impl DeviceSpec {
    fn check(&self, position: usize) -> Result<(), String> {
        let device = &format!("device {position}: ");
        let is_printable = !self.id.chars().any(char::is_control);
        if !(1..=ID_BYTES).contains(&self.id.len()) || !is_printable {
            let allowed = format!("1 to {ID_BYTES} bytes without control characters");
            return Err(format!("{device}`id` is {:?}; allowed is {allowed}", self.id));
        }
        let device = &format!("device {position}, `{}`: ", self.id);
        whole(device, "count", self.count as u64, 1, DEVICES)?;
        number(device, "rate", self.rate, RATE)?;
        if let Some(most) = self.rate_up_to {
            number(device, "rate_up_to", most, self.rate..=*RATE.end())?;
        }
        number(device, "utilization", self.utilization, UTILIZATION)?;
        number(device, "launch_s", self.launch_s, LAUNCH_S)?;
        if let Some(rate) = self.copy_bytes_per_s {
            number(device, "copy_bytes_per_s", rate, COPY_BYTES_PER_S)?;
        }
        if let Some(LinkSpec { delay_s, bytes_per_s }) = self.link {
            let link = &format!("{device}link: ");
            number(link, "delay_s", delay_s, LINK_DELAY_S)?;
            number(link, "bytes_per_s", bytes_per_s, COPY_BYTES_PER_S)?;
        }
        number(device, "jitter", self.jitter, JITTER)?;
        if let Some(items) = self.memory_items {
            whole(device, "memory_items", items, 1, u64::MAX)?;
        }
        whole(device, "depth", self.depth as u64, 1, DEPTH)
    }
}

impl ScenarioEvent {
    fn check(&self, position: usize) -> Result<(), String> {
        let event = &format!("event {position}: ");
        number(event, "at_s", self.at_s, AT_S)?;
        match self.kind {
            EventKind::Slow { factor } => number(event, "factor", factor, FACTOR),
            EventKind::LoseMemory { items } => whole(event, "items", items, 1, u64::MAX),
            EventKind::Hang | EventKind::Die | EventKind::Return => Ok(()),
        }
    }
}

fn number(prefix: &str, key: &str, value: f64, allowed: RangeInclusive<f64>) -> Result<(), String> {
    // False for NaN too.
    if allowed.contains(&value) {
        return Ok(());
    }
    let [value, least, most] = [value, *allowed.start(), *allowed.end()].map(formatted);
    Err(format!("{prefix}`{key}` is {value}; allowed is {least} to {most}"))
}

/// Formats very small and very large numbers as powers of ten.
fn formatted(number: f64) -> String {
    let is_short = number == 0.0 || (1e-3..1e6).contains(&number.abs());
    if is_short { number.to_string() } else { format!("{number:e}") }
}

fn whole(prefix: &str, key: &str, value: u64, least: u64, most: u64) -> Result<(), String> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let allowed = if most == u64::MAX { format!("{least} or more") } else { format!("{least} to {most}") };
    Err(format!("{prefix}`{key}` is {value}; allowed is {allowed}"))
}
