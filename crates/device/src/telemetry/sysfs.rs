//! Counters of AMD's and Intel's GPUs in Linux's `/sys` tree. Other systems have no such tree.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{LazyLock, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::Telemetry;
use crate::describe::{Description, DeviceKind};

/// Counters in milliseconds are too coarse for a shorter time.
const SHORTEST_WINDOW: Duration = Duration::from_millis(20);

/// Reads a device's state from the tree under `root`.
pub(super) fn read(root: &Path, device: &Description) -> Telemetry {
    let Some(pci) = &device.pci else { return Telemetry::default() };
    let folder = root.join("bus/pci/devices").join(pci.to_lowercase());
    if !folder.is_dir() {
        return Telemetry::default();
    }
    let sensors = Sensors::of(&folder);
    let change = change(&folder, &sensors);
    let busy_percent = number(&folder.join("gpu_busy_percent")).map(|percent| percent.min(100) as f64);
    Telemetry {
        utilization: busy_percent.map(|percent| percent / 100.0).or(change.utilization),
        memory_free_bytes: memory_free(&folder, device.kind),
        temperature_celsius: sensors.temperature_celsius(),
        power_watts: sensors.power_watts().or(change.power_watts),
    }
}

/// Reads the counters whose changes are reported for the first time, if no read has.
pub(super) fn begin(root: &Path, device: &Description) {
    if let Some(pci) = &device.pci {
        let folder = root.join("bus/pci/devices").join(pci.to_lowercase());
        change(&folder, &Sensors::of(&folder));
    }
}

/// Returns the free memory, as AMD's driver reports it: the card's own memory, and for an integrated GPU also the part of
/// the machine's memory that it may use.
fn memory_free(folder: &Path, kind: DeviceKind) -> Option<u64> {
    let free = |pool: &str| {
        let of = |what: &str| number(&folder.join(format!("mem_info_{pool}_{what}")));
        of("total")?.checked_sub(of("used")?)
    };
    let own = free("vram")?;
    if kind == DeviceKind::Integrated { own.checked_add(free("gtt")?) } else { Some(own) }
}

struct Sensors {
    folder: Option<PathBuf>,
}

impl Sensors {
    fn of(folder: &Path) -> Self {
        Sensors { folder: first_folder(&folder.join("hwmon"), "hwmon") }
    }

    fn read(&self, name: &str) -> Option<u64> {
        number(&self.folder.as_ref()?.join(name))
    }

    fn temperature_celsius(&self) -> Option<f64> {
        // Intel's newer driver does not use the first number: its second sensor is the package.
        let thousandths = self.read("temp1_input").or_else(|| self.read("temp2_input"))?;
        Some(thousandths as f64 / 1e3)
    }

    fn power_watts(&self) -> Option<f64> {
        let millionths = self.read("power1_average").or_else(|| self.read("power1_input"))?;
        Some(millionths as f64 / 1e6)
    }

    fn energy_microjoules(&self) -> Option<u64> {
        self.read("energy1_input")
    }
}

/// Returns the time that an Intel GPU was asleep. `None` if its driver does not count it, or if sleeping is disabled, in
/// which case the counter never changes.
fn asleep_ms(folder: &Path) -> Option<u64> {
    let newer = folder.join("tile0/gt0/gtidle/idle_residency_ms");
    if let Some(asleep) = number(&newer) {
        return Some(asleep);
    }
    let card = first_folder(&folder.join("drm"), "card")?;
    [card.join("gt/gt0"), card.join("power")].iter().find_map(|counters| {
        let asleep = number(&counters.join("rc6_residency_ms"))?;
        (number(&counters.join("rc6_enable")) != Some(0)).then_some(asleep)
    })
}

/// Counters whose changes are reported.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Counters {
    at: Instant,
    asleep_ms: Option<u64>,
    energy_microjoules: Option<u64>,
    /// The time for which the whole card was suspended; its other counters may not count then.
    suspended_ms: Option<u64>,
}

