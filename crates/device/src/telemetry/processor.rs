//! The processor's state, from the system's counters.

use std::sync::{Mutex, PoisonError};

use sysinfo::{Components, MINIMUM_CPU_UPDATE_INTERVAL, System};

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

/// The utilization of all cores since the last read; the first read waits for a moment.
fn utilization() -> Option<f64> {
    static COUNTERS: Mutex<Option<System>> = Mutex::new(None);
    let mut counters = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
    let system = match &mut *counters {
        Some(system) => system,
        empty => {
            let system = empty.insert(System::new().ok()?);
            system.refresh_cpu_usage();
            std::thread::sleep(MINIMUM_CPU_UPDATE_INTERVAL);
            system
        }
    };
    // Shortly after the last refresh this keeps the last value, because the counters are coarse.
    system.refresh_cpu_usage();
    let busy = f64::from(system.global_cpu_usage()) / 100.0;
    (!system.cpus().is_empty() && busy.is_finite()).then(|| busy.clamp(0.0, 1.0))
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
    fn the_processor_is_between_idle_and_busy() {
        for _ in 0..2 {
            let telemetry = read();
            assert!(telemetry.utilization.is_some_and(|busy| (0.0..=1.0).contains(&busy)), "{telemetry:?}");
            assert!(telemetry.memory_free_bytes.is_some_and(|bytes| bytes > 0));
        }
    }

    #[test]
    fn only_the_processors_own_sensors_count() {
        assert!(is_on_processor("coretemp Package id 0"));
        assert!(is_on_processor("k10temp Tctl"));
        assert!(!is_on_processor("nvme Composite"));
        assert!(!is_on_processor("amdgpu edge"));
    }
}
