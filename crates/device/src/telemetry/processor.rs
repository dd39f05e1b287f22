//! The processor's state, from the system's counters.

use std::{
    sync::{LazyLock, Mutex, PoisonError},
    time::Instant,
};

use sysinfo::{Components, System};

use super::Telemetry;
use crate::backend;

/// The labels of sensors on the processor: Intel's, AMD's, Arm's and Apple's.
const SENSORS: [&str; 6] = ["coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "cpu"];

pub(super) fn read() -> Telemetry {
    Telemetry {
        utilization: utilization(),
        memory_free_bytes: memory_free(),
        temperature_celsius: temperature(),
        ..Telemetry::default()
    }
}

/// The machine's free memory, if the system reports it.
pub(super) fn memory_free() -> Option<u64> {
    Some(backend::cpu::memory_free()).filter(|&bytes| bytes != u64::MAX)
}

/// The counters of all cores.
#[derive(Default)]
struct Counters {
    system: Option<System>,
    read_at: Option<Instant>,
    utilization: Option<f64>,
}

impl Counters {
    /// Returns the utilization since the last read. The first read has none; soon after a read it is that of
    /// the last read, because the counters are coarse.
    fn utilization(&mut self) -> Option<f64> {
        if self.read_at.is_some_and(|at| at.elapsed() < Telemetry::UTILIZATION_WINDOW) {
            return self.utilization;
        }
        if self.system.is_none() {
            self.system = System::new().ok();
        }
        let system = self.system.as_mut()?;
        system.refresh_cpu_usage();
        if self.read_at.replace(Instant::now()).is_some() {
            let busy = f64::from(system.global_cpu_usage()) / 100.0;
            self.utilization = (!system.cpus().is_empty() && busy.is_finite()).then(|| busy.clamp(0.0, 1.0));
        }
        self.utilization
    }
}

/// The utilization of all cores since the last read.
pub(super) fn utilization() -> Option<f64> {
    static COUNTERS: LazyLock<Mutex<Counters>> = LazyLock::new(Mutex::default);
    COUNTERS.lock().unwrap_or_else(PoisonError::into_inner).utilization()
}

/// The highest temperature of the processor's sensors.
fn temperature() -> Option<f64> {
    let components = Components::new_with_refreshed_list().ok()?;
    components
        .iter()
        .filter(|component| is_on_processor(component.label()))
        .filter_map(|component| component.temperature())
        .map(f64::from)
        .filter(|celsius| celsius.is_finite())
        .reduce(f64::max)
}

fn is_on_processor(label: &str) -> bool {
    let label = label.to_lowercase();
    SENSORS.iter().any(|sensor| label.split_whitespace().next() == Some(sensor))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_first_read_waits_for_nothing_and_the_second_has_a_utilization() {
        let mut counters = Counters::default();
        assert_eq!(counters.utilization(), None);
        assert_eq!(counters.utilization(), None, "too soon");
        std::thread::sleep(Telemetry::UTILIZATION_WINDOW);
        let busy = counters.utilization();
        assert!(busy.is_some_and(|busy| (0.0..=1.0).contains(&busy)), "{busy:?}");
        assert_eq!(counters.utilization(), busy, "soon after it, the same");
    }

    #[test]
    fn the_machine_reports_its_free_memory() {
        assert!(read().memory_free_bytes.is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn only_the_processors_own_sensors_count() {
        assert!(is_on_processor("coretemp Package id 0"));
        assert!(is_on_processor("k10temp Tctl"));
        assert!(!is_on_processor("nvme Composite"));
        assert!(!is_on_processor("amdgpu edge"));
    }
}