impl Counters {
    fn read(folder: &Path, sensors: &Sensors) -> Self {
        Counters {
            asleep_ms: asleep_ms(folder),
            energy_microjoules: sensors.energy_microjoules(),
            suspended_ms: number(&folder.join("power/runtime_suspended_time")),
            at: Instant::now(),
        }
    }

    fn tells_something(&self) -> bool {
        self.asleep_ms.is_some() || self.energy_microjoules.is_some()
    }

    fn since(&self, earlier: &Counters) -> Change {
        let window = self.at.duration_since(earlier.at).as_secs_f64();
        if window <= 0.0 || self.suspended_ms != earlier.suspended_ms {
            return Change::default();
        }
        let grown =
            |now: Option<u64>, before: Option<u64>| now?.checked_sub(before?).map(|grown| grown as f64);
        let asleep = grown(self.asleep_ms, earlier.asleep_ms).map(|ms| ms / 1e3 / window);
        let energy = grown(self.energy_microjoules, earlier.energy_microjoules);
        Change {
            utilization: asleep.map(|asleep| (1.0 - asleep).clamp(0.0, 1.0)),
            power_watts: energy.map(|microjoules| microjoules / 1e6 / window),
        }
    }
}

/// The values that follow from the change of the counters.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Change {
    utilization: Option<f64>,
    power_watts: Option<f64>,
}

/// Returns the change since the last call; the first call has none.
fn change(folder: &Path, sensors: &Sensors) -> Change {
    static LAST: LazyLock<Mutex<HashMap<PathBuf, (Counters, Change)>>> = LazyLock::new(Mutex::default);
    if text(&folder.join("power/runtime_status")).as_deref() == Some("suspended") {
        // A suspended card does nothing, and reading its counters would wake it.
        return Change { utilization: Some(0.0), power_watts: None };
    }
    let now = Counters::read(folder, sensors);
    if !now.tells_something() {
        return Change::default();
    }
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let change = match last.get(folder) {
        Some(&(before, change)) if now.at.duration_since(before.at) < SHORTEST_WINDOW => return change,
        Some((before, _)) => now.since(before),
        None => Change::default(),
    };
    last.insert(folder.to_owned(), (now, change));
    change
}

/// Returns the first folder, by number, whose name is a prefix and a number.
fn first_folder(parent: &Path, prefix: &str) -> Option<PathBuf> {
    let number_of =
        |path: &PathBuf| -> Option<u32> { path.file_name()?.to_str()?.strip_prefix(prefix)?.parse().ok() };
    let entries = fs::read_dir(parent).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    entries.filter_map(|path| Some((number_of(&path)?, path))).min().map(|(_, path)| path)
}

fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Reads a non-negative integer.
fn number(path: &Path) -> Option<u64> {
    text(path)?.parse().ok()
}

#[cfg(test)]
mod test {
    use tempfile::TempDir;

    use super::*;
    use crate::fake;

    const ADDRESS: &str = "0000:03:00.0";

    /// Creates a tree with these files in the card's folder.
    fn tree(files: &[(&str, &str)]) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("bus/pci/devices").join(ADDRESS)).unwrap();
        for (name, contents) in files {
            write(&root, name, contents);
        }
        root
    }

    fn write(root: &TempDir, name: &str, contents: &str) {
        let path = root.path().join("bus/pci/devices").join(ADDRESS).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{contents}\n")).unwrap();
    }

    fn card(kind: DeviceKind) -> Description {
        Description { kind, pci: Some(ADDRESS.to_uppercase()), ..fake::description("vulkan:0") }
    }

    fn busy(asleep_ms: u64, window_ms: u64) -> Change {
        let start = Instant::now();
        let counters = |ms, asleep_ms, energy| Counters {
            at: start + Duration::from_millis(ms),
            asleep_ms: Some(asleep_ms),
            energy_microjoules: Some(energy),
            suspended_ms: None,
        };
        counters(window_ms, 1000 + asleep_ms, 30_000_000).since(&counters(0, 1000, 10_000_000))
    }

    #[test]
    fn an_amd_card_is_read_from_its_own_files() {
        let root = tree(&[
            ("gpu_busy_percent", "37"),
            ("mem_info_vram_total", "17163091968"),
            ("mem_info_vram_used", "1073741824"),
            ("mem_info_gtt_total", "100"),
            ("mem_info_gtt_used", "1"),
            ("hwmon/hwmon3/temp1_input", "51000"),
            ("hwmon/hwmon3/power1_average", "42500000"),
        ]);
        let expected = Telemetry {
            utilization: Some(0.37),
            memory_free_bytes: Some(17163091968 - 1073741824),
            temperature_celsius: Some(51.0),
            power_watts: Some(42.5),
        };
        assert_eq!(read(root.path(), &card(DeviceKind::Discrete)), expected);
        let integrated = read(root.path(), &card(DeviceKind::Integrated));
        assert_eq!(integrated.memory_free_bytes, Some(17163091968 - 1073741824 + 99));
    }

    #[test]
    fn an_intel_card_that_sleeps_is_idle_and_one_that_does_not_is_busy() {
        for counter in [
            "drm/card1/gt/gt0/rc6_residency_ms",
            "drm/card1/power/rc6_residency_ms",
            "tile0/gt0/gtidle/idle_residency_ms",
        ] {
            let root = tree(&[(counter, "5000"), ("hwmon/hwmon0/temp2_input", "44000")]);
            let first = read(root.path(), &card(DeviceKind::Discrete));
            assert_eq!(first.utilization, None, "{counter}: nothing to compare with");
            assert_eq!(first.temperature_celsius, Some(44.0));
            assert_eq!(first.memory_free_bytes, None);
            std::thread::sleep(SHORTEST_WINDOW);
            assert_eq!(read(root.path(), &card(DeviceKind::Discrete)).utilization, Some(1.0), "{counter}");
            std::thread::sleep(SHORTEST_WINDOW);
            write(&root, counter, "9000");
            assert_eq!(read(root.path(), &card(DeviceKind::Discrete)).utilization, Some(0.0), "{counter}");
        }
    }

    #[test]
    fn utilization_is_the_time_not_asleep() {
        assert_eq!(busy(500, 1000).utilization, Some(0.5));
        assert_eq!(busy(0, 1000), Change { utilization: Some(1.0), power_watts: Some(20.0) });
        assert_eq!(busy(101, 100).utilization, Some(0.0));
    }

    #[test]
    fn a_disabled_counter_is_ignored() {
        let root = tree(&[("drm/card0/power/rc6_residency_ms", "0"), ("drm/card0/power/rc6_enable", "0")]);
        assert_eq!(read(root.path(), &card(DeviceKind::Integrated)).utilization, None);
    }

    #[test]
    fn a_suspended_card_is_idle() {
        let root = tree(&[("power/runtime_status", "suspended"), ("drm/card0/gt/gt0/rc6_residency_ms", "7")]);
        assert_eq!(read(root.path(), &card(DeviceKind::Discrete)).utilization, Some(0.0));
    }

    #[test]
    fn suspended_time_does_not_count_as_busy() {
        let start = Instant::now();
        let before =
            Counters { at: start, asleep_ms: Some(10), energy_microjoules: None, suspended_ms: Some(0) };
        let after = Counters { at: start + Duration::from_secs(1), suspended_ms: Some(900), ..before };
        assert_eq!(after.since(&before), Change::default());
    }

    #[test]
    fn invalid_and_missing_files_are_ignored() {
        let root = tree(&[("gpu_busy_percent", "high"), ("mem_info_vram_total", "5"), ("hwmon/other", "1")]);
        assert_eq!(read(root.path(), &card(DeviceKind::Discrete)), Telemetry::default());
        assert_eq!(read(Path::new("/no/such/tree"), &card(DeviceKind::Discrete)), Telemetry::default());
    }
}
